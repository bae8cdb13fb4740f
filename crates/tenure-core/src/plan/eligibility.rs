//! Phase 1: what each node may do.

use super::damping;
use super::decision::PlanProblem;
use super::input::{NodeState, PlanNode, PlanView};
use super::reason::PlanReason;
use super::settings::{PlanRules, ZoneRule};
use super::view_index::NodeCounts;
use crate::time::Time;

/// What one node may do in this plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeEligibility {
    /// What is on it may stay; if not, why.
    pub(crate) keeps: Result<(), PlanReason>,
    /// Shards that must leave their place, or have none, may be put here.
    pub(crate) takes: bool,
    /// Shards may be moved here for balance.
    pub(crate) fills: bool,
    /// Shards that are pinned to it may be put here.
    pub(crate) pinnable: bool,
    /// Its share is what it has: it neither takes nor gives.
    pub(crate) fixed: bool,
    /// Which choice its zone is, 0 the best.
    pub(crate) tier: u8,
    /// Its part.
    pub(crate) weight: u32,
    /// The most shards of this keyspace that it can have.
    pub(crate) most: u32,
}

/// Looks at every node.
pub(crate) fn fits(
    view: &PlanView,
    rules: &PlanRules,
    now: Time,
    seats: &[NodeCounts],
    problems: &mut Vec<PlanProblem>,
) -> Vec<NodeEligibility> {
    let mut fits: Vec<NodeEligibility> = view.nodes().iter().map(|n| fit(n, rules, now)).collect();
    // A node that comes and goes is better than none.
    if !fits.iter().any(|f| f.takes) {
        for (fit, node) in fits.iter_mut().zip(view.nodes()) {
            fit.takes = fit.pinnable && node.weight > 0;
        }
    }
    if !fits.iter().any(|f| f.takes) && view.shard_count() > 0 {
        problems.push(PlanProblem::NoNode);
    }
    for (fit, (node, seat)) in fits.iter_mut().zip(view.nodes().iter().zip(seats)) {
        if node.weight == 0 && node.state == NodeState::Active {
            problems.push(PlanProblem::ZeroWeight(node.name.clone()));
        }
        if fit.fixed {
            fit.most = fit.most.max(seat.placed);
        }
    }
    fits
}

fn fit(node: &PlanNode, rules: &PlanRules, now: Time) -> NodeEligibility {
    let has = |(key, value): (&String, &String)| node.labels.get(key) == Some(value);
    let labelled = rules.required_labels.iter().all(has);
    let grace = node.state == NodeState::Away && now.since(node.since) < rules.failover_after;
    let keeps = match node.state {
        NodeState::Away if grace => Ok(()),
        NodeState::Away => Err(PlanReason::OwnerEnded),
        NodeState::Leaving => Err(PlanReason::NodeStopping),
        NodeState::Draining => Err(PlanReason::NodeDraining),
        _ if !labelled => Err(PlanReason::LabelsMissing),
        NodeState::Active | NodeState::Cordoned => Ok(()),
    };
    let pinnable = node.state == NodeState::Active && labelled;
    let probation = damping::probation(node, rules, now);
    let takes = pinnable && node.weight > 0 && !(probation && node.absences > 1);
    NodeEligibility {
        keeps,
        takes,
        fills: takes && !probation,
        pinnable,
        fixed: keeps.is_ok() && (grace || node.state == NodeState::Cordoned),
        tier: tier(node, &rules.zones),
        weight: node.weight,
        most: node
            .capacity
            .map_or(u32::MAX, |c| c.saturating_sub(node.elsewhere.shards)),
    }
}

fn tier(node: &PlanNode, rule: &ZoneRule) -> u8 {
    let ZoneRule::Prefer { zones } = rule else {
        return 0;
    };
    let place = zones.iter().position(|z| node.zone.as_ref() == Some(z));
    // At most 200 zones are preferred.
    u8::try_from(place.unwrap_or(zones.len())).unwrap_or(u8::MAX)
}
