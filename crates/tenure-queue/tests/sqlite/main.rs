//! The queue in a SQLite file, in real time: what virtual time cannot show.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tenure_queue::{
    Job, NewTask, OwnershipSettings, Queue, QueueSettings, TaskFailure, TaskStatus, Worker,
    WorkerBuilder, typed,
};
use tenure_store::observed_store::{CountReader, ObservedStore};

struct TestCluster {
    url: String,
    _dir: TempDir,
}

impl TestCluster {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("queue.db").display());
        Self { url, _dir: dir }
    }

    /// The queue over connections of its own, as another process has it.
    async fn queue(&self) -> (Queue, CountReader) {
        let store = tenure_store::open(&self.url).await.unwrap();
        let (store, observer) = ObservedStore::new(store);
        let settings = QueueSettings {
            claim_timeout: Duration::from_secs(2),
            ..QueueSettings::default()
        };
        let queue = Queue::create(Arc::new(store), "shop", "jobs", settings).await;
        (queue.unwrap(), observer)
    }
}

fn worker(queue: &Queue, name: &str) -> WorkerBuilder {
    let leasing = OwnershipSettings {
        ttl_secs: Some(1.0),
        ..OwnershipSettings::default()
    };
    Worker::builder(queue)
        .name(name)
        .leasing(leasing)
        .concurrency(16)
}

/// Counts how often each number was handled.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<BTreeMap<u64, u32>>>);

impl Counted {
    async fn handle(self, number: u64, pause: Duration) -> Result<u64, TaskFailure> {
        *self.0.lock().unwrap().entry(number).or_default() += 1;
        tokio::time::sleep(pause).await;
        Ok(number * 2)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tasks_by_three_workers_and_a_sweeper_are_each_done_once() {
    let site = TestCluster::new();
    let (producer, _) = site.queue().await;
    let counted = Counted::default();
    let mut workers = Vec::new();
    for n in 0..4 {
        let (queue, _) = site.queue().await;
        let worker = match n {
            3 => Worker::builder(&queue)
                .name("sweeper")
                .leasing(OwnershipSettings::off()),
            _ => worker(&queue, &format!("w{n}")),
        };
        let counted = counted.clone();
        let handler = typed(move |n: u64, _: Job| counted.clone().handle(n, Duration::ZERO));
        workers.push(worker.start(handler).await.unwrap());
    }
    let mut ids = Vec::new();
    for chunk in 0..10u64 {
        let submits = (0..100).map(|n| NewTask::json(&(chunk * 100 + n)).unwrap());
        let answers = producer.submit_many(submits.collect()).await;
        ids.extend(answers.into_iter().map(|a| a.unwrap().id));
    }
    for (n, id) in ids.iter().enumerate() {
        let result: u64 = producer.result(id, Duration::from_secs(60)).await.unwrap();
        assert_eq!(result, n as u64 * 2);
    }
    assert!(counted.0.lock().unwrap().values().all(|times| *times == 1));
    for worker in workers {
        worker.stop().await.unwrap();
    }
    let stats = producer.stats().await.unwrap();
    assert_eq!(
        (stats.ready, stats.running, stats.done),
        (0, 0, 1000),
        "{stats:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_task_keeps_its_claim_and_a_dead_workers_task_goes_to_another() {
    let site = TestCluster::new();
    let (producer, _) = site.queue().await;
    let counted = Counted::default();
    let handler = || {
        let counted = counted.clone();
        let pause = Duration::from_secs(7);
        typed(move |n: u64, _: Job| counted.clone().handle(n, pause))
    };
    let (one, _) = site.queue().await;
    let first = worker(&one, "first").start(handler()).await.unwrap();
    let long = producer
        .submit(NewTask::json(&1).unwrap())
        .await
        .unwrap()
        .id;
    let task = producer.wait(&long, Duration::from_secs(30)).await.unwrap();
    assert_eq!(
        (task.status(), task.attempts),
        (TaskStatus::Done, 1),
        "more than three leases long"
    );

    let cut = producer
        .submit(NewTask::json(&2).unwrap())
        .await
        .unwrap()
        .id;
    // Claimed, and begun: a claim comes before its handler.
    let begun = || counted.0.lock().unwrap().contains_key(&2);
    while producer.get(&cut).await.unwrap().status() != TaskStatus::Running || !begun() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(first);
    let (two, _) = site.queue().await;
    let second = worker(&two, "second").start(handler()).await.unwrap();
    let task = producer.wait(&cut, Duration::from_secs(30)).await.unwrap();
    assert_eq!((task.status(), task.attempts), (TaskStatus::Done, 2));
    assert_eq!(counted.0.lock().unwrap()[&2], 2);
    second.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submission_by_another_process_is_picked_up_within_the_blink_of_an_eye() {
    let site = TestCluster::new();
    let ((producer, _), (queue, _)) = (site.queue().await, site.queue().await);
    let handler = typed(async |n: u64, _: Job| Ok(n));
    let worker = worker(&queue, "w").start(handler).await.unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let mut took = Vec::new();
    for n in 0..9u64 {
        let id = producer
            .submit(NewTask::json(&n).unwrap())
            .await
            .unwrap()
            .id;
        let task = producer.wait(&id, Duration::from_secs(10)).await.unwrap();
        took.push(task.history[1].at.since(task.created));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    took.sort_unstable();
    assert!(
        took[4] < Duration::from_millis(300),
        "idle looks are a second apart: {took:?}"
    );
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_costs_few_calls_and_tasks_that_come_together_cost_fewer() {
    let site = TestCluster::new();
    let ((producer, submits), (queue, works)) = (site.queue().await, site.queue().await);
    let tasks = (0..400u64).map(|n| NewTask::json(&n).unwrap()).collect();
    let before = submits.snapshot();
    let answers = producer.submit_many(tasks).await;
    let asked = submits.snapshot().since(&before);
    assert_eq!(asked.writes(), 800, "a task and its entry");
    let handler = typed(async |n: u64, _: Job| Ok(n));
    let worker = worker(&queue, "w").start(handler).await.unwrap();
    for answer in answers {
        let id = answer.unwrap().id;
        producer.wait(&id, Duration::from_secs(30)).await.unwrap();
    }
    worker.stop().await.unwrap();
    let asked = works.snapshot();
    // Claim, finish, the entry of the end, the entry that goes; and what the worker's own node writes.
    let writes = asked.writes() as f64 / 400.0;
    assert!(writes > 3.9 && writes < 4.6, "{writes} writes per task");
    let calls: u64 = tenure_store::Op::ALL
        .iter()
        .map(|op| asked.of(*op).calls)
        .sum();
    assert!(calls < 2 * 400, "{calls} calls for 400 tasks");
}
