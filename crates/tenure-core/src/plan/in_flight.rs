//! Phase 2: what is under way, and what cannot stay where it is.

use super::builder::{Cause, PlanBuilder};
use super::decision::{Decision, PlanProblem};
use super::input::{NodeIx, NodeState, Pin, PlanShard, ShardIx};
use super::reason::PlanReason;

impl PlanBuilder<'_> {
    /// Looks at everything that is not simply at rest on a node that keeps it.
    pub(crate) fn settle(&mut self) {
        let index = self.index;
        self.forced.reserve(index.special.len());
        let mut lost_pins = Vec::new();
        for &raw in &index.special {
            let ix = ShardIx(raw);
            let shard = self.view.shard(ix);
            if shard.pin == Pin::Unknown {
                lost_pins.push(ix);
            }
            match shard.bound_for() {
                None => self.force(ix, &shard, Cause::Unowned, None, PlanReason::Free),
                Some(to) if shard.owner != Some(to) => self.under_way(ix, &shard, to),
                Some(at) => self.pinned(ix, &shard, at),
            }
        }
        if let Some(first) = lost_pins.first() {
            self.problems.push(PlanProblem::PinUnknown {
                first: self.view.shard_id(*first),
                shards: lost_pins.len(),
            });
        }
        for i in 0..index.lists.len() {
            let node = NodeIx(i as u32);
            match self.fits[i].keeps {
                Err(reason) => self.evacuate(node, reason),
                Ok(()) if self.view.node(node).state == NodeState::Away => self.grace(node),
                Ok(()) => {}
            }
        }
    }

    fn live(&self, node: NodeIx) -> bool {
        self.view.node(node).state != NodeState::Away
    }

    /// A shard that is bound for a node that does not own it yet.
    fn under_way(&mut self, ix: ShardIx, shard: &PlanShard, to: NodeIx) {
        let owner = shard.owner.filter(|o| self.live(*o));
        if let Some(from) = owner.filter(|_| !shard.loaded) {
            self.flight.total += 1;
            self.flight.out[from.at()] += 1;
            self.flight.into[to.at()] += 1;
        }
        let Err(reason) = self.fits[to.at()].keeps else {
            return;
        };
        match owner {
            Some(_) if shard.sealed => self.stay(ix, PlanReason::AwaitsOwner),
            Some(owner) => {
                self.take(shard, to);
                self.put(shard, owner);
                let reason = match reason {
                    PlanReason::OwnerEnded => PlanReason::TargetEnded,
                    PlanReason::LabelsMissing => PlanReason::TargetUnfit,
                    _ => PlanReason::TargetDraining,
                };
                self.cancels.push(Decision::Cancel { shard: ix, reason });
            }
            None => {
                let reason = match shard.owner {
                    Some(_) => PlanReason::OwnerEnded,
                    None => PlanReason::Free,
                };
                self.force(ix, shard, Cause::Unowned, None, reason);
            }
        }
    }

    /// A pinned shard that is at rest.
    fn pinned(&mut self, ix: ShardIx, shard: &PlanShard, at: NodeIx) {
        let keeps = self.fits[at.at()].keeps.is_ok();
        match shard.pin {
            Pin::To(to) if to == at || !self.live(at) => {}
            Pin::To(to) if self.pin_fits(to) => {
                self.take(shard, at);
                self.want(ix, shard, Some(at), to, Cause::Pin, PlanReason::Pinned);
            }
            Pin::To(_) if keeps => self.stay(ix, PlanReason::PinWaits),
            Pin::Unknown if keeps => self.stay(ix, PlanReason::PinUnknown),
            // It is put elsewhere with the rest of its node.
            _ => {}
        }
    }

    /// Whether a shard that is pinned to a node can be put there. Zones do not matter: whoever pins knows better.
    pub(crate) fn pin_fits(&self, to: NodeIx) -> bool {
        let (fit, seat) = (&self.fits[to.at()], &self.seats[to.at()]);
        fit.pinnable && seat.held.max(seat.placed) < fit.most
    }

    /// A node that may not keep what it has.
    fn evacuate(&mut self, node: NodeIx, reason: PlanReason) {
        let cause = match reason {
            PlanReason::OwnerEnded => Cause::Unowned,
            PlanReason::NodeStopping => Cause::Leaving,
            PlanReason::NodeDraining => Cause::Draining,
            _ => Cause::Misfit,
        };
        let from = self.live(node).then_some(node);
        for &raw in &self.index.lists[node.at()] {
            let ix = ShardIx(raw);
            let shard = self.view.shard(ix);
            let moved_by_pin = match shard.pin {
                Pin::To(to) => to != node && from.is_some() && self.wanted_already(ix),
                _ => false,
            };
            // What is under way to it was looked at already.
            if shard.owner == Some(node) && !moved_by_pin {
                self.force(ix, &shard, cause, from, reason);
            }
        }
    }

    /// Whether a change of this shard is wanted already. Only pinned shards are asked about, and they are few.
    fn wanted_already(&self, ix: ShardIx) -> bool {
        self.wanted.binary_search_by_key(&ix, |w| w.shard).is_ok()
    }

    /// A node that has not been away for long.
    fn grace(&mut self, node: NodeIx) {
        self.look_at(self.view.node(node).since + self.rules.failover_after);
        for &raw in &self.index.lists[node.at()] {
            self.stay(ShardIx(raw), PlanReason::OwnerMayReturn);
        }
    }
}
