//! Submitting tasks.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tenure_store::{Put, PutIf, StoreError};

use crate::error::QueueError;
use crate::ids::{Nonce, TaskId};
use crate::keys::IndexEntry;
use crate::payload::Payload;
use crate::queue::RECORD_VALID;
use crate::queue_record::{
    QueueRecord, QueueSettings, check_lease, check_retry, check_timeout, decode, encode,
};
use crate::retry::RetryPolicy;
use crate::store_time::StoreTime;
use crate::task::{Task, TaskSpec};
use crate::task_store::{ENTRY_GRACE, TaskStore, in_time, read_in_time};

/// The most that metadata may take, names and values together.
pub const METADATA_MAX: usize = 4 << 10;
/// How often a write whose outcome was unknown is settled and tried again.
const ATTEMPTS: u32 = 5;

/// A task to be submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTask {
    payload: Payload,
    priority: u8,
    due: Due,
    timeout: Option<Duration>,
    lease: Option<Duration>,
    retry: Option<RetryPolicy>,
    attempts: Option<u32>,
    metadata: BTreeMap<String, String>,
    key: Option<String>,
    id: Option<TaskId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Now,
    In(Duration),
    At(StoreTime),
}

impl NewTask {
    /// A task with this payload, due at once, of the middle priority.
    pub fn new(payload: Payload) -> Self {
        Self {
            payload,
            priority: 5,
            due: Due::Now,
            timeout: None,
            lease: None,
            retry: None,
            attempts: None,
            metadata: BTreeMap::new(),
            key: None,
            id: None,
        }
    }

    /// A task whose payload is a value as JSON.
    pub fn json(value: &impl Serialize) -> Result<Self, QueueError> {
        let payload = Payload::json(value);
        let payload = payload
            .map_err(|e| QueueError::invalid(format!("encoding the payload failed: {e}")))?;
        Ok(Self::new(payload))
    }

    /// From 0 to 9; of the tasks that are due, those with the greatest come first. Default: 5.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Not before so long after the submission.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.due = Due::In(delay);
        self
    }

    /// Not before this.
    #[must_use]
    pub fn at(mut self, due: StoreTime) -> Self {
        self.due = Due::At(due);
        self
    }

    /// How long one attempt may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long a claim is good without being extended: how soon the task is taken from a worker that died.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How often it is tried, and the waits in between.
    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = Some(retry);
        self
    }

    /// How often it is tried, with the queue's waits in between.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = Some(attempts);
        self
    }

    /// Something to find it by.
    #[must_use]
    pub fn meta(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// The idempotency key: as long as a task with this key is kept, another submission with it is the same task.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The id of a task that others derive too.
    pub(crate) fn id(mut self, id: TaskId) -> Self {
        self.id = Some(id);
        self
    }

    /// Checks everything against the queue's settings, and reports every problem at once.
    pub(crate) fn check(&self, queue: &QueueSettings) -> Result<(), QueueError> {
        let mut problems = Vec::new();
        let mut need = |holds: bool, problem: String| {
            if !holds {
                problems.push(problem);
            }
        };
        let size = self.payload.size();
        need(
            size <= queue.payload_max,
            format!(
                "payload has {size} bytes, but the queue's limit is {}; submit a reference instead",
                queue.payload_max
            ),
        );
        need(
            self.priority <= 9,
            format!("priority is {}; it must be between 0 and 9", self.priority),
        );
        let metadata: usize = self.metadata.iter().map(|(k, v)| k.len() + v.len()).sum();
        need(
            metadata <= METADATA_MAX,
            format!("metadata has {metadata} bytes; the limit is {METADATA_MAX}"),
        );
        if let Some(lease) = self.lease {
            check_lease(lease, &mut need);
        }
        check_timeout(self.timeout, &mut need);
        check_retry(&self.retries(queue), &mut need);
        if let Some(key) = &self.key
            && let Err(e) = TaskId::of_key(key)
        {
            need(false, e.to_string());
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(QueueError::Invalid(problems)),
        }
    }

    fn retries(&self, queue: &QueueSettings) -> RetryPolicy {
        let mut retry = self.retry.unwrap_or(queue.retry);
        retry.max_attempts = self.attempts.unwrap_or(retry.max_attempts);
        retry
    }

    /// The task, once it was checked.
    fn task(
        self,
        queue: &QueueSettings,
        now: StoreTime,
        bits: u64,
        nonce: Nonce,
    ) -> Result<Task, QueueError> {
        let id = match (&self.id, &self.key) {
            (Some(id), _) => id.clone(),
            (None, Some(key)) => TaskId::of_key(key)?,
            (None, None) => TaskId::random(now, bits),
        };
        let due = match self.due {
            Due::Now => now,
            Due::In(delay) => now.plus(delay),
            // An entry from the past would be taken for a stray before its task is there.
            Due::At(at) => at.max(now),
        };
        let retry = self.retries(queue);
        let spec = TaskSpec {
            payload: self.payload,
            priority: self.priority,
            attempt_timeout: self.timeout.or(queue.attempt_timeout),
            claim_timeout: self.lease.unwrap_or(queue.claim_timeout),
            retry,
            metadata: self.metadata,
            key: self.key,
        };
        Ok(Task::submitted(id, spec, due, now, nonce))
    }
}

/// A task that was submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmittedTask {
    /// Its id.
    pub id: TaskId,
    /// Whether this submission created it. Otherwise one with the same key was there already.
    pub created: bool,
    /// Whether the one that was there already carries something else.
    pub differs: bool,
    pub(crate) due: StoreTime,
}

