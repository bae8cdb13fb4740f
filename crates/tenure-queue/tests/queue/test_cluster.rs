//! A store, a clock, and as many processes as a test wants.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::Clock;
use tenure_queue::{
    Job, NewTask, Outcome, OwnershipSettings, Payload, Queue, QueueSettings, RetryAt, Task,
    TaskFailure, TaskHandler, TaskId, Worker, WorkerBuilder,
};
use tenure_store::Store;
use tenure_store::fault::{FaultConfig, FaultHandle, FaultStore};
use tenure_store::memory::MemoryStore;

pub(crate) const LEASE: Duration = Duration::from_secs(6);

pub(crate) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Settings of a queue for tests: short leases, short waits.
pub(crate) fn settings(shards: u32) -> QueueSettings {
    let mut settings = QueueSettings {
        shards,
        claim_timeout: LEASE,
        ..QueueSettings::default()
    };
    settings.retry.delay = ms(400);
    settings
}

pub(crate) struct TestCluster {
    pub(crate) store: Arc<dyn Store>,
    clock: Clock,
}

impl TestCluster {
    pub(crate) fn new() -> Self {
        Self::over(Arc::new(MemoryStore::new()))
    }

    pub(crate) fn over(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            clock: Clock::runtime(),
        }
    }

    /// The queue, as a process of its own sees it.
    pub(crate) async fn queue(&self, settings: QueueSettings) -> Queue {
        let created = Queue::create(self.store.clone(), "shop", "jobs", settings).await;
        created.unwrap()
    }

    /// The same behind faults.
    pub(crate) async fn faulty(&self, settings: QueueSettings) -> (Queue, FaultHandle) {
        let (store, faults) = FaultStore::new(self.store.clone(), FaultConfig::none(1));
        let created = Queue::create(Arc::new(store), "shop", "jobs", settings).await;
        (created.unwrap(), faults)
    }

    /// A worker that owns shards.
    pub(crate) fn worker(&self, queue: &Queue, name: &str) -> WorkerBuilder {
        let clock = self.clock.clone();
        Worker::builder(queue)
            .name(name)
            .leasing(OwnershipSettings {
                ttl_secs: Some(6.0),
                ..OwnershipSettings::default()
            })
            .node(move |node| node.clock(clock))
    }

    /// A worker that sweeps.
    pub(crate) fn sweeper(&self, queue: &Queue, name: &str) -> WorkerBuilder {
        self.worker(queue, name).leasing(OwnershipSettings::off())
    }
}

/// What handlers did, in order.
#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    pub(crate) fn write(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// How often each line was written.
    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for line in self.lines() {
            *counts.entry(line).or_default() += 1;
        }
        counts
    }
}

/// A handler that does what a task's payload says, and writes down that it did.
///
/// `sleep:MS` takes that long, `fail` fails, `doom` fails for good, `panic` panics, `hang` never ends, `wait` ends when it is
/// told to stop, `later` is put off once and `back` given back once, anything else is done at once. The result is the
/// payload.
#[derive(Clone, Default)]
pub(crate) struct Hand(pub(crate) Journal);

impl TaskHandler for Hand {
    async fn handle(&self, job: Job) -> Result<Outcome, TaskFailure> {
        let text = String::from_utf8(job.payload().to_bytes())?;
        self.0.write(text.clone());
        match text.split_once(':').unwrap_or((&text, "")) {
            ("sleep", time) => {
                tokio::time::sleep(ms(time.split(':').next().unwrap().parse()?)).await
            }
            ("fail", _) => return Err(TaskFailure::new("it failed")),
            ("doom", _) => return Err(TaskFailure::for_good("it can never be")),
            ("panic", _) => panic!("it panicked"),
            ("later", _) if job.task().history.len() == 2 => {
                let at = RetryAt::In(secs(1));
                return Ok(Outcome::Reschedule { at, note: None });
            }
            ("back", _) if job.task().history.len() == 2 => return Ok(Outcome::GiveBack),
            ("hang", _) => std::future::pending().await,
            ("wait", _) => {
                job.report(Some(250), "waiting");
                job.cancelled().await;
                return Err(TaskFailure::new("stopped"));
            }
            _ => {}
        }
        Ok(Outcome::Done(Payload::bytes(text)))
    }
}

pub(crate) fn text(text: impl Into<String>) -> NewTask {
    NewTask::new(Payload::bytes(text.into()))
}

/// Submits a task; it must be taken.
pub(crate) async fn submitted(queue: &Queue, submit: NewTask) -> TaskId {
    queue.submit(submit).await.unwrap().id
}

/// Waits for a task to end, within a virtual hour.
pub(crate) async fn ended(queue: &Queue, id: &TaskId) -> Task {
    queue.wait(id, secs(3600)).await.unwrap()
}

/// Waits, for at most two virtual minutes, until `ready` holds.
pub(crate) async fn until(what: &str, mut ready: impl AsyncFnMut() -> bool) {
    let begun = tokio::time::Instant::now();
    while !ready().await {
        assert!(begun.elapsed() < secs(120), "never: {what}");
        tokio::time::sleep(ms(10)).await;
    }
}

pub(crate) fn count(queue: &Queue, metric: &str) -> u64 {
    let name = format!("tenure_queue_{metric}");
    queue.metrics().value(&name).expect("a metric of that name")
}
