//! Policies that say for each shard where it belongs, and how their answers are followed.
//!
//! Such a policy knows nothing of moves, budgets and calm. It answers for every shard; the planner checks the answer and
//! then moves shards towards it at its own pace. `rendezvous` and `jump` are such policies, and users' own.

use super::builder::{Cause, PlanBuilder};
use super::decision::PlanProblem;
use super::eligibility::NodeEligibility;
use super::input::{NodeIx, Pin, PlanView, ShardIx};
use super::placement::Targets;
use super::reason::PlanReason;
use super::settings::PolicyKind;
use super::validate_policy::check;
use crate::assign::{Member, Ranking};
use crate::hash::{mix, shard_number};
use crate::ids::{NodeName, SessionId};

/// A node that takes shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EligibleNode {
    /// The node.
    pub node: NodeIx,
    /// Its part in relation to others; never zero.
    pub weight: u32,
    /// The most shards of this keyspace that it can have.
    pub room: u32,
}

/// What a policy looks at.
#[derive(Clone, Copy, Debug)]
pub struct PolicyInput<'a> {
    /// Nodes and shards.
    pub view: &'a PlanView,
    /// The nodes that take shards, in the order of their names.
    pub takers: &'a [EligibleNode],
    fits: &'a [NodeEligibility],
}

impl PolicyInput<'_> {
    /// Whether a node that takes nothing may keep what it has: a shard may then be left there.
    pub fn keeps(&self, node: NodeIx) -> bool {
        self.fits.get(node.at()).is_some_and(|f| f.keeps.is_ok())
    }
}

/// A shard and the node that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The shard.
    pub shard: ShardIx,
    /// The node.
    pub node: NodeIx,
}

/// A policy of one's own.
///
/// It must be pure: the same input gives the same answer, without clocks, randomness or I/O, as another leader may ask it
/// again. It answers once for every shard, with a node that takes shards and has room, or with the node that the shard is
/// bound for if that may keep it. Any other answer is refused as a whole, and the old plan stands.
pub trait Policy: std::fmt::Debug + Send + Sync {
    /// Where each shard belongs.
    fn assign(&self, input: &PolicyInput<'_>) -> Vec<Placement>;
}

impl PlanBuilder<'_> {
    /// Plans by a policy that says where each shard belongs.
    pub(crate) fn follow(&mut self, policy: Option<&dyn Policy>) {
        let takers: Vec<EligibleNode> = self.takers();
        let chosen = match policy {
            Some(policy) => {
                let input = PolicyInput {
                    view: self.view,
                    takers: &takers,
                    fits: &self.fits,
                };
                check(&input, &policy.assign(&input))
            }
            None => Ok(self.built_in(&takers)),
        };
        match chosen {
            Ok(chosen) => self.towards(&chosen),
            Err(nonsense) => {
                for f in std::mem::take(&mut self.forced) {
                    self.stay(f.urgency.shard, PlanReason::PolicyRejected);
                }
                self.problems.push(PlanProblem::PolicyRefused(nonsense));
            }
        }
    }

    fn takers(&self) -> Vec<EligibleNode> {
        let taker = |(i, f): (usize, &NodeEligibility)| {
            f.takes.then_some(EligibleNode {
                node: NodeIx(i as u32),
                weight: f.weight.max(1),
                room: f.most,
            })
        };
        self.fits.iter().enumerate().filter_map(taker).collect()
    }

    /// The answer of `rendezvous` or `jump`; none for shards that there is no room for.
    fn built_in(&self, takers: &[EligibleNode]) -> Vec<Option<NodeIx>> {
        match self.rules.policy {
            PolicyKind::Jump => self.jump(takers),
            _ => self.rendezvous(takers),
        }
    }

    fn jump(&self, takers: &[EligibleNode]) -> Vec<Option<NodeIx>> {
        let mut left: Vec<u32> = takers.iter().map(|t| self.unpinned_room(t)).collect();
        let mut choose = |i: usize| {
            let id = self.view.shard_id(ShardIx(i as u32));
            let n = u32::try_from(takers.len()).ok().filter(|n| *n > 0)?;
            let first = jump_hash(mix(shard_number(&id)), n) as usize;
            // A full node's shards go to those that follow it.
            let found = (0..takers.len())
                .map(|k| (first + k) % takers.len())
                .find(|&k| left[k] > 0)?;
            left[found] -= 1;
            Some(takers[found].node)
        };
        (0..self.view.shard_count()).map(&mut choose).collect()
    }

    /// What pinned shards leave free.
    fn unpinned_room(&self, taker: &EligibleNode) -> u32 {
        let pinned = self.seats[taker.node.at()].pinned;
        taker.room.saturating_sub(pinned)
    }

