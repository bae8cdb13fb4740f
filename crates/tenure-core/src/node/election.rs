//! Leading: who plans for the others.
//!
//! Leadership hangs on the session: there is no second lease. The key is permanent and is taken by compare-and-swap once its
//! holder's session has ended or has resigned, at a term above every term that any record names. Losing it stops planning and
//! nothing else: the leader advises, the record is the law.

use std::sync::Arc;

use crate::ids::SessionId;
use crate::keys::Key;
use crate::machine::Expect;
use crate::record::{Head, LeaderRecord, PlanId, Record, RecordError, Unknown};
use crate::rules::Mutant;
use crate::telemetry::NodeEvent;
use crate::view::KeyState;

use super::context::Ctx;
use super::membership::Membership;
use super::plan_writer::Planning;
use super::store_requests::{WriteOutcome, WritePurpose};
use super::timers::Timer;

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

impl Leader {
    /// Whether this node leads now: by the record, and by its own clock.
    pub(super) fn leads(&self, cx: &Ctx) -> bool {
        self.planning.is_some() && cx.holds_leadership() && cx.may_lead()
    }

    /// Takes or leaves the office, as the records say.
    pub(super) fn check_leadership(&mut self, cx: &mut Ctx, membership: &Membership) {
        if let Some(record) = cx.view.leader.get(&()) {
            let term = record.term;
            self.highest.term = self.highest.term.max(term);
        }
        if !cx.holds_leadership() || !cx.may_lead() {
            self.stop_leading(cx);
        }
        if !cx.may_lead() || !cx.has_coordinated() {
            return;
        }
        if cx.holds_leadership() {
            return self.start_leading(cx);
        }
        if let Leadership::Open { .. } = self.leadership(cx) {
            // One after the other, so that not all of them write.
            let turn = cx.config.timing.ttl / 100 * self.turn(cx, membership);
            cx.timers.set_sooner(Timer::Election, cx.now + turn);
        }
    }

    /// This node's place among the candidates, up to a few.
    fn turn(&self, cx: &Ctx, membership: &Membership) -> u32 {
        let place = membership.members.iter();
        let place = place
            .take_while(|m| m.name != cx.config.name)
            .take(5)
            .count();
        u32::try_from(place).unwrap_or(5)
    }

    fn leadership(&mut self, cx: &mut Ctx) -> Leadership {
        let cell = cx.view.leader.cell(&()).cloned();
        let (expect, term) = match cell {
            None | Some(KeyState::Missing { .. }) => (Expect::Absent, 0),
            // A newer version's leader is nobody's to judge.
            Some(KeyState::Damaged {
                damage: RecordError::Newer(_),
                ..
            }) => return Leadership::Taken,
            Some(KeyState::Damaged { version, .. }) => (Expect::Version(version), 0),
            Some(KeyState::Present(seen)) => {
                let record = &seen.record;
                let left = record.resigned || cx.ended(record.session);
                if !left {
                    cx.check_expired(record.session);
                    return Leadership::Taken;
                }
                (Expect::Version(seen.version), record.term)
            }
        };
        let raised = u64::from(!cx.config.rules.broken_by(Mutant::TermKept));
        let term = term.max(self.highest.term) + raised;
        Leadership::Open { expect, term }
    }

    /// Tries to take the office, if it can still be had.
    pub(super) fn try_become_leader(&mut self, cx: &mut Ctx) {
        if !cx.may_lead()
            || !cx.has_coordinated()
            || cx.holds_leadership()
            || cx.is_writing(&WritePurpose::Lead)
        {
            return;
        }
        let (Leadership::Open { expect, term }, Some(session)) =
            (self.leadership(cx), cx.session())
        else {
            return;
        };
        self.put_leader(cx, expect, term, session, false, WritePurpose::Lead);
    }

    fn put_leader(
        &mut self,
        cx: &mut Ctx,
        expect: Expect,
        term: u64,
        session: SessionId,
        resigned: bool,
        purpose: WritePurpose,
    ) {
        let nonce = cx.nonce();
        let old = cx.view.leader.get(&());
        let head = match old {
            Some(old) => old.head.next(nonce),
            None => Head {
                rev: cx.view.fresh_rev(&Key::Leader),
                ..Head::first(nonce)
            },
        };
        let unknown = old.map_or_else(Unknown::new, |old| old.unknown.clone());
        let record = LeaderRecord {
            head,
            term,
            session,
            node: cx.config.name.clone(),
            resigned,
            unknown,
        };
        let record = Record::Leader(Arc::new(record));
        cx.put(Key::Leader, expect, record, purpose);
    }

    pub(super) fn on_election_settled(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        outcome: WriteOutcome,
    ) {
        if matches!(outcome, WriteOutcome::Failed { .. }) {
            let again = cx.later(cx.config.timing.renew_retry_interval);
            cx.timers.set(Timer::Election, again);
        }
        self.check_leadership(cx, membership);
    }

    fn start_leading(&mut self, cx: &mut Ctx) {
        if self.planning.is_some() {
            return;
        }
        let term = cx.view.leader.get(&()).map_or(0, |l| l.term);
        self.planning = Some(Planning::new(term, self.highest.seq));
        cx.note(NodeEvent::LeadershipAcquired { term });
        self.plan_soon(cx);
    }

    pub(super) fn stop_leading(&mut self, cx: &mut Ctx) {
        if let Some(planning) = self.planning.take() {
            cx.timers.clear(&Timer::Plan);
            cx.note(NodeEvent::LeadershipLost {
                term: planning.term(),
            });
        }
    }

    /// Gives up the office, so that a standby need not wait: a stopping leader deletes nothing and says so at once.
    pub(super) fn resign_leadership(&mut self, cx: &mut Ctx) {
        if !cx.holds_leadership() {
            return;
        }
        if let Some(seen) = cx.view.leader.seen(&()).cloned() {
            let (term, session) = (seen.record.term, seen.record.session);
            let expect = Expect::Version(seen.version);
            self.put_leader(cx, expect, term, session, true, WritePurpose::Unimportant);
        }
        self.stop_leading(cx);
    }

    /// Remembers a plan that a record names.
    pub(super) fn note_plan(&mut self, plan: PlanId) {
        self.highest = self.highest.max(plan);
    }
}
