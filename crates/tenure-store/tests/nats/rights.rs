//! Users and permissions, set up as the documentation has it.

use tenure_store::servers::nats::{Nats, NatsOptions};
use tenure_store::{PutIf, StoreError, open, open_existing};

use super::{bounded, create, denial};

/// The permissions of docs/stores/nats.md, and users who may do less.
const USERS: &str = r#"
authorization {
  users: [
    { user: operator, password: op }
    { user: tenure, password: secret-1, permissions: {
        publish: ["$JS.API.INFO", "$JS.API.STREAM.CREATE.KV_shop", "$JS.API.STREAM.INFO.KV_shop",
                  "$JS.API.STREAM.MSG.GET.KV_shop", "$JS.API.STREAM.PURGE.KV_shop",
                  "$JS.API.CONSUMER.CREATE.KV_shop.>", "$JS.API.CONSUMER.DELETE.KV_shop.>",
                  "$JS.FC.KV_shop.>", "$KV.shop.>"]
        subscribe: ["_INBOX.>"] } }
    { user: looker, password: secret-2, permissions: {
        publish: ["$JS.API.INFO", "$JS.API.STREAM.INFO.KV_shop", "$JS.API.STREAM.MSG.GET.KV_shop",
                  "$JS.API.CONSUMER.CREATE.KV_shop.>", "$JS.API.CONSUMER.DELETE.KV_shop.>", "$JS.FC.KV_shop.>"]
        subscribe: ["_INBOX.>"] } }
    { user: nobody, password: secret-3, permissions: { publish: ["elsewhere"], subscribe: ["_INBOX.>"] } }
    { user: deaf, password: secret-4, permissions: { publish: [">"], subscribe: ["nothing"] } }
  ]
}
"#;

fn guarded() -> Nats {
    NatsOptions::new()
        .more(USERS)
        .operator("operator", "op")
        .start()
}

fn url(nats: &Nats, login: &str) -> String {
    format!("nats://{login}@{}/shop", nats.endpoint(0))
}

#[tokio::test]
async fn the_documented_permissions_are_enough() {
    let nats = guarded();
    let store = open(&url(&nats, "tenure:secret-1")).await.unwrap();
    let version = create(&*store, "k").await;
    let from = store.revision().await.unwrap();
    let mut watch = store.watch("", from).await.unwrap();
    let delete = tenure_store::DeleteIf::new("k", version);
    store.delete_if(delete).await.unwrap();
    bounded(watch.next()).await.unwrap();
    create(&*store, "k").await;
    assert_eq!(store.list("").await.unwrap().entries.len(), 1);
    store.examine().await.unwrap();
}

#[tokio::test]
async fn who_may_not_is_told_what_and_how_to_change_it() {
    let nats = guarded();
    let ours = open(&url(&nats, "tenure:secret-1")).await.unwrap();
    create(&*ours, "before").await;
    for login in ["tenure:wrong", "stranger:wrong"] {
        let reason = denial(bounded(open(&url(&nats, login))).await);
        assert!(reason.contains("rejects this user"), "{reason}");
        assert!(!reason.contains("wrong"), "{reason}");
    }
    let reason = denial(bounded(open(&nats.url("shop"))).await);
    assert!(reason.contains("NATS_USER"), "{reason}");

    let looker = open_existing(&url(&nats, "looker:secret-2")).await.unwrap();
    assert_eq!(looker.list("").await.unwrap().entries.len(), 1);
    let reason = denial(bounded(looker.put_if(PutIf::create("k", *b"v"))).await);
    assert!(reason.contains("publishing to \"$KV.shop.k\""), "{reason}");
    assert!(reason.contains("docs/stores/nats.md"), "{reason}");
    let many = looker.put_many(vec![PutIf::create("k", *b"v"), PutIf::create("l", *b"v")]);
    for (answer, key) in bounded(many).await.into_iter().zip(["k", "l"]) {
        let reason = denial(answer);
        assert!(reason.contains(&format!("$KV.shop.{key}")), "{reason}");
    }
    assert_eq!(ours.get("k").await, Ok(None));

    let reason = denial(bounded(open_existing(&url(&nats, "nobody:secret-3"))).await);
    assert!(reason.contains("$JS.API.STREAM.INFO.KV_shop"), "{reason}");
    let reason = denial(bounded(open_existing(&url(&nats, "deaf:secret-4"))).await);
    assert!(reason.contains("_INBOX.>"), "{reason}");
    let told = format!("{looker:?} {:?}", looker.info());
    assert!(!told.contains("secret"), "{told}");
}

#[tokio::test]
async fn an_account_without_jetstream_is_told_as_such() {
    let accounts = "accounts { with { jetstream: enabled, users: [{ user: a, password: a }] }\n \
                    without { users: [{ user: b, password: b }] } }";
    let nats = NatsOptions::new().more(accounts).operator("a", "a").start();
    open(&url(&nats, "a:a")).await.unwrap();
    let reason = denial(bounded(open(&url(&nats, "b:b"))).await);
    assert!(reason.contains("enable JetStream"), "{reason}");
    let small =
        "accounts { small { jetstream: { max_file: 1MB }, users: [{ user: a, password: a }] } }";
    let nats = NatsOptions::new().more(small).operator("a", "a").start();
    let store = open(&url(&nats, "a:a")).await.unwrap();
    let full = loop {
        let key = format!("k/{}", store.revision().await.unwrap().0);
        match store.put_if(PutIf::create(key, vec![0; 64 << 10])).await {
            Ok(_) => {}
            Err(e) => break e,
        }
    };
    assert!(matches!(full, StoreError::Unavailable { .. }), "{full:?}");
    assert!(full.to_string().contains("limits of the account"), "{full}");
}
