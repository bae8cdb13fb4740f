//! A node by its stable name: which session it is now, and whether it may take work.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Head, Unknown};
use crate::ids::SessionId;

/// Whether a node takes part in assignment. Durable per name; read before the node registers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "mode", content = "reason")]
pub enum NodeMode {
    /// Takes and owns shards.
    #[default]
    Active,
    /// Gives its shards away and takes none.
    Draining,
    /// Owns nothing, for this reason, until an operator activates it.
    Drained(String),
}

impl fmt::Display for NodeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Active => f.write_str("active"),
            Self::Draining => f.write_str("draining"),
            Self::Drained(reason) => write!(f, "drained({reason})"),
        }
    }
}

/// A node. Taken by compare-and-swap, so that two starters with one name cannot both pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Format, rev and nonce.
    #[serde(flatten)]
    pub head: Head,
    /// The node's current session, or its last one.
    pub session: SessionId,
    /// Whether it takes work.
    #[serde(flatten)]
    pub mode: NodeMode,
    /// It keeps what it has and is given nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cordoned: bool,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: Unknown,
}
