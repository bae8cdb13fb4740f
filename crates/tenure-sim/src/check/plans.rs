//! Leaders: a term has one leader for ever, and no shard's plan goes back to an older one.

use std::collections::BTreeMap;

use tenure_core::ids::SessionId;
use tenure_core::record::{LeaderRecord, PlanId};

use super::{CheckResult, Violation};
use crate::clock::Instant;

/// Checker of plans: everything that was ever written of plans and terms. A record that is lost takes with it what it said.
#[derive(Debug)]
pub(crate) struct PlanChecker {
    shards: Vec<PlanId>,
    leaders: BTreeMap<u64, SessionId>,
    term: u64,
}

impl PlanChecker {
    pub(crate) fn new(shards: usize) -> Self {
        Self {
            shards: vec![PlanId::default(); shards],
            leaders: BTreeMap::new(),
            term: 0,
        }
    }

    /// A shard's record was written, with this plan; nothing: it was lost.
    pub(crate) fn written(
        &mut self,
        at: Instant,
        shard: usize,
        plan: Option<PlanId>,
    ) -> CheckResult {
        let last = std::mem::replace(&mut self.shards[shard], plan.unwrap_or_default());
        match plan {
            Some(plan) if plan < last => {
                let what = format!(
                    "the plan of shard {shard} went back from term {} number {} to term {} number {}",
                    last.term, last.seq, plan.term, plan.seq
                );
                Err(Violation::new("leader", at, what))
            }
            _ => Ok(()),
        }
    }

    /// The leader's record was written; nothing: it was lost, and so may be how far terms had come.
    pub(crate) fn led(&mut self, at: Instant, record: Option<&LeaderRecord>) -> CheckResult {
        let Some(record) = record else {
            (self.term, self.leaders) = (0, BTreeMap::new());
            return Ok(());
        };
        let (term, session) = (record.term, record.session);
        if term < self.term {
            let what = format!("the leader's term went back from {} to {term}", self.term);
            return Err(Violation::new("leader", at, what));
        }
        self.term = term;
        let first = *self.leaders.entry(term).or_insert(session);
        if first != session {
            let what = format!("sessions {first} and {session} both lead at term {term}");
            return Err(Violation::new("leader", at, what));
        }
        Ok(())
    }

    /// The store was put back; `now` tells the plan that each record has now.
    pub(crate) fn restored(&mut self, now: impl Fn(usize) -> PlanId) {
        (self.term, self.leaders) = (0, BTreeMap::new());
        for (shard, plan) in self.shards.iter_mut().enumerate() {
            *plan = now(shard);
        }
    }
}
