//! The sticky policy: shares, zones, capacity, pins, cordons.

use super::harness::*;
use crate::ids::ShardName;
use crate::plan::{
    BalanceBy, Decision, NodeState, PlanNode, PlanReason, PlanShardRecord, PlanView, ZoneRule, plan,
};

/// Plans at once, carries it out, and gives how many shards each node has then, with how many were moved.
fn settle(view: &mut PlanView, rules: &crate::plan::PlanRules) -> (Vec<u32>, usize) {
    let plan = plan(view, rules, LATER);
    let moved = plan
        .actions()
        .filter(|d| matches!(d, Decision::Move { .. }))
        .count();
    for d in &plan.decisions {
        carry_out(view, d, LATER);
    }
    let again = crate::plan::plan(view, rules, LATER);
    assert!(again.is_quiet(), "says more when asked again: {again:?}");
    (counts(view), moved)
}

fn with(mut nodes: Vec<PlanNode>, change: impl Fn(usize, &mut PlanNode)) -> Vec<PlanNode> {
    for (i, node) in nodes.iter_mut().enumerate() {
        change(i, node);
    }
    nodes
}

#[test]
fn free_shards_are_given_out_by_weight() {
    let nodes = with(nodes(3), |i, n| n.weight = [100, 100, 200][i]);
    let (counts, moved) = settle(&mut view(nodes, free(12)), &at_once());
    assert_eq!((counts, moved), (vec![3, 3, 6], 0));
}

#[test]
fn a_node_that_joins_gets_its_share_and_nothing_else_moves() {
    let mut view = view(nodes(4), owned((0..12).map(|i| i % 3)));
    assert_eq!(settle(&mut view, &at_once()), (vec![3, 3, 3, 3], 3));
}

#[test]
fn a_node_that_drains_gives_away_what_it_had_and_nothing_else_moves() {
    let nodes = with(nodes(4), |i, n| {
        if i == 2 {
            n.state = NodeState::Draining;
        }
    });
    let mut view = view(nodes, owned((0..12).map(|i| i % 4)));
    assert_eq!(settle(&mut view, &at_once()), (vec![4, 4, 0, 4], 3));
}

#[test]
fn a_dead_nodes_shards_are_claimed_by_others() {
    let nodes = with(nodes(3), |i, n| {
        if i == 0 {
            n.state = NodeState::Away;
        }
    });
    let mut view = view(nodes, owned((0..9).map(|i| i % 3)));
    let first = plan(&view, &at_once(), LATER);
    assert!(first.actions().all(|d| matches!(
        d,
        Decision::Intend {
            reason: PlanReason::OwnerEnded,
            ..
        }
    )));
    assert_eq!(settle(&mut view, &at_once()), (vec![0, 5, 4], 0));
}

#[test]
fn capacity_is_never_exceeded_and_the_rest_goes_elsewhere() {
    let nodes = with(nodes(3), |i, n| n.capacity = [Some(2), None, None][i]);
    let (counts, _) = settle(&mut view(nodes, free(12)), &at_once());
    assert_eq!(counts, [2, 5, 5]);
}

#[test]
fn what_a_node_has_elsewhere_counts_against_its_capacity() {
    let nodes = with(nodes(2), |i, n| {
        n.capacity = Some(6);
        n.elsewhere.shards = [4, 0][i];
    });
    let (counts, _) = settle(&mut view(nodes, free(6)), &at_once());
    assert_eq!(counts, [2, 4]);
}

#[test]
fn a_lowered_capacity_moves_shards_away() {
    let nodes = with(nodes(2), |i, n| n.capacity = [Some(1), None][i]);
    let mut view = view(nodes, owned([0, 0, 0, 1, 1, 1]));
    let moves = plan(&view, &at_once(), LATER);
    let whys: Vec<PlanReason> = moves.actions().map(Decision::reason).collect();
    assert_eq!(whys, [PlanReason::OverCapacity, PlanReason::OverCapacity]);
    assert_eq!(settle(&mut view, &at_once()), (vec![1, 5], 2));
}

#[test]
fn a_node_that_is_still_giving_away_gets_nothing_beyond_its_capacity() {
    // n0 is full; one of its shards is on its way to n1, but still there. The free one must not be put on top.
    let nodes = with(nodes(2), |_, n| n.capacity = Some(2));
    let mut shards = owned([0, 0]);
    shards[0].moving = Some(name("n1"));
    shards.push(PlanShardRecord::free(ShardName::index(2)));
    let view = view(nodes, shards);
    let plan = plan(&view, &at_once(), LATER);
    let to: Vec<&Decision> = plan.actions().collect();
    assert!(
        matches!(to[..], [Decision::Intend { to, .. }] if view.node(*to).name == name("n1")),
        "{to:?}"
    );
}

#[test]
fn a_cordoned_node_keeps_what_it_has_and_gets_nothing() {
    let nodes = with(nodes(3), |i, n| {
        if i == 0 {
            n.state = NodeState::Cordoned;
        }
    });
    let mut shards = owned([0, 1, 1, 1, 1, 2, 2]);
    shards.extend((7..9).map(|i| PlanShardRecord::free(ShardName::index(i))));
    assert_eq!(
        settle(&mut view(nodes, shards), &at_once()),
        (vec![1, 4, 4], 0)
    );
}

#[test]
fn pinned_shards_go_to_their_node_and_count_in_its_share() {
    let mut shards = owned((0..9).map(|i| i % 3));
    for i in [0, 1, 2] {
        shards[i].pin = Some(name("n2"));
    }
    let mut view = view(nodes(3), shards);
    // Two come to n2 by their pins, so two others leave it.
    assert_eq!(settle(&mut view, &at_once()), (vec![3, 3, 3], 4));
    for i in [0, 1, 2] {
        let ix = view.find_shard(&ShardName::index(i)).unwrap();
        assert_eq!(view.shard(ix).owner, view.find_node(&name("n2")));
    }
}

