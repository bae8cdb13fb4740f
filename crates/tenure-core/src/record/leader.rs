//! The elected planner.

use serde::{Deserialize, Serialize};

use super::{Head, Unknown};
use crate::ids::SessionId;

/// Who plans. The key is permanent and taken over by compare-and-swap once the holder's session has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaderRecord {
    /// Format, rev and nonce.
    #[serde(flatten)]
    pub head: Head,
    /// Grows with every change of leader.
    pub term: u64,
    /// The session that leads, or led last.
    pub session: SessionId,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: Unknown,
}
