//! A queue as producers and operators hold it.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tenure_store::{Put, PutIf, Store, StoreError, Version};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::QueueError;
use crate::ids::{NAME_MAX, QueueName, TaskId};
use crate::keys::QueueKeys;
use crate::metrics::Metrics;
use crate::queue_record::{QueueRecord, QueueSettings, decode, encode};
use crate::store_time::StoreTime;
use crate::submit::{NewTask, SubmittedTask};
use crate::task::{Task, TaskState, TaskStatus};
use crate::task_store::{TaskStore, UpdateOutcome, in_time, read_in_time};
use crate::transitions::{Transition, TransitionError};
use crate::wakeups::WakeupListeners;

/// What the keyspace of a queue's shards is called, before the queue's name.
pub(crate) const KEYSPACE: &str = "queue.";
/// How soon a waiting caller looks again at first, and how late at most.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_LATEST: Duration = Duration::from_secs(1);
/// Age of the queue's record up to which submissions rely on it. A queue that is deleted rejects all of them after this.
pub(crate) const RECORD_VALID: Duration = Duration::from_secs(2);
/// Number of reads of the record before a submission fails.
const RECORD_ATTEMPTS: u32 = 4;

/// A queue. Cheap to clone; clones share what they know.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure_queue::QueueError> {
/// use tenure_queue::{Queue, QueueSettings, NewTask};
///
/// let store = tenure_store::open("memory:doc").await?;
/// let queue = Queue::create(store, "shop", "mails", QueueSettings::default()).await?;
/// let task = NewTask::json(&"user-42")?.key("welcome user-42").attempts(3);
/// let first = queue.submit(task.clone()).await?;
/// let again = queue.submit(task).await?;
/// assert_eq!((first.created, again.created, &again.id), (true, false, &first.id));
/// assert_eq!(queue.stats().await?.ready, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Queue(pub(crate) Arc<QueueInner>);

#[derive(Debug)]
pub(crate) struct QueueInner {
    pub(crate) cluster: String,
    pub(crate) name: QueueName,
    pub(crate) shelf: Arc<TaskStore>,
    known: RwLock<Known>,
    /// Cancelled when the queue is found deleted. It stays so: a new queue of this name has to be opened again.
    deleted: CancellationToken,
    /// The workers of this process.
    pub(crate) workers: WakeupListeners,
}

/// The queue's record as read last.
#[derive(Debug)]
struct Known {
    record: Arc<QueueRecord>,
    /// When the read began: the record was current at this time or later.
    asked: Instant,
    /// When the read was answered: a read that begins after this returns no older record.
    answered: Instant,
}

impl Queue {
    /// Creates a queue, or opens it if it exists with as many shards. The settings of one that exists stay as they are.
    pub async fn create(
        store: Arc<dyn Store>,
        cluster: &str,
        name: &str,
        settings: QueueSettings,
    ) -> Result<Self, QueueError> {
        settings.check()?;
        let (shards, name) = (settings.shards, QueueName::new(name)?);
        check_length(&name)?;
        let layout = QueueKeys::new(cluster, &name, shards);
        let shelf = TaskStore::new(store, layout, Arc::default());
        let key = shelf.layout.record();
        let record = QueueRecord::new(settings, shelf.nonce());
        let put = PutIf::create(&key, encode(&record));
        let asked = Instant::now();
        match shelf.counted(in_time(shelf.store.put_if(put)).await) {
            Ok(Put::Won(_)) => return Ok(Self::over(cluster, name, shelf, record, asked)),
            Ok(Put::Lost) | Err(StoreError::Unknown { .. }) => {}
            Err(e) => return Err(e.into()),
        }
        let queue = Self::open(shelf.store.clone(), cluster, name.as_str()).await?;
        let has = queue.settings().shards;
        if has == shards {
            return Ok(queue);
        }
        Err(QueueError::Exists(format!(
            "queue {:?} exists with {has} shards, not {shards}, and the number cannot be changed; create another \
             queue",
            name.as_str()
        )))
    }

