//! One plan in the making: what the phases hand to each other.

use std::cmp::Reverse;

use super::decision::{Decision, DeferredMoves, PlanProblem};
use super::eligibility::{NodeEligibility, fits};
use super::input::{NodeIx, PlanShard, PlanView, ShardIx};
use super::reason::PlanReason;
use super::settings::{BalanceBy, PlanRules, ZoneRule};
use super::view_index::{NodeCounts, ViewIndex};
use crate::time::Time;

/// How urgent a change is: compared from top to bottom, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Urgency {
    /// What makes it necessary.
    pub(crate) cause: Cause,
    /// The dearest first: more work depends on it, and it is the hardest to place.
    pub(crate) cost: Reverse<u64>,
    /// Breaks ties, the same way every time.
    pub(crate) shard: ShardIx,
}

/// What makes a change necessary, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// Nobody serves it.
    Unowned,
    /// Its owner will soon be gone.
    Leaving,
    /// Its owner is to be emptied.
    Draining,
    /// Its owner may not have it.
    Misfit,
    /// It was pinned elsewhere.
    Pin,
    /// Its owner or its zone has more than it may have.
    Excess,
    /// It would be better elsewhere.
    Better,
}

/// A shard that has to be put somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ForcedPlacement {
    pub(crate) urgency: Urgency,
    /// Its owner, if that is live and can hand it over.
    pub(crate) from: Option<NodeIx>,
    pub(crate) reason: PlanReason,
}

/// A change that the planner wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WantedChange {
    pub(crate) shard: ShardIx,
    /// Its owner, if that is live and can hand it over.
    pub(crate) from: Option<NodeIx>,
    pub(crate) to: NodeIx,
    pub(crate) cause: Cause,
    pub(crate) reason: PlanReason,
}

/// Moves that are under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct MovesInFlight {
    pub(crate) total: u32,
    pub(crate) out: Vec<u32>,
    pub(crate) into: Vec<u32>,
}

/// One plan in the making.
pub(crate) struct PlanBuilder<'a> {
    pub(crate) view: &'a PlanView,
    pub(crate) rules: &'a PlanRules,
    pub(crate) index: &'a ViewIndex,
    pub(crate) now: Time,
    /// What each node may do.
    pub(crate) fits: Vec<NodeEligibility>,
    /// Whether any node takes shards.
    pub(crate) any_takes: bool,
    /// What each node has, with the changes decided so far.
    pub(crate) seats: Vec<NodeCounts>,
    /// How many shards each zone has.
    pub(crate) zone_placed: Vec<u32>,
    /// The most that a zone may have.
    pub(crate) zone_most: u32,
    /// Shards that have to be put somewhere.
    pub(crate) forced: Vec<ForcedPlacement>,
    /// Changes that are wanted.
    pub(crate) wanted: Vec<WantedChange>,
    pub(crate) cancels: Vec<Decision>,
    pub(crate) stays: Vec<Decision>,
    pub(crate) flight: MovesInFlight,
    pub(crate) put_off: Option<DeferredMoves>,
    pub(crate) look_again: Option<Time>,
    pub(crate) problems: Vec<PlanProblem>,
}

impl<'a> PlanBuilder<'a> {
    pub(crate) fn new(
        view: &'a PlanView,
        rules: &'a PlanRules,
        index: &'a ViewIndex,
        now: Time,
    ) -> Self {
        let mut problems = Vec::new();
        let fits = fits(view, rules, now, &index.seats, &mut problems);
        let mut zone_placed = vec![0; index.zones];
        for (zone, seat) in index.zone.iter().zip(&index.seats) {
            zone_placed[*zone as usize] += seat.placed;
        }
        let nodes = view.nodes();
        let flight = MovesInFlight {
            total: nodes.iter().map(|n| n.elsewhere.moves_in).sum(),
            out: nodes.iter().map(|n| n.elsewhere.moves_out).collect(),
            into: nodes.iter().map(|n| n.elsewhere.moves_in).collect(),
        };
        Self {
            view,
            rules,
            index,
            now,
            any_takes: fits.iter().any(|f| f.takes),
            fits,
            seats: index.seats.clone(),
            zone_placed,
            zone_most: u32::MAX,
            forced: Vec::new(),
            wanted: Vec::new(),
            cancels: Vec::new(),
            stays: Vec::new(),
            flight,
            put_off: None,
            look_again: None,
            problems,
        }
    }

