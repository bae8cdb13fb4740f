//! A task: one value for its whole life, with its history inside.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{ClaimId, Nonce, TaskId, WorkerName};
use crate::payload::Payload;
use crate::retry::{RetryPolicy, maybe_millis, millis};
use crate::store_time::StoreTime;

/// The newest format of records that this version reads, and the one that it writes.
pub const FORMAT: u32 = 1;

/// How many events a task remembers. The first one always stays.
pub const HISTORY_MAX: usize = 64;

/// How long a note in the history or the reason of a failure may be, in bytes.
pub const NOTE_MAX: usize = 1000;

/// What somebody wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSpec {
    /// What the handler gets.
    pub payload: Payload,
    /// From 0 to 9; of the tasks that are due, those with the greatest come first.
    pub priority: u8,
    /// How long one attempt may take. None: as long as it likes.
    pub attempt_timeout: Option<Duration>,
    /// How long a claim is good without being extended.
    pub claim_timeout: Duration,
    /// How often it is tried.
    pub retry: RetryPolicy,
    /// What the submitter wants to find it by.
    pub metadata: BTreeMap<String, String>,
    /// The idempotency key.
    pub key: Option<String>,
}

/// A task as it stands in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The format of the record.
    pub format: u32,
    /// One more with every write.
    pub rev: u64,
    /// Which write this was.
    pub nonce: Nonce,
    /// Its name.
    pub id: TaskId,
    /// What is going on with it.
    pub state: TaskState,
    /// The `rev` at which it came into this state: it makes the entry in the index one that never comes again.
    pub entered: u64,
    /// How often it was claimed, without those that were given back untouched.
    pub attempts: u32,
    /// From 0 to 9, greatest first.
    pub priority: u8,
    /// When it was submitted.
    pub created: StoreTime,
    /// What the handler gets.
    pub payload: Payload,
    /// How long one attempt may take.
    #[serde(rename = "attempt_timeout_ms", with = "maybe_millis", default)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt_timeout: Option<Duration>,
    /// How long a claim is good without being extended.
    #[serde(rename = "claim_timeout_ms", with = "millis")]
    pub claim_timeout: Duration,
    /// How often it is tried.
    pub retry: RetryPolicy,
    /// What the submitter wants to find it by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// The idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What happened to it, oldest first.
    pub history: Vec<TaskEvent>,
    /// How many events between the first and the second of `history` are no longer there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_events: u64,
    /// Fields that this version does not know, kept as they came.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, serde_json::Value>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What is going on with a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum TaskState {
    /// Waits for a worker, or for its time.
    Ready {
        /// Not before this.
        due: StoreTime,
    },
    /// A worker has claimed it.
    Running(RunningClaim),
    /// Finished, by this one claim.
    Done {
        /// When.
        at: StoreTime,
        /// The claim that finished it.
        claim: ClaimId,
        /// What the handler left.
        result: Payload,
    },
    /// A dead letter: tried as often as it may be, or failed for good.
    Dead {
        /// When.
        at: StoreTime,
        /// What went wrong last.
        reason: String,
    },
    /// Called off.
    Cancelled {
        /// When.
        at: StoreTime,
    },
}

/// A claim under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningClaim {
    /// The right to work on it.
    pub claim: ClaimId,
    /// Who has it.
    pub worker: WorkerName,
    /// Since when.
    pub since: StoreTime,
    /// When others may take it unless it is extended before.
    pub expires: StoreTime,
    /// When the attempt has taken too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<StoreTime>,
    /// What the handler said last of how far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<TaskProgress>,
    /// Whether somebody wants it to stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel: bool,
}

