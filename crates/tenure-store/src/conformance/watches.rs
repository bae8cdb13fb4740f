//! Watches: late perhaps, but nothing lost.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{StoreUnderTest, create, follow, update};
use crate::store::{DeleteIf, Put, PutIf};
use crate::watch::Change;

/// A write through one connection wakes a watch on another.
pub async fn a_watch_sees_what_was_written_by_another_connection(subject: &dyn StoreUnderTest) {
    let (writer, reader) = (subject.open().await, subject.open().await);
    let from = reader.revision().await.unwrap();
    let mut watch = reader.watch("watch/", from).await.unwrap();
    for n in 0..20u8 {
        let key = format!("watch/{n}");
        let version = create(&*writer, &key, &[n]).await;
        let is_it =
            |c: &Change| matches!(c, Change::Put(e) if e.key == key && e.version == version);
        follow(&mut watch, |seen| seen.iter().any(is_it)).await;
    }
}

/// A watch from an old revision begins with what happened since, and its `upto` is a place to go on from.
pub async fn a_watch_replays_from_an_old_revision(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let start = store.revision().await.unwrap();
    let first = create(&*store, "watch/a", b"1").await;
    let middle = store.revision().await.unwrap();
    create(&*store, "watch/b", b"1").await;
    update(&*store, "watch/a", b"2", &first).await;

    let mut whole = store.watch("watch/", start).await.unwrap();
    let (_, upto) = follow(&mut whole, |seen| {
        shows(seen, "watch/a", b"2") && shows(seen, "watch/b", b"1")
    })
    .await;
    let mut part = store.watch("watch/", middle).await.unwrap();
    follow(&mut part, |seen| {
        shows(seen, "watch/a", b"2") && shows(seen, "watch/b", b"1")
    })
    .await;

    let mut resumed = store.watch("watch/", upto).await.unwrap();
    create(&*store, "watch/c", b"1").await;
    let (seen, _) = follow(&mut resumed, |seen| shows(seen, "watch/c", b"1")).await;
    assert!(!shows(&seen, "watch/b", b"1"), "{seen:?}");
}

/// A deletion is a change like any other, also in a replay.
pub async fn a_watch_shows_deletions(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let version = create(&*store, "watch/k", b"v").await;
    let from = store.revision().await.unwrap();
    let mut live = store.watch("watch/", from).await.unwrap();
    store
        .delete_if(DeleteIf::new("watch/k", version))
        .await
        .unwrap();
    let gone = |seen: &[Change]| {
        let is_it = |c: &Change| matches!(c, Change::Deleted { key } if key == "watch/k");
        seen.iter().any(is_it)
    };
    follow(&mut live, gone).await;
    let mut replay = store.watch("watch/", from).await.unwrap();
    follow(&mut replay, gone).await;
}

/// A watch shows keys that start with its prefix and no other.
pub async fn a_watch_sees_its_prefix_alone(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let from = store.revision().await.unwrap();
    let mut watch = store.watch("watch/a/", from).await.unwrap();
    for key in [
        "watch/a",
        "watch/a/",
        "watch/ab",
        "watch/A/x",
        "watch/b/x",
        "watch/a/end",
    ] {
        create(&*store, key, b"v").await;
    }
    let (seen, _) = follow(&mut watch, |seen| shows(seen, "watch/a/end", b"v")).await;
    let mut keys: Vec<&str> = seen.iter().map(Change::key).collect();
    keys.dedup();
    assert_eq!(keys, ["watch/a/", "watch/a/end"]);
}

/// A list and a watch from its revision, made in the middle of other people's writes, together know everything.
pub async fn nothing_is_lost_between_a_list_and_a_watch(subject: &dyn StoreUnderTest) {
    const KEYS: u32 = 300;
    let (writer, reader) = (subject.open().await, subject.open().await);
    let writing = tokio::spawn(async move {
        for n in 0..KEYS {
            create(&*writer, &format!("watch/{n}"), b"v").await;
        }
    });
    let mut starts = 0;
    loop {
        let listing = reader.list("watch/").await.unwrap();
        let mut watch = reader.watch("watch/", listing.revision).await.unwrap();
        starts += 1;
        let mut known: BTreeMap<String, ()> = BTreeMap::new();
        known.extend(listing.entries.into_iter().map(|e| (e.key, ())));
        let done = writing.is_finished();
        // The last key is written last: when it is known, all are.
        let last = format!("watch/{}", KEYS - 1);
        if !known.contains_key(&last) {
            let enough = |seen: &[Change]| seen.iter().any(|c| c.key() == last);
            let (seen, _) = follow(&mut watch, enough).await;
            known.extend(seen.iter().map(|c| (c.key().to_owned(), ())));
        }
        assert_eq!(known.len(), KEYS as usize, "start {starts}");
        if done {
            break;
        }
    }
    writing.await.unwrap();
}

/// Waiting with a timeout, again and again, shows the same as waiting.
pub async fn a_cancelled_wait_loses_no_change(subject: &dyn StoreUnderTest) {
    const KEYS: usize = 100;
    let (writer, reader) = (subject.open().await, subject.open().await);
    let from = reader.revision().await.unwrap();
    let mut watch = reader.watch("watch/", from).await.unwrap();
    let writing = tokio::spawn(async move {
        for n in 0..KEYS {
            create(&*writer, &format!("watch/{n}"), b"v").await;
        }
    });
    let mut seen: BTreeMap<String, ()> = BTreeMap::new();
    let begun = std::time::Instant::now();
    while seen.len() < KEYS {
        assert!(begun.elapsed() < super::TIMEOUT, "only {seen:?}");
        let patience = Duration::from_micros(100);
        if let Ok(batch) = tokio::time::timeout(patience, watch.next()).await {
            let changes = batch.expect("the watch goes on").changes;
            seen.extend(changes.iter().map(|c| (c.key().to_owned(), ())));
        }
    }
    writing.await.unwrap();
}

/// Every watch is told, however many there are; those that were dropped trouble nobody.
pub async fn many_watches_see_the_same(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let from = store.revision().await.unwrap();
    let mut watches = Vec::new();
    for n in 0..20 {
        let watch = store.watch("watch/", from).await.unwrap();
        if n % 2 == 0 {
            watches.push(watch);
        }
    }
    let puts = (0..10).map(|n| PutIf::create(format!("watch/{n}"), *b"v"));
    let answers = store.put_many(puts.collect()).await;
    assert!(answers.iter().all(|a| matches!(a, Ok(Put::Won(_)))));
    for watch in &mut watches {
        let (seen, _) = follow(watch, |seen| seen.len() >= 10).await;
        for n in 0..10 {
            assert!(shows(&seen, &format!("watch/{n}"), b"v"));
        }
    }
}

fn shows(seen: &[Change], key: &str, value: &[u8]) -> bool {
    let is_it = |c: &Change| matches!(c, Change::Put(e) if e.key == key && &*e.value == value);
    seen.iter().any(is_it)
}
