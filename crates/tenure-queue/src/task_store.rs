//! Tasks and indexes in the store: reading, conditional writes that are settled by reading back, and the order of writes.
//!
//! A task is decided on by its own object alone. Entries of indexes are hints, written in an order that always leaves one
//! that leads to the task: the entry of a task that begins, or begins again, comes before the task; otherwise the task is
//! changed first, then the entry of its new state is written, and only then is the entry of its old state removed. Whoever
//! comes to an entry whose task is in another state writes the right one and removes this one, unless the entry is ahead of
//! its task and young: then somebody is about to follow. Once it is no longer young, a task that is there is written anew
//! before the entry goes, so that who was so slow comes too late. A crash between any two writes costs one such look.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_store::{KeyPage, Put, PutIf, Store, StoreError, Version};

use crate::error::QueueError;
use crate::ids::{ClaimId, Nonce, TaskId};
use crate::keys::{IndexEntry, IndexKind, QueueKeys};
use crate::metrics::Metrics;
use crate::queue_record::{decode, encode};
use crate::rng::RandomNumbers;
use crate::store_clock::StoreClock;
use crate::store_time::StoreTime;
use crate::task::Task;
use crate::transitions::{Transition, TransitionError, apply};
use crate::write_batcher::WriteBatcher;

/// How long any call to the store may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a write is tried again after it lost a race or its outcome was unknown.
const WRITE_ATTEMPTS: usize = 16;
/// How long after its time an entry that is ahead of its task is left alone.
pub(crate) const ENTRY_GRACE: Duration = Duration::from_secs(60);
/// How often an entry of an index is tried to be written before it is left to others to find the task.
const ENTRY_ATTEMPTS: u32 = 4;

/// A task with the version that it was read at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VersionedTask {
    pub(crate) task: Task,
    pub(crate) version: Version,
}

/// How a change ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UpdateOutcome {
    /// It is made; the entry is that of the state before.
    Made {
        was: IndexEntry,
        now: Box<VersionedTask>,
    },
    /// It does not fit the task as it is.
    Refused(TransitionError, Box<VersionedTask>),
    /// There is no such task.
    Gone,
}

/// The tasks of a queue.
#[derive(Debug)]
pub(crate) struct TaskStore {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) layout: QueueKeys,
    pub(crate) clock: StoreClock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) chance: RandomNumbers,
    /// Who writes for many at once, where a worker runs.
    scribe: Mutex<Option<Arc<WriteBatcher>>>,
}

impl TaskStore {
    pub(crate) fn new(store: Arc<dyn Store>, layout: QueueKeys, metrics: Arc<Metrics>) -> Self {
        Self {
            clock: StoreClock::new(store.clone()),
            chance: RandomNumbers::new(),
            scribe: Mutex::default(),
            store,
            layout,
            metrics,
        }
    }

    pub(crate) async fn now(&self) -> Result<StoreTime, QueueError> {
        Ok(self.clock.now().await?)
    }

    pub(crate) fn nonce(&self) -> Nonce {
        Nonce(self.chance.draw())
    }

    pub(crate) fn claim_id(&self) -> ClaimId {
        ClaimId(self.chance.draw())
    }

    pub(crate) async fn read(&self, id: &TaskId) -> Result<Option<VersionedTask>, QueueError> {
        let key = self.layout.task(id);
        let got = read_in_time(self.store.get(&key)).await;
        self.counted(got)?
            .map(|entry| self.decoded(&entry))
            .transpose()
    }

    pub(crate) async fn read_many(
        &self,
        ids: &[TaskId],
    ) -> Vec<Result<Option<VersionedTask>, QueueError>> {
        if ids.is_empty() {
            return Vec::new();
        }
        let keys: Vec<String> = ids.iter().map(|id| self.layout.task(id)).collect();
        let count = keys.len();
        let got = read_in_time(async { Ok(self.store.get_many(keys).await) }).await;
        let got = got.unwrap_or_else(|e| vec![Err(e); count]);
        got.into_iter()
            .map(|got| {
                let found = self.counted(got)?;
                found.map(|entry| self.decoded(&entry)).transpose()
            })
            .collect()
    }

    /// Reads a task from its object. One that says to be another is as corrupt as one that cannot be read.
    pub(crate) fn decoded(&self, entry: &tenure_store::Entry) -> Result<VersionedTask, QueueError> {
        let task: Task = decode(&entry.key, &entry.value)?;
        if self.layout.task(&task.id) != entry.key {
            return Err(QueueError::Corrupt {
                key: entry.key.clone(),
                reason: format!("the record belongs to another task, {:?}", task.id),
            });
        }
        Ok(VersionedTask {
            task,
            version: entry.version.clone(),
        })
    }

