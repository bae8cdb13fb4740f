//! A7, A9: shards change hands soon, and never before the last owner's work has stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure::{Grant, Hashed, Node, NodeEvent, Result, Settings, ShardStep, Singleton};

use crate::test_cluster::*;

/// How long after a shard of `a` was released for `b`, it is served there.
async fn check_taken(settings: Settings, within: u64) {
    let world = TestCluster::new();
    let (a, _) = world.start("a", &Counter::default()).await;
    owns(&a, 4).await;
    let (builder, _) = world.node("b", &Counter::default());
    let b = started(builder.settings(settings)).await.unwrap();
    owns(&b, 2).await;
    let given = some_shard(&a);
    world.release(&given, &b).await;
    let took = until("taken", async || b.owned().contains(&given)).await;
    assert!(took <= ms(within), "taken after {took:?}");
}

/// How long a shard that moves is served by nobody.
#[tokio::test(start_paused = true)]
async fn a_moving_shard_is_served_again_at_once() {
    let world = TestCluster::new();
    let (a, _) = world.start("a", &Counter::default()).await;
    owns(&a, 4).await;
    let mut notes = a.events();
    let (b, _) = world.start("b", &Counter::default()).await;
    let sealed = note(&mut notes, |n| match n {
        NodeEvent::Shard(t) if t.step == ShardStep::Sealed => Some(t.clone()),
        _ => None,
    });
    let sealed = sealed.await;
    until("taken", async || b.owned().contains(&sealed.shard)).await;
    let late = world.clock.now().since(sealed.time);
    assert!(late <= ms(100), "taken after {late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_released_shard_is_taken_at_once() {
    check_taken(settings(), 100).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_watch_it_is_taken_within_the_retry_interval() {
    let settings = Settings {
        claim_watch_enabled: false,
        claim_retry_interval: ms(700),
        ..settings()
    };
    check_taken(settings, 705).await;
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_retry_window_is_counted_and_told_once_per_round() {
    let world = TestCluster::new();
    let (builder, _) = world.node("a", &Counter::default());
    let patient = Settings {
        drain_timeout: TTL * 10,
        ..settings()
    };
    let a = started(builder.settings(patient)).await.unwrap();
    owns(&a, 4).await;
    // Work in every shard keeps them here until the drain times out, long after several windows of the one that waits.
    let work: Vec<_> = (0..4)
        .map(|i| a.enter_shard::<Counter>(&shard(i)).unwrap())
        .collect();
    let (builder, _) = world.node("b", &Counter::default());
    let settings = Settings {
        claim_retry_window: ms(2000),
        ..settings()
    };
    let b = started(builder.settings(settings)).await.unwrap();
    let mut notes = b.events();
    let (mut retries, mut exhausted) = (0, Vec::new());
    while exhausted.len() < 3 {
        let was_retry = note(&mut notes, |n| match n {
            NodeEvent::ClaimRetry { .. } => Some(true),
            NodeEvent::ClaimRetryExhausted { .. } => Some(false),
            _ => None,
        });
        match was_retry.await {
            true => retries += 1,
            false => exhausted.push((world.clock.now(), std::mem::take(&mut retries))),
        }
    }
    for round in exhausted.windows(2) {
        let (lasted, retries) = (round[1].0.since(round[0].0), round[1].1);
        // A window of retries, and before it the wait for the next look at everything, a quarter of a tick away.
        let next_look = TTL * 4 / 4;
        assert!(lasted > ms(2000), "told again after {lasted:?}");
        assert!(lasted <= ms(2000) + next_look + ms(250), "{lasted:?}");
        assert!((8..=10).contains(&retries), "{retries} retries in a window");
    }
    // No note was repeated.
    tokio::time::sleep(ms(500)).await;
    let value = |name| b.metrics().value(name, "");
    assert_eq!(value("tenure_claim_retry_windows_exhausted_total"), 3.0);
    drop(work);
    until("taken", async || !b.owned().is_empty()).await;
}

/// Counts of runs of one singleton. A panic inside its work would only be retried, so that tests look at these instead.
#[derive(Clone, Default)]
struct Runs {
    alive: Arc<AtomicU32>,
    /// The most that were alive at a time.
    most: Arc<AtomicU32>,
    begun: Arc<AtomicU32>,
}

/// Work that runs on one node at a time, and takes a while to stop.
async fn slow_to_stop(grant: Grant, runs: Runs) -> Result<()> {
    let _running = Running::begin(&runs.alive);
    let alive = runs.alive.load(Ordering::SeqCst);
    runs.most.fetch_max(alive, Ordering::SeqCst);
    runs.begun.fetch_add(1, Ordering::SeqCst);
    grant.cancelled().await;
    tokio::time::sleep(ms(400)).await;
    Ok(())
}

async fn singleton(world: &TestCluster, name: &str, runs: &Runs) -> Node {
    let runs = runs.clone();
    let (builder, _) = world.bare(name);
    let work = move |grant| slow_to_stop(grant, runs.clone());
    started(builder.singleton("billing", work)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_singleton_has_stopped_before_its_shard_is_released() {
    let world = TestCluster::new();
    let runs = Runs::default();
    let (a, alive) = (singleton(&world, "a", &runs).await, runs.alive.clone());
    let shard = "billing/0".parse().unwrap();
    owns(&a, 1).await;
    until("it runs", async || alive.load(Ordering::SeqCst) == 1).await;
    let stopping = tokio::spawn(async move { a.stop().await });
    let released = until("released", async || {
        let free = world.record(&shard).await.owner().is_none();
        assert!(
            !free || alive.load(Ordering::SeqCst) == 0,
            "released while it ran"
        );
        free
    });
    let took = released.await;
    assert!(took >= ms(400), "{took:?}");
    stopping.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_singleton_runs_on_one_node_at_a_time_through_moves() {
    let world = TestCluster::new();
    let runs = Runs::default();
    let mut last = singleton(&world, "n0", &runs).await;
    until("it runs", async || runs.begun.load(Ordering::SeqCst) == 1).await;
    for i in 1..6 {
        let next = singleton(&world, &format!("n{i}"), &runs).await;
        last.stop().await.unwrap();
        owns(&next, 1).await;
        until("it runs", async || {
            runs.begun.load(Ordering::SeqCst) == i + 1
        })
        .await;
        assert_eq!(runs.alive.load(Ordering::SeqCst), 1);
        last = next;
    }
    assert_eq!(runs.most.load(Ordering::SeqCst), 1, "two at once");
    assert_eq!(runs.begun.load(Ordering::SeqCst), 6, "one run per move");
}

#[tokio::test(start_paused = true)]
async fn loops_that_run_for_ever_do_not_delay_moves_and_stops() {
    let world = TestCluster::new();
    let alive = Arc::new(AtomicU32::new(0));
    let both = async |name| {
        let (alive, builder) = (alive.clone(), world.bare(name).0);
        let work = Singleton::new(move |grant: Grant| {
            let running = Running::begin(&alive);
            async move {
                grant.cancelled().await;
                tokio::time::sleep(ms(400)).await;
                drop(running);
                Ok(())
            }
        });
        started(builder.keyspace("jobs", Hashed(4), work))
            .await
            .unwrap()
    };
    let a = both("a").await;
    owns(&a, 4).await;
    let b = both("b").await;
    let joined = owns(&b, 2).await;
    // The planner takes its time to notice; each stop takes 400 ms.
    assert!(joined < settings().drain_timeout / 2, "{joined:?}");
    let stopping = tokio::time::Instant::now();
    a.stop().await.unwrap();
    let stopped = stopping.elapsed();
    assert!(stopped < ms(1000), "{stopped:?}");
    owns(&b, 4).await;
    until("all run", async || alive.load(Ordering::SeqCst) == 4).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_runs_between_assigned_and_owned() {
    let world = TestCluster::new();
    let handler = Counter::default();
    handler.failing.lock().unwrap().insert("2".to_owned(), 3);
    let (node, _) = world.start("a", &handler).await;
    owns(&node, 3).await;
    until("loops", async || {
        handler.running.load(Ordering::SeqCst) == 3
    })
    .await;
    while handler.failing.lock().unwrap()["2"] > 0 {
        assert!(
            handler.running.load(Ordering::SeqCst) <= 3,
            "a loop of a shard that is not loaded"
        );
        assert!(node.enter_shard::<Counter>(&shard(2)).is_err());
        tokio::time::sleep(ms(5)).await;
    }
    owns(&node, 4).await;
    until("loops", async || {
        handler.running.load(Ordering::SeqCst) == 4
    })
    .await;
}