#[test]
fn a_node_may_have_more_than_its_share_if_all_of_it_is_pinned() {
    let mut shards = owned([0; 6]);
    shards.iter_mut().for_each(|s| s.pin = Some(name("n0")));
    assert_eq!(
        settle(&mut view(nodes(2), shards), &at_once()),
        (vec![6, 0], 0)
    );
}

#[test]
fn no_zone_has_more_than_its_part() {
    let rules = rules(|s| s.zones = ZoneRule::Spread { most_percent: 50 }).at_once();
    // Three nodes in one zone, one in the other.
    let zone = |i: usize| Some(["a", "a", "a", "b"][i].to_owned());
    let nodes = with(nodes(4), |i, n| n.zone = zone(i));
    let mut view = view(nodes, owned((0..12).map(|i| i % 4)));
    assert_eq!(settle(&mut view, &rules), (vec![2, 2, 2, 6], 3));
}

#[test]
fn a_node_that_joins_a_zone_which_has_its_part_gets_its_share_from_within_it() {
    let zone = |i: usize| Some(["a", "a", "b"][i].to_owned());
    for measure in [BalanceBy::Shards, BalanceBy::Cost] {
        let rules = rules(|s| {
            s.zones = ZoneRule::Spread { most_percent: 50 };
            s.balance_by = measure;
        });
        let nodes = with(nodes(3), |i, n| n.zone = zone(i));
        let mut view = view(nodes, owned([0, 0, 0, 0, 2, 2, 2, 2]));
        assert_eq!(settle(&mut view, &rules.at_once()), (vec![2, 2, 4], 2));
    }
}

#[test]
fn a_preferred_zone_is_filled_first_and_others_get_what_it_cannot_hold() {
    let rules = rules(|s| {
        s.zones = ZoneRule::Prefer {
            zones: vec!["a".to_owned()],
        };
    })
    .at_once();
    let zone = |i: usize| Some(["a", "a", "b"][i].to_owned());
    let roomy = with(nodes(3), |i, n| n.zone = zone(i));
    let tight = with(roomy.clone(), |i, n| {
        n.capacity = [Some(2), Some(3), None][i]
    });
    assert_eq!(settle(&mut view(roomy, free(8)), &rules).0, [4, 4, 0]);
    assert_eq!(settle(&mut view(tight, free(8)), &rules).0, [2, 3, 3]);
}

#[test]
fn nodes_without_a_required_label_give_their_shards_away() {
    let rules = rules(|s| {
        s.required_labels
            .insert("disk".to_owned(), "ssd".to_owned());
    })
    .at_once();
    let nodes = with(nodes(3), |i, n| {
        if i > 0 {
            n.labels.insert("disk".to_owned(), "ssd".to_owned());
        }
    });
    let mut view = view(nodes, owned([0, 0, 1, 2]));
    assert_eq!(settle(&mut view, &rules), (vec![0, 2, 2], 2));
}

#[test]
fn urgent_changes_come_first_where_the_budget_is_short() {
    // n0 drains, n3 is new: with one move allowed it is the drain that gets it.
    let rules = rules(|s| {
        s.budgets.total = 1;
        s.settle_time = std::time::Duration::ZERO;
    });
    let nodes = with(nodes(4), |i, n| {
        if i == 0 {
            n.state = NodeState::Draining;
        }
    });
    let view = view(nodes, owned([0, 1, 1, 1, 1, 2, 2, 2, 2]));
    let plan = plan(&view, &rules, LATER);
    let first = plan.actions().next().unwrap();
    assert_eq!(first.reason(), PlanReason::NodeDraining);
    assert_eq!(plan.moves_allowed, 1);
    assert_eq!(plan.moves_wanted, 3);
}

#[test]
fn a_move_whose_target_is_gone_is_cancelled_and_planned_anew() {
    let nodes = with(nodes(3), |i, n| {
        if i == 1 {
            n.state = NodeState::Away;
        }
    });
    let mut shards = owned([0, 0, 0, 0]);
    shards[0].moving = Some(name("n1"));
    let mut view = view(nodes, shards);
    let first = plan(&view, &at_once(), LATER);
    assert!(first.decisions.iter().any(|d| matches!(
        d,
        Decision::Cancel {
            reason: PlanReason::TargetEnded,
            ..
        }
    )));
    for d in &first.decisions {
        carry_out(&mut view, d, LATER);
    }
    assert_eq!(settle(&mut view, &at_once()).0, [2, 0, 2]);
}

#[test]
fn a_sealed_move_whose_target_is_gone_is_left_to_the_last_owner() {
    let nodes = with(nodes(2), |i, n| {
        if i == 1 {
            n.state = NodeState::Away;
        }
    });
    let mut shards = owned([0]);
    shards[0].moving = Some(name("n1"));
    shards[0].sealed = true;
    let plan = plan(&view(nodes, shards), &at_once(), LATER);
    assert!(plan.is_quiet());
    assert_eq!(plan.decisions[0].reason(), PlanReason::AwaitsOwner);
}

#[test]
fn what_is_under_way_counts_as_done() {
    let mut shards = owned([0, 0, 0, 0]);
    shards[0].moving = Some(name("n1"));
    shards[1].intended = Some(name("n1"));
    let plan = plan(&view(nodes(2), shards), &at_once(), LATER);
    assert!(plan.decisions.is_empty(), "{plan:?}");
    assert_eq!((plan.before.most, plan.before.least), (2, 2));
}
