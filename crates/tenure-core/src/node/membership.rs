//! Other sessions: their expiry, and the nodes that take part in assignment.
//!
//! A node ends an expired session by compare-and-swap on the version that it watched. If the node is wrong, it loses the race against
//! the session's own renewal. In addition, a node counts only time in which it was awake and its own renewals succeeded. Otherwise the
//! first node to wake after an outage would end all other sessions (P5).

use crate::node::session_end;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::assign::{Member, Ranking};
use crate::ids::{KeyspaceName, NodeName, SessionId, ShardId};
use crate::keys::Key;
use crate::lease::LeasePhase;
use crate::members;
use crate::members::Participant;
use crate::plan::NodeState;
use crate::record::{EndReason, Role, SessionRecord, ShardRecord};
use crate::rules::Mutant;
use crate::telemetry::NodeEvent;
use crate::time::Time;
use crate::view::KeyState;

use super::context::Ctx;
use super::store_requests::{WriteOutcome, WritePurpose};
use super::timers::Timer;
use super::{Life, Timekeeper};

/// Node that takes part in a keyspace and is not about to leave it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct KeyspaceMember {
    pub(super) name: NodeName,
    pub(super) session: SessionId,
    pub(super) weight: u32,
    /// Maximum number of shards that the node can own, over all keyspaces.
    pub(super) capacity: Option<u32>,
    /// The node keeps its shards and gets no more.
    pub(super) cordoned: bool,
}

impl KeyspaceMember {
    /// Returns whether the node may be given shards.
    pub(super) fn takes(&self) -> bool {
        self.weight > 0 && !self.cordoned
    }

    fn member(&self) -> Member {
        Member {
            name: self.name.clone(),
            session: self.session,
            weight: self.weight,
        }
    }
}

/// Nodes that share a keyspace, and the time of the last change among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct KeyspaceMembers {
    pub(super) seats: Vec<KeyspaceMember>,
    /// Ranking of the nodes that may be given shards.
    pub(super) ranking: Ranking,
    pub(super) since: Time,
}

impl KeyspaceMembers {
    fn new(seats: Vec<KeyspaceMember>, since: Time) -> Self {
        let takers: Vec<Member> = seats
            .iter()
            .filter(|s| s.takes())
            .map(KeyspaceMember::member)
            .collect();
        Self {
            ranking: Ranking::new(&takers),
            seats,
            since,
        }
    }

    /// Returns the member with this name.
    pub(super) fn seat(&self, name: &NodeName) -> Option<&KeyspaceMember> {
        self.seats.iter().find(|seat| seat.name == *name)
    }
}

/// Nodes that are present, and the keyspaces in which each of them takes part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Membership {
    /// All active nodes, whatever they serve. Their order decides which node does work that only one node should do.
    pub(super) members: Vec<Member>,
    /// The nodes of each keyspace that this node serves.
    groups: BTreeMap<KeyspaceName, KeyspaceMembers>,
    /// Empty group, for keyspaces that this node does not serve.
    none: KeyspaceMembers,
    trusted_since: Time,
    /// Delay of this node's expiry checks after those of the first node.
    turn: Duration,
}

impl Membership {
    /// Discards all observations made before this time: they prove nothing.
    pub(super) fn trust_from(&mut self, now: Time) {
        self.trusted_since = now;
    }

    /// For [`Node::essence`]: resets the time since which observations count, if everything in doubt was observed later.
    pub(super) fn forget_trust(&mut self, oldest_doubt: Time) {
        if self.trusted_since <= oldest_doubt {
            self.trusted_since = Time::ZERO;
        }
    }

    /// Returns the members of a keyspace that this node serves, and an empty group for any other keyspace.
    pub(super) fn of(&self, keyspace: &KeyspaceName) -> &KeyspaceMembers {
        self.groups.get(keyspace).unwrap_or(&self.none)
    }

    /// For [`Node::essence`]: resets the times of groups that have not changed since `settled`.
    pub(super) fn forget_since(&mut self, settled: Time) {
        for group in self.groups.values_mut() {
            if group.since <= settled {
                group.since = Time::ZERO;
            }
        }
    }

    /// Returns whether this node is cordoned in a keyspace: it keeps its shards and gets no more.
    pub(super) fn is_cordoned(&self, cx: &Ctx, keyspace: &KeyspaceName) -> bool {
        let me = self.of(keyspace).seat(&cx.config.name);
        me.is_some_and(|seat| seat.cordoned)
    }

    /// Returns `true` if the present session of a node has failed to load the shard.
    pub(super) fn has_failed(
        &self,
        _cx: &Ctx,
        id: &ShardId,
        record: &ShardRecord,
        name: &NodeName,
    ) -> bool {
        let seat = self.of(&id.keyspace).seat(name);
        seat.is_some_and(|seat| record.was_failed_by(seat.session))
    }

