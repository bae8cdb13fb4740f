//! The node machine: composes lease, view, judge and shards. Being written.
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{KeyspaceName, NodeName, SessionId};
use crate::machine::{Event, Step};
use crate::record::{KeyspaceKind, KeyspaceMode, Role};
use crate::rules::Rules;
use crate::settings::Timing;
use crate::time::Time;

/// What a node expects of a keyspace; created so if it does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyspaceConfig {
    /// Which shards it has.
    pub kind: KeyspaceKind,
    /// Who assigns them.
    pub mode: KeyspaceMode,
}

/// Who a node is and what it is to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    /// The version of the program.
    pub version: String,
    /// The keyspaces that it takes part in.
    pub keyspaces: BTreeMap<KeyspaceName, KeyspaceConfig>,
    /// Its times and limits.
    pub timing: Timing,
    /// The rules it follows.
    pub rules: Rules,
    /// The boot id of the machine, where all participants of the store share one machine.
    pub boot_id: Option<String>,
    /// 128 random bits: the ids of this process's sessions count up from here.
    pub entropy: u128,
    /// The session that this node's data directory remembers. Set only if the directory's lock proves its holder dead.
    pub last_session: Option<SessionId>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    config: Arc<NodeConfig>,
}

impl Node {
    /// A node that has not begun; the first [`Event::Tick`] starts it.
    pub fn new(config: Arc<NodeConfig>) -> Self {
        Self { config }
    }

    /// Takes an event at a time and says what to do.
    pub fn step(&mut self, _now: Time, _event: Event) -> Step {
        let _ = &self.config;
        Step::default()
    }
}
