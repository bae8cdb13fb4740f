//! The cluster's own record.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Head, Unknown, millis};
use crate::ids::KeyspaceName;

/// What all participants of a cluster must agree on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// Format, rev and nonce.
    #[serde(flatten)]
    pub head: Head,
    /// How often the whole cluster has started from nothing.
    pub boot: u64,
    /// The identity of the store that this record was written to. Another one means a restored or exchanged store.
    pub store: String,
    /// The longest ttl that any session has used: how long to wait where a lost record can no longer say.
    #[serde(rename = "longest_ttl_ms", with = "millis")]
    pub longest_ttl: Duration,
    /// The highest generation that was drawn for each keyspace there ever was. Drawn here first, by compare-and-swap, so
    /// that no generation is used twice and a keyspace that was lost is not taken for a new one.
    #[serde(default)]
    pub keyspaces: BTreeMap<KeyspaceName, u32>,
    /// Pause of planned moves. Failover continues, and a node that stops still hands over its shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moves_paused: Option<MovesPaused>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A pause of planned moves in the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MovesPaused {
    /// Reason given by the operator.
    pub reason: String,
    /// `rev` of the cluster record at the start of the pause. Repeating the pause starts its duration again.
    pub rev: u64,
    /// Duration, counted by each node from the time it sees the pause; `None`: until an operator resumes moves.
    #[serde(
        rename = "for_ms",
        default,
        skip_serializing_if = "Option::is_none",
        with = "millis::option"
    )]
    pub lasts: Option<Duration>,
}
