//! Bad input: each kind with a clear reason or a checked error.

use super::harness::*;
use crate::ids::ShardName;
use crate::plan::{
    BalanceBy, Decision, NodeState, PlanProblem, PlanReason, PlanSettings, PlanShardRecord,
    PlanView, PolicyKind, ViewProblem, ZoneRule, plan,
};

fn problems(change: impl FnOnce(&mut PlanSettings)) -> Vec<&'static str> {
    let mut settings = PlanSettings::default();
    change(&mut settings);
    let problems = settings.check().err().unwrap_or_default();
    problems.iter().map(|p| p.setting).collect()
}

#[test]
fn the_defaults_are_fine() {
    assert!(problems(|_| ()).is_empty());
}

#[test]
fn every_bad_setting_is_named_all_at_once() {
    let all = problems(|s| {
        s.budgets.total = 0;
        s.budgets.per_source = 0;
        s.budgets.per_target = 0;
        s.band_cost_permille = 0;
        s.cost_floor = 0;
        s.balance_by = BalanceBy::Cost;
        s.policy = PolicyKind::Jump;
        s.zones = ZoneRule::Spread { most_percent: 101 };
    });
    assert_eq!(
        all,
        [
            "budget_total",
            "budget_per_source",
            "budget_per_target",
            "band_cost_permille",
            "cost_floor",
            "balance_by",
            "zones",
            "zones"
        ]
    );
}

#[test]
fn a_preference_names_zones_and_each_once() {
    let prefer = |zones: &[&str]| {
        let zones = zones.iter().map(|z| (*z).to_owned()).collect();
        problems(|s| s.zones = ZoneRule::Prefer { zones })
    };
    assert_eq!(prefer(&[]), ["zones"]);
    assert_eq!(prefer(&["a", "b", "a"]), ["zones"]);
    assert_eq!(prefer(&["a", "b"]), Vec::<&str>::new());
}

#[test]
fn a_node_of_weight_zero_gets_nothing_and_is_told_of() {
    let mut all = nodes(2);
    all[0].weight = 0;
    let mut world = World::new(view(all, owned([0, 0, 1])), at_once());
    let plan = world.round();
    assert_eq!(counts(&world.view), [0, 3]);
    assert_eq!(plan.problems, [PlanProblem::ZeroWeight(name("n0"))]);
    assert_eq!(
        plan.problems[0].to_string(),
        "node n0 has weight 0 and is assigned no shards; give it a weight of at least 1, or drain it"
    );
}

#[test]
fn with_all_nodes_cordoned_shards_stay_and_free_ones_say_why() {
    let mut all = nodes(2);
    all.iter_mut().for_each(|n| n.state = NodeState::Cordoned);
    let mut shards = owned([0, 0, 0, 1]);
    shards.push(PlanShardRecord::free(ShardName::index(4)));
    let plan = plan(&view(all, shards), &at_once(), LATER);
    assert!(plan.is_quiet());
    let reason: Vec<PlanReason> = plan.decisions.iter().map(Decision::reason).collect();
    assert_eq!(reason, [PlanReason::NoNode]);
    assert_eq!(plan.problems, [PlanProblem::NoNode]);
}

#[test]
fn without_another_node_a_drain_waits_and_says_why() {
    let mut all = nodes(1);
    all[0].state = NodeState::Draining;
    let plan = plan(&view(all, owned([0, 0])), &at_once(), LATER);
    let reason: Vec<PlanReason> = plan.decisions.iter().map(Decision::reason).collect();
    assert_eq!(reason, [PlanReason::NoNode; 2]);
    assert_eq!((plan.before, plan.before.homeless), (plan.after, 0));
}

#[test]
fn with_all_nodes_full_shards_stay_and_the_lack_is_counted() {
    let mut all = nodes(3);
    all.iter_mut().for_each(|n| n.capacity = Some(2));
    all[2].state = NodeState::Draining;
    let plan = plan(&view(all, owned([0, 0, 1, 2, 2])), &at_once(), LATER);
    assert_eq!(plan.actions().count(), 1);
    assert_eq!(plan.decisions[1].reason(), PlanReason::NoRoom);
    assert_eq!(plan.problems, [PlanProblem::NoRoom { shards: 1 }]);
}

