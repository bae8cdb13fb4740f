//! A7, A9: shards change hands soon, and never before the last owner's work has stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure::{Grant, Node, Note, Result, Settings, ShardStep};

use crate::world::*;

/// How long after a shard of `a` was released for `b`, it is served there.
async fn check_taken(settings: Settings, within: u64) {
    let world = World::new();
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
    let world = World::new();
    let (a, _) = world.start("a", &Counter::default()).await;
    owns(&a, 4).await;
    let mut notes = a.notes();
    let (b, _) = world.start("b", &Counter::default()).await;
    let sealed = note(&mut notes, |n| match n {
        Note::Shard(t) if t.step == ShardStep::Sealed => Some(t.clone()),
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
        acquire_watch_enabled: false,
        acquire_retry_interval: ms(700),
        ..settings()
    };
    check_taken(settings, 705).await;
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_retry_window_is_counted_and_told_once_per_round() {
    let world = World::new();
    let (a, _) = world.start("a", &Counter::default()).await;
    owns(&a, 4).await;
    // Work in every shard keeps them here until the drain times out, long after the window of the one that waits.
    let work: Vec<_> = (0..4)
        .map(|i| a.enter_shard::<Counter>(&shard(i)).unwrap())
        .collect();
    let (builder, _) = world.node("b", &Counter::default());
    let settings = Settings {
        acquire_retry_window: ms(2000),
        ..settings()
    };
    let b = started(builder.settings(settings)).await.unwrap();
    let mut notes = b.notes();
    note(&mut notes, |n| {
        matches!(n, Note::AcquireWindowExhausted { .. }).then_some(())
    })
    .await;
    let value = |name| b.metrics().value(name, "");
    assert!(value("tenure_acquire_retry_attempts_total") >= 5.0);
    assert_eq!(value("tenure_acquire_retry_window_exhausted_total"), 1.0);
    drop(work);
    until("taken", async || !b.owned().is_empty()).await;
}

/// Work that runs on one node at a time, and takes a while to stop.
async fn slow_to_stop(grant: Grant, alive: Arc<AtomicU32>) -> Result<()> {
    let _running = Running::begin(&alive);
    assert_eq!(alive.load(Ordering::SeqCst), 1, "two at once");
    grant.cancelled().await;
    tokio::time::sleep(ms(400)).await;
    Ok(())
}

async fn singleton(world: &World, name: &str, alive: &Arc<AtomicU32>) -> Node {
    let alive = alive.clone();
    let (builder, _) = world.bare(name);
    let work = move |grant| slow_to_stop(grant, alive.clone());
    started(builder.singleton("billing", work)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_singleton_has_stopped_before_its_shard_is_released() {
    let world = World::new();
    let alive = Arc::new(AtomicU32::new(0));
    let a = singleton(&world, "a", &alive).await;
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
    let world = World::new();
    let alive = Arc::new(AtomicU32::new(0));
    let mut last = singleton(&world, "n0", &alive).await;
    for i in 1..6 {
        let next = singleton(&world, &format!("n{i}"), &alive).await;
        last.stop().await.unwrap();
        owns(&next, 1).await;
        until("it runs", async || alive.load(Ordering::SeqCst) == 1).await;
        last = next;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_runs_between_assigned_and_owned() {
    let world = World::new();
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
