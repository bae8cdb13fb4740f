//! Every metric moves, and whoever probes a worker is told how it stands.

use std::collections::BTreeSet;

use tenure::MetricsSource;
use tenure_queue::keys::IndexKind;
use tenure_queue::{Purge, Queue, TaskStatus, WorkerSettings, metrics};

use crate::bad_input::overwrite;
use crate::recurring::every_minute;
use crate::test_cluster::*;

/// The metrics that are not zero, by name.
fn moved(queue: &Queue) -> BTreeSet<&'static str> {
    let value = |name: &str| queue.metrics().value(name).unwrap();
    let names = metrics::ALL.iter().map(|metric| metric.name);
    names.filter(|name| value(name) > 0).collect()
}

/// What comes to its end one way or another, and what stands in the way.
async fn endings(world: &TestCluster) -> BTreeSet<&'static str> {
    let (queue, faults) = world.faulty(settings(1)).await;
    assert_eq!(moved(&queue), BTreeSet::new(), "none before its time");
    for _ in 0..2 {
        queue.submit(text("once").key("k")).await.unwrap();
    }
    let off = submitted(&queue, text("off").delay(secs(900))).await;
    queue.cancel(&off, None).await.unwrap();
    let hidden = submitted(&queue, text("hidden")).await;
    let ready = queue.layout().whole_index(IndexKind::Ready);
    let listed = queue.store().list(&ready).await.unwrap();
    let keys = listed.entries.into_iter().map(|entry| entry.key);
    let hides = keys.filter(|key| key.contains(hidden.as_str()));
    queue.store().discard(hides.collect()).await;
    let spoilt = submitted(&queue, text("spoilt")).await;
    overwrite(&*world.store, &queue.layout().task(&spoilt), b"{").await;
    let mut set = WorkerSettings::for_store("memory");
    (set.rescan_every, set.stop_limit) = (secs(30), secs(1));
    let worker = world.worker(&queue, "w").settings(set);
    let worker = worker.start(Hand::default()).await.unwrap();
    let mut ids = vec![hidden];
    for payload in ["fail", "panic", "later", "back", "sleep:9000"] {
        ids.push(submitted(&queue, text(payload).attempts(1)).await);
    }
    ids.push(submitted(&queue, text("hang").timeout(secs(1)).attempts(1)).await);
    for id in &ids {
        ended(&queue, id).await;
    }
    queue.schedule("m", every_minute()).await.unwrap();
    until("it ticks", async || count(&queue, "scheduled_total") == 1).await;
    submitted(&queue, text("hang")).await;
    until("it runs", async || worker.running() == 1).await;
    faults.outage();
    tokio::time::sleep(secs(1)).await;
    faults.heal();
    let mut all = moved(&queue);
    worker.stop().await.unwrap();
    assert_eq!(count(&queue, "released_total"), 2);
    let done = Some(ms(0));
    queue.purge(&Purge { done, dead: None }).await.unwrap();
    all.extend(moved(&queue));
    all
}

/// What two processes do to each other.
async fn rivals(world: &TestCluster) -> BTreeSet<&'static str> {
    let (queue, faults) = world.faulty(settings(1)).await;
    let other = world.queue(settings(1)).await;
    let cut = world.worker(&queue, "cut").start(Hand::default()).await;
    let cut = cut.unwrap();
    let id = submitted(&other, text("sleep:10000")).await;
    until("it is running", async || cut.running() == 1).await;
    tokio::time::sleep(secs(2)).await;
    faults.hang();
    let second = world.worker(&other, "second").start(Hand::default()).await;
    assert_eq!(ended(&other, &id).await.attempts, 2);
    until("the attempt is dropped", async || cut.running() == 0).await;
    faults.heal();
    drop((cut, second));
    &moved(&queue) | &moved(&other)
}

/// What sweepers do that are after the same task.
async fn races(world: &TestCluster) -> BTreeSet<&'static str> {
    let (queue, faults) = world.faulty(settings(1)).await;
    faults.slow(ms(20));
    let one = world.sweeper(&queue, "one").start(Hand::default()).await;
    let two = world.sweeper(&queue, "two").start(Hand::default()).await;
    for n in 0..50 {
        let id = submitted(&queue, text(format!("{n}"))).await;
        ended(&queue, &id).await;
    }
    drop((one, two));
    moved(&queue)
}

/// An entry that leads to nothing.
async fn strays(world: &TestCluster) -> BTreeSet<&'static str> {
    let queue = world.queue(settings(1)).await;
    let id = submitted(&queue, text("gone").key("gone")).await;
    let key = queue.layout().task(&id);
    let entry = queue.store().get(&key).await.unwrap().unwrap();
    let delete = tenure_store::DeleteIf::new(key, entry.version);
    queue.store().delete_if(delete).await.unwrap();
    let worker = world.worker(&queue, "w").start(Hand::default()).await;
    until("it is removed", async || {
        count(&queue, "stray_entries_total") == 1
    })
    .await;
    drop(worker);
    moved(&queue)
}

#[tokio::test(start_paused = true)]
async fn every_metric_moves_and_none_before_its_time() {
    let mut all = endings(&TestCluster::new()).await;
    all.append(&mut rivals(&TestCluster::new()).await);
    all.append(&mut races(&TestCluster::new()).await);
    all.append(&mut strays(&TestCluster::new()).await);
    let wanted: BTreeSet<&str> = metrics::ALL.iter().map(|metric| metric.name).collect();
    let still: Vec<&&str> = wanted.difference(&all).collect();
    assert!(still.is_empty(), "these never moved: {still:?}");
}

#[tokio::test(start_paused = true)]
async fn probes_of_a_worker_tell_whether_it_can_work_and_whether_it_has_ended() {
    for (leases, cut_off) in [(true, "detached"), (false, "the store does not answer")] {
        let world = TestCluster::new();
        let (queue, faults) = world.faulty(settings(2)).await;
        let worker = match leases {
            true => world.worker(&queue, "w"),
            false => world.sweeper(&queue, "w"),
        };
        let worker = worker.start(Hand::default()).await.unwrap();
        let health = worker.health();
        let says = async |ready: Result<(), &str>| {
            until("it is told", async || health.is_ready() == ready).await;
        };
        says(Ok(())).await;
        let text = health.render();
        assert!(text.contains("tenure_queue_polls_total{queue=\"jobs\"}"));
        assert_eq!(text.contains("\ntenure_detached 0\n"), leases, "{text}");
        faults.outage();
        says(Err(cut_off)).await;
        assert!(health.is_alive(), "it comes back by itself");
        faults.heal();
        says(Ok(())).await;
        let id = submitted(&queue, crate::test_cluster::text("sleep:3000")).await;
        until("it runs", async || {
            queue.get(&id).await.unwrap().status() == TaskStatus::Running
        })
        .await;
        let stopping = tokio::spawn(worker.stop());
        says(Err("stopping")).await;
        assert!(health.is_alive() || leases, "what runs goes on");
        stopping.await.unwrap().unwrap();
        says(Err("stopped")).await;
        assert!(!health.is_alive(), "{health:?}");
    }
}
