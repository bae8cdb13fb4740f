//! Configuration of a node, and the counts of shards that wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{KeyspaceName, NodeName, SessionId};
use crate::members::UnservedReason;
use crate::plan::Policy;
use crate::record::{AssignedBy, KeyspaceKind, PlanningSettings, RejoinMode, Role};
use crate::rules::Rules;
use crate::settings::Timing;

/// Expected properties of a keyspace; a missing keyspace is created with them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyspaceConfig {
    /// Kind of the keyspace, which determines its set of shards.
    pub kind: KeyspaceKind,
    /// Assigner of the shards: the leader, or each node for itself.
    pub mode: AssignedBy,
    /// Planning settings of the leader for this keyspace.
    pub plan: PlanningSettings,
    /// `true` if the application can load a shard while another node still serves it, and catch up afterwards.
    #[serde(default)]
    pub catches_up: bool,
}

/// Custom planning policy. Its name distinguishes it from others, and policies with equal names count as equal.
#[derive(Clone)]
pub struct OwnPolicy {
    name: String,
    policy: Arc<dyn Policy + Send + Sync>,
}

impl OwnPolicy {
    /// Creates a policy with a name.
    pub fn new(name: impl Into<String>, policy: Arc<dyn Policy + Send + Sync>) -> Self {
        let name = name.into();
        Self { name, policy }
    }

    pub(super) fn as_policy(&self) -> &dyn Policy {
        &*self.policy
    }
}

impl std::fmt::Debug for OwnPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OwnPolicy").field(&self.name).finish()
    }
}

impl PartialEq for OwnPolicy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for OwnPolicy {}

impl std::hash::Hash for OwnPolicy {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// Timekeeper of sessions: decides when a session has expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Timekeeper {
    /// The nodes, by watching each other's records.
    #[default]
    Nodes,
    /// The store, by its own leases.
    Store,
}

/// Identity, properties and settings of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeConfig {
    /// Stable name of the node.
    pub name: NodeName,
    /// Role of the process in the cluster.
    pub role: Role,
    /// Addresses at which the node can be reached, by kind of address.
    pub addresses: BTreeMap<String, String>,
    /// Failure domain of the node.
    pub zone: Option<String>,
    /// Share of the shards in proportion to other nodes; 100 is usual.
    pub weight: u32,
    /// Labels that describe the node.
    pub labels: BTreeMap<String, String>,
    /// Maximum number of shards that the node can own.
    pub capacity: Option<u32>,
    /// Version of the program.
    pub version: String,
    /// Keyspaces in which the node takes part.
    pub keyspaces: BTreeMap<KeyspaceName, KeyspaceConfig>,
    /// Policy for planning as leader. `None` selects the policy that each keyspace's record names.
    #[serde(skip)]
    pub policy: Option<OwnPolicy>,
    /// Intervals, timeouts and limits.
    pub timing: Timing,
    /// Protocol rules that the node follows.
    #[serde(skip)]
    pub rules: Rules,
    /// Timekeeper of the sessions in the cluster.
    pub timekeeper: Timekeeper,
    /// Boot id of the machine. Set only if all processes that use the store share one machine and one clock.
    pub boot_id: Option<String>,
    /// 128 random bits. The ids of this process's sessions count up from this number.
    #[serde(with = "crate::trace_format::hex")]
    pub entropy: u128,
    /// Session remembered in this node's data directory. Set only if the directory's lock proves that the session's process is dead.
    pub last_session: Option<SessionId>,
    /// Behaviour at a restart if the node's session expired while other nodes were alive.
    #[serde(default)]
    pub rejoin: RejoinMode,
    /// `true` if the first start only joins: the node takes no shards until an operator resumes it.
    #[serde(default)]
    pub join: bool,
    /// `true` if no other process ever uses the node's name, so the record is removed a day after its session.
    #[serde(default)]
    pub ephemeral: bool,
}

/// Counts of shards without the owner that they should have, and the longest waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardWaitStats {
    /// Number of shards of the node's keyspaces that have no owner.
    pub unclaimed: usize,
    /// Longest time for which one of these shards has had no owner.
    pub unclaimed_for: std::time::Duration,
    /// Number of shards assigned to this node that another live node owns.
    pub held_elsewhere: usize,
    /// Longest time for which this node has waited for one of these shards.
    pub held_elsewhere_for: std::time::Duration,
    /// Number of shards, of any keyspace, that no owner has served for longer than three ttl, by reason.
    pub unserved: BTreeMap<UnservedReason, usize>,
}