    fn rendezvous(&self, takers: &[EligibleNode]) -> Vec<Option<NodeIx>> {
        let member = |t: &EligibleNode| Member {
            name: self.view.node(t.node).name.clone(),
            session: SessionId(0),
            weight: t.weight,
        };
        let members: Vec<Member> = takers.iter().map(member).collect();
        let ranking = Ranking::new(&members);
        let mut left = vec![0; self.fits.len()];
        for t in takers {
            left[t.node.at()] = self.unpinned_room(t);
        }
        let bounded = takers.iter().any(|t| t.room < u32::MAX);
        let mut choose = |i: usize| {
            let id = self.view.shard_id(ShardIx(i as u32));
            let name = if bounded {
                let open = |n: &NodeName| {
                    let node = self.view.find_node(n);
                    node.is_some_and(|n| left[n.at()] > 0)
                };
                ranking.winner(&id, open)?
            } else {
                ranking.winner(&id, |_| true)?
            };
            let node = self.view.find_node(name)?;
            let left = &mut left[node.at()];
            // The ranking falls back on full nodes when all are.
            *left = left.checked_sub(1)?;
            Some(node)
        };
        (0..self.view.shard_count()).map(&mut choose).collect()
    }

    /// Puts what must be put somewhere where it belongs, and moves the rest there in good time.
    fn towards(&mut self, chosen: &[Option<NodeIx>]) {
        let mut forced = std::mem::take(&mut self.forced);
        forced.sort_unstable_by_key(|f| f.urgency);
        let mut beyond: Option<Targets> = None;
        for f in forced {
            let ix = f.urgency.shard;
            let shard = self.view.shard(ix);
            let pin = match shard.pin {
                Pin::To(to) if self.pin_fits(to) => Some(to),
                _ => None,
            };
            let open = |i: usize| self.fits[i].takes && self.has_room(i);
            let to = chosen[ix.at()].filter(|to| open(to.at()));
            // Better served where it does not belong than not at all.
            let any = || {
                let targets = beyond.get_or_insert_with(|| Targets::new(self, open));
                targets.best(self, open)
            };
            match pin.or(to).or_else(any) {
                Some(to) => self.want(ix, &shard, f.from, to, f.urgency.cause, f.reason),
                None => self.leave(&f),
            }
        }
        let better = self.better(chosen);
        if better.is_empty() {
            return;
        }
        let mut starved = vec![false; self.fits.len()];
        better.iter().for_each(|(_, to)| starved[to.at()] = true);
        if let Some(reason) = self.hold(|i| starved[i]) {
            return self.put_off(reason, u32::try_from(better.len()).unwrap_or(u32::MAX));
        }
        if better.iter().any(|(_, to)| !self.fits[to.at()].fills) {
            self.look_after_probation();
        }
        for (ix, to) in better {
            let shard = self.view.shard(ix);
            if self.cooling(&shard) {
                self.stay(ix, PlanReason::CoolDown);
            } else if !self.fits[to.at()].fills {
                self.stay(ix, PlanReason::Probation);
            } else if !self.has_room(to.at()) {
                self.stay(ix, PlanReason::NoRoom);
            } else if let Some(from) = shard.owner {
                self.take(&shard, from);
                self.want(
                    ix,
                    &shard,
                    Some(from),
                    to,
                    Cause::Better,
                    PlanReason::PolicyChoice,
                );
            }
        }
    }

    /// The shards that are at rest where they do not belong.
    fn better(&self, chosen: &[Option<NodeIx>]) -> Vec<(ShardIx, NodeIx)> {
        let mut better = Vec::new();
        for (i, list) in self.index.lists.iter().enumerate() {
            let fit = &self.fits[i];
            if fit.keeps.is_err() || fit.fixed {
                continue;
            }
            for ix in list.iter().map(|raw| ShardIx(*raw)) {
                match chosen[ix.at()] {
                    Some(to) if to.at() != i && self.gives(ix, i) => better.push((ix, to)),
                    _ => {}
                }
            }
        }
        better.sort_unstable();
        better
    }
}

/// The jump consistent hash: which of `buckets` a number falls into. Growing the count moves only what the new bucket gets.
pub fn jump_hash(mut key: u64, buckets: u32) -> u32 {
    let (mut bucket, mut next) = (0u64, 0u64);
    while next < u64::from(buckets) {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let step = (key >> 33) + 1;
        // Exact where the usual definition rounds; the quotient is at most 2^31 times the next bucket.
        next = ((bucket + 1) << 31) / step;
    }
    u32::try_from(bucket).unwrap_or(0)
}