    /// Opens a queue that exists.
    pub async fn open(
        store: Arc<dyn Store>,
        cluster: &str,
        name: &str,
    ) -> Result<Self, QueueError> {
        let name = QueueName::new(name)?;
        let key = QueueKeys::new(cluster, &name, 1).record();
        let asked = Instant::now();
        let Some(entry) = read_in_time(store.get(&key)).await? else {
            return Err(QueueError::NoQueue {
                queue: name.to_string(),
                cluster: cluster.to_owned(),
                url: store.info().url.clone(),
            });
        };
        let record: QueueRecord = decode(&key, &entry.value)?;
        if record.deleting {
            return Err(QueueError::Deleted(name.to_string()));
        }
        let layout = QueueKeys::new(cluster, &name, record.settings.shards);
        let shelf = TaskStore::new(store, layout, Arc::default());
        Ok(Self::over(cluster, name, shelf, record, asked))
    }

    fn over(
        cluster: &str,
        name: QueueName,
        shelf: TaskStore,
        record: QueueRecord,
        asked: Instant,
    ) -> Self {
        Self(Arc::new(QueueInner {
            cluster: cluster.to_owned(),
            name,
            shelf: Arc::new(shelf),
            known: RwLock::new(Known {
                record: Arc::new(record),
                asked,
                answered: Instant::now(),
            }),
            deleted: CancellationToken::new(),
            workers: WakeupListeners::default(),
        }))
    }