    /// Makes a change, however often the task has to be read anew for it. `nonce` is drawn once per change: a caller that
    /// tries again after an error passes the same one, and is told if its earlier try has come through after all.
    pub(crate) async fn alter(
        &self,
        id: &TaskId,
        known: Option<VersionedTask>,
        change: &Transition,
        nonce: Nonce,
    ) -> Result<UpdateOutcome, QueueError> {
        let mut held = match known {
            Some(held) => held,
            None => match self.read(id).await? {
                Some(held) => held,
                None => return Ok(UpdateOutcome::Gone),
            },
        };
        let mut was = IndexEntry::of(&held.task);
        for _ in 0..WRITE_ATTEMPTS {
            if held.task.contains(nonce) {
                let now = Box::new(held);
                return Ok(UpdateOutcome::Made { was, now });
            }
            was = IndexEntry::of(&held.task);
            // Anew each time: an entry of long ago would be taken for a stray before its task is there.
            let now = self.now().await?;
            let next = match apply(&held.task, change, now, nonce) {
                Ok(next) => next,
                Err(refusal) => return Ok(UpdateOutcome::Refused(refusal, Box::new(held))),
            };
            // Nobody comes by the entry of a task that has ended: the new one has to be there first.
            if was.index.is_final() && !self.put_entries(vec![IndexEntry::of(&next)]).await {
                let reason = format!("writing an index entry for task {id:?} failed; retry");
                return Err(StoreError::unavailable(reason).into());
            }
            let put = self.update(&next, held.version.clone());
            match self.counted(self.put_one(put).await) {
                Ok(Put::Won(version)) => {
                    let now = Box::new(VersionedTask {
                        task: next,
                        version,
                    });
                    return Ok(UpdateOutcome::Made { was, now });
                }
                // Lost may be our own write that was answered late; unknown may be either.
                Ok(Put::Lost) | Err(StoreError::Unknown { .. }) => {}
                Err(e) => return Err(e.into()),
            }
            held = match self.read(id).await? {
                Some(held) => held,
                None => return Ok(UpdateOutcome::Gone),
            };
        }
        let reason = format!("task {id:?} keeps being written concurrently; retry");
        Err(StoreError::unavailable(reason).into())
    }

    /// From now on, single writes that come at the same time go to the store together.
    pub(crate) fn write_together(&self) {
        let mut scribe = self.scribe.lock().unwrap_or_else(PoisonError::into_inner);
        if scribe.as_ref().is_none_or(|scribe| scribe.is_gone()) {
            *scribe = Some(Arc::new(WriteBatcher::start(self.store.clone())));
        }
    }

    /// Who writes for many at once, if there is to be one. It lives on the runtime of the worker that began, and is
    /// replaced, on this one, if that has ended while others go on.
    fn scribe(&self) -> Option<Arc<WriteBatcher>> {
        let mut scribe = self.scribe.lock().unwrap_or_else(PoisonError::into_inner);
        let scribe = scribe.as_mut()?;
        if scribe.is_gone() {
            *scribe = Arc::new(WriteBatcher::start(self.store.clone()));
        }
        Some(scribe.clone())
    }

    async fn put_one(&self, put: PutIf) -> Result<Put, StoreError> {
        match self.scribe() {
            Some(scribe) => in_time(scribe.put(put)).await,
            None => in_time(self.store.put_if(put)).await,
        }
    }

    /// The write that replaces a task.
    pub(crate) fn update(&self, next: &Task, version: Version) -> PutIf {
        PutIf::update(self.layout.task(&next.id), encode(next), version)
    }

    /// Makes a change and brings the index up to date.
    pub(crate) async fn alter_and_index(
        &self,
        id: &TaskId,
        change: &Transition,
    ) -> Result<UpdateOutcome, QueueError> {
        let altered = self.alter(id, None, change, self.nonce()).await?;
        if let UpdateOutcome::Made { was, now } = &altered {
            let right = IndexEntry::of(&now.task);
            if right.entered != was.entered {
                self.index(vec![right], vec![was.clone()]).await;
            }
        }
        Ok(altered)
    }

    /// Writes entries, then removes others. Entries that cannot be written keep the old ones in place: one of them has to
    /// lead to the task.
    pub(crate) async fn index(&self, put: Vec<IndexEntry>, remove: Vec<IndexEntry>) {
        if self.put_entries(put).await {
            self.remove_entries(remove).await;
        }
    }

    /// Writes entries; false if not all of them are there now.
    pub(crate) async fn put_entries(&self, entries: Vec<IndexEntry>) -> bool {
        self.missing_entries(entries).await.is_empty()
    }