    /// Returns whether a node other than this one takes shards of the keyspace and has not yet failed to load this one.
    pub(super) fn somebody_else_may_load(
        &self,
        cx: &Ctx,
        id: &ShardId,
        record: &ShardRecord,
    ) -> bool {
        let mut others = self.of(&id.keyspace).seats.iter();
        others.any(|seat| {
            seat.name != cx.config.name && seat.takes() && !record.was_failed_by(seat.session)
        })
    }
}

impl Membership {
    /// Returns the time at which a session has been watched for long enough to be over, if its record does not change.
    pub(super) fn expires_at(&self, cx: &Ctx, session: SessionId) -> Option<Time> {
        self.is_old_at(cx, cx.view.sessions.cell(&session)?)
    }

    /// Implements [`Self::expires_at`] for the known state of a session.
    fn is_old_at(&self, cx: &Ctx, cell: &KeyState<SessionRecord>) -> Option<Time> {
        let timing = &cx.config.timing;
        let rules = cx.config.rules;
        let trusted = if rules.broken_by(Mutant::JudgeOverslept) {
            Time::ZERO
        } else {
            self.trusted_since
        };
        match cell {
            KeyState::Present(seen) if seen.record.ended.is_some() => {
                Some(seen.since + timing.proof_of(seen.record.ttl))
            }
            // Only a query of the lease proves expiry here. The timing in a record without a lease was written by another process.
            _ if cx.config.timekeeper == Timekeeper::Store => None,
            KeyState::Present(seen) => {
                let ttl = seen.record.ttl;
                if rules.broken_by(Mutant::ImpatientJudge) {
                    return Some(seen.since.max(trusted) + ttl / 2);
                }
                if let (Some(clock), Some(boot_id)) = (&seen.record.boot_clock, &cx.config.boot_id)
                    && clock.id == *boot_id
                    && seen.record.renewals > 0
                {
                    // On one machine all processes share a clock, so the deadline in the record counts. The wait gives the session time
                    // to renew. A session's first record is excluded. It is written if absent, so it may land late, after renewals that
                    // were deleted.
                    return Some(clock.until_ns.max(trusted + ttl / 3));
                }
                Some(seen.since.max(trusted) + timing.proof_of(ttl))
            }
            KeyState::Damaged { since, .. } => {
                Some((*since).max(trusted) + timing.proof_of(cx.longest_ttl()))
            }
            KeyState::Missing { .. } => None,
        }
    }

    pub(super) fn watch_all_sessions(&self, cx: &mut Ctx) {
        let all: Vec<_> = cx.view.sessions.cells().map(|(id, _)| *id).collect();
        for id in all {
            self.watch_session(cx, id);
        }
    }

    pub(super) fn watch_session(&self, cx: &mut Ctx, id: SessionId) {
        let cell = cx.view.sessions.cell(&id);
        if cx.session() == Some(id) || cx.is_end(cell) {
            return cx.timers.clear(&Timer::SessionExpiry(id));
        }
        if let Some(at) = cell.and_then(|cell| self.is_old_at(cx, cell)) {
            cx.timers.set(Timer::SessionExpiry(id), at + self.turn);
        }
    }

    /// Returns `true` if this node does the work that only one node of the cluster should do.
    pub(super) fn is_first_member(&self, cx: &Ctx) -> bool {
        let first = self.members.iter().map(|m| &m.name).min();
        first == Some(&cx.config.name)
    }

    /// Returns whether this node is the first of those that serve a keyspace, including nodes that take no shards. The first node does
    /// the work that only one of them should do.
    pub(super) fn is_first_of(&self, cx: &Ctx, keyspace: &KeyspaceName) -> bool {
        if cx.config.rules.broken_by(Mutant::StrangersCounted) {
            return self.is_first_member(cx);
        }
        let all = members::participants(&cx.view, keyspace, None);
        let staying = all.filter(|node| node.state != NodeState::Leaving);
        staying.map(|node| node.name).min() == Some(&cx.config.name)
    }
}

impl Membership {
    /// Returns `true` if the process was woken too late for its observations of other processes to count.
    pub(super) fn note_late_wakeup(&mut self, cx: &mut Ctx, now: Time) -> bool {
        let Some(wake) = cx.timers.next().filter(|wake| *wake < now) else {
            return false;
        };
        let late = now.since(wake);
        if late <= cx.config.timing.renew_interval {
            return false;
        }
        self.trust_from(now);
        cx.note(NodeEvent::ClockJump { gap: late });
        true
    }