/// How far a handler is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskProgress {
    /// Parts of a thousand that are done, if it knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permille: Option<u16>,
    /// In its own words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// Something that happened to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskEvent {
    /// When, in store time.
    pub at: StoreTime,
    /// What.
    pub event: TaskEventKind,
    /// Which write brought it.
    pub nonce: Nonce,
    /// Who, if that says something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The claim that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimId>,
    /// The attempt that it is about, counted from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// More about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskEventKind {
    /// It came into being.
    Submitted,
    /// A worker claimed it.
    Claimed,
    /// Its worker finished it.
    Finished,
    /// Its worker failed.
    Failed,
    /// Its worker was not heard of for too long.
    Expired,
    /// Its worker wants it to be tried at another time; that is no failure.
    Rescheduled,
    /// Its worker gave it back untouched or unfinished, because it stops.
    Released,
    /// Somebody wants it to stop.
    CancelRequested,
    /// It was called off.
    Cancelled,
    /// Somebody wants it to be tried again from the beginning.
    Retried,
}

/// The names of states, for filters and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// [`TaskState::Ready`]
    Ready,
    /// [`TaskState::Running`]
    Running,
    /// [`TaskState::Done`]
    Done,
    /// [`TaskState::Dead`]
    Dead,
    /// [`TaskState::Cancelled`]
    Cancelled,
}

impl TaskStatus {
    /// All of them.
    pub const ALL: [TaskStatus; 5] = [
        TaskStatus::Ready,
        TaskStatus::Running,
        TaskStatus::Done,
        TaskStatus::Dead,
        TaskStatus::Cancelled,
    ];

    /// Whether nothing more happens by itself.
    pub fn is_final(self) -> bool {
        matches!(
            self,
            TaskStatus::Done | TaskStatus::Dead | TaskStatus::Cancelled
        )
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            TaskStatus::Ready => "ready",
            TaskStatus::Running => "running",
            TaskStatus::Done => "done",
            TaskStatus::Dead => "dead",
            TaskStatus::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl TaskState {
    /// Which state it is.
    pub fn status(&self) -> TaskStatus {
        match self {
            Self::Ready { .. } => TaskStatus::Ready,
            Self::Running(_) => TaskStatus::Running,
            Self::Done { .. } => TaskStatus::Done,
            Self::Dead { .. } => TaskStatus::Dead,
            Self::Cancelled { .. } => TaskStatus::Cancelled,
        }
    }
}

impl Task {
    /// A new task, to be claimed from `due` on.
    pub fn submitted(
        id: TaskId,
        spec: TaskSpec,
        due: StoreTime,
        now: StoreTime,
        nonce: Nonce,
    ) -> Self {
        Self {
            format: FORMAT,
            rev: 1,
            nonce,
            id,
            state: TaskState::Ready { due },
            entered: 1,
            attempts: 0,
            priority: spec.priority.min(9),
            created: now,
            payload: spec.payload,
            attempt_timeout: spec.attempt_timeout,
            claim_timeout: spec.claim_timeout,
            retry: spec.retry,
            metadata: spec.metadata,
            key: spec.key,
            history: vec![TaskEvent {
                at: now,
                event: TaskEventKind::Submitted,
                nonce,
                by: None,
                claim: None,
                attempt: None,
                note: None,
            }],
            dropped_events: 0,
            unknown: BTreeMap::new(),
        }
    }

    /// Which state it is in.
    pub fn status(&self) -> TaskStatus {
        self.state.status()
    }

    /// The claim under way.
    pub fn running(&self) -> Option<&RunningClaim> {
        match &self.state {
            TaskState::Running(running) => Some(running),
            _ => None,
        }
    }

    /// What it left, if it is done.
    pub fn result(&self) -> Option<&Payload> {
        match &self.state {
            TaskState::Done { result, .. } => Some(result),
            _ => None,
        }
    }

    /// When it ended, if it did.
    pub fn ended(&self) -> Option<StoreTime> {
        match &self.state {
            TaskState::Done { at, .. }
            | TaskState::Dead { at, .. }
            | TaskState::Cancelled { at } => Some(*at),
            TaskState::Ready { .. } | TaskState::Running(_) => None,
        }
    }

    /// Whether the write with this nonce is part of it.
    ///
    /// A write that leaves no event, as an extension does, is only found as long as nothing else was written.
    pub fn contains(&self, nonce: Nonce) -> bool {
        self.nonce == nonce || self.history.iter().any(|event| event.nonce == nonce)
    }
}
