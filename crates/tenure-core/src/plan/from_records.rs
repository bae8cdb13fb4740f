//! A planner's view out of the records: what a leader plans from, and what `tenure keyspace plan` shows of a running cluster.
//!
//! Whoever reads the same records gets the same view, but for what only a leader remembers ([`PlannerMemory`]): since when nodes are
//! as they are, what was moved lately, what it is just writing.

use std::collections::{BTreeMap, BTreeSet};

use super::input::{NodeState, OtherKeyspaces, PlanNode, PlanShardRecord, PlanView, ViewProblem};
use crate::ids::{KeyspaceName, NodeName, SessionId, ShardId};
use crate::keys::Key;
use crate::members;
use crate::node::load_in_records;
use crate::record::{MovePhase, Ownership, SessionRecord, ShardRecord};
use crate::time::Time;
use crate::view::View;

/// What is remembered beside the records.
pub trait PlannerMemory {
    /// Since when a node is as it is, and how often it has come back lately.
    fn node(
        &mut self,
        name: &NodeName,
        state: NodeState,
        session: Option<SessionId>,
    ) -> (Time, u32);

    /// Who is to have a shard by a write that is under way; nothing if there is none.
    fn writing(&self, shard: &ShardId) -> Option<Option<NodeName>>;

    /// When a shard was last moved by a plan.
    fn moved(&self, shard: &ShardId) -> Option<Time>;
}

/// Nothing remembered: everything has been as it is for ever.
pub struct NoMemory;

impl PlannerMemory for NoMemory {
    fn node(&mut self, _: &NodeName, _: NodeState, _: Option<SessionId>) -> (Time, u32) {
        (Time::ZERO, 0)
    }

    fn writing(&self, _: &ShardId) -> Option<Option<NodeName>> {
        None
    }

    fn moved(&self, _: &ShardId) -> Option<Time> {
        None
    }
}

/// Records of a cluster, read with the sessions that are known to have ended.
#[derive(Clone, Copy)]
pub struct LiveRecords<'a> {
    view: &'a View,
    ended: &'a dyn Fn(SessionId) -> bool,
}

/// A record that names somebody who is gone, or that nobody needs any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StaleRecord {
    /// Its key.
    pub key: Key,
    /// What is stale about it.
    pub reason: StaleReason,
}

/// What is stale about a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StaleReason {
    /// The node that is to have the shard is not there.
    IntendedGone,
    /// The owner's session has ended, and nobody has taken the shard.
    OwnerEnded,
    /// The target of the shard's move has ended.
    TargetEnded,
    /// The session has ended, and no record refers to it.
    SessionUnused,
    /// The leader's session has ended.
    LeaderEnded,
}

impl StaleReason {
    /// As one word, for `--json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IntendedGone => "assigned_node_gone",
            Self::OwnerEnded => "owner_ended",
            Self::TargetEnded => "target_ended",
            Self::SessionUnused => "session_unused",
            Self::LeaderEnded => "leader_ended",
        }
    }

    /// As half a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Self::IntendedGone => "the assigned node does not exist",
            Self::OwnerEnded => "its owner's session has ended",
            Self::TargetEnded => "the target's session has ended",
            Self::SessionUnused => "the session has ended and nothing refers to it",
            Self::LeaderEnded => "the leader's session has ended",
        }
    }
}

impl<'a> LiveRecords<'a> {
    /// These records, and what proves that a session has ended.
    pub fn new(view: &'a View, ended: &'a dyn Fn(SessionId) -> bool) -> Self {
        Self { view, ended }
    }

    /// The live incarnation of a node that takes part in a keyspace.
    pub fn present(
        &self,
        name: &NodeName,
        keyspace: &KeyspaceName,
    ) -> Option<(SessionId, &'a SessionRecord)> {
        let node = members::participant(self.view, name, keyspace)?;
        Some((node.session, node.record))
    }

    /// Whether a record's intention names a node that is gone.
    pub fn names_departed(&self, record: &ShardRecord, keyspace: &KeyspaceName) -> bool {
        let named = record.assigned.as_ref();
        named.is_some_and(|name| self.present(name, keyspace).is_none())
    }

