//! Who looks into which shard.

use std::collections::BTreeSet;

use tenure_queue::{OwnershipSettings, Queue, Worker, WorkerSettings};
use tenure_store::Op;
use tenure_store::observed_store::ObservedStore;

use crate::test_cluster::*;

/// Waits until the workers share all shards, each its fair part, and nobody has one that another has.
async fn shared(workers: &[&Worker], shards: usize) {
    let (least, most) = (shards / workers.len(), shards.div_ceil(workers.len()));
    until("a fair share for everyone", async || {
        let all: Vec<Vec<u32>> = workers.iter().map(|w| w.shards()).collect();
        let distinct: BTreeSet<u32> = all.iter().flatten().copied().collect();
        let fair = all.iter().all(|s| (least..=most).contains(&s.len()));
        fair && distinct.len() == shards && all.iter().map(Vec::len).sum::<usize>() == shards
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn every_shard_is_one_workers_and_who_joins_gets_a_fair_share() {
    let world = TestCluster::new();
    let hand = Hand::default();
    let mut queues = Vec::new();
    for _ in 0..3 {
        queues.push(world.queue(settings(16)).await);
    }
    let one = world
        .worker(&queues[0], "one")
        .start(hand.clone())
        .await
        .unwrap();
    shared(&[&one], 16).await;
    let two = world
        .worker(&queues[1], "two")
        .start(hand.clone())
        .await
        .unwrap();
    shared(&[&one, &two], 16).await;
    let three = world
        .worker(&queues[2], "three")
        .start(hand.clone())
        .await
        .unwrap();
    shared(&[&one, &two, &three], 16).await;
    assert_eq!(count(&queues[0], "shards"), one.shards().len() as u64);
    // Who stops in good order leaves its shards to the others at once.
    two.stop().await.unwrap();
    shared(&[&one, &three], 16).await;
    // Who dies leaves them when its lease is over.
    drop(three);
    shared(&[&one], 16).await;
    one.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_surplus_worker_idles_cheaply() {
    let world = TestCluster::new();
    let producer = world.queue(settings(1)).await;
    let mut workers = Vec::new();
    for name in ["one", "two"] {
        let (store, observer) = ObservedStore::new(world.store.clone());
        let queue = Queue::open(std::sync::Arc::new(store), "shop", "jobs");
        let worker = world.worker(&queue.await.unwrap(), name);
        workers.push((worker.start(Hand::default()).await.unwrap(), observer));
    }
    tokio::time::sleep(secs(10)).await;
    // Either may have got the one shard.
    workers.sort_by_key(|(worker, _)| worker.shards().len());
    let (first, _) = workers.pop().unwrap();
    let (second, observer) = workers.pop().unwrap();
    assert_eq!((first.shards().len(), second.shards().len()), (1, 0));
    let before = observer.snapshot();
    tokio::time::sleep(secs(60)).await;
    let asked = observer.snapshot().since(&before);
    assert_eq!(asked.of(Op::Keys).calls, 0);
    // A renewal every second, and the queue's record every five.
    let (reads, writes) = (asked.reads(), asked.writes());
    assert!(
        reads <= 40 && writes <= 66,
        "{reads} reads and {writes} writes: {asked:?}"
    );
    // It is there when it is needed.
    drop(first);
    until("it has the shard", async || second.shards() == [0]).await;
    let id = submitted(&producer, text("x")).await;
    ended(&producer, &id).await;
    second.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn idle_workers_write_nothing_for_their_shards() {
    for (workers, shards) in [(1, 16), (16, 256), (17, 256)] {
        let world = TestCluster::new();
        let (store, observer) = ObservedStore::new(world.store.clone());
        let store: std::sync::Arc<dyn tenure_store::Store> = std::sync::Arc::new(store);
        let created = Queue::create(store.clone(), "shop", "jobs", settings(shards)).await;
        drop(created.unwrap());
        let mut running = Vec::new();
        for n in 0..workers {
            let queue = Queue::open(store.clone(), "shop", "jobs").await.unwrap();
            // Looking through a whole shard is rare, and comes at any time: it is not what is counted here.
            let mut set = WorkerSettings::for_store("memory");
            set.rescan_every = secs(1_000_000_000);
            let worker = world.worker(&queue, &format!("w{n}")).settings(set);
            running.push(worker.start(Hand::default()).await.unwrap());
        }
        shared(&running.iter().collect::<Vec<_>>(), shards as usize).await;
        tokio::time::sleep(secs(20)).await;
        let before = observer.snapshot();
        tokio::time::sleep(secs(60)).await;
        let asked = observer.snapshot().since(&before);
        // One renewal per worker and second; a lease per shard, renewed every two seconds, would be 30 writes per shard.
        let most = workers as u64 * 66;
        assert!(
            asked.writes() <= most,
            "{} writes: {asked:?}",
            asked.writes()
        );
        // A look for tasks every second or so, and one for claims that ran out every 1.5: per worker, not per shard.
        let looks = asked.of(Op::Keys).calls;
        assert!(
            looks <= workers as u64 * 140,
            "{looks} looks into {shards} shards in a minute"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn workers_with_and_without_leasing_work_side_by_side() {
    let world = TestCluster::new();
    let hand = Hand::default();
    let mut queues = Vec::new();
    for _ in 0..4 {
        queues.push(world.queue(settings(8)).await);
    }
    let owns = world
        .worker(&queues[0], "owns")
        .start(hand.clone())
        .await
        .unwrap();
    let sweeps = world
        .sweeper(&queues[1], "sweeps")
        .start(hand.clone())
        .await
        .unwrap();
    assert!(sweeps.node().is_none() && sweeps.shards().is_empty());
    let producer = &queues[3];
    let mut ids = Vec::new();
    for n in 0..200 {
        ids.push(submitted(producer, text(format!("sleep:100:{n}"))).await);
        tokio::time::sleep(ms(5)).await;
    }
    for id in &ids {
        assert_eq!(ended(producer, id).await.attempts, 1);
    }
    assert!(hand.0.counts().values().all(|n| *n == 1));
    for queue in &queues[..2] {
        assert!(count(queue, "finished_total") > 0, "both have worked");
    }
    // Leasing is switched off altogether, and nobody who submits notices.
    owns.stop().await.unwrap();
    let id = submitted(producer, text("after")).await;
    ended(producer, &id).await;
    drop(sweeps);
}

#[tokio::test(start_paused = true)]
async fn a_sweeper_alone_looks_into_every_shard_and_takes_over_from_the_dead() {
    let world = TestCluster::new();
    let hand = Hand::default();
    let (one, two) = (
        world.queue(settings(8)).await,
        world.queue(settings(8)).await,
    );
    let first = world
        .sweeper(&one, "one")
        .start(hand.clone())
        .await
        .unwrap();
    let id = submitted(&one, text("sleep:4000")).await;
    until("it is running", async || {
        one.get(&id).await.unwrap().status() == tenure_queue::TaskStatus::Running
    })
    .await;
    tokio::time::sleep(secs(2)).await;
    drop(first);
    let _second = world
        .sweeper(&two, "two")
        .start(hand.clone())
        .await
        .unwrap();
    assert_eq!(ended(&two, &id).await.attempts, 2);
    for n in 0..20 {
        let id = submitted(&two, text(format!("task {n}"))).await;
        ended(&two, &id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_shards_are_looked_into_in_one_round_than_asked_for() {
    for (per_round, all) in [(2u32, false), (64, true)] {
        let world = TestCluster::new();
        let (store, faults) = tenure_store::fault::FaultStore::new(
            world.store.clone(),
            tenure_store::fault::FaultConfig::none(1),
        );
        let queue = Queue::create(std::sync::Arc::new(store), "shop", "jobs", settings(12)).await;
        let queue = queue.unwrap();
        let worker = world.worker(&queue, "w").leasing(OwnershipSettings {
            shards_per_worker: Some(per_round),
            ttl_secs: Some(6.0),
            ..OwnershipSettings::default()
        });
        let worker = worker.start(Hand::default()).await.unwrap();
        shared(&[&worker], 12).await;
        // So many that one look is not enough for all shards.
        let later = (0..1500).map(|n| text(format!("later {n}")).delay(secs(9999)));
        queue.submit_many(later.collect()).await;
        tokio::time::sleep(secs(5)).await;
        // Looks take time now: within three seconds there is one round, or a few.
        let before = count(&queue, "polls_total");
        faults.slow(secs(1));
        tokio::time::sleep(ms(2900)).await;
        let polls = count(&queue, "polls_total") - before;
        faults.heal();
        if all {
            // All twelve, but for some that the round had come to just before.
            assert!(polls > 6, "{polls}");
        } else {
            assert!(
                (2..=6).contains(&polls),
                "{polls} looks in two rounds of two"
            );
        }
        // In turns, it gets to all of them.
        for n in 0..24 {
            let id = submitted(&queue, text(format!("{n}"))).await;
            ended(&queue, &id).await;
        }
        worker.stop().await.unwrap();
    }
}

/// Who has this much of a lease, and renews it this often.
fn leased(ttl: f64, renew: f64) -> OwnershipSettings {
    OwnershipSettings {
        ttl_secs: Some(ttl),
        renew_interval_secs: Some(renew),
        ..OwnershipSettings::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_workers_shards_are_taken_over_after_its_ttl_and_renewals_come_as_often_as_asked_for()
 {
    for (ttl, renew) in [(6.0, 0.5), (18.0, 3.0)] {
        let world = TestCluster::new();
        let (store, observer) = ObservedStore::new(world.store.clone());
        let queue = Queue::create(std::sync::Arc::new(store), "shop", "jobs", settings(4)).await;
        let first = world
            .worker(&queue.unwrap(), "one")
            .leasing(leased(ttl, renew));
        let first = first.start(Hand::default()).await.unwrap();
        let before = observer.snapshot();
        tokio::time::sleep(secs(60)).await;
        let renewals = observer.snapshot().since(&before).of(Op::Put).keys as f64;
        assert!(
            (renewals - 60.0 / renew).abs() < 4.0,
            "{renewals} renewals of {renew} s"
        );

        let other = world.queue(settings(4)).await;
        let second = world.worker(&other, "two").leasing(leased(ttl, renew));
        let second = second.start(Hand::default()).await.unwrap();
        shared(&[&first, &second], 4).await;
        drop(first);
        let died = tokio::time::Instant::now();
        until("they are taken over", async || second.shards().len() == 4).await;
        let took = died.elapsed().as_secs_f64();
        assert!(
            took > ttl * 0.6 && took < ttl * 1.3,
            "{took} s with a ttl of {ttl}"
        );
        second.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_may_have_connections_of_its_own() {
    // Two stores here, so that it shows which one the node has opened.
    let (own, other) = ("memory:of-the-node", "memory:of-the-queue");
    let world = TestCluster::over(tenure_store::open(other).await.unwrap());
    let queue = world.queue(settings(4)).await;
    let worker = world.worker(&queue, "w").url(own);
    let worker = worker.start(Hand::default()).await.unwrap();
    let records = async |url: &str| {
        let store = tenure_store::open(url).await.unwrap();
        store.list("shop/").await.unwrap().entries.len()
    };
    assert_eq!(records(other).await, 0);
    assert!(records(own).await > 4);
    let id = submitted(&queue, text("x")).await;
    ended(&queue, &id).await;
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_sweeper_looks_into_every_shard_before_any_a_second_time() {
    // By chance alone, a task would wait longer than this in more than a third of all cases.
    for n in 0..20 {
        let world = TestCluster::new();
        let queue = world.queue(settings(16)).await;
        let id = submitted(&queue, text(format!("{n}"))).await;
        let another = world.queue(settings(16)).await;
        let mut worker = world
            .worker(&another, "sweeper")
            .leasing(OwnershipSettings::off());
        worker = worker.settings(WorkerSettings {
            follow: false,
            ..WorkerSettings::for_store("memory")
        });
        let worker = worker.start(Hand::default()).await.unwrap();
        let begun = tokio::time::Instant::now();
        ended(&queue, &id).await;
        let took = begun.elapsed();
        assert!(took <= secs(16) * 5 / 4 + secs(1), "{took:?}");
        worker.stop().await.unwrap();
    }
}
