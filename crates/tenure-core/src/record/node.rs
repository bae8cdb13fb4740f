//! A node by its stable name: which session it is now, and whether it may take work.

use std::fmt;
use std::str::FromStr;

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

impl NodeMode {
    /// Drained because an operator wished it.
    pub const BY_OPERATOR: &str = "operator";
    /// Drained because the node's first start was told to join only.
    pub const JOINED: &str = "joined";
    /// Drained because the node's process was away for longer than its ttl while others lived.
    pub const STALE_RESTART: &str = "stale_restart";
    /// Drained because the node's session ran out, while its process lived and others did too.
    pub const REGISTRATION_EXPIRED: &str = "registration_expired";

    /// Drained, for this reason.
    pub fn drained(reason: &str) -> Self {
        Self::Drained(reason.to_owned())
    }

    /// Whether an operator wanted it so: it stays so, however long the node is away.
    pub fn is_by_operator(&self) -> bool {
        match self {
            Self::Active => false,
            Self::Draining => true,
            Self::Drained(reason) => reason == Self::BY_OPERATOR,
        }
    }
}

/// How a node comes back whose session ran out while others lived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RejoinMode {
    /// It takes part again by itself.
    #[default]
    Auto,
    /// It is drained until an operator activates it.
    Manual,
}

impl fmt::Display for RejoinMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Manual => "manual",
        })
    }
}

impl FromStr for RejoinMode {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "manual" => Ok(Self::Manual),
            other => Err(format!("unknown rejoin mode {other:?}; use auto or manual")),
        }
    }
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
    /// The cluster's boot number when the session began. Zero: whatever happened before is forgiven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<u64>,
    /// Its session does not know yet whether others lived when it began: that it lives says nothing about them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsure: bool,
    /// The name is not kept for its next process: the record goes some time after its session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ephemeral: bool,
    /// The session that an operator asks to stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_session: Option<SessionId>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: Unknown,
}
