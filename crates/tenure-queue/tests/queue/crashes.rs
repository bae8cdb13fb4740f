//! A process that dies between any two calls to the store loses no task.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure_queue::{Filter, Queue, Task, TaskStatus, Worker};
use tenure_store::Op;
use tenure_store::fault::FaultHandle;

use crate::test_cluster::*;

/// How far a process gets before it dies.
#[derive(Clone)]
struct Calls {
    left: Arc<AtomicUsize>,
    made: Arc<AtomicUsize>,
}

impl Calls {
    /// From now on the store of this process answers so many writes to keys of the queue, and not one more.
    fn limit(faults: &FaultHandle, calls: usize) -> Self {
        let counted = Self {
            left: Arc::new(AtomicUsize::new(calls)),
            made: Arc::default(),
        };
        let seen = counted.clone();
        faults.fail_where(move |op, key| {
            let queue = key.starts_with("=queues/");
            let writes = matches!(op, Op::Put | Op::Delete | Op::Discard);
            if !queue || !writes {
                // A dead process reads no more either.
                return queue && seen.left.load(Ordering::SeqCst) == 0;
            }
            let taken = seen
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                });
            seen.made.fetch_add(1, Ordering::SeqCst);
            taken.is_err()
        });
        counted
    }

    fn is_dead(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }
}

/// A worker whose looks at everything are too far away to help: only the indexes lead to tasks.
async fn by_index_alone(world: &TestCluster, queue: &Queue, name: &str, hand: &Hand) -> Worker {
    let mut set = tenure_queue::WorkerSettings::for_store("memory");
    set.rescan_every = secs(1_000_000_000);
    let worker = world.worker(queue, name).settings(set);
    worker.start(hand.clone()).await.unwrap()
}

async fn all(queue: &Queue) -> Vec<Task> {
    let page = queue.list(&Filter::default(), 1000, None).await.unwrap();
    assert!(page.corrupt.is_empty() && page.next.is_none());
    page.tasks
}

/// Everything that is there is done in the end, and every index says so.
async fn everything_is_done(world: &TestCluster, hand: &Hand, at: usize) {
    let queue = world.queue(settings(2)).await;
    let worker = by_index_alone(world, &queue, "survivor", hand).await;
    for task in all(&queue).await {
        let task = ended(&queue, &task.id).await;
        let wanted = if task.payload.to_bytes() == b"doom" {
            TaskStatus::Dead
        } else {
            TaskStatus::Done
        };
        assert_eq!(task.status(), wanted, "after {at} calls: {task:?}");
    }
    // Long enough for every stray entry to be looked at.
    tokio::time::sleep(secs(180)).await;
    worker.stop().await.unwrap();
    let (stats, tasks) = (queue.stats().await.unwrap(), all(&queue).await);
    assert_eq!(
        (stats.ready, stats.delayed, stats.running, stats.odd),
        (0, 0, 0, 0),
        "after {at}: {stats:?}"
    );
    assert_eq!(
        stats.done + stats.dead,
        tasks.len() as u64,
        "after {at}: {stats:?}"
    );
    let rebuilt = queue.rebuild_index().await.unwrap();
    assert_eq!(
        (rebuilt.added, rebuilt.removed),
        (0, 0),
        "after {at}: {rebuilt:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_producer_that_dies_between_any_two_writes_loses_nothing_it_was_told_is_submitted() {
    for calls in 0.. {
        let world = TestCluster::new();
        let (queue, faults) = world.faulty(settings(2)).await;
        let counted = Calls::limit(&faults, calls);
        let mut taken = Vec::new();
        for n in 0..4 {
            let submits = vec![
                text(format!("a{n}")).key(format!("k{n}")),
                text(format!("b{n}")),
            ];
            let answers = queue.submit_many(submits).await;
            taken.extend(answers.into_iter().flatten().map(|s| s.id));
        }
        let survived = !counted.is_dead();
        drop(queue);
        let healthy = world.queue(settings(2)).await;
        let there: Vec<_> = all(&healthy)
            .await
            .into_iter()
            .map(|task| task.id)
            .collect();
        for id in &taken {
            assert!(there.contains(id), "{id} is lost after {calls} calls");
        }
        let hand = Hand::default();
        everything_is_done(&world, &hand, calls).await;
        assert!(hand.0.counts().values().all(|n| *n == 1));
        if survived {
            assert!(calls > 10, "there were writes to die between");
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_between_any_two_writes_loses_no_task() {
    for calls in 0.. {
        let world = TestCluster::new();
        let producer = world.queue(settings(2)).await;
        for payload in ["quick", "sleep:2500", "fail once", "doom", "sleep:9000"] {
            submitted(&producer, text(payload)).await;
        }
        let (queue, faults) = world.faulty(settings(2)).await;
        let counted = Calls::limit(&faults, calls);
        let hand = Hand::default();
        let worker = by_index_alone(&world, &queue, "mortal", &hand).await;
        let all_done = async || {
            all(&producer)
                .await
                .iter()
                .all(|task| task.status().is_final())
        };
        until("it is dead, or done", async || {
            counted.is_dead() || all_done().await
        })
        .await;
        let survived = !counted.is_dead();
        // As a killed process: nothing is released, nothing is said.
        drop(worker);
        everything_is_done(&world, &hand, calls).await;
        for task in all(&producer).await {
            let runs = hand.0.counts()[&String::from_utf8(task.payload.to_bytes()).unwrap()];
            assert!(
                runs <= 2,
                "at most the killed attempt and another one: {runs} of {task:?}"
            );
        }
        if survived {
            assert!(calls > 15, "there were writes to die between: {calls}");
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_cancels_retries_or_purges_and_dies_in_between_breaks_nothing() {
    for calls in 0..12 {
        let world = TestCluster::new();
        let producer = world.queue(settings(2)).await;
        let hand = Hand::default();
        let dead = submitted(&producer, text("doom")).await;
        let done = submitted(&producer, text("done")).await;
        let worker = by_index_alone(&world, &producer, "first", &hand).await;
        ended(&producer, &dead).await;
        ended(&producer, &done).await;
        worker.stop().await.unwrap();
        let later = submitted(&producer, text("later").delay(secs(50))).await;

        let (operator, faults) = world.faulty(settings(2)).await;
        Calls::limit(&faults, calls);
        let _ = operator.cancel(&later, None).await;
        let _ = operator.retry(&later, None).await;
        let _ = operator.retry(&dead, None).await;
        let purge = tenure_queue::Purge {
            done: Some(ms(0)),
            dead: None,
        };
        tokio::time::sleep(ms(5)).await;
        let _ = operator.purge(&purge).await;
        drop(operator);

        let survivor = world.queue(settings(2)).await;
        let worker = by_index_alone(&world, &survivor, "survivor", &hand).await;
        for task in all(&survivor).await {
            ended(&survivor, &task.id).await;
        }
        assert!(survivor.get(&dead).await.is_ok() && survivor.get(&later).await.is_ok());
        tokio::time::sleep(secs(180)).await;
        worker.stop().await.unwrap();
        let stats = survivor.stats().await.unwrap();
        assert_eq!(
            (stats.ready, stats.delayed, stats.running),
            (0, 0, 0),
            "after {calls}"
        );
    }
}
