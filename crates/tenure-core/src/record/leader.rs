//! The elected planner.

use serde::{Deserialize, Serialize};

use super::{Head, Unknown};
use crate::ids::{NodeName, SessionId};

/// Who plans. The key is permanent and taken over by compare-and-swap once the holder's session has ended, or has resigned.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaderRecord {
    /// Format, rev and nonce.
    #[serde(flatten)]
    pub head: Head,
    /// Grows with every change of leader.
    pub term: u64,
    /// The session that leads, or led last.
    pub session: SessionId,
    /// The node whose session that is: for people.
    pub node: NodeName,
    /// It has given up leading: anyone may take over at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resigned: bool,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: Unknown,
}
