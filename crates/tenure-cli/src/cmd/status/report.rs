//! The report of `status`: printed as JSON, or formatted as text.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tenure::admin::{SessionState, Snapshot};
use tenure_core::ids::{ClusterName, Epoch, KeyspaceName, NodeName, SessionId, ShardId, ShardName};
use tenure_core::record::{
    KeyspaceKind, KeyspaceRecord, Move, MovePhase, MovesPaused, NodeMode, Ownership,
    PlanningSettings, Role, ShardRecord,
};
use tenure_core::view::KeyState;

use super::problems::{self, Problem};

/// State of a cluster at one revision of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct StatusReport {
    pub(crate) cluster: ClusterName,
    pub(crate) store: String,
    /// Number of starts of the whole cluster; absent before the first node.
    pub(crate) boot: Option<u64>,
    /// Pause of planned moves.
    pub(crate) moves_paused: Option<MovesPaused>,
    /// The current or last leader.
    pub(crate) leader: Option<LeaderSummary>,
    pub(crate) nodes: Vec<NodeSummary>,
    pub(crate) keyspaces: Vec<KeyspaceSummary>,
    pub(crate) shards: Vec<ShardSummary>,
    pub(crate) problems: Vec<Problem>,
}

/// The current or last leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LeaderSummary {
    pub(crate) node: NodeName,
    pub(crate) session: SessionId,
    /// Term, which grows with every change of leader.
    pub(crate) term: u64,
    /// `leading`, `resigned`, `overdue`, `gone` (its session has ended), `missing` or `unreadable`.
    pub(crate) state: &'static str,
    /// Number of the last plan of the term that changed a shard record.
    pub(crate) plan: u64,
}

/// A node by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NodeSummary {
    pub(crate) name: NodeName,
    /// `active`, `cordoned`, `draining`, `drained`, `stopping`, `gone` once its session is over, or
    /// `planner`.
    pub(crate) mode: &'static str,
    /// True if the node is cordoned, in any mode.
    pub(crate) cordoned: bool,
    /// Reason of a drained node.
    pub(crate) reason: Option<String>,
    pub(crate) session: SessionId,
    /// `live`, `stopping`, `overdue`, how it ended, `missing` or `unreadable`.
    pub(crate) lease: String,
    pub(crate) addresses: BTreeMap<String, String>,
    pub(crate) zone: Option<String>,
    pub(crate) weight: Option<u32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) capacity: Option<u32>,
    pub(crate) version: Option<String>,
    /// Number of shards owned by its session.
    pub(crate) shards: usize,
}

/// A keyspace with the numbers of its shards by state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct KeyspaceSummary {
    pub(crate) name: KeyspaceName,
    pub(crate) kind: &'static str,
    pub(crate) assigned_by: String,
    pub(crate) generation: u32,
    pub(crate) shards: usize,
    pub(crate) owned: usize,
    pub(crate) unowned: usize,
    pub(crate) loading: usize,
    pub(crate) moving: usize,
    /// Number of shards assigned to another node than their owner.
    pub(crate) pending_moves: usize,
    pub(crate) pinned: usize,
    /// Planning settings that differ from the defaults.
    pub(crate) planning: PlanningSettings,
    /// True if the keyspace is deleted but some of its shards are still owned.
    pub(crate) deleted: bool,
}

/// A shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ShardSummary {
    pub(crate) keyspace: KeyspaceName,
    pub(crate) shard: ShardName,
    pub(crate) epoch: Option<Epoch>,
    pub(crate) owner: Option<NodeName>,
    pub(crate) session: Option<SessionId>,
    /// Ownership state, or `orphaned` (the session of its owner has ended), `quarantined`, `unreadable`, `missing`.
    pub(crate) state: &'static str,
    pub(crate) phase: Option<MovePhase>,
    /// Age of the move phase in milliseconds, by the wall clocks of the writer and of this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase_age_ms: Option<u64>,
    /// Target of its move, or the assigned node if that is not the owner.
    pub(crate) target: Option<NodeName>,
    /// Pending step of its move, with the node that has to do it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waits_for: Option<String>,
    /// Node that the shard is pinned to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pin: Option<NodeName>,
    /// Load failures since the shard was last served.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failures: Vec<LoadFailure>,
    /// Problem reported by the application, although the shard is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trouble: Option<String>,
    /// True if a session that may serve owns the shard.
    #[serde(skip)]
    pub(crate) owned: bool,
}

/// A node that could not load a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LoadFailure {
    pub(crate) node: NodeName,
    pub(crate) error: String,
}

