//! What keeps the planner from chasing every change: debounce, drains first, probation, cool-down.
//!
//! Nothing here delays a shard that has no live owner, or one whose owner is draining. It is balance that can wait.

use std::time::Duration;

use super::builder::PlanBuilder;
use super::input::{NodeState, PlanNode, PlanShard};
use super::reason::PlanReason;
use super::settings::PlanRules;
use crate::time::Time;

/// After so many debounces a new node that lacks its share no longer waits for others to come to rest, and a drain no
/// longer holds up balance.
const PATIENCE: u32 = 10;
/// Probation doubles with each absence, up to so many times.
const DOUBLINGS: u32 = 5;

/// How long a node that has come back is not filled for balance.
fn probation_time(node: &PlanNode, rules: &PlanRules) -> Duration {
    match node.absences {
        0 => Duration::ZERO,
        n => rules
            .rejoin_after
            .saturating_mul(1 << (n - 1).min(DOUBLINGS)),
    }
}

/// Whether a node has come back too recently to be filled for balance.
pub(crate) fn probation(node: &PlanNode, rules: &PlanRules, now: Time) -> bool {
    now.since(node.since) < probation_time(node, rules)
}

impl PlanBuilder<'_> {
    /// Why balance has to wait, if it has to. `starved(node)` tells whether a node lacks part of its share.
    pub(crate) fn hold(&mut self, starved: impl Fn(usize) -> bool) -> Option<PlanReason> {
        let (rules, now) = (self.rules, self.now);
        let patience = rules.settle_time.saturating_mul(PATIENCE);
        let mut hold = None;
        let mut until = Time::ZERO;
        for (i, node) in self.view.nodes().iter().enumerate() {
            let age = now.since(node.since);
            let drains = matches!(node.state, NodeState::Draining | NodeState::Leaving);
            if age < rules.settle_time {
                hold = hold.or(Some(PlanReason::SettleTime));
                until = until.max(node.since + rules.settle_time);
            } else if drains && !self.index.lists[i].is_empty() && age < patience {
                hold = Some(PlanReason::DrainFirst);
                until = until.max(node.since + patience);
            }
        }
        hold?;
        // Where nodes come and go all the time, those that have waited for long get their share nevertheless. A node that
        // has been there for much longer had its share before, so that it is the last change that it lacks something for.
        for (i, node) in self.view.nodes().iter().enumerate() {
            let age = now.since(node.since);
            if self.fits[i].fills && starved(i) && age < patience * 2 {
                if age >= patience {
                    return None;
                }
                until = until.min(node.since + patience);
            }
        }
        self.look_at(until);
        hold
    }

    /// Whether a shard was moved too recently to be moved for balance again.
    pub(crate) fn cooling(&mut self, shard: &PlanShard) -> bool {
        let Some(moved) = shard.moved else {
            return false;
        };
        let cooling = self.now.since(moved) < self.rules.cool_down;
        if cooling {
            self.look_at(moved + self.rules.cool_down);
        }
        cooling
    }

    /// Looks again when the first of the nodes that have come back may be filled.
    pub(crate) fn look_after_probation(&mut self) {
        for node in self.view.nodes() {
            if node.state == NodeState::Active && probation(node, self.rules, self.now) {
                self.look_at(node.since + probation_time(node, self.rules));
            }
        }
    }
}
