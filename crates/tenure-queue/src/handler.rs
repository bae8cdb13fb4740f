//! What an application implements to work on tasks.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ids::{ClaimId, TaskId};
use crate::payload::Payload;
use crate::store_time::StoreTime;
use crate::task::{Task, TaskProgress};

/// A task as its handler sees it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Job {
    pub(crate) task: Arc<Task>,
    pub(crate) claim: ClaimId,
    pub(crate) cancel: CancellationToken,
    pub(crate) progress: watch::Sender<Option<TaskProgress>>,
    pub(crate) deadline: Option<Instant>,
}

impl Job {
    /// Its id.
    pub fn id(&self) -> &TaskId {
        &self.task.id
    }

    /// Which attempt this is, counted from one.
    pub fn attempt(&self) -> u32 {
        self.task.attempts
    }

    /// What names this attempt: another attempt at the same task never has the same.
    pub fn claim(&self) -> ClaimId {
        self.claim
    }

    /// What was submitted.
    pub fn payload(&self) -> &Payload {
        &self.task.payload
    }

    /// What the submitter attached to it.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.task.metadata
    }

    /// The whole task as it was when it was claimed.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// How long the attempt may still take, if it has a limit.
    pub fn time_left(&self) -> Option<Duration> {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        self.deadline.map(left)
    }

    /// Waits until the attempt should stop: it was called off, its worker stops, its time is up, or its claim is lost.
    /// It is dropped some seconds later.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Whether the attempt should stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Says how far the attempt is. Returns at once; the word is written down with the next extension of the claim.
    pub fn report(&self, permille: Option<u16>, note: impl Into<String>) {
        let permille = permille.map(|p| p.min(1000));
        let note = note.into();
        self.progress
            .send_replace(Some(TaskProgress { permille, note }));
    }
}

/// What a handler made of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done; this is what it leaves.
    Done(Payload),
    /// It is to be tried at another time. That is no failure.
    Reschedule {
        /// When.
        at: RetryAt,
        /// Why, for the history.
        note: Option<String>,
    },
    /// It is not done, and anybody may have it at once: no failure, and no attempt either. For handlers that have to stop;
    /// one that cannot work on it for now puts it off.
    GiveBack,
}

/// A time to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAt {
    /// So long from now.
    In(Duration),
    /// In store time.
    At(StoreTime),
}

/// Why a handler failed.
///
/// Any error becomes one with `?`, and the task is then tried again as its retries say.
#[derive(Clone, PartialEq, Eq)]
pub struct TaskFailure {
    pub(crate) reason: String,
    pub(crate) for_good: bool,
    pub(crate) after: Option<Duration>,
}

impl TaskFailure {
    /// A failure that another attempt may not meet.
    pub fn new(reason: impl fmt::Display) -> Self {
        Self {
            reason: reason.to_string(),
            for_good: false,
            after: None,
        }
    }

    /// A failure that every attempt would meet: the task becomes a dead letter at once.
    pub fn for_good(reason: impl fmt::Display) -> Self {
        Self {
            for_good: true,
            ..Self::new(reason)
        }
    }

    /// Tries again after this long instead of what the task's retries say.
    #[must_use]
    pub fn again_after(mut self, wait: Duration) -> Self {
        self.after = Some(wait);
        self
    }
}

impl fmt::Debug for TaskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl<E: std::error::Error> From<E> for TaskFailure {
    fn from(e: E) -> Self {
        Self::new(e)
    }
}

/// An application's part in working on the tasks of a queue.
///
/// A task is handled at least once: an attempt whose worker dies, or is cut off from the store for longer than the task's
/// lease, is followed by another one, and the first may still be under way somewhere. But a task is finished by one
/// attempt only.
pub trait TaskHandler: Send + Sync + 'static {
    /// Works on one task. A panic is a failure of this attempt alone.
    fn handle(&self, job: Job) -> impl Future<Output = Result<Outcome, TaskFailure>> + Send;
}

/// A handler made of an async function from a typed input to a typed output.
///
/// A payload that is no such input is a dead letter at once: no other attempt could read it either.
pub fn typed<I, O, F, A>(work: F) -> Typed<F, I, O>
where
    I: DeserializeOwned + Send + 'static,
    O: Serialize + 'static,
    F: Fn(I, Job) -> A + Send + Sync + 'static,
    A: Future<Output = Result<O, TaskFailure>> + Send,
{
    Typed {
        work,
        types: PhantomData,
    }
}

/// What [`typed`] makes.
pub struct Typed<F, I, O> {
    work: F,
    types: PhantomData<fn(I) -> O>,
}

impl<I, O, F, A> TaskHandler for Typed<F, I, O>
where
    I: DeserializeOwned + Send + 'static,
    O: Serialize + 'static,
    F: Fn(I, Job) -> A + Send + Sync + 'static,
    A: Future<Output = Result<O, TaskFailure>> + Send,
{
    async fn handle(&self, job: Job) -> Result<Outcome, TaskFailure> {
        let input = job.payload().decode();
        let input = input
            .map_err(|e| TaskFailure::for_good(format!("decoding the payload failed: {e}")))?;
        let output = (self.work)(input, job).await?;
        let result = Payload::json(&output);
        let result = result
            .map_err(|e| TaskFailure::for_good(format!("encoding the result failed: {e}")))?;
        Ok(Outcome::Done(result))
    }
}
