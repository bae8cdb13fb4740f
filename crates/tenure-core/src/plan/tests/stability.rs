//! The traps: what must not set shards in motion, and what must not wait.

use std::time::Duration;

use super::harness::*;
use crate::plan::{Decision, NodeIx, NodeState, PlanNode, PlanReason, plan};
use crate::time::Time;

const FIFTH: Duration = Duration::from_millis(200);

fn even(nodes_: u32, each: u32) -> World {
    let shards = owned((0..nodes_ * each).map(|i| i % nodes_));
    World::new(view(nodes(nodes_), shards), rules(unlimited))
}

#[test]
fn five_nodes_that_join_within_a_second_lead_to_one_plan() {
    let mut world = even(3, 40);
    for i in 0..5 {
        world.join(&format!("new-{i}"));
        world.round();
        world.wait(FIFTH);
    }
    for _ in 0..100 {
        world.wait(FIFTH);
        world.round();
    }
    assert_eq!(world.plans, 1);
    assert_eq!(counts(&world.view), [15; 8]);
    // 5 × 15: what the new ones have now, and nothing else.
    assert_eq!(world.moves, 75);
}

#[test]
fn a_node_that_flaps_does_not_drag_its_shards_along() {
    let mut world = even(3, 20);
    for _ in 0..20 {
        world.set("n0", NodeState::Away);
        world.run(3);
        world.set("n0", NodeState::Active);
        world.run(5);
    }
    // They went elsewhere once, when it first went away, and stayed there.
    assert_eq!((world.claims, world.moves), (20, 0));
    assert!(world.changes.values().all(|n| *n == 1));
    // It gets its share back when it has stayed for long enough.
    world.run(3600);
    assert_eq!((world.has("n0"), world.moves), (20, 20));
}

#[test]
fn a_node_that_flaps_gets_no_shards_of_others_either() {
    let mut world = even(4, 10);
    for _ in 0..2 {
        world.set("n0", NodeState::Away);
        world.run(1);
        world.set("n0", NodeState::Active);
        world.run(1);
    }
    world.set("n1", NodeState::Away);
    world.run(1);
    assert_eq!((world.has("n0"), world.has("n1")), (0, 0));
    // Unless there is no other.
    world.set("n2", NodeState::Away);
    world.set("n3", NodeState::Away);
    world.run(1);
    assert_eq!(world.has("n0"), 40);
}

#[test]
fn a_rolling_deploy_without_surge_moves_each_shard_about_once() {
    let (count, each) = (10, 20);
    let mut world = even(count, each);
    world.rules = rules(|_| ());
    for i in 0..count {
        let node = format!("n{i}");
        world.set(&node, NodeState::Draining);
        while world.has(&node) > 0 {
            world.run(1);
        }
        world.set(&node, NodeState::Away);
        world.run(2);
        world.set(&node, NodeState::Active);
        world.run(5);
    }
    let during = world.moves;
    world.run(300);
    assert_eq!(counts(&world.view), vec![each; count as usize]);
    let shards = count * each;
    // One per shard, and the first and the last node's share once more: there is one node less meanwhile.
    assert!(during <= shards + shards / count + 10, "{during}");
    assert!(world.moves <= shards * 5 / 4, "{}", world.moves);
    assert_eq!(world.claims, 0);
}

#[test]
fn a_rolling_deploy_with_surge_moves_each_shard_once() {
    let (count, each) = (10, 20);
    let mut world = even(count, each);
    world.rules = rules(|_| ());
    for i in 0..count {
        let (old, new) = (format!("n{i}"), format!("m{i}"));
        world.join(&new);
        world.run(1);
        world.set(&old, NodeState::Draining);
        while world.has(&old) > 0 {
            world.run(1);
        }
        world.forget(&old);
        world.run(5);
    }
    world.run(300);
    assert_eq!(counts(&world.view), vec![each; count as usize]);
    assert_eq!(world.moves, count * each);
    assert!(world.changes.values().all(|n| *n == 1));
}

#[test]
fn an_empty_node_that_is_about_to_stop_gets_nothing() {
    for state in [
        NodeState::Leaving,
        NodeState::Draining,
        NodeState::Cordoned,
        NodeState::Away,
    ] {
        let mut world = even(3, 10);
        world.join("stopping");
        world.set("stopping", state);
        world.set("n0", NodeState::Draining);
        world.run(60);
        assert_eq!(world.has("stopping"), 0, "{state}");
        assert_eq!((world.has("n0"), world.moves), (0, 10), "{state}");
    }
}

