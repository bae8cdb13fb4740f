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
use crate::plan::NodeState;
use crate::reason::Reason;
use crate::record::{EndReason, Role, SessionRecord, ShardRecord};
use crate::rules::Mutant;
use crate::telemetry::NodeEvent;
use crate::time::Time;
use crate::view::KeyState;

use super::context::Ctx;
use super::store_requests::{Settled, WritePurpose};
use super::timers::Timer;
use super::{Life, Node, Timekeeper};

/// A node that takes part in a keyspace and is not about to leave it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Seat {
    pub(super) name: NodeName,
    pub(super) session: SessionId,
    pub(super) weight: u32,
    /// The most shards of all keyspaces that it can have.
    pub(super) capacity: Option<u32>,
    /// Cordoned: keeps what it has and gets nothing.
    pub(super) cordoned: bool,
}

impl Seat {
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
pub(super) struct Group {
    pub(super) seats: Vec<Seat>,
    /// Ranking of the nodes that may be given shards.
    pub(super) ranking: Ranking,
    pub(super) since: Time,
}

impl Group {
    fn new(seats: Vec<Seat>, since: Time) -> Self {
        let takers: Vec<Member> = seats
            .iter()
            .filter(|s| s.takes())
            .map(Seat::member)
            .collect();
        Self {
            ranking: Ranking::new(&takers),
            seats,
            since,
        }
    }

