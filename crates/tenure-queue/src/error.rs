//! What can go wrong with a queue, told by what the caller may do next.

use tenure_store::StoreError;

use crate::ids::{BadName, TaskId};
use crate::transitions::TransitionError;

/// A call that did not do what it was asked. A lost race is not among these unless somebody has to know of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The store did not answer as it should.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no such queue.
    #[error("there is no queue {queue:?} in cluster {cluster:?} at {url}; create it first")]
    NoQueue {
        /// The queue.
        queue: String,
        /// The cluster.
        cluster: String,
        /// The store, without secrets.
        url: String,
    },
    /// The queue was deleted, or is being deleted.
    #[error(
        "queue {0:?} was deleted, or its deletion is not finished; delete it again to finish, then create it"
    )]
    Deleted(String),
    /// There is no such task.
    #[error("there is no task {0:?} in this queue; it may have been purged")]
    NoTask(TaskId),
    /// There is no such schedule.
    #[error("there is no schedule {0:?} in this queue")]
    NoSchedule(String),
    /// It exists already, and is another one.
    #[error("{0}")]
    Exists(String),
    /// What is stored under this key cannot be read. Nothing else is affected.
    #[error(
        "key {key:?} is corrupt: {reason}; `rebuild_index` reports all such keys, and removing the key is safe"
    )]
    Corrupt {
        /// The key.
        key: String,
        /// What was seen.
        reason: String,
    },
    /// What is stored under this key was written by a newer version. It is left alone.
    #[error(
        "record {key:?} has format {format}, which this version of tenure cannot read; use a newer version"
    )]
    Newer {
        /// The key.
        key: String,
        /// Its format.
        format: u32,
    },
    /// The input is wrong. Every problem is named.
    #[error("{}", .0.join("; "))]
    Invalid(Vec<String>),
    /// The task is not in a state in which this can be done.
    #[error("task {id:?}: {reason}")]
    Refused {
        /// The task.
        id: TaskId,
        /// Why not.
        reason: TransitionError,
    },
    /// What was waited for did not come in time.
    #[error("task {id:?} was still {is} after {waited:?}")]
    StillGoing {
        /// The task.
        id: TaskId,
        /// The state that it was in.
        is: crate::task::TaskStatus,
        /// How long was waited.
        waited: std::time::Duration,
    },
    /// The task ended, but not with a result.
    #[error("task {id:?} ended without a result: {reason}")]
    NoResult {
        /// The task.
        id: TaskId,
        /// What became of it.
        reason: String,
    },
    /// The node that owns shards for a worker could not be started, or came to an end.
    #[error("the worker's node, which owns its shards, failed: {0}")]
    Node(String),
}

impl QueueError {
    /// Whether it is about one object that cannot be read, and about nothing else.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::Newer { .. })
    }

    /// One problem with the input.
    pub(crate) fn invalid(reason: impl Into<String>) -> Self {
        Self::Invalid(vec![reason.into()])
    }
}

impl From<BadName> for QueueError {
    fn from(bad: BadName) -> Self {
        Self::invalid(bad.to_string())
    }
}
