//! What all parts of a worker share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::{Grant, Node};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::index_writer::IndexWriter;
use crate::error::QueueError;
use crate::ids::{TaskId, WorkerName};
use crate::ownership::CheckedOwnership;
use crate::queue::Queue;
use crate::task_store::TaskStore;
use crate::wakeups::PendingWakeups;

/// How long attempts that were told to stop have for it, and their tasks for being given back.
pub(super) const ABORT_LIMIT: Duration = Duration::from_secs(10);

/// How soon to look again whether all that is owned is polled.
const FOLLOW_AGAIN: Duration = Duration::from_millis(50);

/// Times and limits of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSettings {
    /// How many tasks it works on at once.
    pub concurrency: usize,
    /// How soon it looks into a shard again in which something was due.
    pub poll_first: Duration,
    /// How late it looks into a shard again in which nothing has been due for long.
    pub poll_latest: Duration,
    /// For how long a stop waits for what is running.
    pub stop_limit: Duration,
    /// How often an owner looks for tasks of its shards that no index leads to, and for those that may be removed.
    pub rescan_every: Duration,
    /// Whether it follows the store's changes, to look where something was submitted. Otherwise it finds out by polling.
    pub follow: bool,
}

impl WorkerSettings {
    /// What fits a kind of store. Where every look is paid for, it looks less often, and follows no changes.
    pub fn for_store(kind: &str) -> Self {
        let bucket = kind == "s3";
        let (first, latest) = match bucket {
            true => (Duration::from_millis(200), Duration::from_secs(5)),
            false => (Duration::from_millis(50), Duration::from_secs(1)),
        };
        Self {
            concurrency: 4,
            poll_first: first,
            poll_latest: latest,
            stop_limit: Duration::from_secs(30),
            rescan_every: Duration::from_secs(900),
            follow: !bucket,
        }
    }

    /// Checks everything, and reports every problem at once.
    pub fn check(&self) -> Result<(), QueueError> {
        let mut problems = Vec::new();
        if self.concurrency == 0 {
            problems.push("concurrency is 0; it must be at least 1".to_owned());
        }
        if self.poll_first.is_zero() || self.poll_first > self.poll_latest {
            problems.push(format!(
                "shortest poll interval is {:?} and longest {:?}; the shortest must be more than zero and at most the longest",
                self.poll_first, self.poll_latest
            ));
        }
        if self.rescan_every.is_zero() {
            problems.push("rescan_every is zero; it must be more than zero".to_owned());
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(QueueError::Invalid(problems)),
        }
    }
}

/// What all parts of a worker share.
pub(super) struct WorkerContext {
    pub(super) queue: Queue,
    pub(super) shelf: Arc<TaskStore>,
    pub(super) name: WorkerName,
    pub(super) settings: WorkerSettings,
    pub(super) leasing: CheckedOwnership,
    pub(super) clerk: IndexWriter,
    pub(super) permits: Arc<Semaphore>,
    /// What it was told to look at.
    pub(super) wakes: Arc<PendingWakeups>,
    /// Nothing more is claimed.
    pub(super) stop: CancellationToken,
    /// What is running is to be given back.
    pub(super) abort: CancellationToken,
    /// The worker is gone: everything is dropped where it stands.
    pub(super) vanish: CancellationToken,
    /// Shards have come or gone.
    pub(super) changed: watch::Sender<()>,
    owned: Mutex<BTreeMap<u32, Grant>>,
    /// Tasks to be passed over when they are found: they are being worked on, or cannot be.
    passed: Mutex<BTreeMap<TaskId, Option<Instant>>>,
    /// The shards that a worker without leasing has yet to look into, before it begins again.
    to_sweep: Mutex<Vec<u32>>,
    active: AtomicUsize,
    idle: Notify,
    cut_off: AtomicBool,
}

impl WorkerContext {
    /// The shard that a worker without leasing looks into next: by chance, but each once before any a second time.
    pub(super) fn swept_next(&self) -> u32 {
        let mut rest = self.to_sweep.lock().unwrap_or_else(PoisonError::into_inner);
        if rest.is_empty() {
            rest.extend(0..self.queue.layout().shards());
        }
        let at = self.shelf.chance.below(rest.len() as u64) as usize;
        rest.swap_remove(at)
    }

    pub(super) fn new(
        queue: &Queue,
        name: WorkerName,
        settings: WorkerSettings,
        leasing: CheckedOwnership,
    ) -> Arc<Self> {
        let shelf = queue.shelf().clone();
        Arc::new_cyclic(|engine| Self {
            queue: queue.clone(),
            clerk: IndexWriter::start(shelf.clone(), engine.clone()),
            wakes: queue.0.workers.join(),
            permits: Arc::new(Semaphore::new(settings.concurrency)),
            shelf,
            name,
            settings,
            leasing,
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
            vanish: CancellationToken::new(),
            changed: watch::Sender::new(()),
            owned: Mutex::default(),
            passed: Mutex::default(),
            to_sweep: Mutex::default(),
            active: AtomicUsize::new(0),
            idle: Notify::new(),
            cut_off: AtomicBool::new(false),
        })
    }