#[test]
fn two_planners_on_diverging_views_do_no_harm_and_converge() {
    // One does not see that n3 has joined, the other not that n0 is draining. Both write to the same records.
    let mut truth = view(nodes(4), owned((0..30).map(|i| i % 3)));
    let mut draining = truth.node(crate::plan::NodeIx(0)).clone();
    draining.state = NodeState::Draining;
    truth.put_node(draining.clone());
    let rules = at_once();
    for _ in 0..5 {
        let mut blind_to_drain = truth.clone();
        let active = PlanNode::new(draining.name.clone(), Time::ZERO);
        blind_to_drain.put_node(active);
        let mut blind_to_join = truth.clone();
        let mut gone = blind_to_join.node(crate::plan::NodeIx(3)).clone();
        gone.state = NodeState::Away;
        blind_to_join.put_node(gone);
        for seen in [blind_to_drain, blind_to_join] {
            for d in plan(&seen, &rules, LATER).actions() {
                // A write is refused where the record is no longer the one that it was decided on.
                if truth.shard(d.shard()) == seen.shard(d.shard()) {
                    carry_out(&mut truth, d, LATER);
                }
            }
            assert_eq!(
                counts(&truth).iter().sum::<u32>(),
                30,
                "none is lost or doubled"
            );
        }
    }
    let mut world = World::new(truth, rules);
    world.round();
    let last = world.round();
    assert!(last.is_quiet(), "{last:?}");
    assert_eq!(counts(&world.view), [0, 10, 10, 10]);
}

#[test]
fn balance_waits_for_calm_but_failover_and_drain_do_not() {
    let mut world = even(4, 10);
    world.join("n9");
    world.set("n0", NodeState::Away);
    world.set("n1", NodeState::Draining);
    let plan = world.round();
    assert_eq!((world.claims, world.moves), (10, 10));
    let put_off = plan.put_off.map(|p| p.reason);
    // The new node got what had to move anyway; nothing moves only for balance.
    assert!(
        matches!(put_off, None | Some(PlanReason::SettleTime)),
        "{put_off:?}"
    );
    let counts = ["n2", "n3", "n9"].map(|n| world.has(n));
    assert_eq!(counts, [14, 13, 13]);
}

#[test]
fn balance_waits_while_a_node_is_drained_but_not_for_ever() {
    let owners = (0..32).map(|i| if i < 2 { 0 } else { 1 + i % 2 });
    let mut world = World::new(
        view(nodes(3), owned(owners)),
        rules(|s| s.budgets.total = 1),
    );
    world.set("n0", NodeState::Draining);
    world.wait(SECOND * 5);
    world.join("n9");
    world.wait(SECOND * 4);
    let plan = world.round();
    assert_eq!(plan.put_off.unwrap().reason, PlanReason::DrainFirst);
    let moved: Vec<PlanReason> = plan.actions().map(Decision::reason).collect();
    assert_eq!(moved, [PlanReason::NodeDraining]);
    world.wait(SECOND * 20);
    let plan = world.round();
    assert_eq!((plan.put_off, plan.moves_wanted), (None, 9));
}

#[test]
fn nodes_that_have_waited_long_get_their_share_although_others_keep_coming() {
    let mut world = even(2, 50);
    for i in 0..60 {
        world.join(&format!("new-{i:02}"));
        world.run(1);
    }
    assert!(world.has("new-00") > 0 && world.has("new-20") > 0);
    // And no shard is moved over and over on the way.
    assert!(
        world.changes.values().all(|n| *n <= 2),
        "{:?}",
        world.changes
    );
}

#[test]
fn a_node_that_has_come_back_is_not_filled_at_once() {
    let mut world = even(2, 10);
    world.set("n0", NodeState::Away);
    world.run(5);
    world.set("n0", NodeState::Active);
    world.wait(SECOND * 10);
    let plan = world.round();
    assert_eq!(plan.put_off.unwrap().reason, PlanReason::Probation);
    assert_eq!(plan.put_off.unwrap().shards, 10);
    // It says when to look again, and then it is filled.
    world.now = plan.look_again.unwrap();
    world.round();
    assert_eq!((world.has("n0"), world.moves), (10, 10));
}

#[test]
fn a_small_imbalance_within_the_band_moves_nothing() {
    let check = |owners: &[u32], moves: u32| {
        let mut world = World::new(
            view(nodes(2), owned(owners.iter().copied())),
            rules(|s| s.band_shards = 2),
        );
        let plan = world.round();
        assert_eq!(world.moves, moves, "{owners:?}");
        plan.put_off.map(|p| p.reason)
    };
    let within = check(&[0, 0, 0, 0, 0, 0, 1, 1], 0);
    assert_eq!(within, Some(PlanReason::WithinBand));
    assert_eq!(check(&[0, 0, 0, 0, 0, 0, 0, 1], 3), None);
}

