//! Several workers of one process on one queue.

use std::sync::Arc;

use tenure_queue::{NewTask, OwnershipSettings, Queue, TaskStatus, Worker, WorkerSettings, typed};
use tenure_store::memory::MemoryStore;

use crate::test_cluster::*;

/// A worker's settings where only word from within the process brings a look forward.
fn resting() -> WorkerSettings {
    WorkerSettings {
        follow: false,
        poll_latest: secs(60),
        ..WorkerSettings::for_store("memory")
    }
}

#[tokio::test(start_paused = true)]
async fn each_worker_of_a_process_hears_of_every_submission() {
    let world = TestCluster::new();
    let queue = world.queue(settings(4)).await;
    let mut workers = Vec::new();
    for name in ["a", "b", "c"] {
        let worker = world.worker(&queue.clone(), name).settings(resting());
        workers.push(worker.start(Hand::default()).await.unwrap());
    }
    until("each has a share", async || {
        workers.iter().all(|worker| !worker.shards().is_empty())
    })
    .await;
    tokio::time::sleep(secs(300)).await;
    for n in 0..12 {
        let id = submitted(&queue, text(format!("{n}"))).await;
        let task = ended(&queue, &id).await;
        let waited = task.history[1].at.since(task.created);
        assert!(waited < ms(50), "task {n} waited {waited:?}");
    }
    // What fails in one of them is due again in whichever owns it.
    let id = submitted(&queue, text("later")).await;
    let task = ended(&queue, &id).await;
    assert!(task.ended().unwrap().since(task.created) < secs(2));
    for worker in workers {
        worker.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn gauges_are_those_of_all_workers_of_a_process() {
    let world = TestCluster::new();
    let queue = world.queue(settings(4)).await;
    let start = async |name: &str| {
        let worker = world.worker(&queue, name).concurrency(1);
        worker.start(Hand::default()).await.unwrap()
    };
    let (one, two) = (start("one").await, start("two").await);
    until("both have shards", async || {
        (one.shards().len(), two.shards().len()) == (2, 2)
    })
    .await;
    assert_eq!(count(&queue, "shards"), 4);
    for n in 0..16 {
        submitted(&queue, text(format!("wait:{n}"))).await;
    }
    until("both are at work", async || {
        (one.running(), two.running()) == (1, 1)
    })
    .await;
    assert_eq!(count(&queue, "running"), 2);
    drop(one);
    until("one is left", async || count(&queue, "running") == 1).await;
    drop(two);
    until("none is left", async || {
        (count(&queue, "running"), count(&queue, "shards")) == (0, 0)
    })
    .await;
}

/// A sweeper that needs no node, and its runtime.
fn sweeper(queue: &Queue) -> (tokio::runtime::Runtime, Worker) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let worker = Worker::builder(queue).leasing(OwnershipSettings::off());
    let starting = worker.start(typed(async |n: u64, _| Ok(n + 1)));
    let worker = runtime.block_on(starting).unwrap();
    (runtime, worker)
}

async fn is_worked_on(queue: &Queue) {
    let id = submitted(queue, NewTask::json(&1).unwrap()).await;
    let task = queue.wait(&id, secs(60)).await.unwrap();
    assert_eq!((task.status(), task.attempts), (TaskStatus::Done, 1));
}

#[test]
fn a_worker_goes_on_when_the_runtime_of_another_one_ends() {
    let main = tokio::runtime::Runtime::new().unwrap();
    let store = Arc::new(MemoryStore::new());
    let queue = main.block_on(Queue::create(store, "shop", "jobs", settings(1)));
    let queue = queue.unwrap();
    let (first, one) = sweeper(&queue);
    main.block_on(is_worked_on(&queue));
    let (second, two) = sweeper(&queue);
    first.block_on(one.stop()).unwrap();
    drop(first);
    main.block_on(is_worked_on(&queue));
    second.block_on(two.stop()).unwrap();
    drop(second);
    // And one that begins when nobody is left.
    let (third, three) = sweeper(&queue);
    main.block_on(is_worked_on(&queue));
    third.block_on(three.stop()).unwrap();
}