    /// Writes entries; gives the keys of those that are not there now, and why.
    pub(crate) async fn missing_entries(
        &self,
        entries: Vec<IndexEntry>,
    ) -> BTreeMap<String, StoreError> {
        let mut left: Vec<String> = entries.iter().map(|e| self.layout.entry(e)).collect();
        let mut missing = BTreeMap::new();
        for attempt in 0..ENTRY_ATTEMPTS {
            if left.is_empty() {
                return missing;
            }
            if attempt > 0 {
                let wait = Duration::from_millis(50) * 2u32.pow(attempt);
                tokio::time::sleep(self.chance.around(wait)).await;
            }
            let puts: Vec<PutIf> = left.iter().map(|key| PutIf::create(key, *b"{}")).collect();
            let answers = self.put_many(puts).await;
            // One that is there already is as good as written.
            let answers = left.drain(..).zip(answers);
            missing = answers
                .filter_map(|(key, answer)| Some((key, answer.err()?)))
                .collect();
            left = missing.keys().cloned().collect();
        }
        if let Some((key, error)) = missing.first_key_value() {
            let count = missing.len();
            tracing::warn!(count, first_key = key, %error, "writing entries of the queue index failed");
        }
        missing
    }

    /// Removes entries. One that stays behind costs a look later on.
    pub(crate) async fn remove_entries(&self, entries: Vec<IndexEntry>) {
        let keys = entries.iter().map(|e| self.layout.entry(e)).collect();
        self.discard(keys).await;
    }

    pub(crate) async fn discard(&self, keys: Vec<String>) {
        if keys.is_empty() {
            return;
        }
        let removed = in_time(async { Ok(self.store.discard(keys).await) }).await;
        for answer in removed.unwrap_or_else(|e| vec![Err(e)]) {
            if let Err(error) = self.counted(answer) {
                tracing::debug!(%error, "removing an entry of the queue index failed");
            }
        }
    }

    pub(crate) async fn put_many(&self, puts: Vec<PutIf>) -> Vec<Result<Put, StoreError>> {
        let count = puts.len();
        if count == 0 {
            return Vec::new();
        }
        let written = in_time(async { Ok(self.store.put_many(puts).await) }).await;
        let written = written.unwrap_or_else(|_| vec![Err(late()); count]);
        written.into_iter().map(|w| self.counted(w)).collect()
    }

    /// One page of keys.
    pub(crate) async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<KeyPage, QueueError> {
        let page = read_in_time(self.store.keys(prefix, after, limit)).await;
        Ok(self.counted(page)?)
    }

    /// Puts right what leads to a task: an entry that does not fit it makes room for the one that does.
    pub(crate) async fn set_straight(&self, entry: &IndexEntry, held: &VersionedTask) {
        if self.overtakes(entry, held).await {
            self.metrics.strays.one();
            let right = IndexEntry::of(&held.task);
            self.index(vec![right], vec![entry.clone()]).await;
        }
    }

    /// Whether no write is under way any more that this entry was made for. If there may be one, the task is written anew
    /// as it is, and that write comes too late: otherwise it would leave a task that nothing leads to.
    pub(crate) async fn overtakes(&self, entry: &IndexEntry, held: &VersionedTask) -> bool {
        if entry.entered <= held.task.rev {
            return true;
        }
        let next = Task {
            rev: held.task.rev + 1,
            nonce: self.nonce(),
            ..held.task.clone()
        };
        let put = self.update(&next, held.version.clone());
        matches!(self.counted(self.put_one(put).await), Ok(Put::Won(_)))
    }

    pub(crate) fn counted<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if answer.is_err() {
            self.metrics.trouble.one();
        }
        answer
    }

    /// Counts and names what cannot be read.
    pub(crate) fn note_corrupt(&self, error: &QueueError) {
        if error.is_unreadable() {
            self.metrics.corrupt.one();
            tracing::warn!(%error, "corrupt queue object skipped");
        }
    }

    /// Whether an entry is there before its task has come so far, and not for long: somebody is about to write the task.
    pub(crate) fn is_ahead(&self, entry: &IndexEntry, task: Option<&Task>, now: StoreTime) -> bool {
        let ahead = task.is_none_or(|task| entry.entered > task.rev);
        ahead && entry.at.plus(ENTRY_GRACE) >= now
    }

    /// What the entries of an index in a shard begin with.
    pub(crate) fn prefix(&self, index: IndexKind, shard: u32) -> String {
        self.layout.index(index, shard)
    }
}

fn late() -> StoreError {
    StoreError::unknown(too_late())
}

fn too_late() -> String {
    format!("the store did not respond within {CALL_TIMEOUT:?}")
}

/// No call waits without end. A write that is given up may still be done: its outcome is unknown.
pub(crate) async fn in_time<T>(
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let answer = tokio::time::timeout(CALL_TIMEOUT, call).await;
    answer.unwrap_or_else(|_| Err(late()))
}

/// As [`in_time`], for a read. Nothing hangs on one that is given up: there is no outcome to be unknown.
pub(crate) async fn read_in_time<T>(
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let answer = tokio::time::timeout(CALL_TIMEOUT, call).await;
    answer.unwrap_or_else(|_| Err(StoreError::unavailable(too_late())))
}
