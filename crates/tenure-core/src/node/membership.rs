//! Other sessions: who has ended, and who takes part in assignment.
//!
//! A session is ended by compare-and-swap on the version that was watched, so that a judge who is wrong loses the race
//! against the holder's renewal. On top of that a judge counts only time in which it was awake and its own renewals went
//! through: otherwise the first node to wake after an outage would end everyone else (P5).

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

/// A node that takes part in a keyspace and is not about to leave it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct KeyspaceMember {
    pub(super) name: NodeName,
    pub(super) session: SessionId,
    pub(super) weight: u32,
    /// The most shards of all keyspaces that it can have.
    pub(super) capacity: Option<u32>,
    /// Cordoned: keeps what it has and gets nothing.
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

/// The nodes among which a keyspace is divided, and since when they are the same.
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

    /// A node of the group, by name.
    pub(super) fn seat(&self, name: &NodeName) -> Option<&KeyspaceMember> {
        self.seats.iter().find(|seat| seat.name == *name)
    }
}

/// The nodes that are there, and who of them takes part in which keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Membership {
    /// All active nodes, whatever they serve: they take turns at what one of all should do.
    pub(super) members: Vec<Member>,
    /// The nodes of each keyspace that this node serves.
    groups: BTreeMap<KeyspaceName, KeyspaceMembers>,
    /// Empty group, for keyspaces that this node does not serve.
    none: KeyspaceMembers,
    trusted_since: Time,
    /// How much later than the first of them this node looks whether somebody else's session is over.
    turn: Duration,
}

impl Membership {
    /// What was observed before this time proves nothing.
    pub(super) fn trust_from(&mut self, now: Time) {
        self.trusted_since = now;
    }

    /// For [`Node::essence`]: forgets since when observations count, if everything in doubt was observed later.
    pub(super) fn forget_trust(&mut self, oldest_doubt: Time) {
        if self.trusted_since <= oldest_doubt {
            self.trusted_since = Time::ZERO;
        }
    }

    /// The nodes of a keyspace that this node serves; none of any other.
    pub(super) fn of(&self, keyspace: &KeyspaceName) -> &KeyspaceMembers {
        self.groups.get(keyspace).unwrap_or(&self.none)
    }

    /// For [`Node::essence`]: forgets since when groups are the same that have been so until `settled`.
    pub(super) fn forget_since(&mut self, settled: Time) {
        for group in self.groups.values_mut() {
            if group.since <= settled {
                group.since = Time::ZERO;
            }
        }
    }

    /// Returns whether this node keeps what it has of a keyspace and gets nothing.
    pub(super) fn is_cordoned(&self, cx: &Ctx, keyspace: &KeyspaceName) -> bool {
        let me = self.of(keyspace).seat(&cx.config.name);
        me.is_some_and(|seat| seat.cordoned)
    }

    /// Whether the present incarnation of a node could not load the shard.
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

    /// Returns whether another node than this one takes shards of the keyspace and has not yet failed to load this one.
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
    /// When a session will have been watched for long enough to be over, if nothing changes.
    pub(super) fn expires_at(&self, cx: &Ctx, session: SessionId) -> Option<Time> {
        self.is_old_at(cx, cx.view.sessions.cell(&session)?)
    }

    /// The same of what is known of a session.
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
            // Its lease is asked about. What a record says of its time, without a lease, is somebody else's word.
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
                    // One machine, one clock: its own deadline can be read off. The wait gives it the time to renew.
                    // Not of a session's first record: that one is written if absent, and so may land late, after
                    // renewals that somebody has deleted.
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

    /// Whether this node is the one that does what one of all should do.
    pub(super) fn is_first_member(&self, cx: &Ctx) -> bool {
        let first = self.members.iter().map(|m| &m.name).min();
        first == Some(&cx.config.name)
    }

    /// Returns whether this node is the first of those that serve a keyspace, whether they take shards or not: the one that acts
    /// where one of them should.
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
    /// Returns how late the process was woken if that was too late for observations of other processes to count.
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
    /// `is_current`: the known state of the session is the state in the store. Otherwise the record is read first. Returns `true` if
    /// the session is known to have ended.
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
        // A tombstone that is old enough is no proof by itself: the write shows that it was there all the time.
        let may_end = healthy || cx.broken_by(Mutant::JudgeOverslept) || cx.is_unproven(id);
        if !cx.is_unproven(id) && cx.is_newer(id) {
            return false;
        }
        if may_end {
            cx.end_session(id, EndReason::Expired, WritePurpose::ExpireSession(id));
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
        // A shadow node counts itself, and its session may be new. The part of other nodes does not change with a renewal.
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
            // Nodes check one after the other, so that not all of them write the same tombstone.
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
