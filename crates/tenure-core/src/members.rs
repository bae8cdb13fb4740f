//! The nodes that take part in a keyspace.
//!
//! Everything that chooses, counts or waits for nodes asks here: the planner, the modes without a leader, a node that stops or
//! drains, the deletion of shards, quarantine. A node takes part in the keyspaces that its session's record names and in no
//! other: one that names none serves none. (A router that names none routes all of them, and takes part in none.)

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{KeyspaceName, NodeName, SessionId, ShardName};
use crate::plan::NodeState;
use crate::record::{NodeMode, Ownership, Role, SessionRecord, ShardRecord};
use crate::view::View;

/// The live session of a node that serves a keyspace.
#[derive(Clone, Copy, Debug)]
pub struct Participant<'a> {
    /// Name under which the node is registered.
    pub name: &'a NodeName,
    /// Session that holds the name.
    pub session: SessionId,
    /// Record of that session, as last seen.
    pub record: &'a SessionRecord,
    /// State of the node: takes, keeps or gives away shards.
    pub state: NodeState,
}

impl Participant<'_> {
    /// Returns whether the node may be given shards.
    pub fn takes(&self) -> bool {
        self.state == NodeState::Active && self.record.weight > 0
    }
}

/// Returns whether a session's node serves a keyspace.
pub fn serves(record: &SessionRecord, keyspace: &KeyspaceName) -> bool {
    record.keyspaces.contains(keyspace)
}

/// The node of a live session that is there to own shards and holds its node's name. `also`: a session that counts although its
/// role owns no shards.
pub fn node_of<'a>(
    view: &'a View,
    session: SessionId,
    also: Option<SessionId>,
) -> Option<Participant<'a>> {
    let record = view.sessions.get(&session)?;
    let owns = record.role == Role::Node || also == Some(session);
    let node = view.nodes.get(&record.node)?;
    if !record.is_live() || !owns || node.session != session {
        return None;
    }
    let state = match node.mode {
        _ if record.stopping => NodeState::Leaving,
        NodeMode::Active if node.cordoned => NodeState::Cordoned,
        NodeMode::Active => NodeState::Active,
        _ => NodeState::Draining,
    };
    Some(Participant {
        name: &record.node,
        session,
        record,
        state,
    })
}

/// A node by its name, if it takes part in a keyspace.
pub fn participant<'a>(
    view: &'a View,
    name: &NodeName,
    keyspace: &KeyspaceName,
) -> Option<Participant<'a>> {
    let session = view.nodes.get(name)?.session;
    let node = node_of(view, session, None)?;
    (node.name == name && serves(node.record, keyspace)).then_some(node)
}

/// All nodes that take part in a keyspace, in the order of their sessions.
pub fn participants<'a>(
    view: &'a View,
    keyspace: &'a KeyspaceName,
    also: Option<SessionId>,
) -> impl Iterator<Item = Participant<'a>> {
    let sessions = view.sessions.iter();
    let nodes = sessions.filter_map(move |(id, _)| node_of(view, *id, also));
    nodes.filter(|node| serves(node.record, keyspace))
}

/// Reason for which a shard has no owner that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnservedReason {
    /// No live node serves the keyspace.
    NoNode,
    /// Every node that serves its keyspace is cordoned, draining or stopping, and one at least is cordoned.
    Cordoned,
    /// Every node that serves its keyspace is draining or stopping.
    Draining,
    /// Every node that could be given it has weight 0.
    NoWeight,
    /// Every node that could be given it has as many shards as its capacity allows.
    NoRoom,
    /// Too many nodes failed to load it.
    Quarantined,
    /// The owner has not loaded the shard.
    Loading,
    /// The move does not end.
    Moving,
    /// Nobody has claimed it, although somebody could.
    Unclaimed,
}

impl UnservedReason {
    /// All reasons: the label values of the metric of unserved shards.
    pub const ALL: [Self; 9] = [
        Self::NoNode,
        Self::Cordoned,
        Self::Draining,
        Self::NoWeight,
        Self::NoRoom,
        Self::Quarantined,
        Self::Loading,
        Self::Moving,
        Self::Unclaimed,
    ];

    /// As one word, for metrics and `--json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoNode => "no_node",
            Self::Cordoned => "cordoned",
            Self::Draining => "draining",
            Self::NoWeight => "no_weight",
            Self::NoRoom => "no_room",
            Self::Quarantined => "quarantined",
            Self::Loading => "loading",
            Self::Moving => "moving",
            Self::Unclaimed => "unclaimed",
        }
    }

    /// Returns the reason of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|r| r.as_str() == name)
    }

    /// Returns whether the records alone show the reason. If not, what matters is for how long it has lasted.
    pub fn is_in_records(self) -> bool {
        !matches!(self, Self::Loading | Self::Moving | Self::Unclaimed)
    }

    /// As half a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Self::NoNode => "no live node serves the keyspace",
            Self::Cordoned => "every node that serves the keyspace is cordoned or draining",
            Self::Draining => "every node that serves the keyspace is draining or stopping",
            Self::NoWeight => "every eligible node has weight 0",
            Self::NoRoom => "every eligible node is at capacity",
            Self::Quarantined => "too many nodes failed to load them",
            Self::Loading => "their owners have not loaded them",
            Self::Moving => "their moves do not finish",
            Self::Unclaimed => "no node has claimed them",
        }
    }
}