    pub(crate) fn look_at(&mut self, time: Time) {
        self.look_again = Some(self.look_again.map_or(time, |t| t.min(time)));
    }

    /// What a shard counts for where load is evened out.
    pub(crate) fn cost(&self, shard: &PlanShard) -> u64 {
        u64::from(shard.load) + u64::from(self.rules.cost_floor)
    }

    /// What a node's shards count for together.
    pub(crate) fn node_cost(&self, node: usize) -> u64 {
        let seat = &self.seats[node];
        seat.load + u64::from(seat.placed) * u64::from(self.rules.cost_floor)
    }

    pub(crate) fn by_load(&self) -> bool {
        self.rules.balance_by == BalanceBy::Cost
    }

    /// Counts a shard at a node from now on.
    pub(crate) fn put(&mut self, shard: &PlanShard, node: NodeIx) {
        self.seats[node.at()].put(shard);
        self.zone_placed[self.index.zone[node.at()] as usize] += 1;
    }

    /// No longer counts a shard at a node.
    pub(crate) fn take(&mut self, shard: &PlanShard, node: NodeIx) {
        self.seats[node.at()].take(shard);
        self.zone_placed[self.index.zone[node.at()] as usize] -= 1;
    }

    /// Whether a node has room for one more, whatever its share.
    pub(crate) fn has_room(&self, node: usize) -> bool {
        self.has_capacity(node) && self.zone_placed[self.index.zone[node] as usize] < self.zone_most
    }

    /// Into how many groups nodes fall whose room depends on their zone: one where zones have no limit.
    pub(crate) fn zone_groups(&self) -> usize {
        match self.rules.zones {
            ZoneRule::Spread { .. } => self.index.zones,
            _ => 1,
        }
    }

    /// The group of a node.
    pub(crate) fn zone_group(&self, node: usize) -> usize {
        match self.rules.zones {
            ZoneRule::Spread { .. } => self.index.zone[node] as usize,
            _ => 0,
        }
    }

    /// Whether a shard of this node may go to that group: a zone that is full takes only what is in it already.
    pub(crate) fn may_enter(&self, group: usize, from: usize) -> bool {
        self.zone_groups() == 1
            || self.zone_group(from) == group
            || self.zone_placed[group] < self.zone_most
    }

    /// Whether a node can hold one more, whatever its share and its zone.
    pub(crate) fn has_capacity(&self, node: usize) -> bool {
        // What has yet to leave it counts: it may leave after the new one has come.
        self.seats[node].held.max(self.seats[node].placed) < self.fits[node].most
    }

    pub(crate) fn stay(&mut self, shard: ShardIx, reason: PlanReason) {
        self.stays.push(Decision::Stay { shard, reason });
    }

    /// Notes that a shard has to be put somewhere; until it is, it counts nowhere.
    pub(crate) fn force(
        &mut self,
        ix: ShardIx,
        shard: &PlanShard,
        cause: Cause,
        from: Option<NodeIx>,
        reason: PlanReason,
    ) {
        if let Some(node) = shard.bound_for() {
            self.take(shard, node);
        }
        let cost = if self.by_load() { self.cost(shard) } else { 0 };
        self.forced.push(ForcedPlacement {
            urgency: Urgency {
                cause,
                cost: Reverse(cost),
                shard: ix,
            },
            from,
            reason,
        });
    }

    /// Wants a shard somewhere, and counts it there.
    pub(crate) fn want(
        &mut self,
        ix: ShardIx,
        shard: &PlanShard,
        from: Option<NodeIx>,
        to: NodeIx,
        cause: Cause,
        reason: PlanReason,
    ) {
        self.put(shard, to);
        self.seats[to.at()].held += 1;
        self.wanted.push(WantedChange {
            shard: ix,
            from,
            to,
            cause,
            reason,
        });
    }
}
