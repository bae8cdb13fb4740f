//! Phase 5, by number of shards: from nodes above their share to nodes below theirs.

use std::collections::BinaryHeap;

use super::builder::{Cause, PlanBuilder};
use super::decision::DeferredMoves;
use super::input::{NodeIx, Pin, ShardIx};
use super::placement::Targets;
use super::reason::PlanReason;
use super::settings::ZoneRule;

/// A node that has more than its share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Donor {
    /// How full it is for its weight: the fullest gives first.
    fill: u64,
    node: std::cmp::Reverse<NodeIx>,
}

impl PlanBuilder<'_> {
    /// Evens out the number of shards, if that is called for now.
    pub(crate) fn balance(&mut self, shares: &[u32]) {
        let over = |w: &Self, i: usize| w.seats[i].placed.saturating_sub(shares[i]);
        let under = |w: &Self, i: usize| shares[i].saturating_sub(w.seats[i].placed);
        let nodes = self.fits.len();
        let givers: Vec<usize> = (0..nodes)
            .filter(|&i| self.fits[i].keeps.is_ok() && over(self, i) > 0)
            .collect();
        let surplus: u64 = givers.iter().map(|&i| u64::from(over(self, i))).sum();
        if surplus == 0 {
            return;
        }
        let fills = |i: &usize| self.fits[*i].fills;
        let takers: Vec<usize> = (0..nodes).filter(|i| under(self, *i) > 0).collect();
        let wants: u64 = takers
            .iter()
            .filter(|i| fills(i))
            .map(|&i| u64::from(under(self, i)))
            .sum();
        let count = |n: u64| u32::try_from(surplus.min(n)).unwrap_or(u32::MAX);
        if wants == 0 {
            if !takers.is_empty() {
                let wants = takers.iter().map(|&i| u64::from(under(self, i))).sum();
                self.put_off(PlanReason::Probation, count(wants));
                self.look_after_probation();
            }
            return;
        }
        let band = self.rules.band_shards;
        let off = givers.iter().any(|&i| over(self, i) > band)
            || takers.iter().any(|i| fills(i) && under(self, *i) > band);
        if !off {
            return self.put_off(PlanReason::WithinBand, count(wants));
        }
        let starved: Vec<bool> = (0..nodes).map(|i| under(self, i) > band).collect();
        if let Some(reason) = self.hold(|i| starved[i]) {
            return self.put_off(reason, count(wants));
        }
        self.hand_over(&givers, shares);
    }

    pub(crate) fn put_off(&mut self, reason: PlanReason, shards: u32) {
        self.put_off = Some(DeferredMoves { reason, shards });
    }

    /// Takes from the fullest and gives to the emptiest, one at a time.
    fn hand_over(&mut self, givers: &[usize], shares: &[u32]) {
        let open = |w: &Self, i: usize| {
            w.fits[i].fills && w.seats[i].placed < shares[i] && w.has_capacity(i)
        };
        let in_group = |g: usize| move |w: &Self, i: usize| w.zone_group(i) == g && open(w, i);
        let groups = 0..self.zone_groups();
        let mut targets: Vec<Targets> = groups
            .map(|g| Targets::new(self, |i| in_group(g)(self, i)))
            .collect();
        let donor = |w: &Self, i: usize| Donor {
            fill: w.score(i).fill,
            node: std::cmp::Reverse(NodeIx(i as u32)),
        };
        let mut donors: BinaryHeap<Donor> = givers.iter().map(|&i| donor(self, i)).collect();
        let mut next = vec![0usize; self.fits.len()];
        while let Some(top) = donors.pop() {
            let from = top.node.0;
            let i = from.at();
            let reason = self.surplus_reason(i);
            let Some(ix) = self.next_to_give(i, &mut next[i], shares[i]) else {
                continue;
            };
            let groups = targets.iter_mut().enumerate();
            let best = groups
                .filter(|(group, _)| self.may_enter(*group, i))
                .filter_map(|(_, targets)| targets.best(self, |i| open(self, i)))
                .min_by_key(|to| self.score(to.at()));
            let Some(to) = best else {
                if targets.len() > 1 {
                    // A full zone takes only from its own nodes; one of them may still give.
                    continue;
                }
                return;
            };
            let shard = self.view.shard(ix);
            self.take(&shard, from);
            self.want(ix, &shard, Some(from), to, Cause::Better, reason);
            if self.seats[i].placed > shares[i] {
                donors.push(donor(self, i));
            }
        }
    }

    /// The next shard that a node can give for balance. Says so where too many were moved not long ago.
    fn next_to_give(&mut self, node: usize, next: &mut usize, share: u32) -> Option<ShardIx> {
        let list = &self.index.lists[node];
        while let Some(&raw) = list.get(*next) {
            *next += 1;
            let ix = ShardIx(raw);
            if self.gives(ix, node) && !self.cooling(&self.view.shard(ix)) {
                return Some(ix);
            }
        }
        let short = self.seats[node].placed - share;
        self.stays_cooling(node, short);
        None
    }

    /// Whether a shard is at rest on this node and not pinned.
    pub(crate) fn gives(&self, ix: ShardIx, node: usize) -> bool {
        let shard = self.view.shard(ix);
        shard.owner == Some(NodeIx(node as u32)) && shard.pin == Pin::None
    }

    /// Says of as many shards as the node should give that they were moved not long ago.
    fn stays_cooling(&mut self, node: usize, short: u32) {
        let mut left = short;
        for &raw in &self.index.lists[node] {
            if left == 0 {
                return;
            }
            let ix = ShardIx(raw);
            if self.gives(ix, node) && self.cooling(&self.view.shard(ix)) {
                self.stay(ix, PlanReason::CoolDown);
                left -= 1;
            }
        }
    }

    fn surplus_reason(&self, node: usize) -> PlanReason {
        let (fit, seat) = (&self.fits[node], &self.seats[node]);
        let zone = self.index.zone[node] as usize;
        if seat.placed > fit.most {
            PlanReason::OverCapacity
        } else if self.zone_placed[zone] > self.zone_most {
            PlanReason::ZoneSpread
        } else if fit.tier > 0 && matches!(self.rules.zones, ZoneRule::Prefer { .. }) {
            PlanReason::ZonePreference
        } else {
            PlanReason::Balance
        }
    }
}
