//! Phase 6: of what is wanted, what is allowed now.

use std::collections::BTreeSet;

use super::builder::{PlanBuilder, WantedChange};
use super::decision::{Balance, Decision, Plan};
use super::eligibility::NodeEligibility;
use super::input::NodeIx;
use super::reason::PlanReason;
use super::view_index::NodeCounts;

impl PlanBuilder<'_> {
    /// The plan: cancellations, then what has no owner, then moves by urgency as the budgets allow, then what stays.
    pub(crate) fn finish(mut self) -> Plan {
        let before = self.balance_of(&self.index.seats);
        // Stable: within a cause the order in which things were wanted is kept.
        if !self.wanted.is_sorted_by_key(|w| w.cause) {
            self.wanted.sort_by_key(|w| w.cause);
        }
        let mut seats = self.index.seats.clone();
        let mut decisions = std::mem::take(&mut self.cancels);
        decisions.reserve(self.wanted.len() + self.stays.len());
        for cancel in &decisions {
            self.move_seat(&mut seats, cancel, None);
        }
        let (mut moves_wanted, mut moves_allowed) = (0, 0);
        let mut more_to = BTreeSet::new();
        for wanted in std::mem::take(&mut self.wanted) {
            let WantedChange {
                shard, to, reason, ..
            } = wanted;
            let decision = match wanted.from {
                None => Decision::Intend { shard, to, reason },
                Some(from) => {
                    moves_wanted += 1;
                    if let Some(reason) = self.exhausted(from, to) {
                        self.stay(shard, reason);
                        more_to.insert(to);
                        continue;
                    }
                    moves_allowed += 1;
                    self.flight.total += 1;
                    self.flight.out[from.at()] += 1;
                    self.flight.into[to.at()] += 1;
                    Decision::Move {
                        shard,
                        from,
                        to,
                        reason,
                    }
                }
            };
            self.move_seat(&mut seats, &decision, Some(to));
            decisions.push(decision);
        }
        self.stays.sort_by_key(Decision::shard);
        decisions.append(&mut self.stays);
        let after = self.balance_of(&seats);
        Plan {
            decisions,
            moves_wanted,
            moves_allowed,
            more_to: more_to.into_iter().collect(),
            before,
            after,
            put_off: self.put_off,
            look_again: self.look_again,
            problems: self.problems,
        }
    }

    /// Which budget has nothing left for this move.
    fn exhausted(&self, from: NodeIx, to: NodeIx) -> Option<PlanReason> {
        let budgets = self.rules.budgets;
        if self.flight.total >= budgets.total {
            Some(PlanReason::BudgetTotal)
        } else if self.flight.out[from.at()] >= budgets.per_source {
            Some(PlanReason::BudgetSource)
        } else if self.flight.into[to.at()] >= budgets.per_target {
            Some(PlanReason::BudgetTarget)
        } else {
            None
        }
    }

    fn move_seat(&self, seats: &mut [NodeCounts], decision: &Decision, to: Option<NodeIx>) {
        let shard = self.view.shard(decision.shard());
        if let Some(at) = shard.bound_for() {
            seats[at.at()].take(&shard);
        }
        if let Some(to) = to.or(shard.owner) {
            seats[to.at()].put(&shard);
        }
    }

    fn balance_of(&self, seats: &[NodeCounts]) -> Balance {
        let shards = self.view.shard_count() as u64;
        let placed: u64 = seats.iter().map(|s| u64::from(s.placed)).sum();
        let takers: Vec<(&NodeEligibility, &NodeCounts)> = self
            .fits
            .iter()
            .zip(seats)
            .filter(|(f, _)| f.takes)
            .collect();
        let weights: u128 = takers.iter().map(|(f, _)| u128::from(f.weight)).sum();
        let load: u64 = seats.iter().map(|s| s.load).sum();
        let worst = |total: u64, has: fn(&NodeCounts) -> u64| {
            let over = |(f, s): &(&NodeEligibility, &NodeCounts)| {
                let share = u128::from(total) * u128::from(f.weight);
                let has = u128::from(has(s)) * weights * 1000;
                has.checked_div(share).unwrap_or(0)
            };
            u32::try_from(takers.iter().map(over).max().unwrap_or(0)).unwrap_or(u32::MAX)
        };
        let counts = || takers.iter().map(|(_, s)| s.placed);
        Balance {
            nodes: takers.len() as u32,
            most: counts().max().unwrap_or(0),
            least: counts().min().unwrap_or(0),
            shards_permille: worst(shards, |s| u64::from(s.placed)),
            load_permille: worst(load, |s| s.load),
            homeless: (shards - placed) as u32,
        }
    }
}