    /// Takes a shard in. It is out again when the answer is dropped.
    pub(super) fn own(self: &Arc<Self>, shard: u32, grant: Grant) -> OwnedShard {
        if self.owned().insert(shard, grant).is_none() {
            self.shelf.metrics.shards.one();
        }
        self.changed.send_replace(());
        OwnedShard {
            engine: self.clone(),
            shard,
        }
    }

    pub(super) fn owned_shards(&self) -> Vec<u32> {
        self.owned().keys().copied().collect()
    }

    /// Waits until every shard whose gate is open is polled too: what runs behind a gate begins a moment after it opens.
    pub(super) async fn follows(&self, node: &Node, keyspace: &str) {
        let mut changed = self.changed.subscribe();
        let open = || {
            let owned = node.owned().into_iter();
            owned.filter(|id| id.keyspace.as_str() == keyspace).count()
        };
        while open() > self.owned_shards().len() {
            // A shard may be lost meanwhile, of which nothing is told here.
            let _ = tokio::time::timeout(FOLLOW_AGAIN, changed.changed()).await;
        }
    }

    /// Whether tasks of a shard may be claimed at this instant, by the clock.
    pub(super) fn may_claim(&self, shard: u32) -> bool {
        if self.stop.is_cancelled() || self.queue.is_paused() || self.queue.is_deleted() {
            return false;
        }
        if !self.leasing.enabled {
            return true;
        }
        let owned = self.owned();
        owned.get(&shard).is_some_and(|grant| grant.check().is_ok())
    }

    fn owned(&self) -> MutexGuard<'_, BTreeMap<u32, Grant>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of whether the store has just answered.
    pub(super) fn heard(&self, answered: bool) {
        self.cut_off.store(!answered, Ordering::Relaxed);
    }

    /// Whether the store has not answered when it was last asked.
    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }

    fn passed(&self) -> MutexGuard<'_, BTreeMap<TaskId, Option<Instant>>> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a task is to be passed over for now.
    pub(super) fn passes(&self, id: &TaskId) -> bool {
        match self.passed().get(id) {
            None => false,
            Some(None) => true,
            Some(Some(until)) => Instant::now() < *until,
        }
    }

    /// Passes a task over: until it is let in again, or for a while.
    pub(super) fn pass_over(&self, id: &TaskId, wait: Option<Duration>) {
        let until = wait.map(|wait| Instant::now() + wait);
        let mut passed = self.passed();
        if passed.len() > 10_000 {
            let now = Instant::now();
            passed.retain(|_, until| until.is_none_or(|until| now < until));
        }
        passed.insert(id.clone(), until);
    }

    /// Lets a task in again.
    pub(super) fn let_in(&self, id: &TaskId) {
        self.passed().remove(id);
    }

    pub(super) fn active(&self) -> usize {
        self.active.load(Ordering::SeqCst)
    }

    /// Counts an attempt for as long as the answer lives.
    pub(super) fn begin(self: &Arc<Self>) -> ActiveAttempt {
        self.active.fetch_add(1, Ordering::SeqCst);
        self.shelf.metrics.running.one();
        ActiveAttempt(self.clone())
    }

    /// Waits until nothing is running; false if that takes longer than `limit`.
    pub(super) async fn idle_within(&self, limit: Duration) -> bool {
        let idle = async {
            loop {
                let notified = self.idle.notified();
                if self.active() == 0 {
                    return;
                }
                notified.await;
            }
        };
        tokio::time::timeout(limit, idle).await.is_ok()
    }
}

/// A shard that may be polled.
pub(super) struct OwnedShard {
    engine: Arc<WorkerContext>,
    shard: u32,
}

impl Drop for OwnedShard {
    fn drop(&mut self) {
        if self.engine.owned().remove(&self.shard).is_some() {
            self.engine.shelf.metrics.shards.less();
        }
        self.engine.changed.send_replace(());
    }
}

/// An attempt that is counted.
pub(super) struct ActiveAttempt(Arc<WorkerContext>);

impl Drop for ActiveAttempt {
    fn drop(&mut self) {
        let now = self.0.active.fetch_sub(1, Ordering::SeqCst) - 1;
        self.0.shelf.metrics.running.less();
        if now == 0 {
            self.0.idle.notify_waiters();
        }
    }
}