/// Nothing was submitted, whatever became of the entry.
fn not_led_to(task: &Task, error: &StoreError) -> QueueError {
    let reason = format!(
        "writing an index entry for task {:?} failed: {error}",
        task.id
    );
    match error {
        StoreError::Denied { .. } => StoreError::denied(reason).into(),
        _ => StoreError::unavailable(reason).into(),
    }
}

impl TaskStore {
    /// Submits tasks: entries first, then the tasks. Each is answered by itself.
    pub(crate) async fn submit(
        &self,
        settings: &QueueSettings,
        asked: Vec<NewTask>,
    ) -> Vec<Result<SubmittedTask, QueueError>> {
        let begun = tokio::time::Instant::now();
        let now = match self.now().await {
            Ok(now) => now,
            Err(e) => return asked.iter().map(|_| Err(e.clone())).collect(),
        };
        let tasks: Vec<Result<Task, QueueError>> = asked
            .into_iter()
            .map(|submit| {
                submit.check(settings)?;
                submit.task(settings, now, self.chance.draw(), self.nonce())
            })
            .collect();
        let fit = tasks.iter().filter_map(|t| t.as_ref().ok());
        let missing = self
            .missing_entries(fit.map(IndexEntry::of).collect())
            .await;
        // A task that nothing leads to would never be found.
        let led_to = |task: Task| match missing.get(&self.layout.entry(&IndexEntry::of(&task))) {
            Some(error) => Err(not_led_to(&task, error)),
            None => Ok(task),
        };
        let mut tasks: Vec<Result<Task, QueueError>> =
            tasks.into_iter().map(|t| t.and_then(led_to)).collect();
        if begun.elapsed() > RECORD_VALID / 2
            && let Err(e) = self.check_not_deleted().await
        {
            tasks = tasks.into_iter().map(|_| Err(e.clone())).collect();
        }
        let fit: Vec<&Task> = tasks.iter().filter_map(|t| t.as_ref().ok()).collect();
        let entries: Vec<IndexEntry> = fit.iter().map(|task| IndexEntry::of(task)).collect();
        let puts = fit.iter().map(|task| self.creation(task)).collect();
        let mut written = self.put_many(puts).await.into_iter();
        let mut answers = Vec::with_capacity(tasks.len());
        for task in tasks {
            answers.push(match task {
                Err(e) => Err(e),
                Ok(task) => {
                    let first = written.next().unwrap_or(Ok(Put::Lost));
                    self.settle_creation(&task, first).await
                }
            });
        }
        // Whoever owns the shard may have taken an entry for a stray because the task was so long in coming.
        if begun.elapsed() > ENTRY_GRACE / 2 {
            self.put_entries(entries).await;
        }
        answers
    }

    /// Fails if the queue was deleted, or is being deleted: a task written now would be left behind.
    async fn check_not_deleted(&self) -> Result<(), QueueError> {
        let key = self.layout.record();
        let got = self.counted(read_in_time(self.store.get(&key)).await)?;
        let record = got.map(|entry| decode::<QueueRecord>(&key, &entry.value));
        match record.transpose()? {
            Some(record) if !record.deleting => Ok(()),
            _ => Err(QueueError::Deleted(self.layout.queue_name())),
        }
    }

    fn creation(&self, task: &Task) -> PutIf {
        PutIf::create(self.layout.task(&task.id), encode(task))
    }

    /// Finds out what became of a creation, and tries again where nothing did.
    async fn settle_creation(
        &self,
        task: &Task,
        first: Result<Put, StoreError>,
    ) -> Result<SubmittedTask, QueueError> {
        let mut answer = first;
        for attempt in 1..=ATTEMPTS {
            let failure = match answer {
                Ok(Put::Won(_)) => {
                    self.metrics.submitted.one();
                    return Ok(self.submitted(task, true, false));
                }
                Ok(Put::Lost) => None,
                Err(e @ (StoreError::Denied { .. } | StoreError::Corrupt { .. })) => {
                    return Err(e.into());
                }
                Err(e) => Some(e),
            };
            match self.read(&task.id).await {
                Ok(Some(held)) if held.task.contains(task.nonce) => {
                    self.metrics.submitted.one();
                    return Ok(self.submitted(task, true, false));
                }
                Ok(Some(held)) => {
                    self.metrics.duplicates.one();
                    let differs = held.task.payload != task.payload;
                    return Ok(self.submitted(&held.task, false, differs));
                }
                Ok(None) => {}
                Err(e @ QueueError::Store(_)) if attempt == ATTEMPTS => return Err(e),
                Err(QueueError::Store(_)) => {}
                Err(e) => return Err(e),
            }
            if attempt == ATTEMPTS {
                return Err(match failure {
                    Some(e) => e.into(),
                    None => StoreError::unavailable(format!(
                        "task {:?} keeps being created and deleted concurrently; retry",
                        task.id
                    ))
                    .into(),
                });
            }
            let wait = Duration::from_millis(25) * 2u32.pow(attempt);
            tokio::time::sleep(self.chance.around(wait)).await;
            answer = match self.check_not_deleted().await {
                Ok(()) => self.counted(in_time(self.store.put_if(self.creation(task))).await),
                Err(QueueError::Store(e)) => Err(e),
                Err(e) => return Err(e),
            };
        }
        Err(StoreError::unknown(format!("task {:?} may have been submitted", task.id)).into())
    }

    fn submitted(&self, task: &Task, created: bool, differs: bool) -> SubmittedTask {
        SubmittedTask {
            id: task.id.clone(),
            created,
            differs,
            due: IndexEntry::of(task).at,
        }
    }
}
