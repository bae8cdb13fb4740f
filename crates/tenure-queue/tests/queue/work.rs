//! The plain course of things, and workers that die or are slow.

use tenure_queue::task::TaskEventKind;
use tenure_queue::{TaskStatus, typed};

use crate::test_cluster::*;

#[tokio::test(start_paused = true)]
async fn a_task_is_done_and_its_result_comes_back() {
    let world = TestCluster::new();
    let queue = world.queue(settings(4)).await;
    let worker = world.worker(&queue, "w").concurrency(8);
    let sum = typed(async |numbers: Vec<u64>, _| Ok(numbers.iter().sum::<u64>()));
    let worker = worker.start(sum).await.unwrap();
    let submit = tenure_queue::NewTask::json(&[1, 2, 3]).unwrap();
    let id = submitted(&queue, submit).await;
    assert_eq!(queue.result::<u64>(&id, secs(60)).await, Ok(6));
    let odd = submitted(&queue, text("no numbers")).await;
    let task = ended(&queue, &odd).await;
    assert_eq!(
        (task.status(), task.attempts),
        (TaskStatus::Dead, 1),
        "no other attempt could read it"
    );
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn many_tasks_are_each_done_once_and_leave_only_what_they_should() {
    let world = TestCluster::new();
    let (producer, one) = (
        world.queue(settings(8)).await,
        world.queue(settings(8)).await,
    );
    let (two, hand) = (world.queue(settings(8)).await, Hand::default());
    let first = world.worker(&one, "one").start(hand.clone()).await.unwrap();
    let second = world.worker(&two, "two").start(hand.clone()).await.unwrap();
    until("both have shards", async || {
        first.shards().len() == 4 && second.shards().len() == 4
    })
    .await;
    let submits = (0..300).map(|n| text(format!("task {n}"))).collect();
    let answers = producer.submit_many(submits).await;
    for answer in &answers {
        ended(&producer, &answer.as_ref().unwrap().id).await;
    }
    let counts = hand.0.counts();
    assert_eq!(counts.len(), 300);
    assert!(counts.values().all(|n| *n == 1), "{counts:?}");
    assert!(count(&one, "finished_total") > 0 && count(&two, "finished_total") > 0);
    assert_eq!(
        count(&one, "finished_total") + count(&two, "finished_total"),
        300
    );
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    let stats = producer.stats().await.unwrap();
    assert_eq!(
        (stats.ready, stats.running, stats.done, stats.dead),
        (0, 0, 300, 0)
    );
    assert_eq!(count(&producer, "submitted_total"), 300);
}

/// Two workers without leasing, with time for the other between a look and a claim.
async fn two_sweepers(concurrency: usize) -> [tenure_queue::Queue; 2] {
    let world = TestCluster::new();
    let (one, slow_one) = world.faulty(settings(1)).await;
    let (two, slow_two) = world.faulty(settings(1)).await;
    slow_one.slow(ms(7));
    slow_two.slow(ms(7));
    // Both know the time already, and so look at the same instant.
    two.now().await.unwrap();
    let hand = Hand::default();
    let submits = (0..200).map(|n| text(format!("sleep:20:{n}"))).collect();
    let answers = one.submit_many(submits).await;
    let mut workers = Vec::new();
    for (queue, name) in [(&one, "one"), (&two, "two")] {
        let worker = world.sweeper(queue, name).concurrency(concurrency);
        workers.push(worker.start(hand.clone()).await.unwrap());
    }
    for answer in answers {
        let task = ended(&one, &answer.unwrap().id).await;
        assert_eq!((task.status(), task.attempts), (TaskStatus::Done, 1));
    }
    assert!(hand.0.counts().values().all(|n| *n == 1));
    [one, two]
}

#[tokio::test(start_paused = true)]
async fn two_sweepers_race_for_the_same_tasks_and_each_is_done_once() {
    let lost = two_sweepers(200)
        .await
        .map(|q| count(&q, "claim_conflicts_total"));
    assert!(lost.iter().sum::<u64>() > 0, "they did race");
}

#[tokio::test(start_paused = true)]
async fn of_two_sweepers_neither_is_left_with_nothing() {
    let finished = two_sweepers(4).await.map(|q| count(&q, "finished_total"));
    assert!(finished.iter().all(|n| *n > 40), "{finished:?}");
}

#[tokio::test(start_paused = true)]
async fn a_killed_workers_task_runs_once_more_and_its_history_shows_both_attempts() {
    let world = TestCluster::new();
    let (one, two) = (
        world.queue(settings(4)).await,
        world.queue(settings(4)).await,
    );
    let hand = Hand::default();
    let first = world.worker(&one, "one").start(hand.clone()).await.unwrap();
    let id = submitted(&two, text("sleep:5000")).await;
    until("it is running", async || {
        two.get(&id).await.unwrap().status() == TaskStatus::Running
    })
    .await;
    tokio::time::sleep(secs(2)).await;
    drop(first);
    let second = world.worker(&two, "two").start(hand.clone()).await.unwrap();
    let task = ended(&two, &id).await;
    assert_eq!((task.status(), task.attempts), (TaskStatus::Done, 2));
    assert_eq!(hand.0.counts()["sleep:5000"], 2);
    let events: Vec<TaskEventKind> = task.history.iter().map(|e| e.event).collect();
    use TaskEventKind::{Claimed, Expired, Finished, Submitted};
    assert_eq!(events, [Submitted, Claimed, Expired, Claimed, Finished]);
    let by = |n: usize| task.history[n].by.as_deref();
    assert_eq!(
        (by(1), by(2), by(3)),
        (Some("one"), Some("two"), Some("two"))
    );
    assert_eq!(count(&two, "expired_claims_total"), 1);
    second.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_task_longer_than_its_lease_and_the_workers_keeps_both() {
    let world = TestCluster::new();
    let (one, two) = (
        world.queue(settings(4)).await,
        world.queue(settings(4)).await,
    );
    let hand = Hand::default();
    let first = world.worker(&one, "one").start(hand.clone()).await.unwrap();
    let shards = first.shards();
    assert_eq!(shards.len(), 4);
    let id = submitted(&one, text("sleep:60000")).await;
    let task = ended(&one, &id).await;
    assert_eq!((task.status(), task.attempts), (TaskStatus::Done, 1));
    assert!(
        count(&one, "claim_renewals_total") >= 25,
        "{}",
        count(&one, "claim_renewals_total")
    );
    assert_eq!(first.shards(), shards);
    assert_eq!(hand.0.lines().len(), 1);
    // Somebody else who looks at the claims meanwhile leaves them alone.
    let id = submitted(&one, text("sleep:30000")).await;
    until("it is running", async || {
        one.get(&id).await.unwrap().status() == TaskStatus::Running
    })
    .await;
    let second = world
        .sweeper(&two, "two")
        .start(hand.clone())
        .await
        .unwrap();
    assert_eq!(ended(&one, &id).await.attempts, 1);
    assert_eq!(count(&two, "expired_claims_total"), 0);
    drop(second);
    first.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_works_on_as_many_tasks_as_it_may_at_once() {
    for concurrency in [1, 3] {
        let world = TestCluster::new();
        let queue = world.queue(settings(2)).await;
        let worker = world.worker(&queue, "w").concurrency(concurrency);
        let worker = worker.start(Hand::default()).await.unwrap();
        for n in 0..6 {
            submitted(&queue, text(format!("sleep:2000:{n}"))).await;
        }
        until("it is busy", async || worker.running() == concurrency).await;
        tokio::time::sleep(ms(500)).await;
        assert_eq!(worker.running(), concurrency);
        let running = count(&queue, "running");
        assert_eq!(running, concurrency as u64);
        worker.stop().await.unwrap();
    }
}
