//! Phase 5, by load: from nodes with more than their part of the load to nodes with less.
//!
//! Nothing happens while every node is within the band around its part. Once one is outside, loads are brought much closer
//! together than the band, so that the next small change does not start it again. A shard that is hotter than a node's part
//! cannot be split: its node's part is then that shard, and the others divide the rest. So a new node gets its part also
//! when one hot shard makes all others look idle.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::builder::{Cause, PlanBuilder};
use super::input::{NodeIx, ShardIx};
use super::reason::PlanReason;
use super::settings::ZoneRule;
use super::target_counts::{NodeShare, divide};

/// Once levelling has begun it goes on to within this part of the band.
const INNER: u64 = 4;

/// A shard that could be given, by what it counts for.
type Item = (u64, u32);

/// The nodes while they are levelled.
struct Scales {
    /// What each node should carry.
    part: Vec<u64>,
    /// What each node could give, the cheapest first; sorted out when first needed.
    items: Vec<Option<Vec<Item>>>,
    /// Nodes that have nothing suitable left to give.
    done: Vec<bool>,
    /// Shards that leave their node for another reason.
    gone: BTreeSet<u32>,
}

impl PlanBuilder<'_> {
    /// Evens out the load, if that is called for now.
    pub(crate) fn level(&mut self, shares: &[u32]) {
        let part = self.load_parts();
        let band = u64::from(self.rules.band_cost_permille);
        let off: Vec<bool> = (0..part.len())
            .map(|i| self.off_level(i, part[i], band))
            .collect();
        let excess = self.has_excess(shares);
        if !excess && !off.contains(&true) {
            return;
        }
        if let Some(reason) = self.hold(|i| off[i]) {
            let shards = off.iter().filter(|o| **o).count();
            return self.put_off(reason, u32::try_from(shards.max(1)).unwrap_or(u32::MAX));
        }
        if excess {
            self.force_excess(shares);
            let open = self.open_shares(shares);
            self.place(&open);
        }
        if off.contains(&true) {
            self.look_after_probation();
            self.even_out(part, shares, band / INNER);
        }
    }

    /// What each node should carry, by weight; a node with a single hot shard that shard.
    fn load_parts(&self) -> Vec<u64> {
        let mut parts: Vec<NodeShare> = (0..self.fits.len())
            .map(|i| {
                let (fit, has) = (&self.fits[i], self.node_cost(i));
                let keeps = fit.keeps.is_ok() && !fit.fixed;
                NodeShare {
                    weight: if keeps { fit.weight } else { 0 },
                    low: if fit.fixed { has } else { 0 },
                    high: if fit.takes { u64::MAX >> 8 } else { has },
                    has,
                    reluctant: false,
                    share: 0,
                }
            })
            .collect();
        for (i, part) in parts.iter_mut().enumerate() {
            if self.fits[i].takes {
                let cost = |raw: &u32| self.cost(&self.view.shard(ShardIx(*raw)));
                part.low = self.index.lists[i].iter().map(cost).max().unwrap_or(0);
            }
        }
        let total = parts.iter().map(|p| p.has).sum();
        divide(total, &mut parts);
        parts.iter().map(|p| p.share).collect()
    }

    /// A node's load in thousandths of its part.
    fn ratio(&self, node: usize, part: u64) -> u64 {
        let ratio = u128::from(self.node_cost(node)) * 1000 / u128::from(part.max(1));
        u64::try_from(ratio).unwrap_or(u64::MAX)
    }

    fn off_level(&self, node: usize, part: u64, band: u64) -> bool {
        let fit = &self.fits[node];
        let ratio = self.ratio(node, part);
        let seat = &self.seats[node];
        let movable = fit.keeps.is_ok() && !fit.fixed && seat.placed > seat.pinned;
        (movable && ratio > 1000 + band && (seat.placed > 1 || part == 0))
            || (fit.fills && ratio + band < 1000)
    }

    /// Shares that only close what should not be used: whole zones that are not preferred.
    pub(crate) fn open_shares(&self, shares: &[u32]) -> Vec<u32> {
        let last = self.last_tier(shares);
        let open =
            |f: &super::eligibility::NodeEligibility| if f.tier <= last { u32::MAX } else { 0 };
        self.fits.iter().map(open).collect()
    }

    fn last_tier(&self, shares: &[u32]) -> u8 {
        let used = (0..shares.len()).filter(|&i| self.fits[i].takes && shares[i] > 0);
        used.map(|i| self.fits[i].tier).max().unwrap_or(u8::MAX)
    }

    fn excess_of(&self, node: usize, last_tier: u8) -> u32 {
        let (fit, seat) = (&self.fits[node], &self.seats[node]);
        if fit.keeps.is_err() || fit.fixed {
            0
        } else if fit.tier > last_tier {
            seat.placed
        } else {
            seat.placed.saturating_sub(fit.most)
        }
    }

    fn has_excess(&self, shares: &[u32]) -> bool {
        let last = self.last_tier(shares);
        self.zone_placed.iter().any(|z| *z > self.zone_most)
            || (0..shares.len()).any(|i| self.excess_of(i, last) > 0)
    }

    /// Takes away what a node or a zone has beyond what it may have; the cheapest first.
    fn force_excess(&mut self, shares: &[u32]) {
        let last = self.last_tier(shares);
        for i in 0..shares.len() {
            if self.fits[i].keeps.is_err() {
                continue;
            }
            let mut left = self.excess_of(i, last);
            let reason = match self.rules.zones {
                ZoneRule::Prefer { .. } if self.fits[i].tier > last => PlanReason::ZonePreference,
                _ => PlanReason::OverCapacity,
            };
            for (_, raw) in self.givable(i) {
                let zone = self.index.zone[i] as usize;
                let spread = self.zone_placed[zone] > self.zone_most;
                if left == 0 && !spread {
                    break;
                }
                let reason = if left == 0 {
                    PlanReason::ZoneSpread
                } else {
                    reason
                };
                left = left.saturating_sub(1);
                let shard = self.view.shard(ShardIx(raw));
                let from = Some(NodeIx(i as u32));
                self.force(ShardIx(raw), &shard, Cause::Excess, from, reason);
            }
        }
    }

    /// What a node could give, the cheapest first.
    fn givable(&mut self, node: usize) -> Vec<Item> {
        let mut items = Vec::new();
        for &raw in &self.index.lists[node] {
            let shard = self.view.shard(ShardIx(raw));
            if self.fits[node].fixed || !self.gives(ShardIx(raw), node) {
                continue;
            }
            if !self.cooling(&shard) {
                items.push((self.cost(&shard), raw));
            }
        }
        items.sort_unstable();
        items
    }

    fn even_out(&mut self, part: Vec<u64>, shares: &[u32], inner: u64) {
        let last = self.last_tier(shares);
        let nodes = part.len();
        let mut scales = Scales {
            part,
            items: vec![None; nodes],
            done: vec![false; nodes],
            gone: self.wanted.iter().map(|w| w.shard.0).collect(),
        };
        let opens =
            |w: &Self, i: usize| w.fits[i].fills && w.fits[i].tier <= last && w.has_capacity(i);
        let mut receivers: Vec<Heap<Reverse<u64>>> = Vec::new();
        receivers.resize_with(self.zone_groups(), Heap::default);
        let mut donors = Heap::default();
        for i in 0..nodes {
            let ratio = self.ratio(i, scales.part[i]);
            receivers[self.zone_group(i)].push(Reverse(ratio), i, opens(self, i));
            let gives = self.fits[i].keeps.is_ok() && !self.fits[i].fixed;
            donors.push(ratio, i, gives);
        }
        while let Some(from) =
            donors.top(|i, r| !scales.done[i] && self.ratio(i, scales.part[i]) == r)
        {
            let valid =
                |i: usize, r: Reverse<u64>| opens(self, i) && self.ratio(i, scales.part[i]) == r.0;
            let groups = receivers.iter_mut().enumerate();
            let to = groups
                .filter(|(group, _)| self.may_enter(*group, from))
                .filter_map(|(_, group)| group.top(valid))
                .min_by_key(|&i| (self.ratio(i, scales.part[i]), i));
            let gap = |to| {
                let gap = self.ratio(from, scales.part[from]);
                gap.saturating_sub(self.ratio(to, scales.part[to]))
            };
            let Some(to) = to.filter(|&to| from != to && gap(to) > inner) else {
                if receivers.len() > 1 {
                    // A full zone takes only from its own nodes; one of them may still give.
                    scales.done[from] = true;
                    continue;
                }
                return;
            };
            let Some(raw) = self.best_item(from, to, &mut scales) else {
                scales.done[from] = true;
                continue;
            };
            let (ix, shard) = (ShardIx(raw), self.view.shard(ShardIx(raw)));
            let (a, b) = (NodeIx(from as u32), NodeIx(to as u32));
            self.take(&shard, a);
            self.want(
                ix,
                &shard,
                Some(a),
                b,
                Cause::Better,
                PlanReason::CostBalance,
            );
            for i in [from, to] {
                let ratio = self.ratio(i, scales.part[i]);
                let group = self.zone_group(i);
                receivers[group].push(Reverse(ratio), i, opens(self, i));
                donors.push(ratio, i, self.fits[i].keeps.is_ok());
            }
        }
    }

    /// The shard that brings two nodes closest to each other; none if none brings them much closer.
    fn best_item(&mut self, from: usize, to: usize, scales: &mut Scales) -> Option<u32> {
        if scales.items[from].is_none() {
            let mut items = self.givable(from);
            items.retain(|(_, raw)| !scales.gone.contains(raw));
            scales.items[from] = Some(items);
        }
        let (pa, pb) = (u128::from(scales.part[from]), u128::from(scales.part[to]));
        let (la, lb) = (
            u128::from(self.node_cost(from)),
            u128::from(self.node_cost(to)),
        );
        // Moving x makes them equal for their parts where (la − x) / pa = (lb + x) / pb.
        let ideal = (la * pb).saturating_sub(lb * pa) / (pa + pb).max(1);
        let items = scales.items[from].as_mut()?;
        let above = items.partition_point(|(cost, _)| u128::from(*cost) <= ideal);
        // A little too much is good enough if it halves the distance; too little always helps.
        let overshoots = |cost: u64| u128::from(cost).saturating_sub(ideal);
        let pick = match (above.checked_sub(1), items.get(above)) {
            (Some(below), Some((over, _))) => {
                let short = ideal - u128::from(items[below].0);
                if overshoots(*over) < short {
                    above
                } else {
                    below
                }
            }
            (Some(below), None) => below,
            (None, Some(_)) => above,
            (None, None) => return None,
        };
        if overshoots(items[pick].0) * 2 > ideal {
            return None;
        }
        Some(items.remove(pick).1)
    }
}

/// Nodes in the order of a key that changes: entries that are out of date are skipped.
struct Heap<K: Ord>(std::collections::BinaryHeap<(K, Reverse<usize>)>);

impl<K: Ord> Default for Heap<K> {
    fn default() -> Self {
        Self(std::collections::BinaryHeap::new())
    }
}

impl<K: Ord + Copy> Heap<K> {
    fn push(&mut self, key: K, node: usize, if_so: bool) {
        if if_so {
            self.0.push((key, Reverse(node)));
        }
    }

    /// The node with the greatest key of those whose entry is valid.
    fn top(&mut self, valid: impl Fn(usize, K) -> bool) -> Option<usize> {
        while let Some((key, Reverse(node))) = self.0.peek() {
            if valid(*node, *key) {
                return Some(*node);
            }
            self.0.pop();
        }
        None
    }
}
