//! Following changes: the stream that every backend's watch is read through.

use std::fmt;

use async_trait::async_trait;
use tenure_core::ids::Revision;

use crate::store::Entry;

/// How many deletions a store remembers at least, so that watches from before them need not start over.
pub(crate) const TOMBSTONES_KEPT: usize = 10_000;

/// One key changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key has this value now.
    Put(Entry),
    /// The key is gone.
    Deleted {
        /// The key.
        key: String,
    },
}

impl Change {
    /// The key that changed.
    pub fn key(&self) -> &str {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Deleted { key } => key,
        }
    }
}

/// Changes that became visible together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeBatch {
    /// The changes, oldest first as far as the store can tell.
    pub changes: Vec<Change>,
    /// Everything up to here has been shown: where the next watch may start.
    pub upto: Revision,
}

/// Why a watch ended. It stays ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// Changes were lost: list again, then watch from that list's revision.
    #[error(
        "the watch fell behind: the store has already deleted the next changes; list the keys, then watch again"
    )]
    Gap,
    /// The connection ended. Watch again from the last batch's `upto`.
    #[error("the watch was closed: {reason}")]
    Closed {
        /// What was seen.
        reason: String,
    },
}

/// What a backend implements to be watched.
#[async_trait]
pub trait WatchSource: Send + fmt::Debug {
    /// Waits for the next changes. Dropping the future must lose none of them.
    async fn next(&mut self) -> Result<ChangeBatch, WatchEnd>;
}

/// A running watch; dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    source: Box<dyn WatchSource>,
    ended: Option<WatchEnd>,
}

impl Watch {
    /// A watch that reads from `source`.
    pub fn new(source: impl WatchSource + 'static) -> Self {
        Self {
            source: Box::new(source),
            ended: None,
        }
    }

    /// Waits for the next changes; cancelling the wait loses none of them. Once ended, it answers with the same end for ever.
    pub async fn next(&mut self) -> Result<ChangeBatch, WatchEnd> {
        if let Some(end) = &self.ended {
            return Err(end.clone());
        }
        let next = self.source.next().await;
        if let Err(end) = &next {
            self.ended = Some(end.clone());
        }
        next
    }
}
