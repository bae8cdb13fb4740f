//! Where two things happen at once: a stop and a claim, a late answer and the next write, a wait and a look.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_queue::{Payload, ScheduleSpec, TaskStatus, WorkerSettings};
use tenure_store::Op;

use crate::test_cluster::*;

/// A worker's settings on a store that shows no changes.
fn deaf() -> WorkerSettings {
    WorkerSettings {
        follow: false,
        ..WorkerSettings::for_store("memory")
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_never_answered_holds_up_no_other() {
    let world = TestCluster::new();
    let (queue, faults) = world.faulty(settings(1)).await;
    let watcher = world.queue(settings(1)).await;
    let sweeper = world.sweeper(&queue, "w").start(Hand::default()).await;
    let worker = sweeper.unwrap();
    let first = submitted(&watcher, text("sleep:1500")).await;
    until("it is running", async || worker.running() == 1).await;
    faults.slow_replies(secs(36_000));
    until("it is done", async || {
        watcher.get(&first).await.unwrap().status() == TaskStatus::Done
    })
    .await;
    faults.heal();
    let second = submitted(&watcher, text("second")).await;
    let task = watcher.wait(&second, secs(60)).await.unwrap();
    assert_eq!((task.status(), task.attempts), (TaskStatus::Done, 1));
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_claim_under_way_when_its_worker_stops_is_seen_through() {
    let world = TestCluster::new();
    let (queue, faults) = world.faulty(settings(1)).await;
    let watcher = world.queue(settings(1)).await;
    faults.slow_replies(secs(2));
    let sweeper = world.sweeper(&queue, "w").start(Hand::default()).await;
    let worker = sweeper.unwrap();
    let id = submitted(&watcher, text("once").attempts(1)).await;
    until("it is claimed", async || {
        watcher.get(&id).await.unwrap().status() == TaskStatus::Running
    })
    .await;
    assert_eq!(worker.running(), 0, "the answer is still on its way");
    worker.stop().await.unwrap();
    let other = world
        .sweeper(&watcher, "other")
        .start(Hand::default())
        .await;
    let task = ended(&watcher, &id).await;
    assert_eq!(
        (task.status(), task.attempts),
        (TaskStatus::Done, 1),
        "{task:?}"
    );
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_is_lost_is_read_back_as_soon_as_the_store_can_be_read() {
    let world = TestCluster::new();
    let (queue, faults) = world.faulty(settings(1)).await;
    let watcher = world.queue(settings(1)).await;
    let (claimed, handle) = (Arc::new(AtomicBool::new(false)), faults.clone());
    faults.fail_where(move |op, key| {
        if op == Op::Put && key.contains("/tasks/") {
            claimed.store(true, Ordering::SeqCst);
            handle.slow_replies(secs(36_000));
        }
        op == Op::Get && key.contains("/tasks/") && claimed.load(Ordering::SeqCst)
    });
    let hand = Hand::default();
    let worker = world.sweeper(&queue, "w").start(hand.clone()).await;
    let submit = text("once").attempts(1).lease(secs(60));
    let id = submitted(&watcher, submit).await;
    until("it is claimed", async || {
        watcher.get(&id).await.unwrap().status() == TaskStatus::Running
    })
    .await;
    tokio::time::sleep(secs(12)).await;
    faults.heal();
    let task = ended(&watcher, &id).await;
    assert_eq!(
        (task.status(), task.attempts),
        (TaskStatus::Done, 1),
        "{task:?}"
    );
    assert_eq!(hand.0.lines().len(), 1);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_sweeper_that_waits_for_a_task_goes_on_sweeping() {
    let world = TestCluster::new();
    let (queue, other) = (
        world.queue(settings(16)).await,
        world.queue(settings(16)).await,
    );
    let sweeper = world.sweeper(&queue, "w").settings(deaf());
    let worker = sweeper.start(Hand::default()).await.unwrap();
    submitted(&queue, text("later").delay(secs(7200))).await;
    tokio::time::sleep(secs(30)).await;
    for n in 0..20 {
        let id = submitted(&other, text(format!("{n}"))).await;
        let task = other.wait(&id, secs(300)).await.unwrap();
        assert_eq!(task.status(), TaskStatus::Done);
    }
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_was_due_long_ago_is_not_lost_between_its_entry_and_itself() {
    let world = TestCluster::new();
    let (producer, faults) = world.faulty(settings(1)).await;
    let queue = world.queue(settings(1)).await;
    let worker = world.sweeper(&queue, "w").start(Hand::default()).await;
    let past = queue.now().await.unwrap().minus(secs(3600));
    faults.slow(ms(500));
    let id = submitted(&producer, text("late").at(past)).await;
    let task = queue.wait(&id, secs(60)).await.unwrap();
    assert_eq!(task.status(), TaskStatus::Done);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_no_entry_can_lead_to_is_not_taken() {
    let world = TestCluster::new();
    let (queue, faults) = world.faulty(settings(1)).await;
    // As a bucket does that takes no longer names: the entry of a task is longer than its key.
    faults.fail_where(|op, key| op == Op::Put && key.contains("/ready/") && key.contains("bad"));
    let asked = vec![
        text("1").key("good 1"),
        text("2").key("bad"),
        text("3").key("good 2"),
    ];
    let answers = queue.submit_many(asked).await;
    assert!(answers[0].is_ok() && answers[2].is_ok(), "{answers:?}");
    let reason = answers[1].as_ref().unwrap_err().to_string();
    assert!(reason.contains("bad"), "{reason}");
    let stands = queue
        .list(&Default::default(), 9, None)
        .await
        .unwrap()
        .tasks;
    assert_eq!(stands.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_lands_late_spares_a_schedule_that_was_made_anew() {
    let world = TestCluster::new();
    let (slow, faults) = world.faulty(settings(1)).await;
    let queue = world.queue(settings(1)).await;
    let spec = ScheduleSpec::new("@hourly", Payload::none());
    queue.schedule("hourly", spec.clone()).await.unwrap();
    faults.fail_where({
        let handle = faults.clone();
        move |op, _| {
            // Hangs from the first read on.
            if op == Op::Get {
                handle.hang();
            }
            false
        }
    });
    assert!(slow.unschedule("hourly").await.is_err(), "nobody answers");
    queue.unschedule("hourly").await.unwrap();
    queue.schedule("hourly", spec).await.unwrap();
    faults.heal();
    tokio::time::sleep(secs(1)).await;
    assert_eq!(queue.schedules().await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_taken_back_does_not_hold_up_the_others() {
    let world = TestCluster::new();
    let (queue, faults) = world.faulty(settings(1)).await;
    let dies = world.queue(settings(1)).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(submitted(&dies, text("sleep:2000")).await);
    }
    ids.sort();
    let worker = world.sweeper(&dies, "dies").start(Hand::default()).await;
    let worker = worker.unwrap();
    until("both are claimed", async || worker.running() == 2).await;
    tokio::time::sleep(ms(1500)).await;
    drop(worker);
    let bad = dies.layout().task(&ids[0]);
    faults.fail_where(move |op, key| op == Op::Put && key == bad);
    let second = world.sweeper(&queue, "second").start(Hand::default()).await;
    let task = dies.wait(&ids[1], secs(120)).await.unwrap();
    assert_eq!((task.status(), task.attempts), (TaskStatus::Done, 2));
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn a_queue_whose_name_is_as_long_as_it_may_be_has_workers() {
    let world = TestCluster::new();
    let long = "x".repeat(195);
    let e = tenure_queue::Queue::create(world.store.clone(), "shop", &long, settings(2)).await;
    let e = e.unwrap_err().to_string();
    assert!(e.contains("longer than 194"), "{e}");
    for name in ["x".repeat(194), "a/b ä".to_owned()] {
        let created =
            tenure_queue::Queue::create(world.store.clone(), "shop", &name, settings(2)).await;
        let queue = created.unwrap();
        let worker = world.worker(&queue, "w").start(Hand::default()).await;
        let worker = worker.unwrap();
        let id = submitted(&queue, text("1")).await;
        assert_eq!(ended(&queue, &id).await.status(), TaskStatus::Done);
        worker.stop().await.unwrap();
    }
}