    /// What a planner looks at for one keyspace.
    pub fn plan_view(
        &self,
        keyspace: &KeyspaceName,
        memory: &mut dyn PlannerMemory,
    ) -> Result<PlanView, Vec<ViewProblem>> {
        let mut shards = Vec::with_capacity(self.view.shards.len());
        let mut named: BTreeSet<NodeName> = BTreeSet::new();
        let mut elsewhere: BTreeMap<NodeName, OtherKeyspaces> = BTreeMap::new();
        for (id, seen) in self.view.shards.iter() {
            let record = &seen.record;
            if matches!(record.ownership, Ownership::Deleted) || record.deleting {
                continue;
            }
            if id.keyspace != *keyspace {
                if let Some(owner) = record.owner() {
                    elsewhere.entry(owner.node.clone()).or_default().shards += 1;
                }
                continue;
            }
            let spec = self.shard_spec(id, record, memory);
            for name in spec.owner.iter().chain(&spec.intended) {
                // Most are named many times.
                if !named.contains(name) {
                    named.insert(name.clone());
                }
            }
            shards.push(spec);
        }
        let known = self.view.nodes.iter().map(|(name, _)| name);
        let present = known.filter(|name| self.present(name, keyspace).is_some());
        named.extend(present.cloned());
        let mut nodes = Vec::with_capacity(named.len());
        for name in named {
            let part = members::participant(self.view, &name, keyspace);
            let state = part.map_or(NodeState::Away, |node| node.state);
            let (session, record) = part.map(|node| (node.session, node.record)).unzip();
            let (since, absences) = memory.node(&name, state, session);
            let elsewhere = elsewhere.get(&name).copied().unwrap_or_default();
            let mut node = PlanNode {
                state,
                absences,
                elsewhere,
                ..PlanNode::new(name, since)
            };
            if let Some(record) = record {
                node.weight = record.weight;
                node.zone = record.zone.clone();
                node.labels = record.labels.clone();
                node.capacity = record.capacity;
            }
            nodes.push(node);
        }
        PlanView::new(keyspace.clone(), nodes, shards)
    }

    fn shard_spec(
        &self,
        id: &ShardId,
        record: &ShardRecord,
        memory: &dyn PlannerMemory,
    ) -> PlanShardRecord {
        let gone = record.owner().is_some_and(|o| (self.ended)(o.session));
        let owner = record.owner().filter(|_| !gone);
        let departed = record.owner().filter(|_| gone);
        // What was its own goes back to a node that is there again; what nobody has and nobody is to have is free.
        let back = departed.filter(|o| self.present(&o.node, &id.keyspace).is_some());
        let moving = record.ownership.moving();
        let intended = memory
            .writing(id)
            .unwrap_or_else(|| record.assigned.clone());
        PlanShardRecord {
            name: id.shard.clone(),
            owner: owner
                .or(departed.filter(|_| back.is_none()))
                .map(|o| o.node.clone()),
            intended: intended.or(back.map(|o| o.node.clone())),
            moving: moving.map(|(mv, _)| mv.to.node.clone()),
            sealed: matches!(record.ownership, Ownership::Sealed { .. }),
            loaded: moving.is_some_and(|(mv, phase)| {
                let target = self.view.sessions.get(&mv.to.session);
                let loaded = target.and_then(|session| session.holds(id));
                phase == MovePhase::Warming && loaded == Some(mv.id)
            }),
            pin: record.pin.clone(),
            load: load_in_records(self.view, id, record).unwrap_or(0),
            moved: memory.moved(id),
        }
    }

    /// Every record that names somebody who is gone, in the order of keys.
    pub fn stale(&self) -> Vec<StaleRecord> {
        let mut all = Vec::new();
        let mut say = |key, reason| all.push(StaleRecord { key, reason });
        for (id, seen) in self.view.shards.iter() {
            let (record, key) = (&seen.record, Key::Shard(id.clone()));
            if record.owner().is_some_and(|o| (self.ended)(o.session)) {
                say(key.clone(), StaleReason::OwnerEnded);
            }
            let moving = record.ownership.moving();
            if moving.is_some_and(|(mv, _)| (self.ended)(mv.to.session)) {
                say(key.clone(), StaleReason::TargetEnded);
            }
            if self.names_departed(record, &id.keyspace) {
                say(key, StaleReason::IntendedGone);
            }
        }
        for (id, _) in self.view.sessions.iter() {
            if (self.ended)(*id) && !self.is_referred_to(*id) {
                say(Key::Session(*id), StaleReason::SessionUnused);
            }
        }
        let leader = self.view.leader.get(&());
        if leader.is_some_and(|l| !l.resigned && (self.ended)(l.session)) {
            say(Key::Leader, StaleReason::LeaderEnded);
        }
        all.sort();
        all
    }

    /// Whether any record names this session.
    pub fn is_referred_to(&self, session: SessionId) -> bool {
        let view = self.view;
        let by_shard = |record: &ShardRecord| {
            let moving = record.ownership.moving();
            record.is_owned_by(session)
                || moving.is_some_and(|(mv, _)| mv.to.session == session)
                || matches!(&record.ownership, Ownership::Free { awaiting_disclaimers } if awaiting_disclaimers.contains(&session))
        };
        view.nodes.iter().any(|(_, n)| n.record.session == session)
            || view.shards.iter().any(|(_, s)| by_shard(&s.record))
            || view.leader.get(&()).is_some_and(|l| l.session == session)
    }
}
