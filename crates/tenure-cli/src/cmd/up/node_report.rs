//! What a node of `tenure up` tells: one JSON object per line.

use serde::{Deserialize, Serialize};

/// Something that a node tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NodeReport {
    /// A step of a shard at this node.
    Step {
        /// The shard's number.
        shard: u32,
        /// What happened, in one word.
        step: String,
        /// The epoch.
        epoch: u64,
        /// The node that had it before.
        from: Option<String>,
        /// Why, in one word.
        reason: String,
    },
    /// The lease changed phase, or the session ended.
    Lease(String),
    /// So many changes were made since the last time this was told.
    Made(u64),
    /// A change was refused by the resource.
    Refused {
        /// The shard.
        shard: String,
        /// The epoch of the change.
        epoch: u64,
        /// The epoch that the resource had seen.
        seen: u64,
    },
    /// The process says what is wrong.
    Trouble(String),
    /// The process is gone; said by whoever read its output.
    Gone,
}
