//! A planner that remembers says the same as one that starts from nothing.

use proptest::prelude::*;

use super::harness::*;
use super::properties::{any_node, any_settings, any_spec};
use crate::ids::ShardName;
use crate::plan::{Planner, ViewChange, plan};

fn any_delta() -> impl Strategy<Value = ViewChange> {
    prop_oneof![
        3 => any_node(9).prop_map(ViewChange::Node),
        1 => (0..9u32).prop_map(|i| ViewChange::NodeGone(name(&format!("n{i}")))),
        6 => any_spec(40, 9).prop_map(ViewChange::Shard),
        1 => (0..40u32).prop_map(|i| ViewChange::ShardGone(ShardName::index(i))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn after_any_changes_the_plan_is_the_same_as_one_from_nothing(
        settings in any_settings(),
        deltas in prop::collection::vec(any_delta(), 1..80),
    ) {
        let rules = settings.check().unwrap();
        let mut planner = Planner::new(view(nodes(3), owned((0..20).map(|i| i % 3))), rules.clone());
        for delta in deltas {
            planner.apply(delta);
            // Its own plans are carried out, too.
            let said = planner.plan(LATER);
            prop_assert_eq!(&said, &plan(planner.view(), &rules, LATER));
            if let Some(d) = said.actions().next() {
                let mut view = planner.view().clone();
                carry_out(&mut view, d, LATER);
                planner.set_shard(d.shard(), view.shard(d.shard()));
            }
            prop_assert_eq!(&planner, &Planner::new(planner.view().clone(), rules.clone()));
        }
    }
}

#[test]
fn changed_rules_count_from_the_next_plan_on() {
    let mut planner = Planner::new(view(nodes(2), owned([0; 8])), rules(|s| s.band_shards = 99));
    assert!(planner.plan(LATER).is_quiet());
    planner.set_rules(rules(|_| ()));
    assert_eq!(planner.plan(LATER).moves_allowed, 4);
    assert_eq!(planner.rules().band_shards, 0);
}

#[test]
fn what_it_keeps_per_shard_is_stated() {
    let shards = owned((0..10_000).map(|i| i % 10));
    let planner = Planner::new(view(nodes(10), shards), at_once());
    // A name, 32 bytes of state, a place in its node's list; nodes are few here.
    let least = size_of::<ShardName>() + 32 + 4;
    let each = planner.bytes() / 10_000;
    assert!((least..least + 4).contains(&each), "{each} bytes per shard");
}