/// Returns why no node can be given shards of a keyspace; `None` if one can.
pub fn blocked(view: &View, keyspace: &KeyspaceName) -> Option<UnservedReason> {
    let nodes: Vec<Participant<'_>> = participants(view, keyspace, None).collect();
    let active = || nodes.iter().filter(|n| n.state == NodeState::Active);
    let takers: Vec<_> = active().filter(|n| n.takes()).collect();
    let owned = |session| {
        let shards = view.shards.iter();
        shards
            .filter(|(_, s)| s.record.is_owned_by(session))
            .count()
    };
    let full = |n: &&Participant<'_>| {
        let most = n.record.capacity;
        most.is_some_and(|most| owned(n.session) >= most as usize)
    };
    if nodes.is_empty() {
        Some(UnservedReason::NoNode)
    } else if active().next().is_none() {
        let cordoned = nodes.iter().any(|n| n.state == NodeState::Cordoned);
        Some(match cordoned {
            true => UnservedReason::Cordoned,
            false => UnservedReason::Draining,
        })
    } else if takers.is_empty() {
        Some(UnservedReason::NoWeight)
    } else {
        takers
            .into_iter()
            .all(|n| full(&n))
            .then_some(UnservedReason::NoRoom)
    }
}

/// Returns why a shard is not served, by its record and by who has ended; `None` if it is served or is not to be. `blocked`
/// computes why no node can be given it. A shard on the move counts as served while its owner serves it.
pub fn unserved(
    record: &ShardRecord,
    ended: impl Fn(SessionId) -> bool,
    blocked: impl FnOnce() -> Option<UnservedReason>,
) -> Option<UnservedReason> {
    let live = record.owner().is_some_and(|owner| !ended(owner.session));
    match record.ownership {
        Ownership::Deleted => None,
        _ if record.deleting => None,
        _ if record.quarantine.is_some() => Some(UnservedReason::Quarantined),
        Ownership::Owned { serving: true, .. } | Ownership::Warming { .. } if live => None,
        Ownership::Owned { .. } if live => Some(UnservedReason::Loading),
        Ownership::Freezing { .. } | Ownership::Sealed { .. } if live => {
            Some(UnservedReason::Moving)
        }
        _ => blocked().or(Some(UnservedReason::Unclaimed)),
    }
}

/// Shards of a keyspace that are not served, for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnservedGroup {
    /// Reason, the same for all of them.
    pub reason: UnservedReason,
    /// Number of these shards, named or not.
    pub count: usize,
    /// The first of them, at most [`NAMED`].
    pub shards: Vec<ShardName>,
}

/// Number of shards that are named where more may be counted.
pub const NAMED: usize = 5;

/// Returns the shards of a keyspace that are not served, by reason: those that no node can be given, and those that the nodes report
/// as not served for longer than three ttl. Quarantined shards are left out: each has its own reason in its record.
///
/// What the nodes report may be a renewal old: only what the records still show counts.
pub fn stuck(
    view: &View,
    keyspace: &KeyspaceName,
    ended: impl Fn(SessionId) -> bool,
    blocked: Option<UnservedReason>,
) -> Vec<UnservedGroup> {
    if view.keyspaces.get(keyspace).is_none_or(|k| k.deleted) {
        return Vec::new();
    }
    let sessions = view.sessions.iter().map(|(id, seen)| (*id, &seen.record));
    let live = sessions.filter(|(id, record)| record.is_live() && !ended(*id));
    let mut reported: BTreeMap<UnservedReason, (usize, BTreeSet<&ShardName>)> = BTreeMap::new();
    for (name, of_reason) in live.filter_map(|(_, r)| r.unserved.get(keyspace)).flatten() {
        let Some(reason) = UnservedReason::of_name(name) else {
            continue;
        };
        let (count, shards) = reported.entry(reason).or_default();
        *count = (*count).max(of_reason.count as usize);
        shards.extend(&of_reason.shards);
    }
    let mut found: BTreeMap<UnservedReason, (usize, Vec<ShardName>)> = BTreeMap::new();
    for (id, seen) in view
        .shards
        .iter()
        .filter(|(id, _)| id.keyspace == *keyspace)
    {
        let Some(reason) = unserved(&seen.record, &ended, || blocked) else {
            continue;
        };
        let (count, shards) = found.entry(reason).or_default();
        *count += 1;
        let said = reported.get(&reason);
        let named = reason.is_in_records() || said.is_some_and(|(_, all)| all.contains(&id.shard));
        if named && shards.len() < NAMED {
            shards.push(id.shard.clone());
        }
    }
    let all = found.into_iter().filter_map(|(reason, (now, shards))| {
        let count = match reason {
            UnservedReason::Quarantined => 0,
            _ if reason.is_in_records() => now,
            _ => now.min(reported.get(&reason).map_or(0, |(count, _)| *count)),
        };
        let stuck = UnservedGroup {
            reason,
            count,
            shards,
        };
        (count > 0).then_some(stuck)
    });
    all.collect()
}
