//! Leading: who plans for the others.
//!
//! Leadership hangs on the session: there is no second lease. The key is permanent and is taken by compare-and-swap once its
//! holder's session has ended or has resigned, at a term above every term that any record names. Losing it stops planning and
//! nothing else: the leader advises, the record is the law.

use std::sync::Arc;

use crate::ids::SessionId;
use crate::keys::Key;
use crate::machine::Expect;
use crate::record::{Damage, Head, LeaderRecord, PlanId, Record, Role, Unknown};
use crate::rules::Mutant;
use crate::telemetry::NodeEvent;
use crate::view::KeyState;

use super::plan_writer::Planning;
use super::store_requests::{Pending, Settled, WritePurpose};
use super::timers::Timer;
use super::{Life, Node};

/// What a node knows of leading.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Leader {
    /// The highest plan that any record was seen to name.
    pub(super) highest: PlanId,
    /// What a leader remembers between plans; nothing while somebody else leads.
    pub(super) planning: Option<Planning>,
}

/// How somebody who is not the leader finds the office.
enum Leadership {
    /// Somebody has it.
    Taken,
    /// It can be had by this write.
    Open { expect: Expect, term: u64 },
}

impl Node {
    /// Whether this node leads now: by the record, and by its own clock.
    pub(super) fn leads(&self) -> bool {
        self.leader.planning.is_some() && self.holds_leadership() && self.may_lead()
    }

    fn holds_leadership(&self) -> bool {
        let me = self.ctx.session();
        self.ctx
            .view
            .leader
            .get(&())
            .is_some_and(|l| Some(l.session) == me && !l.resigned)
    }

    fn may_lead(&self) -> bool {
        let candidate = matches!(self.ctx.config.role, Role::Node | Role::Planner);
        candidate && matches!(self.ctx.life, Life::Running) && self.ctx.may_own()
    }

    /// Takes or leaves the office, as the records say.
    pub(super) fn look_at_leader(&mut self) {
        if let Some(record) = self.ctx.view.leader.get(&()) {
            let term = record.term;
            self.leader.highest.term = self.leader.highest.term.max(term);
        }
        if !self.holds_leadership() || !self.may_lead() {
            self.stop_leading();
        }
        if !self.may_lead() || !self.ctx.has_coordinated() {
            return;
        }
        if self.holds_leadership() {
            return self.start_leading();
        }
        if let Leadership::Open { .. } = self.office() {
            // One after the other, so that not all of them write.
            let turn = self.ctx.config.timing.ttl / 100 * self.turn();
            self.ctx.timers.set_sooner(Timer::Lead, self.ctx.now + turn);
        }
    }

    /// This node's place among the candidates, up to a few.
    fn turn(&self) -> u32 {
        let place = self.membership.members.iter();
        let place = place
            .take_while(|m| m.name != self.ctx.config.name)
            .take(5)
            .count();
        u32::try_from(place).unwrap_or(5)
    }

    fn office(&mut self) -> Leadership {
        let cell = self.ctx.view.leader.cell(&()).cloned();
        let (expect, term) = match cell {
            None | Some(KeyState::Missing { .. }) => (Expect::Absent, 0),
            // A newer version's leader is nobody's to judge.
            Some(KeyState::Damaged {
                damage: Damage::Newer(_),
                ..
            }) => return Leadership::Taken,
            Some(KeyState::Damaged { version, .. }) => (Expect::Version(version), 0),
            Some(KeyState::Present(seen)) => {
                let record = &seen.record;
                let left = record.resigned || self.ctx.ended(record.session);
                if !left {
                    self.ctx.check_expired(record.session);
                    return Leadership::Taken;
                }
                (Expect::Version(seen.version), record.term)
            }
        };
        let raised = u64::from(!self.ctx.config.rules.broken_by(Mutant::TermKept));
        let term = term.max(self.leader.highest.term) + raised;
        Leadership::Open { expect, term }
    }

    /// Tries to take the office, if it can still be had.
    pub(super) fn try_become_leader(&mut self) {
        let standing = |p: &Pending| {
            matches!(p, Pending::Put { purpose, .. } | Pending::ReadBack { purpose, .. }
                if *purpose == WritePurpose::Lead)
        };
        if !self.may_lead()
            || !self.ctx.has_coordinated()
            || self.holds_leadership()
            || self.ctx.requests.values().any(standing)
        {
            return;
        }
        let (Leadership::Open { expect, term }, Some(session)) =
            (self.office(), self.ctx.session())
        else {
            return;
        };
        self.put_leader(expect, term, session, false, WritePurpose::Lead);
    }

    fn put_leader(
        &mut self,
        expect: Expect,
        term: u64,
        session: SessionId,
        resigned: bool,
        purpose: WritePurpose,
    ) {
        let nonce = self.ctx.nonce();
        let old = self.ctx.view.leader.get(&());
        let head = match old {
            Some(old) => old.head.next(nonce),
            None => Head {
                rev: self.ctx.view.fresh_rev(&Key::Leader),
                ..Head::first(nonce)
            },
        };
        let unknown = old.map_or_else(Unknown::new, |old| old.unknown.clone());
        let record = LeaderRecord {
            head,
            term,
            session,
            node: self.ctx.config.name.clone(),
            resigned,
            unknown,
        };
        let record = Record::Leader(Arc::new(record));
        self.ctx.put(Key::Leader, expect, record, purpose);
    }

    pub(super) fn on_stood(&mut self, outcome: Settled) {
        if matches!(outcome, Settled::Failed { .. }) {
            let again = self.ctx.later(self.ctx.config.timing.renew_retry_interval);
            self.ctx.timers.set(Timer::Lead, again);
        }
        self.look_at_leader();
    }

    fn start_leading(&mut self) {
        if self.leader.planning.is_some() {
            return;
        }
        let term = self.ctx.view.leader.get(&()).map_or(0, |l| l.term);
        self.leader.planning = Some(Planning::new(term, self.leader.highest.seq));
        self.ctx.note(NodeEvent::LeadershipAcquired { term });
        self.plan_soon();
    }

    pub(super) fn stop_leading(&mut self) {
        if let Some(planning) = self.leader.planning.take() {
            self.ctx.timers.clear(&Timer::Plan);
            self.ctx.note(NodeEvent::LeadershipLost {
                term: planning.term(),
            });
        }
    }

    /// Gives up the office, so that a standby need not wait: a stopping leader deletes nothing and says so at once.
    pub(super) fn resign_leadership(&mut self) {
        if !self.holds_leadership() {
            return;
        }
        if let Some(seen) = self.ctx.view.leader.seen(&()).cloned() {
            let (term, session) = (seen.record.term, seen.record.session);
            let expect = Expect::Version(seen.version);
            self.put_leader(expect, term, session, true, WritePurpose::Unimportant);
        }
        self.stop_leading();
    }
}