#[test]
fn a_pin_to_an_unknown_node_leaves_the_shard_where_it_is() {
    let mut shards = owned([0, 1]);
    shards[0].pin = Some(name("nobody"));
    let plan = plan(&view(nodes(2), shards), &at_once(), LATER);
    assert!(plan.is_quiet());
    assert_eq!(plan.decisions[0].reason(), PlanReason::PinUnknown);
}

#[test]
fn a_free_shard_with_a_pin_that_cannot_be_kept_is_served_nevertheless() {
    for pin in ["nobody", "n0"] {
        let mut all = nodes(2);
        all[0].state = NodeState::Cordoned;
        let mut shards = free(1);
        shards[0].pin = Some(name(pin));
        let mut world = World::new(view(all, shards), at_once());
        world.round();
        assert_eq!(world.has("n1"), 1, "{pin}");
        let reason = world.round().decisions[0].reason();
        assert!(
            matches!(reason, PlanReason::PinUnknown | PlanReason::PinWaits),
            "{reason}"
        );
    }
}

#[test]
fn a_zone_rule_that_cannot_be_kept_gives_way_and_says_so() {
    let rules = rules(|s| s.zones = ZoneRule::Spread { most_percent: 40 }).at_once();
    let mut all = nodes(4);
    for (node, zone) in all.iter_mut().zip(["a", "a", "b", "b"]) {
        node.zone = Some(zone.to_owned());
    }
    let mut world = World::new(view(all, free(20)), rules);
    let plan = world.round();
    assert_eq!(counts(&world.view), [5; 4]);
    let text = plan.problems[0].to_string();
    assert!(
        text.contains("limit of 40 %") && text.contains("10 shards per zone"),
        "{text}"
    );
    // One zone goes: the other serves all of it.
    world.set("n0", NodeState::Away);
    world.set("n1", NodeState::Away);
    world.round();
    assert_eq!(counts(&world.view), [0, 0, 10, 10]);
}

#[test]
fn names_that_appear_twice_are_refused_all_at_once() {
    let mut all = nodes(2);
    all.push(all[0].clone());
    let mut shards = free(2);
    shards.push(shards[1].clone());
    let problems = PlanView::new(keyspace(), all, shards).unwrap_err();
    assert_eq!(
        problems,
        [
            ViewProblem::TwoNodes(name("n0")),
            ViewProblem::TwoShards(ShardName::index(1))
        ]
    );
}

#[test]
fn an_owner_that_is_not_known_is_nobody() {
    let mut world = World::new(view(nodes(2), owned([7, 8])), at_once());
    world.round();
    assert_eq!((world.claims, counts(&world.view)), (2, vec![1, 1]));
}

#[test]
fn nothing_at_all_is_planned_without_a_word() {
    for (n, s) in [(0, 0), (3, 0)] {
        let plan = plan(&view(nodes(n), free(s)), &at_once(), LATER);
        assert!(plan.decisions.is_empty() && plan.problems.is_empty());
    }
    let plan = plan(&view(nodes(0), free(2)), &at_once(), LATER);
    assert_eq!((plan.decisions.len(), plan.before.homeless), (2, 2));
}

#[test]
fn the_largest_weights_and_loads_do_not_overflow() {
    let mut all = nodes(3);
    all.iter_mut().for_each(|n| n.weight = u32::MAX);
    let mut shards = owned((0..30).map(|i| i % 2));
    shards.iter_mut().for_each(|s| s.load = u32::MAX);
    for measure in [BalanceBy::Shards, BalanceBy::Cost] {
        let rules = rules(|s| s.balance_by = measure).at_once();
        let mut world = World::new(view(all.clone(), shards.clone()), rules);
        world.round();
        assert_eq!(counts(&world.view), [10; 3]);
    }
}
