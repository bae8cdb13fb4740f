//! Phase 4: where shards go that have no place, or must leave theirs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::builder::{Cause, ForcedPlacement, PlanBuilder};
use super::decision::PlanProblem;
use super::input::{NodeIx, Pin};
use super::reason::PlanReason;
use super::settings::ZoneRule;

/// How good a node is as the next target: compared from top to bottom, the least is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TargetScore {
    /// Which choice its zone is.
    pub(crate) tier: u8,
    /// How full it would be for its weight, with 32 fractional bits.
    pub(crate) fill: u64,
    /// Breaks ties, the same way every time.
    pub(crate) node: NodeIx,
    /// What `fill` was computed from.
    full: u64,
}

/// Nodes that can be given shards, the best first.
pub(crate) struct Targets(BinaryHeap<Reverse<TargetScore>>);

impl Targets {
    /// All nodes for which `open` holds.
    pub(crate) fn new(work: &PlanBuilder<'_>, open: impl Fn(usize) -> bool) -> Self {
        let nodes = (0..work.fits.len()).filter(|&i| open(i));
        Self(nodes.map(|i| Reverse(work.score(i))).collect())
    }

    /// The best node for which `open` still holds. Nodes for which it no longer does are dropped: they only get fuller.
    pub(crate) fn best(
        &mut self,
        work: &PlanBuilder<'_>,
        open: impl Fn(usize) -> bool,
    ) -> Option<NodeIx> {
        loop {
            let mut top = self.0.peek_mut()?;
            let node = top.0.node;
            if !open(node.at()) {
                PeekMut::pop(top);
                continue;
            }
            let full = work.fullness(node.at());
            if full == top.0.full {
                return Some(node);
            }
            // It was given something since: it sinks to where it belongs now.
            top.0 = work.score(node.at());
        }
    }
}

impl PlanBuilder<'_> {
    pub(crate) fn score(&self, node: usize) -> TargetScore {
        let fit = &self.fits[node];
        let (full, weight) = (self.fullness(node), fit.weight.max(1));
        // The short division is several times faster, and nearly always enough.
        let fill = match u32::try_from(full) {
            Ok(full) => (u64::from(full) << 32) / u64::from(weight),
            Err(_) => {
                let fill = (u128::from(full) << 32) / u128::from(weight);
                u64::try_from(fill).unwrap_or(u64::MAX)
            }
        };
        TargetScore {
            tier: fit.tier,
            fill,
            node: NodeIx(node as u32),
            full,
        }
    }

    fn fullness(&self, node: usize) -> u64 {
        if self.by_load() {
            self.node_cost(node)
        } else {
            u64::from(self.seats[node].placed) + 1
        }
    }

    /// Puts every forced shard somewhere: within the nodes' shares as far as that goes, beyond them if it must be.
    pub(crate) fn place(&mut self, shares: &[u32]) {
        let mut forced = std::mem::take(&mut self.forced);
        forced.sort_unstable_by_key(|f| f.urgency);
        self.wanted.reserve(forced.len());
        let mut within = Targets::new(self, |i| self.within_share(i, shares));
        let mut beyond: Option<Targets> = None;
        for f in forced {
            if let Some(to) = self.pinned_to(&f) {
                self.settle_at(&f, to);
                continue;
            }
            let mut to = within.best(self, |i| self.within_share(i, shares));
            if to.is_none() {
                let open = |i: usize| self.fits[i].takes && self.has_room(i);
                let targets = beyond.get_or_insert_with(|| Targets::new(self, open));
                to = targets.best(self, open);
            }
            if to.is_none() && f.from.is_none() {
                // Serving comes before spreading: a shard without any place goes where there is room, whatever the zone.
                let roomy = |i: usize| self.fits[i].takes && self.has_capacity(i);
                to = Targets::new(self, roomy).best(self, roomy);
                if let Some(to) = to {
                    self.give_way(to);
                }
            }
            match to {
                Some(to) => self.settle_at(&f, to),
                None => self.leave(&f),
            }
        }
    }

    /// Lets a zone have one more than the limit, and says so.
    fn give_way(&mut self, to: NodeIx) {
        let ZoneRule::Spread { most_percent } = self.rules.zones else {
            return;
        };
        let most = self.zone_placed[self.index.zone[to.at()] as usize] + 1;
        self.zone_most = self.zone_most.max(most);
        let given_way = |p: &PlanProblem| matches!(p, PlanProblem::ZoneLimitGivesWay { .. });
        self.problems.retain(|p| !given_way(p));
        self.problems.push(PlanProblem::ZoneLimitGivesWay {
            asked_percent: most_percent,
            most: self.zone_most,
        });
    }

    fn within_share(&self, node: usize, shares: &[u32]) -> bool {
        self.fits[node].takes && self.seats[node].placed < shares[node] && self.has_room(node)
    }

    /// The node that a shard is pinned to, if it can be put there.
    fn pinned_to(&self, f: &ForcedPlacement) -> Option<NodeIx> {
        match self.view.shard(f.urgency.shard).pin {
            Pin::To(to) if self.pin_fits(to) => Some(to),
            _ => None,
        }
    }

    fn settle_at(&mut self, f: &ForcedPlacement, to: NodeIx) {
        let (ix, shard) = (f.urgency.shard, self.view.shard(f.urgency.shard));
        if f.from == Some(to) {
            // The best place is where it is.
            self.put(&shard, to);
        } else {
            self.want(ix, &shard, f.from, to, f.urgency.cause, f.reason);
        }
    }

    /// There is no place: the shard stays where it is, if it is anywhere.
    pub(crate) fn leave(&mut self, f: &ForcedPlacement) {
        let (ix, shard) = (f.urgency.shard, self.view.shard(f.urgency.shard));
        if let Some(at) = shard.bound_for() {
            self.put(&shard, at);
        }
        let reason = if self.any_takes {
            PlanReason::NoRoom
        } else {
            PlanReason::NoNode
        };
        if f.urgency.cause != Cause::Excess {
            self.stay(ix, reason);
        }
    }
}
