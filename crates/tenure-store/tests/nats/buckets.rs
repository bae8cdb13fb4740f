//! Buckets: made, found, and refused.

use std::time::Duration;

use serde_json::json;
use tenure_store::servers::nats::{Nats, NatsOptions, NatsRelease};
use tenure_store::store_check::Level;
use tenure_store::{PutIf, describe, open, open_existing};

use super::{bounded, create, denial};

#[tokio::test]
async fn a_bucket_is_made_with_settings_that_keep_what_is_written() {
    let nats = Nats::start();
    let url = nats.url("shop");
    let reason = denial(open_existing(&url).await);
    assert!(reason.contains("no bucket \"shop\""), "{reason}");
    open(&url).await.unwrap();
    open_existing(&url).await.unwrap();
    let info = nats.ask("$JS.API.STREAM.INFO.KV_shop", &json!({}));
    let config = &info["config"];
    for (name, value) in [
        ("storage", json!("file")),
        ("num_replicas", json!(1)),
        ("max_msgs_per_subject", json!(1)),
        ("allow_direct", json!(false)),
        ("max_age", json!(0)),
        ("discard", json!("new")),
    ] {
        assert_eq!(config[name], value, "{name}");
    }
}

#[tokio::test]
async fn the_default_ttl_outlasts_an_election_where_there_can_be_one() {
    let (single, replicated) = (Duration::from_millis(2500), Duration::from_secs(15));
    let nats = Nats::start();
    let store = open(&nats.url("shop")).await.unwrap();
    assert_eq!(store.info().default_ttl, single);
    let nats = NatsOptions::new().members(3).start();
    let url = nats.url("shop");
    let store = open(&url).await.unwrap();
    assert_eq!(store.info().default_ttl, replicated);
    // The bucket counts, not how many of its servers the URL names.
    let one = format!("nats://{}/shop", nats.endpoint(0));
    assert_eq!(describe(&one).unwrap().default_ttl, single);
    let store = open_existing(&one).await.unwrap();
    assert_eq!(store.info().default_ttl, replicated);
    let alone = nats.url("alone");
    assert_eq!(describe(&alone).unwrap().default_ttl, replicated);
    open(&format!("nats://{}/alone", nats.endpoint(0)))
        .await
        .unwrap();
    let store = open(&alone).await.unwrap();
    assert_eq!(store.info().default_ttl, single);
}

fn made_by_somebody(nats: &Nats, bucket: &str, more: serde_json::Value) {
    let mut config = json!({
        "name": format!("KV_{bucket}"), "subjects": [format!("$KV.{bucket}.>")], "retention": "limits", "storage": "file",
        "discard": "new", "num_replicas": 1, "max_msgs_per_subject": 5, "max_age": 0, "max_bytes": -1,
        "allow_direct": true, "deny_delete": true,
    });
    for (name, value) in more.as_object().unwrap() {
        config[name] = value.clone();
    }
    let subject = format!("$JS.API.STREAM.CREATE.KV_{bucket}");
    let said = nats.ask(&subject, &config);
    assert!(said["error"].is_null(), "{said}");
}

#[tokio::test]
async fn a_bucket_that_somebody_made_is_used_if_it_keeps_what_is_written() {
    let nats = Nats::start();
    made_by_somebody(&nats, "theirs", json!({}));
    let store = open(&nats.url("theirs")).await.unwrap();
    create(&*store, "k").await;
    assert_eq!(store.list("").await.unwrap().entries.len(), 1);
    let found = store.examine().await.unwrap();
    let reads = found.iter().find(|f| f.about == "reads").unwrap();
    assert!(
        reads.found.contains("direct gets are enabled but not used"),
        "{reads:?}"
    );

    made_by_somebody(&nats, "forgets", json!({ "max_age": 60_000_000_000_u64 }));
    let reason = denial(open(&nats.url("forgets")).await);
    assert!(
        reason.contains("\"forgets\"") && reason.contains("--max-age=0"),
        "{reason}"
    );
    let full = json!({ "discard": "old", "max_bytes": 1 << 20 });
    made_by_somebody(&nats, "drops", full);
    let reason = denial(open(&nats.url("drops")).await);
    assert!(reason.contains("discard policy"), "{reason}");
}

#[tokio::test]
async fn a_server_without_jetstream_is_told_as_such() {
    let nats = NatsOptions::new().without_jetstream().start();
    let reason = denial(bounded(open(&nats.url("shop"))).await);
    assert!(
        reason.contains("no JetStream") && reason.contains("-js"),
        "{reason}"
    );
}

#[tokio::test]
async fn a_server_that_is_too_old_is_told_as_such() {
    let nats = NatsOptions::new().release(NatsRelease::V2_9).start();
    let reason = denial(bounded(open(&nats.url("shop"))).await);
    assert!(
        reason.contains("version 2.9") && reason.contains("use 2.10"),
        "{reason}"
    );
}

#[tokio::test]
async fn more_copies_than_servers_are_refused_with_the_way_out() {
    let nats = Nats::start();
    let reason = denial(open(&format!("{}?replicas=3", nats.url("shop"))).await);
    assert!(
        reason.contains("3 copies") && reason.contains("replicas="),
        "{reason}"
    );
}

#[tokio::test]
async fn a_server_is_examined_down_to_its_fsync_interval() {
    for (storage, level, wanted) in [
        ("", Level::Warn, "every 120s"),
        ("sync_interval: 10s", Level::Warn, "every 10s"),
        (
            "sync_interval: always",
            Level::Ok,
            "before a write is confirmed",
        ),
    ] {
        let nats = NatsOptions::new().storage(storage).start();
        let url = format!("{}?monitor=127.0.0.1:{}", nats.url("shop"), nats.monitor(0));
        let store = open(&url).await.unwrap();
        let found = store.examine().await.unwrap();
        let fsync = found.iter().find(|f| f.about == "fsync").unwrap();
        assert_eq!((fsync.level, &*fsync.found), (level, wanted));
        assert!(
            found.iter().any(|f| f.found.starts_with("NATS 2.")),
            "{found:?}"
        );
        store.put_if(PutIf::create("k", *b"v")).await.unwrap();
    }
    let nats = Nats::start();
    let store = open(&nats.url("shop")).await.unwrap();
    let found = store.examine().await.unwrap();
    let fsync = found.iter().find(|f| f.about == "fsync").unwrap();
    assert!(
        fsync.advice.as_ref().unwrap().contains("monitor="),
        "{fsync:?}"
    );
}