    /// A node of the group, by name.
    pub(super) fn seat(&self, name: &NodeName) -> Option<&Seat> {
        self.seats.iter().find(|seat| seat.name == *name)
    }
}

/// The nodes that are there, and who of them takes part in which keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Membership {
    /// All active nodes, whatever they serve: they take turns at what one of all should do.
    pub(super) members: Vec<Member>,
    /// The nodes of each keyspace that this node serves.
    groups: BTreeMap<KeyspaceName, Group>,
    /// Empty group, for keyspaces that this node does not serve.
    none: Group,
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
    pub(super) fn of(&self, keyspace: &KeyspaceName) -> &Group {
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

impl Node {
    /// Notices that the process was not scheduled when it wanted to be.
    pub(super) fn note_sleep(&mut self, now: Time) {
        let Some(wake) = self.ctx.timers.next().filter(|wake| *wake < now) else {
            return;
        };
        let late = now.since(wake);
        if late > self.ctx.config.timing.renew_interval {
            self.membership.trust_from(now);
            // Nothing of this process ran: that the application was silent says nothing about it.
            self.session.progress = self.session.progress.max(now);
            self.ctx.note(NodeEvent::ClockJump { gap: late });
        }
    }

    pub(super) fn judge(&mut self, id: SessionId) {
        self.schedule_expiry(id, !self.ctx.is_dated_back(id));
    }

    /// A session's record was read. If only reads tell of it, what was read is judged.
    pub(super) fn judge_read(&mut self, id: SessionId) {
        if self.ctx.is_dated_back(id) {
            self.schedule_expiry(id, true);
        }
    }

    /// Ends a session that was watched for long enough. `heard`: what is known of it is what the store has; otherwise that is
    /// read first.
    fn schedule_expiry(&mut self, id: SessionId, heard: bool) {
        if !matches!(self.ctx.life, Life::Running) || self.ctx.session() == Some(id) {
            return;
        }
        let Some(at) = self.membership.expires_at(&self.ctx, id) else {
            // Its record is missing: whoever refers to it will see to its end.
            self.ctx.scan_all = true;
            return;
        };
        if self.ctx.now < at {
            self.membership.watch_session(&mut self.ctx, id);
        } else if self.ctx.ended(id) {
            self.assignment.all_stale();
            self.ctx.scan_all = true;
        } else if !heard && self.ctx.config.role != Role::Shadow {
            let key = Key::Session(id);
            if !self.ctx.is_being_read(&key) {
                self.ctx.read(key);
            }
        } else if self.ctx.is_unproven(id) && self.ctx.config.role != Role::Shadow {
            // Old enough to count; but only the write shows that it has stood there all the time.
            self.ctx
                .end_session(id, EndReason::Expired, WritePurpose::ExpireSession(id));
        } else if self.ctx.config.role != Role::Shadow && !self.ctx.is_newer(id) {
            let healthy = self.ctx.lease_phase() == Some(LeasePhase::Attached);
            if healthy || self.ctx.config.rules.broken_by(Mutant::JudgeOverslept) {
                self.ctx
                    .end_session(id, EndReason::Expired, WritePurpose::ExpireSession(id));
            } else {
                self.ctx.timers.set(
                    Timer::SessionExpiry(id),
                    self.ctx.now + self.ctx.config.timing.renew_interval,
                );
            }
        }
    }

    pub(super) fn on_judged(&mut self, id: SessionId, outcome: Settled) {
        match outcome {
            Settled::Done => {
                if let Some(record) = self.ctx.view.sessions.get(&id)
                    && let Some(ended) = record.ended
                {
                    let node = record.node.clone();
                    self.ctx.note(NodeEvent::SessionEnded {
                        session: id,
                        node,
                        reason: ended.reason,
                    });
                }
            }
            Settled::Lost => self.membership.watch_session(&mut self.ctx, id),
            Settled::Failed { .. } => {
                self.ctx.timers.set(
                    Timer::SessionExpiry(id),
                    self.ctx.later(self.ctx.config.timing.renew_retry_interval),
                );
            }
        }
    }

    pub(super) fn on_session_changed(&mut self, id: SessionId) {
        let record = self.ctx.view.sessions.get(&id);
        let gone = record.is_none_or(|record| record.ended.is_some());
        if let Some(record) = record {
            self.ctx.longest = self.ctx.longest.max(record.ttl);
            if record.role == Role::Router {
                // Shards that freeze may have waited for this one.
                for shard in &self.shards.leaving {
                    self.ctx.changed.insert(Key::Shard(shard.clone()));
                }
            }
        }
        if self.ctx.my_session().is_some_and(|h| h.id == id) {
            match self.ctx.view.sessions.cell(&id) {
                Some(KeyState::Present(seen))
                    if seen.record.ended.is_some() && !self.is_resigning() =>
                {
                    self.session_over(Reason::SessionEnded);
                }
                Some(KeyState::Missing { .. }) => self.session_over(Reason::RecordMissing),
                // Until it is rewritten everyone takes this node for gone.
                Some(KeyState::Damaged { .. }) => self.ctx.timers.set(Timer::Renew, self.ctx.now),
                _ => {}
            }
        } else if matches!(self.ctx.life, Life::Running) {
            self.membership.watch_session(&mut self.ctx, id);
        }
        if gone {
            self.leader.look_at_leader(&mut self.ctx, &self.membership);
            // What the ended session had can be had now, whether or not it was a member.
            self.assignment.all_stale();
            self.ctx.scan_all = true;
        }
        self.refresh_members();
    }

    /// Derives the members anew; if they changed, so does what everyone should have.
    pub(super) fn refresh_members(&mut self) {
        // An observer counts itself, and its session may be new. Nobody else's part changes with a renewal.
        let me = self
            .ctx
            .session()
            .filter(|_| self.ctx.config.role == Role::Shadow);
        if !self.ctx.view.take_members_moved() && me.is_none() {
            return;
        }
        let view = &self.ctx.view;
        let sessions = view.sessions.iter().map(|(id, _)| *id);
        let all = sessions.filter_map(|id| members::node_of(view, id, me));
        let active: Vec<members::Participant<'_>> = all
            .filter(|node| matches!(node.state, NodeState::Active | NodeState::Cordoned))
            .collect();
        let broken = |mutant| self.ctx.config.rules.broken_by(mutant);
        let (all, uncordoned) = (
            broken(Mutant::StrangersCounted),
            broken(Mutant::CordonIgnored),
        );
        let mut changed = Vec::new();
        for keyspace in self.ctx.config.keyspaces.keys() {
            let part = active
                .iter()
                .filter(|node| all || members::serves(node.record, keyspace));
            let seats = part.map(|node| Seat {
                name: node.name.clone(),
                session: node.session,
                weight: node.record.weight,
                capacity: node.record.capacity,
                cordoned: node.state == NodeState::Cordoned && !uncordoned,
            });
            let seats: Vec<Seat> = seats.collect();
            if self
                .membership
                .groups
                .get(keyspace)
                .map(|group| &group.seats)
                != Some(&seats)
            {
                changed.push((keyspace.clone(), Group::new(seats, self.ctx.now)));
            }
        }
        let member = |node: &members::Participant<'_>| Member {
            name: node.name.clone(),
            session: node.session,
            weight: node.record.weight,
        };
        let members: Vec<Member> = active.iter().map(member).collect();
        if members != self.membership.members {
            // Nodes look one after the other, so that not all of them write the same tombstone.
            let place = members.iter().position(|m| m.name == self.ctx.config.name);
            let place = u32::try_from(place.unwrap_or(0).min(5)).unwrap_or(5);
            self.membership.turn = self.ctx.config.timing.ttl / 100 * place;
            self.membership.members = members;
        }
        self.leader.plan_soon(&mut self.ctx);
        if changed.is_empty() {
            return;
        }
        for (keyspace, group) in changed {
            self.assignment.new_ranking(&keyspace);
            self.assignment.stale(&keyspace);
            self.membership.groups.insert(keyspace, group);
        }
        self.ctx.scan_all = true;
        self.ctx.timers.set(
            Timer::Rebalance,
            self.ctx.now + self.ctx.config.timing.assignment_settle_time,
        );
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

    pub(super) fn judge_everyone(&mut self, cx: &mut Ctx) {
        let all: Vec<_> = cx.view.sessions.cells().map(|(id, _)| *id).collect();
        for id in all {
            self.watch_session(cx, id);
        }
    }

    fn watch_session(&mut self, cx: &mut Ctx, id: SessionId) {
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
