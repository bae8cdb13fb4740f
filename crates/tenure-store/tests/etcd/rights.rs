//! Users and roles, set up by the commands that the documentation gives.

use std::time::Duration;

use tenure_store::servers::etcd::{Etcd, EtcdRelease};
use tenure_store::{LeaseId, LeaseState, Put, PutIf, Revision, open};

use super::{bounded, create, denial};

/// The commands of docs/stores/etcd.md, and two users who may do less.
fn guarded(release: EtcdRelease) -> Etcd {
    let etcd = Etcd::start(release);
    for command in [
        "user add root:rootpw",
        "user grant-role root root",
        "role add tenure",
        "role grant-permission tenure --prefix=true readwrite shop/",
        "user add tenure:secret-1",
        "user grant-role tenure tenure",
        "role add looker",
        "role grant-permission looker --prefix=true read shop/",
        "user add looker:secret-2",
        "user grant-role looker looker",
        "user add nobody:secret-3",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        // The role exists from the start in some releases.
        if command == "user grant-role root root" {
            etcd.ask(0, &["role", "add", "root"]);
        }
        etcd.ctl(&words);
    }
    etcd.ctl(&["auth", "enable"]);
    etcd
}

fn url(etcd: &Etcd, login: &str) -> String {
    format!("etcd://{login}@{}/shop", etcd.endpoint(0))
}

async fn the_documented_role_is_enough(release: EtcdRelease) {
    let etcd = guarded(release);
    let store = open(&url(&etcd, "tenure:secret-1")).await.unwrap();
    let leases = store.leases().unwrap();
    let id = LeaseId(0x7e4);
    let ttl = leases.grant(id, Duration::from_secs(5)).await.unwrap();
    let from = store.revision().await.unwrap();
    let mut watch = store.watch("", from).await.unwrap();
    let put = PutIf::create("session", *b"v").under(Some(id));
    assert!(matches!(store.put_if(put).await, Ok(Put::Won(_))));
    assert!(bounded(watch.next()).await.is_ok());
    create(&*store, "k").await;
    assert_eq!(store.list("").await.unwrap().entries.len(), 2);
    let both = store.get_many(vec!["k".into(), "session".into()]).await;
    assert!(both.iter().all(|e| matches!(e, Ok(Some(_)))));
    assert_eq!(
        leases.keep_alive(id, "session").await,
        Ok(LeaseState::Alive(ttl))
    );
    assert_eq!(leases.is_alive(id).await, Ok(true));
    // Somebody else's lease with somebody else's key is none of our business, and does not get in the way.
    let root = "--user=root:rootpw";
    let granted = etcd.ctl(&[root, "lease", "grant", "60"]);
    let theirs = granted.split(' ').nth(1).expect("lease ID granted …");
    etcd.ctl(&[root, "put", &format!("--lease={theirs}"), "theirs", "v"]);
    etcd.ctl(&[root, "lease", "revoke", &id.to_string()]);
    assert_eq!(leases.is_alive(id).await, Ok(false));
    assert_eq!(leases.keep_alive(id, "session").await, Ok(LeaseState::Gone));
    let dedicated = store.dedicated().unwrap();
    create(&*dedicated, "dedicated").await;
}

#[tokio::test]
async fn the_documented_role_is_enough_on_3_4() {
    the_documented_role_is_enough(EtcdRelease::V3_4).await;
}

#[tokio::test]
async fn the_documented_role_is_enough_on_3_5() {
    the_documented_role_is_enough(EtcdRelease::V3_5).await;
}

#[tokio::test]
async fn who_may_not_is_told_which_right_is_missing() {
    let etcd = guarded(EtcdRelease::V3_4);
    let reason = denial(open(&url(&etcd, "tenure:wrong")).await);
    assert!(
        reason.contains("rejects this user and password"),
        "{reason}"
    );
    assert!(!reason.contains("wrong"), "{reason}");

    let anybody = open(&etcd.url("shop")).await.unwrap();
    let reason = denial(anybody.list("").await);
    assert!(reason.contains("ETCDCTL_USER"), "{reason}");

    let looker = open(&url(&etcd, "looker:secret-2")).await.unwrap();
    assert!(looker.list("").await.unwrap().entries.is_empty());
    let reason = denial(looker.put_if(PutIf::create("k", *b"v")).await);
    assert!(reason.contains("readwrite of \"shop/k\""), "{reason}");
    assert!(reason.contains("role grant-permission"), "{reason}");
    let many = looker.put_many(vec![PutIf::create("k", *b"v"), PutIf::create("l", *b"v")]);
    for (answer, key) in many.await.into_iter().zip(["k", "l"]) {
        let reason = denial(answer);
        assert!(reason.contains(&format!("\"shop/{key}\"")), "{reason}");
    }

    let nobody = open(&url(&etcd, "nobody:secret-3")).await.unwrap();
    let reason = denial(nobody.get("k").await);
    assert!(reason.contains("read of \"shop/k\""), "{reason}");
    denial(nobody.watch("", Revision(0)).await);

    // One who may, elsewhere.
    let elsewhere = format!("etcd://tenure:secret-1@{}/other", etcd.endpoint(0));
    let elsewhere = open(&elsewhere).await.unwrap();
    denial(elsewhere.list("").await);
    for store in [&looker, &nobody, &elsewhere] {
        let told = format!("{store:?} {:?}", store.info());
        assert!(!told.contains("secret"), "{told}");
    }
}

#[tokio::test]
async fn a_token_that_the_server_forgot_is_asked_for_anew_without_a_word() {
    let mut etcd = guarded(EtcdRelease::V3_4);
    let store = open(&url(&etcd, "tenure:secret-1")).await.unwrap();
    create(&*store, "before").await;
    // Tokens of the simple kind are in the server's memory alone.
    etcd.restart(0);
    let mut failures = 0;
    while let Err(e) = bounded(store.get("before")).await {
        // The connection went with the server; the token is another matter.
        assert!(!e.to_string().contains("token"), "{e}");
        failures += 1;
        assert!(failures < 50, "{e}");
    }
    create(&*store, "after").await;
    let from = store.revision().await.unwrap();
    store.watch("", from).await.unwrap();
}

#[tokio::test]
async fn a_user_is_no_trouble_to_a_server_that_asks_for_none() {
    let etcd = Etcd::start(EtcdRelease::V3_4);
    let store = open(&url(&etcd, "tenure:secret-1")).await.unwrap();
    create(&*store, "k").await;
}
