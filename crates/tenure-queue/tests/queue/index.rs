//! Indexes are hints: lost, wrong and old entries are put right.

use tenure_queue::keys::{IndexEntry, IndexKind};
use tenure_queue::{Purge, QueueSettings, TaskStatus, WorkerSettings};

use crate::test_cluster::*;

async fn entries(queue: &tenure_queue::Queue, index: IndexKind) -> Vec<String> {
    let prefix = queue.layout().whole_index(index);
    queue.store().keys(&prefix, None, 1000).await.unwrap().keys
}

#[tokio::test(start_paused = true)]
async fn an_index_that_is_gone_is_rebuilt_from_the_tasks() {
    let world = TestCluster::new();
    let queue = world.queue(settings(4)).await;
    let worker = world
        .worker(&queue, "w")
        .start(Hand::default())
        .await
        .unwrap();
    for payload in ["x", "doom", "y"] {
        let id = submitted(&queue, text(payload)).await;
        ended(&queue, &id).await;
    }
    worker.stop().await.unwrap();
    let waiting = submitted(&queue, text("z")).await;
    let before = queue.stats().await.unwrap();
    for index in IndexKind::ALL {
        queue.store().discard(entries(&queue, index).await).await;
    }
    assert_eq!(queue.stats().await.unwrap().done, 0);
    let rebuilt = queue.rebuild_index().await.unwrap();
    assert_eq!((rebuilt.tasks, rebuilt.added, rebuilt.removed), (4, 4, 0));
    assert_eq!(queue.stats().await.unwrap(), before);
    let again = queue.rebuild_index().await.unwrap();
    assert_eq!((again.added, again.removed), (0, 0));
    let worker = world
        .worker(&queue, "v")
        .start(Hand::default())
        .await
        .unwrap();
    ended(&queue, &waiting).await;
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_owner_finds_tasks_that_no_index_leads_to() {
    for sweeps in [false, true] {
        let world = TestCluster::new();
        let queue = world.queue(settings(2)).await;
        let id = submitted(&queue, text("x")).await;
        queue
            .store()
            .discard(entries(&queue, IndexKind::Ready).await)
            .await;
        let mut set = WorkerSettings::for_store("memory");
        set.rescan_every = secs(30);
        let worker = match sweeps {
            true => world.sweeper(&queue, "w"),
            false => world.worker(&queue, "w"),
        };
        let worker = worker.settings(set).start(Hand::default()).await.unwrap();
        assert_eq!(ended(&queue, &id).await.status(), TaskStatus::Done);
        assert_eq!(count(&queue, "repaired_total"), 1, "sweeps: {sweeps}");
        drop(worker);
    }
}

#[tokio::test(start_paused = true)]
async fn entries_that_lead_nowhere_are_removed_but_not_those_of_a_submission_under_way() {
    let world = TestCluster::new();
    let queue = world.queue(settings(1)).await;
    let now = queue.now().await.unwrap();
    let id = tenure_queue::TaskId::new("ghost").unwrap();
    let entry = IndexEntry {
        index: IndexKind::Ready,
        rank: 4,
        at: now,
        id,
        entered: 1,
    };
    let key = queue.layout().entry(&entry);
    let put = tenure_store::PutIf::create(key, *b"{}");
    world.store.put_if(put).await.unwrap();
    let worker = world
        .worker(&queue, "w")
        .start(Hand::default())
        .await
        .unwrap();
    tokio::time::sleep(secs(50)).await;
    assert_eq!(entries(&queue, IndexKind::Ready).await.len(), 1);
    until("it is removed", async || {
        entries(&queue, IndexKind::Ready).await.is_empty()
    })
    .await;
    assert_eq!(count(&queue, "stray_entries_total"), 1);
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tasks_are_kept_for_as_long_as_the_queue_says_and_removed_by_their_owner() {
    let world = TestCluster::new();
    let kept = QueueSettings {
        retain_done: secs(600),
        retain_dead: secs(3000),
        ..settings(2)
    };
    let queue = world.queue(kept).await;
    let mut set = WorkerSettings::for_store("memory");
    set.rescan_every = secs(60);
    let worker = world.worker(&queue, "w").settings(set);
    let worker = worker.start(Hand::default()).await.unwrap();
    let done = submitted(&queue, text("x").key("again")).await;
    let dead = submitted(&queue, text("doom")).await;
    ended(&queue, &done).await;
    ended(&queue, &dead).await;
    tokio::time::sleep(secs(500)).await;
    assert!(queue.get(&done).await.is_ok());
    tokio::time::sleep(secs(300)).await;
    assert!(queue.get(&done).await.is_err(), "it is gone");
    assert!(queue.get(&dead).await.is_ok(), "dead letters stay longer");
    // Its key is free again.
    assert!(queue.submit(text("x").key("again")).await.unwrap().created);
    tokio::time::sleep(secs(3000)).await;
    assert!(queue.get(&dead).await.is_err());
    worker.stop().await.unwrap();
    assert_eq!(count(&queue, "purged_total"), 3);
}

#[tokio::test(start_paused = true)]
async fn purging_by_hand_takes_what_it_is_told_and_nothing_that_lives() {
    let world = TestCluster::new();
    let queue = world.queue(settings(2)).await;
    let worker = world
        .worker(&queue, "w")
        .start(Hand::default())
        .await
        .unwrap();
    let done = submitted(&queue, text("x")).await;
    let dead = submitted(&queue, text("doom")).await;
    ended(&queue, &done).await;
    ended(&queue, &dead).await;
    worker.stop().await.unwrap();
    let waiting = submitted(&queue, text("y")).await;
    tokio::time::sleep(secs(10)).await;
    let young = Purge {
        done: Some(secs(60)),
        dead: Some(secs(60)),
    };
    assert_eq!(queue.purge(&young).await, Ok(0));
    let dead_only = Purge {
        done: None,
        dead: Some(secs(1)),
    };
    assert_eq!(queue.purge(&dead_only).await, Ok(1));
    let all = Purge {
        done: Some(secs(1)),
        dead: Some(secs(1)),
    };
    assert_eq!(queue.purge(&all).await, Ok(1));
    assert!(queue.get(&waiting).await.is_ok());
    assert_eq!(queue.stats().await.unwrap().ready, 1);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_of_nodes_neither_lists_nor_watches_tasks() {
    let world = TestCluster::new();
    let queue = world.queue(settings(2)).await;
    submitted(&queue, text("x")).await;
    let cluster = tenure_core::ids::ClusterName::new("shop").unwrap();
    let listed = world
        .store
        .list(&tenure_core::keys::prefix(&cluster))
        .await
        .unwrap();
    assert!(listed.entries.is_empty(), "{listed:?}");
}
