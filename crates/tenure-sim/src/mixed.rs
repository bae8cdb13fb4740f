//! Drawing clusters whose nodes differ: nodes that serve only some keyspaces, cordoned nodes, processes that only plan.
//!
//! Drawn from a source of its own, after everything else: what a seed meant before is still known ([`Plan::unmixed`]).

use std::collections::BTreeSet;

use tenure_core::record::AssignedBy;

use crate::clock::SEC;
use crate::fault::Fault;
use crate::lifecycle::OperatorAction;
use crate::rng::Rng;
use crate::run_config::{Class, Other, RunConfig, nanos};

/// Adds to a plan what its nodes differ in.
pub(crate) fn add(plan: &mut RunConfig) {
    let mut rng = plan.rng(23);
    if plan.nodes < 2 || !rng.permille(850) {
        return;
    }
    if plan.others.is_empty() && rng.permille(700) {
        plan.others.push(Other {
            name: "parts",
            named: false,
            shards: rng.between(1, 4) as u32,
            mode: *rng.pick(&[AssignedBy::Rendezvous, AssignedBy::FairShare]),
        });
    }
    plan.serves = draw_serves(plan, &mut rng);
    let led = plan.mode == AssignedBy::Leader;
    if rng.permille(if led { 300 } else { 60 }) {
        add_planners(plan, &mut rng);
    }
    if rng.permille(500) {
        add_cordons(plan, &mut rng);
    }
    if rng.permille(500) {
        plan.pause_lasts = Some(plan.timing.ttl * rng.between(1, 6) as u32);
    }
    plan.faults.sort_by_key(|(at, _)| *at);
}

/// Least number of nodes of each keyspace with which all of it can be served at any time that the checkers ask.
fn needed(plan: &RunConfig) -> usize {
    match plan.class {
        // One node at a time is away.
        Class::Planned | Class::OneDeath => 2,
        _ => 1,
    }
}

/// Draws the keyspaces of each node: one at least, and each keyspace has as many nodes as it needs.
fn draw_serves(plan: &RunConfig, rng: &mut Rng) -> Vec<BTreeSet<usize>> {
    let (nodes, keyspaces) = (plan.nodes, 1 + plan.others.len());
    let mut serves = vec![BTreeSet::new(); nodes];
    for keyspace in 0..keyspaces {
        let most = nodes as u64;
        let count = rng.between(needed(plan).min(nodes) as u64, most) as usize;
        let first = rng.below(most) as usize;
        for n in 0..count {
            serves[(first + n) % nodes].insert(keyspace);
        }
    }
    for idle in serves.iter_mut().filter(|set| set.is_empty()) {
        idle.insert(rng.below(keyspaces as u64) as usize);
    }
    serves
}

/// Adds processes that plan and own nothing.
fn add_planners(plan: &mut RunConfig, rng: &mut Rng) {
    plan.planners = rng.between(1, 2) as usize;
    let first = plan.processes() - plan.planners;
    for node in first..plan.processes() {
        let clock = *rng.pick(&plan.clocks[..plan.nodes]);
        plan.clocks.push(clock);
        plan.starts.push(rng.skewed(0, 3 * SEC));
        plan.revive.push(rng.permille(600));
        if !matches!(plan.class, Class::Chaos | Class::Beyond) || rng.permille(300) {
            continue;
        }
        let ttl = nanos(plan.timing.ttl);
        let at = rng.between(5 * SEC, plan.heal_at - SEC);
        let fault = match rng.below(3) {
            0 => Fault::Kill { node },
            1 => Fault::Pause {
                node,
                span: rng.skewed(0, 4 * ttl),
            },
            _ => Fault::Stop { node },
        };
        let again = at + rng.skewed(0, 2 * ttl);
        let dir = rng.permille(600);
        plan.faults.push((at, fault));
        plan.faults.push((again, Fault::Restart { node, dir }));
    }
}

/// Adds cordons: anywhere where anything may happen, and elsewhere such that each keyspace keeps the nodes that it needs.
fn add_cordons(plan: &mut RunConfig, rng: &mut Rng) {
    let cordon = |node, yes| Fault::Operator(OperatorAction::Cordon { node, yes });
    if matches!(plan.class, Class::Chaos | Class::Beyond) {
        for _ in 0..rng.between(1, 5) {
            let at = rng.between(2 * SEC, plan.heal_at - SEC);
            let node = rng.below(plan.nodes as u64) as usize;
            let act = cordon(node, rng.permille(700));
            plan.faults.push((at, act));
        }
        return;
    }
    let node = rng.below(plan.nodes as u64) as usize;
    let keyspaces = 1 + plan.others.len();
    let left = |keyspace| {
        let others = (0..plan.nodes).filter(|n| *n != node && plan.serves(*n, keyspace));
        others.count()
    };
    if (0..keyspaces).all(|keyspace| left(keyspace) >= needed(plan)) {
        let at = rng.between(8 * SEC, 25 * SEC);
        plan.faults.push((at, cordon(node, true)));
        if plan.class == Class::Planned && rng.permille(500) {
            let end = rng.between(at, plan.heal_at - SEC);
            plan.faults.push((end, cordon(node, false)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_half_of_all_seeds_have_nodes_that_differ_and_every_keyspace_has_a_node() {
        let (mut mixed, mut strangers, mut planners, mut cordons) = (0, 0, 0, 0);
        for seed in 0..1000 {
            let plan = RunConfig::draw(seed);
            let whole = RunConfig::unmixed(seed);
            let keyspaces = 1 + plan.others.len();
            for keyspace in 0..keyspaces {
                assert!((0..plan.nodes).any(|node| plan.serves(node, keyspace)));
            }
            let all = |node| (0..keyspaces).all(|keyspace| plan.serves(node, keyspace));
            let differs = !(0..plan.nodes).all(all);
            let cordoned = plan.faults.len() > whole.faults.len();
            mixed += usize::from(differs || cordoned || plan.planners > 0);
            strangers += usize::from(differs);
            planners += usize::from(plan.planners > 0);
            cordons += usize::from(cordoned);
        }
        let counts = [mixed, strangers, planners, cordons];
        assert!(mixed > 500 && strangers > 300, "{counts:?}");
        assert!(planners > 50 && cordons > 200, "{counts:?}");
    }
}
