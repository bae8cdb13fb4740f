//! Leadership: election of the node that plans for the cluster.
//!
//! Leadership depends on the leader's session: there is no second lease. The key is permanent. A node acquires it by compare-and-swap once
//! the leader's session has ended or the leader has resigned. The new term exceeds every term that any record names. A node that loses
//! leadership stops planning and nothing else: plans are advice, and only the records decide ownership.

use std::sync::Arc;

use crate::ids::SessionId;
use crate::keys::Key;
use crate::machine::Expect;
use crate::record::{Head, LeaderRecord, PlanId, Record, RecordError, Role, Unknown};
use crate::rules::Mutant;
use crate::telemetry::NodeEvent;
use crate::view::KeyState;

use super::context::Ctx;
use super::membership::Membership;
use super::plan_writer::Planning;
use super::store_requests::{WriteOutcome, WritePurpose};
use super::timers::Timer;
use super::{Life, session_end};

/// Leadership state of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Leader {
    /// Highest plan seen in any record.
    pub(super) highest: PlanId,
    /// State that the leader keeps between plans; `None` while this node does not lead.
    pub(super) planning: Option<Planning>,
}

/// Availability of leadership for a node that does not lead.
enum Leadership {
    /// Another session leads, or the record must not be replaced.
    Taken,
    /// This node can acquire leadership by this write.
    Open { expect: Expect, term: u64 },
}

impl Leader {
    /// Returns `true` if this node leads now, by the record and by its own clock.
    pub(super) fn leads(&self, cx: &Ctx) -> bool {
        self.planning.is_some() && holds_leadership(cx) && may_lead(cx)
    }

    /// Starts or stops leading, as the records require. Schedules an election if leadership is available.
    pub(super) fn check_leadership(&mut self, cx: &mut Ctx, membership: &Membership) {
        if let Some(record) = cx.view.leader.get(&()) {
            let term = record.term;
            self.highest.term = self.highest.term.max(term);
        }
        if !holds_leadership(cx) || !may_lead(cx) {
            self.stop_leading(cx);
        }
        if !may_lead(cx) || !cx.view.has_coordinated() {
            return;
        }
        if holds_leadership(cx) {
            return self.start_leading(cx);
        }
        if let Leadership::Open { .. } = self.leadership(cx) {
            // Each candidate waits for its turn, so that not all of them write.
            let turn = cx.config.timing.ttl / 100 * self.turn(cx, membership);
            cx.timers.set_sooner(Timer::Election, cx.now + turn);
        }
    }

    /// Returns this node's position among the candidates, at most 5.
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
            // The record has a newer format. This node cannot decide whether its leader has ended.
            Some(KeyState::Damaged {
                damage: RecordError::Newer(_),
                ..
            }) => return Leadership::Taken,
            Some(KeyState::Damaged { version, .. }) => (Expect::Version(version), 0),
            Some(KeyState::Present(seen)) => {
                let record = &seen.record;
                let left = record.resigned || cx.ended(record.session);
                if !left {
                    session_end::check_expired(cx, record.session);
                    return Leadership::Taken;
                }
                (Expect::Version(seen.version), record.term)
            }
        };
        let raised = u64::from(!cx.config.rules.broken_by(Mutant::TermKept));
        let term = term.max(self.highest.term) + raised;
        Leadership::Open { expect, term }
    }

    /// Tries to acquire leadership, if it is still available.
    pub(super) fn try_become_leader(&mut self, cx: &mut Ctx) {
        if !may_lead(cx)
            || !cx.view.has_coordinated()
            || holds_leadership(cx)
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

    /// Resigns leadership by a write, not by a delete, so that a standby takes over at once.
    pub(super) fn resign_leadership(&mut self, cx: &mut Ctx) {
        if !holds_leadership(cx) {
            return;
        }
        if let Some(seen) = cx.view.leader.seen(&()).cloned() {
            let (term, session) = (seen.record.term, seen.record.session);
            let expect = Expect::Version(seen.version);
            self.put_leader(cx, expect, term, session, true, WritePurpose::Unimportant);
        }
        self.stop_leading(cx);
    }

    /// Remembers the highest plan that a record names.
    pub(super) fn note_plan(&mut self, plan: PlanId) {
        self.highest = self.highest.max(plan);
    }
}

/// Returns `true` if there is a leader, as far as this node knows.
pub(super) fn is_led(cx: &Ctx) -> bool {
    cx.view
        .leader
        .get(&())
        .is_some_and(|l| !l.resigned && !cx.ended(l.session))
}

pub(super) fn holds_leadership(cx: &Ctx) -> bool {
    let me = cx.session();
    cx.view
        .leader
        .get(&())
        .is_some_and(|l| Some(l.session) == me && !l.resigned)
}

pub(super) fn may_lead(cx: &Ctx) -> bool {
    let candidate = matches!(cx.config.role, Role::Node | Role::Planner);
    candidate && matches!(cx.life, Life::Running) && cx.may_own()
}
