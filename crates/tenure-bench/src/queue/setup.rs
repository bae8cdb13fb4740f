//! A queue for measuring, and workers whose requests are counted.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_queue::{
    Job, Outcome, OwnershipSettings, Payload, Queue, QueueSettings, TaskFailure, TaskHandler,
    Worker,
};
use tenure_store::Store;
use tenure_store::observed_store::{CountReader, ObservedStore};

use super::super::worker::Scratch;
use crate::exit::Exit;
use crate::store_access::random_id;

/// Requests to the store, as a bucket would count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    pub(crate) writes: u64,
    pub(crate) reads: u64,
}

impl Requests {
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            writes: self.writes - earlier.writes,
            reads: self.reads - earlier.reads,
        }
    }
}

/// Empty queue in a cluster of its own, for a benchmark.
pub(crate) struct BenchQueue {
    pub(crate) queue: Queue,
    url: String,
    cluster: String,
    observers: Mutex<Vec<CountReader>>,
    workers: Mutex<Vec<Queue>>,
    _scratch: Option<Scratch>,
}

impl BenchQueue {
    pub(crate) async fn new(store: Option<&str>, shards: u32) -> Result<Self, Exit> {
        let (url, scratch) = match store {
            Some(url) => (url.to_owned(), None),
            None => {
                let scratch = Scratch::new()?;
                let url = format!("sqlite:{}", scratch.database().display());
                (url, Some(scratch))
            }
        };
        let cluster = format!("bench-{:08x}", random_id() as u32);
        let (store, observer) = observed(&url).await?;
        let settings = QueueSettings {
            shards,
            ..QueueSettings::default()
        };
        Ok(Self {
            queue: Queue::create(store, &cluster, "bench", settings).await?,
            url,
            cluster,
            observers: Mutex::new(vec![observer]),
            workers: Mutex::default(),
            _scratch: scratch,
        })
    }

    /// Starts workers that do nothing with their tasks; returns when they own everything.
    pub(crate) async fn workers(
        &self,
        count: u32,
        concurrency: usize,
        leasing: &OwnershipSettings,
    ) -> Result<Vec<Worker>, Exit> {
        let mut crew = Vec::new();
        for n in 0..count {
            let (store, observer) = observed(&self.url).await?;
            lock(&self.observers).push(observer);
            let queue = Queue::open(store, &self.cluster, "bench").await?;
            lock(&self.workers).push(queue.clone());
            let builder = Worker::builder(&queue)
                .name(format!("w{n}"))
                .leasing(leasing.clone())
                .concurrency(concurrency);
            crew.push(builder.start(NoopHandler).await?);
        }
        let shards = self.queue.layout().shards();
        let (most, least) = (shards.div_ceil(count), shards / count);
        let begun = Instant::now();
        while !crew
            .iter()
            .all(|w| (least..=most).contains(&(w.shards().len() as u32)))
        {
            if begun.elapsed() > Duration::from_secs(120) {
                return Err(Exit::failed(
                    "the workers did not balance the shards within 120s",
                ));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(crew)
    }

    /// Waits until the workers have finished so many tasks.
    pub(crate) async fn until_finished(&self, tasks: u64, limit: Duration) -> Result<(), Exit> {
        let begun = Instant::now();
        loop {
            let finished = |queue: &Queue| {
                let value = queue.metrics().value("tenure_queue_finished_total");
                value.unwrap_or(0)
            };
            let done: u64 = lock(&self.workers).iter().map(finished).sum();
            if done >= tasks {
                return Ok(());
            }
            if begun.elapsed() > limit {
                return Err(Exit::failed(format!(
                    "only {done} of {tasks} tasks were done within {limit:?}"
                )));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// What all have asked of the store so far.
    pub(crate) fn requests(&self) -> Requests {
        let mut sum = Requests::default();
        for observer in lock(&self.observers).iter() {
            let counts = observer.snapshot();
            sum.writes += counts.writes();
            sum.reads += counts.reads();
        }
        sum
    }

    /// Removes everything again, where it is not in a file of its own.
    pub(crate) async fn remove(self) {
        if self._scratch.is_some() {
            return;
        }
        let store = self.queue.store();
        let prefixes = [
            self.queue.layout().root().to_owned(),
            format!("{}/", self.cluster),
        ];
        for prefix in prefixes {
            while let Ok(page) = store.keys(&prefix, None, 1000).await
                && !page.keys.is_empty()
            {
                let gone = store.discard(page.keys).await;
                if gone.iter().any(Result::is_err) {
                    eprintln!("warning: keys with the prefix {prefix} could not be deleted");
                    break;
                }
            }
        }
    }
}

/// Stops all of them together, so that none takes over what another gives away.
pub(crate) async fn stop(crew: Vec<Worker>) -> Result<(), Exit> {
    let stopping: Vec<_> = crew.into_iter().map(|w| tokio::spawn(w.stop())).collect();
    for stopped in stopping {
        stopped
            .await
            .map_err(|e| Exit::failed(format!("a worker did not stop: {e}")))??;
    }
    Ok(())
}

async fn observed(url: &str) -> Result<(Arc<dyn Store>, CountReader), Exit> {
    let (store, observer) = ObservedStore::new(tenure_store::open(url).await?);
    Ok((Arc::new(store), observer))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handler of tasks that does nothing and succeeds at once.
struct NoopHandler;

impl TaskHandler for NoopHandler {
    async fn handle(&self, _: Job) -> Result<Outcome, TaskFailure> {
        Ok(Outcome::Done(Payload::none()))
    }
}