    /// The names of all queues of a cluster, without those that are being deleted.
    pub async fn names(store: &dyn Store, cluster: &str) -> Result<Vec<QueueName>, QueueError> {
        let mut names = Vec::new();
        for name in Self::all_names(store, cluster).await? {
            let key = QueueKeys::new(cluster, &name, 1).record();
            let Some(entry) = read_in_time(store.get(&key)).await? else {
                continue;
            };
            // One that cannot be read is there all the same.
            let read = decode::<QueueRecord>(&key, &entry.value);
            if !read.is_ok_and(|record| record.deleting) {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// The names of all queues of which there is any key.
    pub(crate) async fn all_names(
        store: &dyn Store,
        cluster: &str,
    ) -> Result<Vec<QueueName>, QueueError> {
        let prefix = QueueKeys::queues(cluster);
        let (mut names, mut after) = (Vec::new(), None::<String>);
        loop {
            // One key of each queue is enough: the next question begins behind all of its keys.
            let page = read_in_time(store.keys(&prefix, after.as_deref(), 1)).await?;
            let Some(part) = page
                .keys
                .first()
                .and_then(|key| key.strip_prefix(&prefix)?.split('/').next())
            else {
                return Ok(names);
            };
            names.extend(QueueKeys::queue_of(
                cluster,
                &format!("{prefix}{part}/queue.json"),
            ));
            // `0` comes right after `/`.
            after = Some(format!("{prefix}{part}0"));
        }
    }

    /// Its name.
    pub fn name(&self) -> &QueueName {
        &self.0.name
    }

    /// The cluster that it belongs to.
    pub fn cluster(&self) -> &str {
        &self.0.cluster
    }

    /// What this process has done for it.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.shelf().metrics
    }

    /// The keys of the queue.
    pub fn layout(&self) -> &QueueKeys {
        &self.shelf().layout
    }

    /// The store that it is in.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shelf().store
    }

    /// Store time, as this process knows it.
    pub async fn now(&self) -> Result<StoreTime, QueueError> {
        self.shelf().now().await
    }

    /// What the queue is like, as read last.
    pub fn settings(&self) -> QueueSettings {
        self.record().settings.clone()
    }

    /// Whether it is paused, as read last.
    pub fn is_paused(&self) -> bool {
        self.record().paused
    }

    /// Whether this handle has found the queue deleted. It then stays unusable, even if a queue of this name is created.
    pub fn is_deleted(&self) -> bool {
        self.0.deleted.is_cancelled()
    }

    /// Waits until this handle finds the queue deleted: by [`Queue::refresh`], a submission, or a worker of this process.
    pub async fn deleted(&self) {
        self.0.deleted.cancelled().await;
    }

    /// Reads the queue's record anew.
    pub async fn refresh(&self) -> Result<(), QueueError> {
        let asked = Instant::now();
        let (record, _) = self.read_record().await?;
        self.keep(record, asked);
        Ok(())
    }

    /// Reads the queue's record unless that was done a moment ago; fails if the queue is deleted.
    pub(crate) async fn check_exists(&self) -> Result<(), QueueError> {
        let mut attempt = 0;
        loop {
            if self.is_deleted() {
                return Err(QueueError::Deleted(self.name().to_string()));
            }
            if self.known().asked.elapsed() < RECORD_VALID {
                return Ok(());
            }
            attempt += 1;
            match self.refresh().await {
                Ok(()) => return Ok(()),
                Err(QueueError::Store(_)) if attempt < RECORD_ATTEMPTS => {}
                Err(e) => return Err(e),
            }
            let wait = Duration::from_millis(25) * 2u32.pow(attempt);
            tokio::time::sleep(self.shelf().chance.around(wait)).await;
        }
    }

    /// Changes what the queue is like. Workers notice within seconds.
    pub async fn configure(
        &self,
        change: impl Fn(&mut QueueSettings) + Send + Sync,
    ) -> Result<(), QueueError> {
        self.rewrite(|record| {
            let shards = record.settings.shards;
            change(&mut record.settings);
            record.settings.check()?;
            match record.settings.shards == shards {
                true => Ok(()),
                false => Err(QueueError::invalid(
                    "the number of shards of a queue cannot be changed; create another queue",
                )),
            }
        })
        .await
    }

    /// Lets nothing be claimed until [`Queue::resume`]. What is running goes on. Workers notice within seconds.
    pub async fn pause(&self) -> Result<(), QueueError> {
        self.set_paused(true).await
    }

    /// Ends a pause.
    pub async fn resume(&self) -> Result<(), QueueError> {
        self.set_paused(false).await
    }

    async fn set_paused(&self, paused: bool) -> Result<(), QueueError> {
        self.rewrite(|record| {
            record.paused = paused;
            Ok(())
        })
        .await
    }

    async fn rewrite(
        &self,
        change: impl Fn(&mut QueueRecord) -> Result<(), QueueError> + Send + Sync,
    ) -> Result<(), QueueError> {
        let (key, nonce) = (self.layout().record(), self.shelf().nonce());
        loop {
            let asked = Instant::now();
            let (mut record, version) = self.read_record().await?;
            if record.nonce == nonce {
                self.keep(record, asked);
                return Ok(());
            }
            change(&mut record)?;
            record.rev += 1;
            record.nonce = nonce;
            let put = PutIf::update(&key, encode(&record), version);
            match self
                .shelf()
                .counted(in_time(self.store().put_if(put)).await)
            {
                Ok(Put::Won(_)) => {
                    self.keep(record, asked);
                    return Ok(());
                }
                Ok(Put::Lost) | Err(StoreError::Unknown { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Reads the record. A queue that is not there any more, is being deleted, or was created again with other shards is
    /// found deleted.
    async fn read_record(&self) -> Result<(QueueRecord, Version), QueueError> {
        let key = self.layout().record();
        let got = self
            .shelf()
            .counted(read_in_time(self.store().get(&key)).await);
        let deleted = || {
            self.0.deleted.cancel();
            QueueError::Deleted(self.name().to_string())
        };
        let Some(entry) = got? else {
            return Err(deleted());
        };
        let record: QueueRecord = decode(&key, &entry.value)?;
        match record.deleting || record.settings.shards != self.layout().shards() {
            true => Err(deleted()),
            false => Ok((record, entry.version)),
        }
    }

    /// Submits a task.
    pub async fn submit(&self, submit: NewTask) -> Result<SubmittedTask, QueueError> {
        let mut answers = self.submit_many(vec![submit]).await;
        let none = || Err(QueueError::invalid("no task was submitted"));
        answers.pop().unwrap_or_else(none)
    }

    /// Submits tasks, in few calls to the store. Each is answered by itself.
    pub async fn submit_many(
        &self,
        submits: Vec<NewTask>,
    ) -> Vec<Result<SubmittedTask, QueueError>> {
        if let Err(e) = self.check_exists().await {
            return submits.iter().map(|_| Err(e.clone())).collect();
        }
        let settings = self.settings();
        let answers = self.shelf().submit(&settings, submits).await;
        for submitted in answers.iter().flatten() {
            let shard = self.layout().shard_of(&submitted.id);
            self.0.workers.wake(shard, submitted.due);
        }
        answers
    }

    /// Reads a task.
    pub async fn get(&self, id: &TaskId) -> Result<Task, QueueError> {
        let held = self.shelf().read(id).await?;
        let held = held.ok_or_else(|| QueueError::NoTask(id.clone()))?;
        Ok(held.task)
    }

    /// Waits until a task has ended, for so long at most.
    pub async fn wait(&self, id: &TaskId, limit: Duration) -> Result<Task, QueueError> {
        let begun = tokio::time::Instant::now();
        let mut pause = LOOK_FIRST;
        loop {
            let task = self.get(id).await?;
            if task.status().is_final() {
                return Ok(task);
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(QueueError::StillGoing {
                    id: id.clone(),
                    is: task.status(),
                    waited: limit,
                });
            }
            tokio::time::sleep(self.shelf().chance.around(pause).min(left)).await;
            pause = (pause * 2).min(LOOK_LATEST);
        }
    }

    /// Waits for the result of a task, as a type of the application's.
    pub async fn result<T: DeserializeOwned>(
        &self,
        id: &TaskId,
        limit: Duration,
    ) -> Result<T, QueueError> {
        let task = self.wait(id, limit).await?;
        let failed = |reason: String| QueueError::NoResult {
            id: id.clone(),
            reason,
        };
        match &task.state {
            TaskState::Done { result, .. } => result.decode().map_err(|e| failed(e.to_string())),
            TaskState::Dead { reason, .. } => Err(failed(reason.clone())),
            state => Err(failed(format!("its status was {}", state.status()))),
        }
    }

    /// Calls a task off: at once if nobody works on it; otherwise its handler is told, with the next extension of its claim.
    /// One that is cancelled, or to be cancelled, already is no trouble. Gives the state that it is in now.
    pub async fn cancel(&self, id: &TaskId, by: Option<&str>) -> Result<TaskStatus, QueueError> {
        let change = Transition::Cancel {
            by: by.map(ToOwned::to_owned),
        };
        let is = match self.shelf().alter_and_index(id, &change).await? {
            UpdateOutcome::Made { now, .. } => now.task.status(),
            UpdateOutcome::Gone => return Err(QueueError::NoTask(id.clone())),
            UpdateOutcome::Refused(
                TransitionError::Is(is @ (TaskStatus::Running | TaskStatus::Cancelled)),
                _,
            ) => return Ok(is),
            UpdateOutcome::Refused(reason, _) => return Err(refused(id, reason)),
        };
        if is == TaskStatus::Cancelled {
            self.metrics().cancelled.one();
        }
        Ok(is)
    }

    /// Lets a task that is dead or cancelled be tried again from the beginning.
    pub async fn retry(&self, id: &TaskId, by: Option<&str>) -> Result<(), QueueError> {
        let change = Transition::Retry {
            by: by.map(ToOwned::to_owned),
        };
        match self.shelf().alter_and_index(id, &change).await? {
            UpdateOutcome::Made { now, .. } => {
                let shard = self.layout().shard_of(id);
                let due = crate::keys::IndexEntry::of(&now.task).at;
                self.0.workers.wake(shard, due);
                Ok(())
            }
            UpdateOutcome::Gone => Err(QueueError::NoTask(id.clone())),
            UpdateOutcome::Refused(reason, _) => Err(refused(id, reason)),
        }
    }

    pub(crate) fn shelf(&self) -> &Arc<TaskStore> {
        &self.0.shelf
    }

    fn record(&self) -> Arc<QueueRecord> {
        self.known().record.clone()
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.0.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over a record whose read, or the read before whose write, began at `asked`.
    fn keep(&self, record: QueueRecord, asked: Instant) {
        let known = self.0.known.write();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        // A read that was under way for long must not bring back the past. A queue that was deleted and created again
        // counts its revisions from the beginning: a read that began after the last one had ended is newer all the same.
        if record.rev >= known.record.rev || asked > known.answered {
            known.record = Arc::new(record);
            known.answered = Instant::now();
        }
        known.asked = known.asked.max(asked);
    }
}

/// Workers own the shards of a keyspace that is named after the queue, and names of keyspaces are no longer than others.
fn check_length(name: &QueueName) -> Result<(), QueueError> {
    let most = NAME_MAX - KEYSPACE.len();
    match name.as_str().len() <= most {
        true => Ok(()),
        false => Err(QueueError::invalid(format!(
            "the queue name {:?}… is longer than {most} bytes; shorten it",
            name.as_str().chars().take(80).collect::<String>()
        ))),
    }
}

fn refused(id: &TaskId, reason: TransitionError) -> QueueError {
    QueueError::Refused {
        id: id.clone(),
        reason,
    }
}