#[test]
fn a_shard_that_was_just_moved_stays_until_it_has_cooled_down() {
    let mut shards = owned([0, 0, 0, 0]);
    shards.iter_mut().for_each(|s| s.moved = Some(LATER));
    let mut world = World::new(view(nodes(2), shards), rules(|_| ()));
    world.wait(SECOND * 59);
    let plan = world.round();
    assert_eq!(world.moves, 0);
    let stays: Vec<PlanReason> = plan.decisions.iter().map(Decision::reason).collect();
    assert_eq!(stays, [PlanReason::CoolDown; 2]);
    assert_eq!(plan.look_again, Some(LATER + SECOND * 60));
    world.wait(SECOND);
    world.round();
    assert_eq!(world.moves, 2);
}

#[test]
fn a_cool_down_does_not_hold_up_a_drain() {
    let mut shards = owned([0, 0]);
    shards.iter_mut().for_each(|s| s.moved = Some(LATER));
    let mut world = World::new(view(nodes(2), shards), rules(|_| ()));
    world.set("n0", NodeState::Draining);
    world.round();
    assert_eq!(world.moves, 2);
}

#[test]
fn each_budget_holds_moves_back_and_says_so() {
    let check = |total, per_source, per_target, allowed: u32, reason: PlanReason| {
        let shards = owned((0..40).map(|i| i % 2));
        let rules = rules(|s| {
            s.budgets.total = total;
            s.budgets.per_source = per_source;
            s.budgets.per_target = per_target;
        });
        let plan = plan(&view(nodes(4), shards), &rules, LATER);
        assert_eq!((plan.moves_wanted, plan.moves_allowed), (20, allowed));
        let stays: Vec<PlanReason> = plan
            .decisions
            .iter()
            .filter(|d| !d.acts())
            .map(Decision::reason)
            .collect();
        assert_eq!(stays, vec![reason; 20 - allowed as usize]);
    };
    check(3, 99, 99, 3, PlanReason::BudgetTotal);
    check(99, 2, 99, 4, PlanReason::BudgetSource);
    check(99, 99, 4, 8, PlanReason::BudgetTarget);
}

#[test]
fn moves_that_are_under_way_count_in_the_budgets_also_those_of_other_keyspaces() {
    let mut shards = owned([0; 10]);
    shards[0].moving = Some(name("n1"));
    let mut all = nodes(2);
    all[0].elsewhere.moves_out = 1;
    all[1].elsewhere.moves_in = 1;
    let rules = rules(|s| s.budgets.total = 3);
    let plan = plan(&view(all, shards), &rules, LATER);
    assert_eq!((plan.moves_wanted, plan.moves_allowed), (4, 1));
}

#[test]
fn moves_that_have_loaded_and_wait_for_others_leave_the_budgets_to_those() {
    let rules = rules(|s| s.budgets.per_target = 3);
    let mut shards = owned([0; 10]);
    let first = plan(&view(nodes(2), shards.clone()), &rules, LATER);
    assert_eq!((first.moves_wanted, first.moves_allowed), (5, 3));
    assert_eq!(first.more_to, [NodeIx(1)]);
    for shard in &mut shards[..3] {
        shard.moving = Some(name("n1"));
    }
    let full = plan(&view(nodes(2), shards.clone()), &rules, LATER);
    assert_eq!((full.moves_allowed, full.more_to), (0, vec![NodeIx(1)]));
    for shard in &mut shards[..3] {
        shard.loaded = true;
    }
    let last = plan(&view(nodes(2), shards), &rules, LATER);
    assert_eq!((last.moves_allowed, last.more_to), (2, vec![]));
}

#[test]
fn shards_without_an_owner_do_not_wait_for_a_budget() {
    let mut world = even(2, 30);
    world.rules = rules(|s| s.budgets.total = 1);
    world.set("n0", NodeState::Away);
    world.round();
    assert_eq!((world.claims, world.has("n1")), (30, 60));
}

#[test]
fn an_owner_that_may_return_is_waited_for_as_long_as_set() {
    let mut world = even(2, 3);
    world.rules = rules(|s| s.failover_after = SECOND * 10);
    world.set("n0", NodeState::Away);
    world.wait(SECOND * 9);
    let plan = world.round();
    assert!(plan.is_quiet());
    assert_eq!(plan.decisions.len(), 3);
    assert_eq!(plan.decisions[0].reason(), PlanReason::OwnerMayReturn);
    world.now = plan.look_again.unwrap();
    world.round();
    assert_eq!((world.claims, world.has("n1")), (3, 6));
}
