//! Revisions: histories that are not this bucket's, and deletions that were forgotten.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tenure_store::servers::nats::Nats;
use tenure_store::{Change, DeleteIf, Put, PutIf, Revision, Store, WatchEnd, open};

use super::{bounded, create};

async fn started() -> (Nats, Arc<dyn Store>) {
    let nats = Nats::start();
    let store = open(&nats.url("shop")).await.unwrap();
    (nats, store)
}

#[tokio::test]
async fn a_watch_from_a_revision_that_was_never_reached_ends_with_a_gap() {
    let (_nats, store) = started().await;
    let now = store.revision().await.unwrap();
    let mut watch = store.watch("", Revision(now.0 + 1000)).await.unwrap();
    assert_eq!(bounded(watch.next()).await, Err(WatchEnd::Gap));
}

#[tokio::test]
async fn a_bucket_that_was_made_anew_has_another_identity_and_another_history() {
    let (nats, store) = started().await;
    for n in 0..5 {
        create(&*store, &format!("k/{n}")).await;
    }
    let (identity, known) = (
        store.identity().await.unwrap(),
        store.revision().await.unwrap(),
    );
    nats.ask("$JS.API.STREAM.DELETE.KV_shop", &json!({}));
    let e = bounded(store.list("")).await.unwrap_err();
    assert!(e.to_string().contains("no longer exists"), "{e}");
    let put = bounded(store.put_if(PutIf::create("l", *b"v"))).await;
    assert!(put.unwrap_err().wrote_nothing());
    // Whoever opens it next makes it.
    open(&nats.url("shop")).await.unwrap();
    assert_ne!(store.identity().await.unwrap(), identity);
    let mut watch = store.watch("", known).await.unwrap();
    assert_eq!(bounded(watch.next()).await, Err(WatchEnd::Gap));
}

#[tokio::test]
async fn a_watch_ends_when_its_bucket_is_removed() {
    let (nats, store) = started().await;
    let from = store.revision().await.unwrap();
    let mut watch = store.watch("", from).await.unwrap();
    nats.ask("$JS.API.STREAM.DELETE.KV_shop", &json!({}));
    let end = bounded(watch.next()).await;
    assert!(matches!(end, Err(WatchEnd::Closed { .. })), "{end:?}");
}

#[tokio::test]
async fn a_list_ends_although_the_last_message_of_the_bucket_is_gone() {
    let (nats, store) = started().await;
    create(&*store, "first").await;
    create(&*store, "last").await;
    nats.ask(
        "$JS.API.STREAM.PURGE.KV_shop",
        &json!({ "filter": "$KV.shop.last" }),
    );
    let listing = bounded(store.list("")).await.unwrap();
    let keys: Vec<&str> = listing.entries.iter().map(|e| &*e.key).collect();
    assert_eq!(keys, ["first"]);
    assert_eq!(listing.revision, Revision(2));
}

#[tokio::test]
async fn keys_that_somebody_else_wrote_are_not_ours() {
    let (nats, store) = started().await;
    nats.ask("$KV.shop.x/4a", &json!("theirs"));
    nats.ask("$KV.shop.ours", &json!("ours"));
    let listed = store.list("").await.unwrap().entries;
    let keys: Vec<&str> = listed.iter().map(|e| &*e.key).collect();
    assert_eq!(keys, ["ours"]);
}

#[tokio::test]
async fn a_list_in_the_middle_of_overwriting_misses_no_key() {
    const KEYS: usize = 200;
    let (nats, store) = started().await;
    let puts = (0..KEYS).map(|n| PutIf::create(format!("k/{n:03}"), *b"v"));
    let mut versions = Vec::new();
    for answer in store.put_many(puts.collect()).await {
        let Ok(Put::Won(version)) = answer else {
            panic!("{answer:?}");
        };
        versions.push(version);
    }
    let writer = open(&nats.url("shop")).await.unwrap();
    let writing = tokio::spawn(async move {
        for round in 0..30 {
            // Keys that come meanwhile must not be taken for those that were there.
            create(&*writer, &format!("new/{round}")).await;
            let puts = versions.iter().enumerate();
            let puts = puts.map(|(n, v)| PutIf::update(format!("k/{n:03}"), *b"w", v.clone()));
            let answers = writer.put_many(puts.collect()).await;
            versions = answers
                .into_iter()
                .map(|answer| match answer {
                    Ok(Put::Won(version)) => version,
                    other => panic!("{other:?}"),
                })
                .collect();
        }
    });
    let mut lists = 0;
    while !writing.is_finished() {
        let listing = bounded(store.list("k/")).await.unwrap();
        assert_eq!(listing.entries.len(), KEYS);
        lists += 1;
    }
    writing.await.unwrap();
    assert!(lists > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_are_forgotten_when_there_are_many_and_old_watches_are_told() {
    const MANY: usize = 20_000;
    let (nats, store) = started().await;
    let begun = store.revision().await.unwrap();
    create(&*store, "kept/1").await;
    let puts = (0..MANY).map(|n| PutIf::create(format!("gone/{n}"), *b""));
    let answers = store.put_many(puts.collect()).await;
    let written = store.revision().await.unwrap();
    let deletes = answers
        .into_iter()
        .enumerate()
        .map(|(n, answer)| match answer {
            Ok(Put::Won(version)) => DeleteIf::new(format!("gone/{n}"), version),
            other => panic!("{other:?}"),
        });
    let answers = store.delete_many(deletes.collect()).await;
    assert!(answers.iter().all(Result::is_ok));
    let deleted = store.revision().await.unwrap();
    assert_eq!(store.list("kept/").await.unwrap().entries.len(), 1);
    // It happens in the background.
    let waiting = Instant::now();
    while nats.state("shop")["num_subjects"].as_u64() > Some(MANY as u64 / 2 + 2) {
        assert!(waiting.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for old in [begun, written] {
        for prefix in ["", "kept/"] {
            let mut behind = store.watch(prefix, old).await.unwrap();
            let end = loop {
                if let Err(end) = bounded(behind.next()).await {
                    break end;
                }
            };
            assert_eq!(end, WatchEnd::Gap, "{prefix:?} from {old:?}");
        }
    }
    let mut current = store.watch("", deleted).await.unwrap();
    // A key whose mark is gone is created like any other.
    create(&*store, "gone/0").await;
    create(&*store, &format!("gone/{}", MANY - 1)).await;
    let batch = bounded(current.next()).await.unwrap();
    assert!(matches!(&batch.changes[0], Change::Put(e) if e.key == "gone/0"));
    assert_eq!(store.list("").await.unwrap().entries.len(), 3);
}