    /// Ends a session that was observed for long enough, or schedules the next check.
    ///
    /// With `is_current`, the known state of the session is the state in the store. Otherwise the record is read first. Returns `true`
    /// if the session is known to have ended.
    pub(super) fn check_expiry(&self, cx: &mut Ctx, id: SessionId, is_current: bool) -> bool {
        if !matches!(cx.life, Life::Running) || cx.session() == Some(id) {
            return false;
        }
        let Some(at) = self.expires_at(cx, id) else {
            // The record is missing: the shards and nodes that refer to it lead to its end.
            cx.scan_all = true;
            return false;
        };
        if cx.now < at {
            self.watch_session(cx, id);
            return false;
        }
        if cx.ended(id) {
            cx.scan_all = true;
            return true;
        }
        if cx.config.role == Role::Shadow {
            return false;
        }
        if !is_current {
            let key = Key::Session(id);
            if !cx.is_being_read(&key) {
                cx.read(key);
            }
            return false;
        }
        let healthy = cx.lease_phase() == Some(LeasePhase::Attached);
        // A tombstone without proof does not become proof by its age. The compare-and-swap shows that the tombstone was there all the
        // time.
        let may_end = healthy || cx.broken_by(Mutant::JudgeOverslept) || cx.view.is_unproven(id);
        if !cx.view.is_unproven(id) && cx.view.is_newer(id) {
            return false;
        }
        if may_end {
            session_end::end_session(cx, id, EndReason::Expired, WritePurpose::ExpireSession(id));
        } else {
            let again = cx.now + cx.config.timing.renew_interval;
            cx.timers.set(Timer::SessionExpiry(id), again);
        }
        false
    }

    /// Reports an ended session, or schedules another attempt to end it.
    pub(super) fn on_expiry_settled(&self, cx: &mut Ctx, id: SessionId, outcome: &WriteOutcome) {
        match outcome {
            WriteOutcome::Done => {
                if let Some(record) = cx.view.sessions.get(&id)
                    && let Some(ended) = record.ended
                {
                    let (node, reason) = (record.node.clone(), ended.reason);
                    cx.note(NodeEvent::SessionEnded {
                        session: id,
                        node,
                        reason,
                    });
                }
            }
            WriteOutcome::Lost => self.watch_session(cx, id),
            WriteOutcome::Failed { .. } => {
                let again = cx.later(cx.config.timing.renew_retry_interval);
                cx.timers.set(Timer::SessionExpiry(id), again);
            }
        }
    }

    /// Derives the members of each keyspace from the view. Returns `None` if no member can have changed, otherwise the keyspaces
    /// whose members changed.
    pub(super) fn refresh(&mut self, cx: &mut Ctx) -> Option<Vec<KeyspaceName>> {
        // A shadow node counts itself, and its session may be new. Renewals of other nodes do not change the members.
        let me = cx.session().filter(|_| cx.config.role == Role::Shadow);
        if !cx.view.take_members_moved() && me.is_none() {
            return None;
        }
        let view = &cx.view;
        let sessions = view.sessions.iter().map(|(id, _)| *id);
        let all = sessions.filter_map(|id| members::node_of(view, id, me));
        let active: Vec<Participant<'_>> = all
            .filter(|node| matches!(node.state, NodeState::Active | NodeState::Cordoned))
            .collect();
        let members: Vec<Member> = active.iter().map(member).collect();
        if members != self.members {
            // Nodes check one after the other, so that they do not all write the same tombstone.
            let place = members.iter().position(|m| m.name == cx.config.name);
            let place = u32::try_from(place.unwrap_or(0).min(5)).unwrap_or(5);
            self.turn = cx.config.timing.ttl / 100 * place;
            self.members = members;
        }
        let mut changed = Vec::new();
        for keyspace in cx.config.keyspaces.keys() {
            let seats = seats(cx, keyspace, &active);
            if self.groups.get(keyspace).map(|group| &group.seats) != Some(&seats) {
                let group = KeyspaceMembers::new(seats, cx.now);
                self.groups.insert(keyspace.clone(), group);
                changed.push(keyspace.clone());
            }
        }
        Some(changed)
    }
}

fn member(node: &Participant<'_>) -> Member {
    Member {
        name: node.name.clone(),
        session: node.session,
        weight: node.record.weight,
    }
}

/// Returns the nodes that take part in a keyspace.
fn seats(cx: &Ctx, keyspace: &KeyspaceName, active: &[Participant<'_>]) -> Vec<KeyspaceMember> {
    let all = cx.broken_by(Mutant::StrangersCounted);
    let uncordoned = cx.broken_by(Mutant::CordonIgnored);
    let part = active
        .iter()
        .filter(|node| all || members::serves(node.record, keyspace));
    let seats = part.map(|node| KeyspaceMember {
        name: node.name.clone(),
        session: node.session,
        weight: node.record.weight,
        capacity: node.record.capacity,
        cordoned: node.state == NodeState::Cordoned && !uncordoned,
    });
    seats.collect()
}
