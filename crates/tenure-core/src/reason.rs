//! Reasons. Every ownership change, and every decision not to act, carries one of these (P8).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why something happened to a shard: the one value that log, metric, history and status all read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The shard was free and this node is to have it.
    Free,
    /// The last owner's session has ended.
    OwnerEnded,
    /// The node found its own claim in the record.
    ClaimFound,
    /// The node's lease is good again and the shard is still its own.
    Recovered,
    /// Loading is done.
    Loaded,
    /// Another node should have it.
    Rebalance,
    /// The node is stopping.
    NodeStopping,
    /// The node is draining, or drained.
    NodeDraining,
    /// The lease ran out of time.
    LeaseLost,
    /// The session is over.
    SessionEnded,
    /// The record names another owner now.
    Superseded,
    /// The record, or that of its keyspace or session, is missing.
    RecordMissing,
    /// The record cannot be read.
    RecordUnreadable,
    /// The keyspace's generation was raised.
    GenerationRaised,
    /// The store is not the one that the cluster was created in, or has gone back in time.
    StoreReplaced,
    /// The application could not load it.
    LoadFailed,
    /// The application's loop ended with an error.
    LoopFailed,
    /// What was in flight did not finish in time.
    DrainTimeout,
    /// Nobody took it for a while.
    DeadOwnerReleased,
    /// A lost record was made anew.
    Restored,
    /// The planner decided it.
    Planned,
    /// The target of a move took over.
    Taken,
    /// The target of the move is dead, or the move is too old.
    TargetGone,
    /// The shard moves to another node.
    Moving,
    /// The move was called off.
    MoveAborted,
    /// The keyspace was removed.
    KeyspaceDeleted,
    /// The shard is to be deleted.
    Deleted,
    /// An operator wants it there.
    MoveRequested,
}

impl Reason {
    /// The reason as one word, for metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::OwnerEnded => "owner_ended",
            Self::ClaimFound => "claim_found",
            Self::Recovered => "recovered",
            Self::Loaded => "loaded",
            Self::Rebalance => "rebalance",
            Self::NodeStopping => "node_stopping",
            Self::NodeDraining => "node_draining",
            Self::LeaseLost => "lease_lost",
            Self::SessionEnded => "session_ended",
            Self::Superseded => "superseded",
            Self::RecordMissing => "record_missing",
            Self::RecordUnreadable => "record_unreadable",
            Self::GenerationRaised => "generation_raised",
            Self::StoreReplaced => "store_replaced",
            Self::LoadFailed => "load_failed",
            Self::LoopFailed => "loop_failed",
            Self::DrainTimeout => "drain_timeout",
            Self::DeadOwnerReleased => "dead_owner_released",
            Self::Restored => "restored",
            Self::Planned => "planned",
            Self::Taken => "taken",
            Self::TargetGone => "target_gone",
            Self::Moving => "moving",
            Self::MoveAborted => "move_aborted",
            Self::KeyspaceDeleted => "keyspace_deleted",
            Self::Deleted => "deleted",
            Self::MoveRequested => "move_requested",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
