//! A session: one incarnation of a node, and its lease.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Head, Unknown, millis};
use crate::ids::{KeyspaceName, NodeName, SessionId, ShardId, ShardName};
use crate::time::Time;

/// What a session is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Owns shards.
    Node,
    /// Computes what it would do, and owns nothing.
    Shadow,
    /// Plans for the nodes, and owns nothing.
    Planner,
    /// Sends requests to owners, and owns nothing.
    Router,
}

/// What shards cost to serve, smoothed, in whatever unit the application reports.
pub type Costs = BTreeMap<KeyspaceName, BTreeMap<ShardName, u32>>;

/// Moves by the shard that they are of.
pub type HeldByRouter = BTreeMap<KeyspaceName, BTreeMap<ShardName, u64>>;

/// Shards without an owner that serves them, by keyspace and reason ([`crate::members::UnservedReason`], as one word; later versions may
/// have further reasons).
pub type UnservedShards = BTreeMap<KeyspaceName, BTreeMap<String, UnservedCount>>;

/// Number of shards that are not served for one reason, and some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UnservedCount {
    /// Number of these shards, named or not.
    pub count: u32,
    /// The first of them.
    pub shards: Vec<ShardName>,
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// Its holder stopped in good order.
    Resigned,
    /// A judge watched it unchanged for longer than its ttl.
    Expired,
    /// The process that held it is dead: its successor holds the lock of its data directory.
    Replaced,
    /// The store's own lease was gone.
    LeaseGone,
    /// Its key was missing. No proof: counts only after a ttl.
    Missing,
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resigned => "resigned",
            Self::Expired => "expired",
            Self::Replaced => "replaced",
            Self::LeaseGone => "lease_gone",
            Self::Missing => "missing",
        })
    }
}

/// The tombstone of a session. Once there, there for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ended {
    /// What proves it.
    pub reason: EndReason,
    /// The session that wrote the tombstone.
    pub by: SessionId,
}

/// Until when the session is good on its machine's boot-time clock: of use only to a reader under the same boot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BootClock {
    /// The machine's boot id and time namespace.
    pub id: String,
    /// The lease's deadline on that clock.
    pub until_ns: Time,
}

impl Serialize for Time {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        u64::deserialize(d).map(Self)
    }
}

/// A session. Created once, renewed by one writer, ended once. What stays the same over renewals is shared by its records.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Format, rev and nonce.
    #[serde(flatten)]
    pub head: Head,
    /// Set once the session is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// Its holder is stopping: it gives away what it has and takes no part in assignment.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    /// The node whose incarnation it is.
    pub node: NodeName,
    /// What it is there for.
    pub role: Role,
    /// Where the node can be reached, by kind of address.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub addresses: BTreeMap<String, String>,
    /// The failure domain that the node runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Its part of the shards in relation to other nodes; 100 is usual.
    pub weight: u32,
    /// What the node says of itself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The most shards that it can have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// The keyspaces that it takes part in.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub keyspaces: Arc<BTreeSet<KeyspaceName>>,
    /// What the shards that it owns cost, where its application says so.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub costs: Costs,
    /// The moves, by shard, during which it holds what comes for the shard.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held: HeldByRouter,
    /// Shards that have not been served for longer than three ttl by this node's clock, of the keyspaces that it reports on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unserved: UnservedShards,
    /// How long the session is good after a renewal.
    #[serde(rename = "ttl_ms", with = "millis")]
    pub ttl: Duration,
    /// How often it has been renewed.
    pub renewals: u64,
    /// The cluster's boot number at its start.
    pub boot: u64,
    /// The newest record format that its holder reads.
    pub reads_format: u32,
    /// The version of the program that holds it.
    pub version: Arc<str>,
    /// The identity of the store that it was created in.
    pub store: Arc<str>,
    /// For how long the store granted a lease, where the store itself keeps the time of sessions: such a session is over
    /// when its lease is gone, and not before.
    #[serde(
        rename = "lease_ms",
        default,
        skip_serializing_if = "Option::is_none",
        with = "millis::option"
    )]
    pub leased: Option<Duration>,
    /// The deadline on the holder's machine, where all participants share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_clock: Option<BootClock>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl SessionRecord {
    /// Whether the record is a tombstone that proves the session's end by itself.
    pub fn is_proven_end(&self) -> bool {
        self.ended
            .is_some_and(|ended| ended.reason != EndReason::Missing)
    }

    /// What a shard costs, by this session's last word.
    pub fn cost_of(&self, shard: &ShardId) -> Option<u32> {
        self.costs.get(&shard.keyspace)?.get(&shard.shard).copied()
    }

    /// The move during which it holds what comes for a shard.
    pub fn holds(&self, shard: &ShardId) -> Option<u64> {
        self.held.get(&shard.keyspace)?.get(&shard.shard).copied()
    }

    /// Returns true for a live router of the keyspace; one that names no keyspace routes all of them.
    pub fn routes(&self, keyspace: &KeyspaceName) -> bool {
        let concerned = self.keyspaces.is_empty() || self.keyspaces.contains(keyspace);
        self.role == Role::Router && self.is_live() && concerned
    }

    /// Whether the record is not a tombstone.
    pub fn is_live(&self) -> bool {
        self.ended.is_none()
    }
}
