//! Revisions: compaction, and histories that are not this cluster's.

use std::sync::Arc;

use tenure_store::servers::etcd::{Etcd, EtcdRelease};
use tenure_store::{PutIf, Revision, Store, WatchEnd, open};

use super::{bounded, create};

async fn started() -> (Etcd, Arc<dyn Store>) {
    let etcd = Etcd::start(EtcdRelease::V3_4);
    let store = open(&etcd.url("shop")).await.unwrap();
    (etcd, store)
}

#[tokio::test]
async fn a_watch_from_before_a_compaction_ends_with_a_gap_and_a_list_goes_on_from_there() {
    let (etcd, store) = started().await;
    let old = store.revision().await.unwrap();
    for n in 0..10 {
        create(&*store, &format!("k/{n}")).await;
    }
    let now = store.revision().await.unwrap();
    etcd.ctl(&["compact", &now.0.to_string()]);
    let mut behind = store.watch("", old).await.unwrap();
    assert_eq!(bounded(behind.next()).await, Err(WatchEnd::Gap));

    let listing = store.list("").await.unwrap();
    assert_eq!(listing.entries.len(), 10);
    let mut current = store.watch("", listing.revision).await.unwrap();
    create(&*store, "k/new").await;
    let batch = bounded(current.next()).await.unwrap();
    assert_eq!(batch.changes[0].key(), "k/new");
}

#[tokio::test]
async fn a_watch_that_runs_is_not_disturbed_by_a_compaction() {
    let (etcd, store) = started().await;
    let from = store.revision().await.unwrap();
    let mut watch = store.watch("", from).await.unwrap();
    create(&*store, "a").await;
    assert!(bounded(watch.next()).await.is_ok());
    let now = create(&*store, "b").await;
    assert!(bounded(watch.next()).await.is_ok());
    let tenure_store::Version::Number(now) = now else {
        panic!("etcd counts");
    };
    etcd.ctl(&["compact", &now.to_string()]);
    create(&*store, "c").await;
    let batch = bounded(watch.next()).await.unwrap();
    assert_eq!(batch.changes[0].key(), "c");
}

#[tokio::test]
async fn a_watch_from_a_revision_that_was_never_reached_ends_with_a_gap() {
    let (_etcd, store) = started().await;
    let now = store.revision().await.unwrap();
    let mut watch = store.watch("", Revision(now.0 + 1000)).await.unwrap();
    assert_eq!(bounded(watch.next()).await, Err(WatchEnd::Gap));
}

#[tokio::test]
async fn a_list_of_many_pages_is_of_one_instant() {
    let (etcd, store) = started().await;
    let put = |n: usize| PutIf::create(format!("k/{n:05}"), *b"v");
    let answers = store.put_many((0..2500).map(put).collect()).await;
    assert!(answers.iter().all(Result::is_ok));
    // Somebody writes at both ends at once: an instant shows both or neither.
    let (writer, prefix) = (open(&etcd.url("shop")).await.unwrap(), "k/");
    let writing = tokio::spawn(async move {
        for n in 0..40 {
            create(&*writer, &format!("k/{n:05}x")).await;
            create(&*writer, &format!("k/{:05}x", 2400 + n)).await;
        }
    });
    while !writing.is_finished() {
        let keys = store.list(prefix).await.unwrap().entries;
        let early = keys
            .iter()
            .filter(|e| e.key.ends_with('x') && *e.key < *"k/01000");
        let late = keys
            .iter()
            .filter(|e| e.key.ends_with('x') && *e.key > *"k/01000");
        let (early, late) = (early.count(), late.count());
        assert!(early == late || early == late + 1, "{early} and {late}");
    }
    writing.await.unwrap();
    assert_eq!(store.list(prefix).await.unwrap().entries.len(), 2580);
}

#[tokio::test]
async fn keys_outside_the_prefix_are_neither_seen_nor_touched() {
    let (etcd, store) = started().await;
    etcd.ctl(&["put", "shopping/k", "theirs"]);
    etcd.ctl(&["put", "shop", "theirs"]);
    etcd.ctl(&["put", "shop/ours", "ours"]);
    let listed = store.list("").await.unwrap().entries;
    let keys: Vec<&str> = listed.iter().map(|e| &*e.key).collect();
    assert_eq!(keys, ["ours"]);
    assert_eq!(etcd.ctl(&["get", "--print-value-only", "shop"]), "theirs\n");
}

#[tokio::test]
async fn a_restored_cluster_has_another_identity_and_another_history() {
    let (mut etcd, store) = started().await;
    create(&*store, "before").await;
    let identity = store.identity().await.unwrap();
    let backup = etcd.backup();
    for n in 0..5 {
        create(&*store, &format!("after/{n}")).await;
    }
    let known = store.revision().await.unwrap();
    etcd.restore(&backup);
    let listing = loop {
        if let Ok(listing) = bounded(store.list("")).await {
            break listing;
        }
    };
    let keys: Vec<&str> = listing.entries.iter().map(|e| &*e.key).collect();
    assert_eq!(keys, ["before"]);
    assert!(listing.revision < known);
    assert_ne!(store.identity().await.unwrap(), identity);
    let mut watch = store.watch("", known).await.unwrap();
    assert_eq!(bounded(watch.next()).await, Err(WatchEnd::Gap));
}