impl StatusReport {
    /// Leaves out all other keyspaces, their shards and problems with their records.
    pub(crate) fn retain_keyspace(&mut self, name: &KeyspaceName) {
        self.keyspaces.retain(|k| k.name == *name);
        self.shards.retain(|s| s.keyspace == *name);
        let (record, shards) = (format!("keyspaces/{name}"), format!("shards/{name}/"));
        self.problems
            .retain(|p| p.key == record || p.key.starts_with(&shards));
    }

    /// Leaves out all other nodes, and shards that neither are owned by the node nor move to it.
    pub(crate) fn retain_node(&mut self, name: &NodeName) {
        self.nodes.retain(|n| n.name == *name);
        self.shards
            .retain(|s| s.owner.as_ref() == Some(name) || s.target.as_ref() == Some(name));
        let record = format!("nodes/{name}");
        let shards: BTreeSet<String> = self
            .shards
            .iter()
            .map(|s| format!("shards/{}/{}", s.keyspace, s.shard))
            .collect();
        self.problems
            .retain(|p| p.key == record || shards.contains(&p.key));
    }

    /// What a snapshot says.
    pub(crate) fn new(cluster: &ClusterName, store: &str, snapshot: &Snapshot) -> Self {
        let mut shards = Vec::new();
        let mut keyspaces = Vec::new();
        for (name, seen) in snapshot.view.keyspaces.iter() {
            let from = shards.len();
            let all = snapshot.shards(name, seen.record.kind);
            shards.extend(
                all.filter_map(|(shard, cell)| ShardSummary::new(snapshot, name, shard, cell)),
            );
            let keyspace = KeyspaceSummary::new(name, &seen.record, &shards[from..]);
            if keyspace.deleted && keyspace.owned == 0 {
                shards.truncate(from);
            } else {
                keyspaces.push(keyspace);
            }
        }
        Self {
            cluster: cluster.clone(),
            store: store.to_owned(),
            boot: snapshot.view.cluster.get(&()).map(|c| c.boot),
            moves_paused: snapshot
                .view
                .cluster
                .get(&())
                .and_then(|c| c.moves_paused.clone()),
            leader: leader(snapshot),
            nodes: nodes(snapshot, &shards),
            problems: problems::all(snapshot, &keyspaces),
            keyspaces,
            shards,
        }
    }
}

impl KeyspaceSummary {
    fn new(name: &KeyspaceName, record: &KeyspaceRecord, shards: &[ShardSummary]) -> Self {
        let count = |which: fn(&ShardSummary) -> bool| shards.iter().filter(|s| which(s)).count();
        Self {
            name: name.clone(),
            kind: match record.kind {
                KeyspaceKind::Hashed(_) => "hashed",
                KeyspaceKind::Named => "named",
            },
            assigned_by: record.assigned_by.to_string(),
            generation: record.generation,
            shards: shards.len(),
            owned: count(|s| s.owned),
            unowned: count(|s| !s.owned),
            loading: count(|s| s.owned && s.state == "loading"),
            moving: count(|s| s.phase.is_some()),
            pending_moves: count(|s| s.phase.is_none() && s.target.is_some()),
            pinned: count(|s| s.pin.is_some()),
            planning: record.planning.clone(),
            deleted: record.deleted,
        }
    }
}

impl ShardSummary {
    /// `None` for a named shard that was deleted.
    fn new(
        snapshot: &Snapshot,
        keyspace: &KeyspaceName,
        shard: ShardName,
        cell: Option<&KeyState<ShardRecord>>,
    ) -> Option<Self> {
        let mut new = Self {
            keyspace: keyspace.clone(),
            shard,
            epoch: None,
            owner: None,
            session: None,
            state: "missing",
            phase: None,
            phase_age_ms: None,
            target: None,
            waits_for: None,
            pin: None,
            failures: Vec::new(),
            trouble: None,
            owned: false,
        };
        let record = match cell {
            Some(KeyState::Present(seen)) => &seen.record,
            Some(KeyState::Damaged { .. }) => {
                new.state = "unreadable";
                return Some(new);
            }
            Some(KeyState::Missing { .. }) | None => return Some(new),
        };
        if record.ownership == Ownership::Deleted {
            return None;
        }
        new.epoch = Some(record.epoch);
        new.state = match record.deleting {
            true => "deleting",
            false => record.ownership.name(),
        };
        new.pin = record.pin.clone();
        if !record.served_since {
            let failed = record.failures.iter().map(|f| LoadFailure {
                node: f.node.clone(),
                error: f.error.clone(),
            });
            new.failures.extend(failed);
        }
        if let Some(owner) = record.owner() {
            new.owner = Some(owner.node.clone());
            new.session = Some(owner.session);
            new.owned = !snapshot.session_state(owner.session).is_over();
            if new.owned {
                new.trouble = record.trouble.clone();
                let elsewhere = |to: &&NodeName| **to != owner.node;
                new.target = record.assigned.as_ref().filter(elsewhere).cloned();
            } else {
                new.state = "orphaned";
            }
        } else if record.quarantine.is_some() {
            new.state = "quarantined";
        }
        if let Some((mv, phase)) = record.ownership.moving() {
            new.phase = Some(phase);
            let age = tenure::written_at(record).map(|at| at.elapsed().unwrap_or_default());
            new.phase_age_ms = age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
            new.target = Some(mv.to.node.clone());
            let id = ShardId::new(keyspace.clone(), new.shard.clone());
            new.waits_for = Some(waits_for(snapshot, &id, record, mv, phase));
        }
        Some(new)
    }
}

