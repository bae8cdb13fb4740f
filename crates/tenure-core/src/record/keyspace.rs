//! A keyspace: a set of shards and how they are given out.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::shard::is_default;
use super::{Head, PlanningSettings, Unknown};

/// Which shards a keyspace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "shards")]
pub enum KeyspaceKind {
    /// A fixed number of shards; a key belongs to the shard that its hash selects.
    Hashed(u32),
    /// Shards that are created and deleted one by one, by name.
    Named,
}

impl fmt::Display for KeyspaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hashed(n) => write!(f, "hashed({n})"),
            Self::Named => f.write_str("named"),
        }
    }
}

/// Who decides which node should own which shard. The records and the safety are the same in every mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AssignedBy {
    /// The leader plans.
    #[default]
    Leader,
    /// Every node computes the same weighted rendezvous for itself.
    Rendezvous,
    /// Nodes take what is free up to their fair share.
    FairShare,
}

impl fmt::Display for AssignedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rendezvous => "rendezvous",
            Self::Leader => "leader",
            Self::FairShare => "fair-share",
        })
    }
}

impl FromStr for AssignedBy {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "rendezvous" => Ok(Self::Rendezvous),
            "leader" => Ok(Self::Leader),
            "fair-share" => Ok(Self::FairShare),
            other => Err(format!(
                "unknown assignment mode {other:?}; use leader, rendezvous or fair-share"
            )),
        }
    }
}

/// A keyspace. Its shard records are written before it, so that a keyspace that can be seen has all its shards.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyspaceRecord {
    /// Format, rev and nonce.
    #[serde(flatten)]
    pub head: Head,
    /// Which shards there are.
    #[serde(flatten)]
    pub kind: KeyspaceKind,
    /// Who assigns them.
    pub assigned_by: AssignedBy,
    /// How a leader plans for it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub planning: PlanningSettings,
    /// The upper half of every epoch that is given out from now on. Raised when a lost record is made anew and after a
    /// restore, so that no epoch is ever given out twice (P2).
    pub generation: u32,
    /// Shards with an epoch below this generation are not served until their owner has claimed them anew.
    #[serde(default)]
    pub min_generation: u32,
    /// The keyspace was removed; the record stays so that its generation is not forgotten.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// An operator wants its shards evened out now, without the waits that keep a planner calm.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rebalance: bool,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: Unknown,
}
