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

/// What a node expects of a keyspace; created so if it does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyspaceConfig {
    /// Which shards it has.
    pub kind: KeyspaceKind,
    /// Who assigns them.
    pub mode: AssignedBy,
    /// How a leader plans for it.
    pub plan: PlanningSettings,
    /// Its application can load a shard while another node still serves it, and then catch up.
    #[serde(default)]
    pub catches_up: bool,
}

/// A policy of the user's own, by a name that tells it from others.
#[derive(Clone)]
pub struct OwnPolicy {
    name: String,
    policy: Arc<dyn Policy + Send + Sync>,
}

impl OwnPolicy {
    /// Gives a policy a name.
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

/// Who keeps the time of sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Timekeeper {
    /// The nodes, by watching each other's records.
    #[default]
    Nodes,
    /// The store, by leases of its own.
    Store,
}

/// Who a node is and what it is to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeConfig {
    /// Its stable name.
    pub name: NodeName,
    /// What it is there for.
    pub role: Role,
    /// Where it can be reached, by kind of address.
    pub addresses: BTreeMap<String, String>,
    /// Its failure domain.
    pub zone: Option<String>,
    /// Its part of the shards in relation to other nodes; 100 is usual.
    pub weight: u32,
    /// What it says of itself.
    pub labels: BTreeMap<String, String>,
    /// The most shards that it can have.
    pub capacity: Option<u32>,
    /// The version of the program.
    pub version: String,
    /// The keyspaces that it takes part in.
    pub keyspaces: BTreeMap<KeyspaceName, KeyspaceConfig>,
    /// How it plans when it leads; nothing: by the policy that each keyspace's record names.
    #[serde(skip)]
    pub policy: Option<OwnPolicy>,
    /// Its times and limits.
    pub timing: Timing,
    /// The rules it follows.
    #[serde(skip)]
    pub rules: Rules,
    /// Who keeps the time of sessions.
    pub timekeeper: Timekeeper,
    /// The boot id of the machine, where all participants of the store share one machine and one clock.
    pub boot_id: Option<String>,
    /// 128 random bits: the ids of this process's sessions count up from here.
    #[serde(with = "crate::trace_format::hex")]
    pub entropy: u128,
    /// The session that this node's data directory remembers. Set only if the directory's lock proves its holder dead.
    pub last_session: Option<SessionId>,
    /// How it comes back if its session ran out while others lived.
    #[serde(default)]
    pub rejoin: RejoinMode,
    /// Its first start only joins: it takes no shards until an operator activates it.
    #[serde(default)]
    pub join: bool,
    /// Its name is its process's alone: what is recorded of it need not outlive that for long.
    #[serde(default)]
    pub ephemeral: bool,
}

/// Number and longest wait of the shards that are without the owner that they should have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardWaitStats {
    /// Shards that nobody owns.
    pub unclaimed: usize,
    /// For how long the longest of them has been so.
    pub unclaimed_for: std::time::Duration,
    /// Shards that this node should have and another live node has.
    pub held_elsewhere: usize,
    /// For how long the longest of them has been so.
    pub held_elsewhere_for: std::time::Duration,
    /// Shards of any keyspace that have had no owner that serves them for longer than three ttl, by the reason.
    pub unserved: BTreeMap<UnservedReason, usize>,
}