/// Pending step of a move, with the node that has to do it.
fn waits_for(
    snapshot: &Snapshot,
    id: &ShardId,
    record: &ShardRecord,
    mv: &Move,
    phase: MovePhase,
) -> String {
    let to = &mv.to.node;
    let owner = record.owner().map_or("its owner", |o| o.node.as_str());
    match phase {
        MovePhase::Warming => format!("{to} to load it"),
        MovePhase::Sealed => format!("{to} to take it"),
        MovePhase::Freezing => {
            let routers = snapshot.view.sessions.iter().filter(|(_, seen)| {
                let session = &seen.record;
                session.role == Role::Router
                    && session.is_live()
                    && session.holds(id) != Some(mv.id)
            });
            let routers: Vec<&str> = routers.map(|(_, s)| s.record.node.as_str()).collect();
            match routers.is_empty() {
                true => format!("{owner} to finish its requests"),
                false => format!("{} to hold its requests", routers.join(", ")),
            }
        }
    }
}

fn leader(snapshot: &Snapshot) -> Option<LeaderSummary> {
    let record = snapshot.view.leader.get(&())?;
    let plans = snapshot.view.shards.iter().map(|(_, s)| s.record.plan);
    let of_term = plans.filter(|plan| plan.term == record.term);
    Some(LeaderSummary {
        node: record.node.clone(),
        session: record.session,
        term: record.term,
        state: match snapshot.session_state(record.session) {
            _ if record.resigned => "resigned",
            SessionState::Live | SessionState::Stopping => "leading",
            SessionState::Overdue(_) => "overdue",
            SessionState::Ended(_) => "gone",
            SessionState::Missing => "missing",
            SessionState::Unreadable => "unreadable",
        },
        plan: of_term.map(|plan| plan.seq).max().unwrap_or(0),
    })
}

fn nodes(snapshot: &Snapshot, shards: &[ShardSummary]) -> Vec<NodeSummary> {
    let mut counts: BTreeMap<SessionId, usize> = BTreeMap::new();
    for session in shards.iter().filter(|s| s.owned).filter_map(|s| s.session) {
        *counts.entry(session).or_default() += 1;
    }
    let node = |name: &NodeName, session: SessionId, mode: &NodeMode, cordoned: bool| {
        let lease = snapshot.session_state(session);
        let record = snapshot.view.sessions.get(&session);
        NodeSummary {
            name: name.clone(),
            mode: match mode {
                _ if lease.is_over() => "gone",
                _ if lease == SessionState::Stopping => "stopping",
                _ if record.is_some_and(|r| r.role == Role::Planner) => "planner",
                NodeMode::Active if cordoned => "cordoned",
                NodeMode::Active => "active",
                NodeMode::Draining => "draining",
                NodeMode::Drained(_) => "drained",
            },
            cordoned,
            reason: match mode {
                NodeMode::Drained(reason) => Some(reason.clone()),
                _ => None,
            },
            session,
            lease: lease.to_string(),
            addresses: record.map(|r| r.addresses.clone()).unwrap_or_default(),
            zone: record.and_then(|r| r.zone.clone()),
            weight: record.map(|r| r.weight),
            labels: record.map(|r| r.labels.clone()).unwrap_or_default(),
            capacity: record.and_then(|r| r.capacity),
            version: record.map(|r| r.version.to_string()),
            shards: counts.get(&session).copied().unwrap_or(0),
        }
    };
    let recorded = snapshot.view.nodes.iter();
    let mut all: Vec<NodeSummary> = recorded
        .map(|(name, seen)| {
            let record = &seen.record;
            node(name, record.session, &record.mode, record.cordoned)
        })
        .collect();
    // A live session whose node record was lost is a node nevertheless.
    for (id, seen) in snapshot.view.sessions.iter() {
        let known = all.iter().any(|n| n.session == *id);
        if !known
            && matches!(
                snapshot.session_state(*id),
                SessionState::Live | SessionState::Stopping
            )
        {
            all.push(node(&seen.record.node, *id, &NodeMode::Active, false));
        }
    }
    all.sort_by(|a, b| (a.mode == "gone", &a.name).cmp(&(b.mode == "gone", &b.name)));
    all
}
