use super::*;

#[tokio::test]
async fn stores_of_one_name_are_one_store_and_nameless_ones_are_not() {
    let put = PutIf::create("k", *b"v");
    let a = MemoryStore::named("stores_of_one_name");
    a.put_if(put.clone()).await.unwrap();
    let b = MemoryStore::named("stores_of_one_name");
    assert!(b.get("k").await.unwrap().is_some());
    assert_eq!(a.identity().await, b.identity().await);

    MemoryStore::new().put_if(put).await.unwrap();
    assert!(MemoryStore::new().get("k").await.unwrap().is_none());
}

#[tokio::test]
async fn a_watch_from_before_a_purged_deletion_ends_with_a_gap() {
    let store = MemoryStore::new();
    let before = store.revision().await.unwrap();
    let Put::Won(version) = store.put_if(PutIf::create("k", *b"v")).await.unwrap() else {
        panic!("nobody else writes");
    };
    store.delete_if(DeleteIf::new("k", version)).await.unwrap();
    store.purge();
    let after = store.revision().await.unwrap();

    let mut behind = store.watch("", before).await.unwrap();
    assert_eq!(behind.next().await, Err(WatchEnd::Gap));
    assert_eq!(behind.next().await, Err(WatchEnd::Gap));

    let mut current = store.watch("", after).await.unwrap();
    store.put_if(PutIf::create("k", *b"w")).await.unwrap();
    let shown = tokio::time::timeout(Duration::from_secs(5), current.next()).await;
    assert_eq!(shown.unwrap().unwrap().changes.len(), 1);
}

#[tokio::test]
async fn deletions_are_remembered_up_to_a_limit() {
    let store = MemoryStore::new();
    for n in 0..=2 * TOMBSTONES_KEPT {
        let key = format!("k/{n}");
        let put = store.put_if(PutIf::create(&key, *b"")).await.unwrap();
        let Put::Won(version) = put else {
            panic!("nobody else writes");
        };
        store.delete_if(DeleteIf::new(&key, version)).await.unwrap();
    }
    assert_eq!(store.shared.lock().tombstones.len(), TOMBSTONES_KEPT);
    assert_eq!(store.shared.lock().slots.len(), TOMBSTONES_KEPT);
    let mut behind = store.watch("", Revision(0)).await.unwrap();
    assert_eq!(behind.next().await, Err(WatchEnd::Gap));
}

#[tokio::test(start_paused = true)]
async fn the_clock_follows_virtual_time() {
    let store = MemoryStore::new();
    let before = store.now().await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let after = store.now().await.unwrap().unwrap();
    assert!(after.duration_since(before).unwrap() >= Duration::from_secs(3600));
}

#[tokio::test(start_paused = true)]
async fn a_watch_sees_a_lease_run_out_in_virtual_time_though_nobody_calls() {
    let store = MemoryStore::with_leases();
    let leases = store.leases().unwrap();
    let mut watch = store.watch("", Revision(0)).await.unwrap();
    let watching = tokio::spawn(async move {
        assert!(matches!(
            watch.next().await.unwrap().changes[0],
            Change::Put(_)
        ));
        (watch.next().await, Instant::now())
    });
    tokio::task::yield_now().await;
    let (id, ttl) = (LeaseId(1), Duration::from_secs(3));
    let granted = Instant::now();
    leases.grant(id, ttl).await.unwrap();
    let put = PutIf::create("k", *b"v").under(Some(id));
    store.put_if(put).await.unwrap();
    let (batch, at) = watching.await.unwrap();
    let gone = Change::Deleted {
        key: "k".to_owned(),
    };
    assert_eq!(batch.unwrap().changes, [gone]);
    let late = at.duration_since(granted) - ttl;
    assert!(late < Duration::from_millis(10), "late by {late:?}");
}
