//! What deletions leave behind, and how it goes.

use std::time::{Duration, Instant};

use tenure_store::{Change, DeleteIf, WatchEnd, open};

use super::imitation::{Fault, Imitation};
use super::{bounded, create};

fn marks(service: &Imitation) -> usize {
    service
        .objects()
        .iter()
        .filter(|name| name.starts_with("x/k"))
        .count()
}

async fn until_gone(service: &Imitation, list: impl AsyncFn()) {
    let begun = Instant::now();
    while marks(service) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(10));
        list().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_deletion_leaves_a_mark_that_is_removed_when_it_is_old() {
    for fault in [Fault::None, Fault::IgnoresConditionsOfRemovals] {
        let service = Imitation::start(fault).await;
        let store = open(&service.url("x")).await.unwrap();
        for n in 0..10 {
            let key = format!("k/{n}");
            let version = create(&*store, &key).await;
            store.delete_if(DeleteIf::new(key, version)).await.unwrap();
        }
        let revision = store.list("").await.unwrap().revision;
        assert!(store.list("").await.unwrap().entries.is_empty());
        assert!(store.keys("k/", None, 10).await.unwrap().keys.is_empty());
        assert_eq!(marks(&service), 10, "they are not old yet");
        service.become_faulty(Fault::DeletionsAreDaysOld);
        until_gone(&service, async || drop(store.list("").await.unwrap())).await;
        // That a mark is gone is no news to anybody.
        assert_eq!(store.list("").await.unwrap().revision, revision);
        create(&*store, "k/0").await;
    }
}

#[tokio::test]
async fn those_who_only_ask_for_keys_remove_old_marks_too_where_nothing_else_can_go_with_them() {
    for (fault, goes) in [
        (Fault::None, true),
        (Fault::IgnoresConditionsOfRemovals, false),
    ] {
        let service = Imitation::start(fault).await;
        let store = open(&service.url("x")).await.unwrap();
        let version = create(&*store, "k/1").await;
        create(&*store, "other").await;
        store
            .delete_if(DeleteIf::new("k/1", version))
            .await
            .unwrap();
        service.become_faulty(Fault::DeletionsAreDaysOld);
        let keys = async || drop(store.keys("k/", None, 10).await.unwrap());
        match goes {
            true => until_gone(&service, keys).await,
            false => {
                keys().await;
                // Of what is started in the background, this would be the last.
                create(&*store, "later").await;
                assert_eq!(marks(&service), 1, "a task made anew could go with it");
            }
        }
    }
}

#[tokio::test]
async fn a_watch_that_waits_while_its_past_is_forgotten_says_so() {
    let service = Imitation::start(Fault::None).await;
    let store = open(&service.url("x")).await.unwrap();
    create(&*store, "a/b/k").await;
    let from = store.list("a/").await.unwrap().revision;
    for n in 0..15 {
        store.list(&format!("p{n}/")).await.unwrap();
    }
    store.discard(vec!["a/b/k".to_owned()]).await;
    // The list comes first, and is one too many: what was known of `a/` goes.
    let (listed, watch) = tokio::join!(store.list("p15/"), store.watch("a/b/", from));
    listed.unwrap();
    let next = bounded(watch.unwrap().next()).await;
    let deleted = Change::Deleted {
        key: "a/b/k".to_owned(),
    };
    match next {
        Ok(batch) => assert_eq!(batch.changes, [deleted]),
        Err(end) => assert_eq!(end, WatchEnd::Gap),
    }
}

#[tokio::test]
async fn a_key_that_was_deleted_and_removed_between_two_looks_is_told_as_deleted() {
    let service = Imitation::start(Fault::None).await;
    let store = open(&service.url("x")).await.unwrap();
    let version = create(&*store, "k").await;
    let from = store.list("").await.unwrap().revision;
    let mut watch = store.watch("", from).await.unwrap();
    store.delete_if(DeleteIf::new("k", version)).await.unwrap();
    store.discard(vec!["k".to_owned()]).await;
    let batch = bounded(watch.next()).await.unwrap();
    assert_eq!(
        batch.changes,
        [Change::Deleted {
            key: "k".to_owned()
        }]
    );
}

#[tokio::test]
async fn what_somebody_else_wrote_over_a_record_is_seen_as_it_is() {
    let service = Imitation::start(Fault::None).await;
    let store = open(&service.url("x")).await.unwrap();
    create(&*store, "k").await;
    service.put("x/k!.json", b"rubbish");
    let entry = store.get("k").await.unwrap().unwrap();
    assert_eq!(&*entry.value, b"rubbish");
    let listed = store.list("").await.unwrap().entries;
    assert_eq!(listed, std::slice::from_ref(&entry));
    let put = tenure_store::PutIf::update("k", *b"{}", entry.version);
    assert!(matches!(
        store.put_if(put).await,
        Ok(tenure_store::Put::Won(_))
    ));
    let body = service.body("x/k!.json");
    let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(json["value"], serde_json::json!({}));
}
