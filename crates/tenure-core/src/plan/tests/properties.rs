//! What holds of every plan, whatever the cluster looks like.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::harness::*;
use crate::ids::ShardName;
use crate::plan::{
    BalanceBy, Budgets, Decision, NodeIx, NodeState, OtherKeyspaces, Pin, Plan, PlanNode,
    PlanSettings, PlanShardRecord, PlanView, PolicyKind, ZoneRule, plan,
};

const ZONES: [&str; 3] = ["a", "b", "c"];

fn any_state() -> impl Strategy<Value = NodeState> {
    prop_oneof![
        6 => Just(NodeState::Active),
        1 => Just(NodeState::Cordoned),
        1 => Just(NodeState::Draining),
        1 => Just(NodeState::Leaving),
        1 => Just(NodeState::Away),
    ]
}

/// One of the nodes `n0` to `n{most - 1}`.
pub(super) fn any_node(most: u32) -> impl Strategy<Value = PlanNode> {
    (0..most).prop_flat_map(node_numbered)
}

fn node_numbered(i: u32) -> impl Strategy<Value = PlanNode> {
    (
        prop_oneof![4 => Just(100u32), 2 => 1..500u32, 1 => Just(0u32)],
        prop::option::of(0..3usize),
        prop::option::weighted(0.3, 0..20u32),
        any_state(),
        0..100u64,
        prop_oneof![4 => Just(0u32), 1 => 1..4u32],
        any::<bool>(),
        0..3u32,
    )
        .prop_map(
            move |(weight, zone, capacity, state, age, absences, label, elsewhere)| PlanNode {
                name: name(&format!("n{i}")),
                weight,
                zone: zone.map(|z| ZONES[z].to_owned()),
                labels: label
                    .then(|| ("disk".to_owned(), "ssd".to_owned()))
                    .into_iter()
                    .collect(),
                capacity,
                state,
                since: LATER - Duration::from_secs(age),
                absences,
                elsewhere: OtherKeyspaces {
                    shards: elsewhere,
                    moves_in: elsewhere / 2,
                    moves_out: elsewhere / 2,
                },
            },
        )
}

/// One of the shards `0` to `shards - 1`, anywhere among so many nodes.
pub(super) fn any_spec(shards: u32, nodes: u32) -> impl Strategy<Value = PlanShardRecord> {
    (0..shards).prop_flat_map(move |i| spec_numbered(i, nodes))
}

fn spec_numbered(i: u32, nodes: u32) -> impl Strategy<Value = PlanShardRecord> {
    // One more than there are: a node that is not known.
    let node =
        |p| prop::option::weighted(p, 0..=nodes).prop_map(|n| n.map(|n| name(&format!("n{n}"))));
    (
        node(0.9),
        node(0.2),
        node(0.1),
        any::<bool>(),
        node(0.1),
        0..1000u32,
        prop::option::weighted(0.3, 0..100u64),
    )
        .prop_map(
            move |(owner, intended, moving, sealed, pin, load, moved)| PlanShardRecord {
                name: ShardName::index(i),
                sealed: sealed && moving.is_some(),
                loaded: !sealed && moving.is_some() && load % 2 == 0,
                owner,
                intended,
                moving,
                pin,
                load,
                moved: moved.map(|s| LATER - Duration::from_secs(s)),
            },
        )
}

pub(super) fn any_settings() -> impl Strategy<Value = PlanSettings> {
    (
        prop_oneof![
            4 => Just((PolicyKind::Sticky, BalanceBy::Shards)),
            4 => Just((PolicyKind::Sticky, BalanceBy::Cost)),
            1 => Just((PolicyKind::Rendezvous, BalanceBy::Shards)),
            1 => Just((PolicyKind::Jump, BalanceBy::Shards)),
        ],
        (0..3u32, 1..20u32, 1..6u32, 1..6u32),
        0..3u64,
        prop_oneof![
            2 => Just(ZoneRule::Any),
            1 => (1..=100u32).prop_map(|most_percent| ZoneRule::Spread { most_percent }),
            1 => Just(ZoneRule::Prefer { zones: vec!["b".to_owned(), "a".to_owned()] }),
        ],
        any::<bool>(),
    )
        .prop_map(|((policy, measure), budget, grace, zones, labels)| {
            let (band_shards, total, per_source, per_target) = budget;
            let label = labels.then(|| ("disk".to_owned(), "ssd".to_owned()));
            PlanSettings {
                policy,
                balance_by: measure,
                band_shards,
                budgets: Budgets {
                    total,
                    per_source,
                    per_target,
                },
                failover_after: Duration::from_secs(grace * 20),
                zones: if policy == PolicyKind::Sticky {
                    zones
                } else {
                    ZoneRule::Any
                },
                required_labels: label.into_iter().collect(),
                ..PlanSettings::default()
            }
        })
}

fn any_world() -> impl Strategy<Value = (Vec<PlanNode>, Vec<PlanShardRecord>)> {
    (1..8u32, 0..40u32).prop_flat_map(|(n, s)| {
        let nodes: Vec<_> = (0..n).map(node_numbered).collect();
        let shards: Vec<_> = (0..s).map(|i| spec_numbered(i, n)).collect();
        (nodes, shards)
    })
}

/// Nodes of some weights, and who of them owns each shard.
fn any_plain() -> impl Strategy<Value = (Vec<u32>, Vec<u32>)> {
    prop::collection::vec(1..400u32, 1..12).prop_flat_map(|weights| {
        let n = weights.len() as u32;
        (Just(weights), prop::collection::vec(0..n, 0..300))
    })
}

fn weighted(weights: &[u32]) -> Vec<PlanNode> {
    let mut all = nodes(weights.len() as u32);
    for (node, weight) in all.iter_mut().zip(weights) {
        node.weight = *weight;
    }
    all
}

fn done(view: &PlanView, plan: &Plan) -> PlanView {
    let mut view = view.clone();
    for d in &plan.decisions {
        carry_out(&mut view, d, LATER);
    }
    view
}

/// The counts are within one of every node's exact share.
fn within_one(view: &PlanView, takes: impl Fn(&PlanNode) -> bool) -> bool {
    let total = view.shard_count() as u64;
    let weights = view
        .nodes()
        .iter()
        .filter(|n| takes(n))
        .map(|n| u64::from(n.weight));
    let weights: u64 = weights.sum();
    let counts = counts(view);
    view.nodes()
        .iter()
        .zip(counts)
        .filter(|(n, _)| takes(n))
        .all(|(n, count)| {
            let share = total * u64::from(n.weight);
            let has = u64::from(count) * weights;
            has < share + weights && share < has + weights
        })
}

/// The fewest moves after which every node is within one of its share, by trying all ways of rounding.
fn fewest_moves(view: &PlanView) -> u64 {
    let total = view.shard_count() as u64;
    let weights: u64 = view.nodes().iter().map(|n| u64::from(n.weight)).sum();
    let counts = counts(view);
    let floors: Vec<u64> = view
        .nodes()
        .iter()
        .map(|n| total * u64::from(n.weight) / weights)
        .collect();
    let exact = |i: usize| (total * u64::from(view.nodes()[i].weight)).is_multiple_of(weights);
    let up = total - floors.iter().sum::<u64>();
    let mut best = u64::MAX;
    for mask in 0..1u32 << floors.len() {
        let allowed = (0..floors.len()).all(|i| mask & (1 << i) == 0 || !exact(i));
        if u64::from(mask.count_ones()) != up || !allowed {
            continue;
        }
        let moves = floors.iter().zip(&counts).enumerate();
        let moves = moves.map(|(i, (floor, count))| {
            u64::from(*count).saturating_sub(floor + u64::from(mask >> i & 1))
        });
        best = best.min(moves.sum());
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn shards_end_within_one_of_every_nodes_share_with_the_fewest_moves((weights, owners) in any_plain()) {
        let before = view(weighted(&weights), owned(owners));
        let plan = plan(&before, &at_once(), LATER);
        let after = done(&before, &plan);
        prop_assert!(within_one(&after, |_| true), "{:?} of {:?}", counts(&after), weights);
        prop_assert_eq!(u64::from(plan.moves_wanted), fewest_moves(&before));
        prop_assert!(super::super::plan(&after, &at_once(), LATER).decisions.is_empty());
    }

    #[test]
    fn a_join_moves_the_new_nodes_share_and_a_departure_its_own(
        (weights, owners) in any_plain(), joins in 1..300u32, leaves in any::<prop::sample::Index>(),
    ) {
        let first = view(weighted(&weights), owned(owners));
        let first = done(&first, &plan(&first, &at_once(), LATER));
        let mut joined = first.clone();
        let mut new = PlanNode::new(name("z"), LATER);
        new.weight = joins;
        let new = joined.put_node(new);
        let moves = plan(&joined, &at_once(), LATER);
        let joined = done(&joined, &moves);
        // Only rounding may move anything but what the new node gets: one shard per node at the most.
        prop_assert!(moves.moves_wanted <= counts(&joined)[new.at()] + weights.len() as u32);
        prop_assert!(within_one(&joined, |_| true));

        let gone = NodeIx(leaves.index(joined.nodes().len()) as u32);
        let mut left = joined.clone();
        let mut node = left.node(gone).clone();
        node.state = NodeState::Draining;
        left.put_node(node);
        let has = counts(&left)[gone.at()];
        let moves = plan(&left, &at_once(), LATER);
        prop_assert!(moves.moves_wanted <= has + joined.nodes().len() as u32);
        let left = done(&left, &moves);
        if left.nodes().len() > 1 {
            prop_assert_eq!(counts(&left)[gone.at()], 0);
            prop_assert!(within_one(&left, |n| n.state == NodeState::Active));
        }
    }

    #[test]
    fn the_order_in_which_things_are_told_does_not_matter(
        (nodes, shards) in any_world(), settings in any_settings(), seed in any::<u64>(),
    ) {
        let rules = settings.check().unwrap();
        let plain = plan(&view(nodes.clone(), shards.clone()), &rules, LATER);
        let (mut nodes, mut shards) = (nodes, shards);
        nodes.sort_by_key(|n| crate::hash::mix(seed ^ crate::hash::node_number(&n.name)));
        shards.sort_by_key(|s| crate::hash::mix(seed ^ s.name.as_str().len() as u64 ^ u64::from(s.load)));
        prop_assert_eq!(plain, plan(&view(nodes, shards), &rules, LATER));
    }

    #[test]
    fn no_budget_capacity_pin_or_closed_node_is_ever_violated(
        (nodes, shards) in any_world(), settings in any_settings(),
    ) {
        let rules = settings.clone().check().unwrap();
        let view = view(nodes, shards);
        let plan = plan(&view, &rules, LATER);
        check_targets(&view, &plan, &settings)?;
        check_budgets(&view, &plan, settings.budgets)?;
        check_capacity(&view, &plan)?;
    }

    #[test]
    fn rounds_of_planning_come_to_rest((nodes, shards) in any_world(), settings in any_settings()) {
        let mut world = World::new(view(nodes, shards), settings.check().unwrap());
        for _ in 0..400 {
            world.wait(SECOND * 5);
            world.round();
        }
        let before = world.moves + world.claims;
        for _ in 0..50 {
            world.wait(SECOND * 5);
            world.round();
        }
        prop_assert_eq!(world.moves + world.claims, before);
        // Nobody is left without an owner if anyone can have it.
        let last = world.round();
        let room = world.view.nodes().iter().any(|n| {
            n.state == NodeState::Active && n.weight > 0 && n.capacity.is_none() && n.labels.len() == 1
        });
        prop_assert!(!room || last.after.homeless == 0, "{:?}", last);
    }

    #[test]
    fn a_zones_limit_holds_for_every_placement((nodes, shards) in any_world(), most_percent in 1..=100u32) {
        let rules = rules(|s| {
            unlimited(s);
            s.zones = ZoneRule::Spread { most_percent };
        });
        let mut shards = shards;
        shards.iter_mut().for_each(|s| s.pin = None);
        let view = view(nodes, shards);
        let plan = plan(&view, &rules, LATER);
        let given_way = plan.problems.iter().find_map(|p| match p {
            crate::plan::PlanProblem::ZoneLimitGivesWay { most, .. } => Some(*most),
            _ => None,
        });
        let limit = given_way.unwrap_or((view.shard_count() as u32 * most_percent / 100).max(1));
        let zones = |view: &PlanView| {
            let mut zones: BTreeMap<Option<String>, u32> = BTreeMap::new();
            for (node, count) in view.nodes().iter().zip(counts(view)) {
                *zones.entry(node.zone.clone()).or_default() += count;
            }
            zones
        };
        let before = zones(&view);
        for (zone, count) in zones(&done(&view, &plan)) {
            // A zone that has more already does not get more still. What could not leave, or comes back, is beyond it.
            let stuck = plan.decisions.iter().filter(|d| {
                matches!(d, Decision::Cancel { .. }) || d.reason() == crate::plan::PlanReason::NoRoom
            });
            let most = limit.max(before[&zone]) + stuck.count() as u32;
            prop_assert!(count <= most, "{zone:?}: {count} of {limit}");
        }
    }
}

fn targets(plan: &Plan) -> impl Iterator<Item = (&Decision, NodeIx)> {
    plan.decisions.iter().filter_map(|d| match d {
        Decision::Intend { to, .. } | Decision::Move { to, .. } => Some((d, *to)),
        _ => None,
    })
}

fn check_targets(
    view: &PlanView,
    plan: &Plan,
    settings: &PlanSettings,
) -> Result<(), TestCaseError> {
    let mut seen = std::collections::BTreeSet::new();
    for (d, to) in targets(plan) {
        let (node, shard) = (view.node(to), view.shard(d.shard()));
        prop_assert!(
            seen.insert(d.shard()),
            "two decisions about one shard: {:?}",
            d
        );
        prop_assert_eq!(node.state, NodeState::Active);
        let labelled = settings
            .required_labels
            .iter()
            .all(|(k, v)| node.labels.get(k) == Some(v));
        prop_assert!(labelled, "{:?} goes to a node without the label", d);
        let pinned_here = shard.pin == Pin::To(to);
        prop_assert!(
            node.weight > 0 || pinned_here,
            "{:?} goes to a node of weight 0",
            d
        );
        if let (Pin::To(pin), Decision::Move { from, .. }) = (shard.pin, d) {
            prop_assert!(
                *from != pin
                    || view.node(pin).state != NodeState::Active
                    || !labelled_node(view, pin, settings)
            );
        }
        if let Decision::Move { from, .. } = d {
            prop_assert_eq!(Some(*from), shard.owner);
            prop_assert!(*from != to && view.node(*from).state != NodeState::Away);
        }
    }
    Ok(())
}

fn labelled_node(view: &PlanView, node: NodeIx, settings: &PlanSettings) -> bool {
    let labels = &view.node(node).labels;
    settings
        .required_labels
        .iter()
        .all(|(k, v)| labels.get(k) == Some(v))
}

fn check_budgets(view: &PlanView, plan: &Plan, budgets: Budgets) -> Result<(), TestCaseError> {
    let n = view.nodes().len();
    let mut total: u32 = view.nodes().iter().map(|n| n.elsewhere.moves_in).sum();
    let mut out: Vec<u32> = view.nodes().iter().map(|n| n.elsewhere.moves_out).collect();
    let mut into: Vec<u32> = view.nodes().iter().map(|n| n.elsewhere.moves_in).collect();
    for (_, shard) in view.shards() {
        let (Some(from), Some(to)) = (shard.owner, shard.bound_for()) else {
            continue;
        };
        if from != to && !shard.loaded && view.node(from).state != NodeState::Away {
            total += 1;
            out[from.at()] += 1;
            into[to.at()] += 1;
        }
    }
    let before = (total, out.clone(), into.clone());
    for (d, to) in targets(plan) {
        if let Decision::Move { from, .. } = d {
            total += 1;
            out[from.at()] += 1;
            into[to.at()] += 1;
        }
    }
    // What was beyond a budget before the plan does not grow.
    prop_assert!(total <= budgets.total.max(before.0));
    for i in 0..n {
        prop_assert!(out[i] <= budgets.per_source.max(before.1[i]));
        prop_assert!(into[i] <= budgets.per_target.max(before.2[i]));
    }
    prop_assert!(plan.moves_allowed <= plan.moves_wanted);
    Ok(())
}

/// Even if nothing has left yet when all that is new has come.
fn check_capacity(view: &PlanView, plan: &Plan) -> Result<(), TestCaseError> {
    let mut held: Vec<u32> = view.nodes().iter().map(|n| n.elsewhere.shards).collect();
    for (_, shard) in view.shards() {
        let bound = shard.bound_for();
        for node in bound
            .into_iter()
            .chain(shard.owner.filter(|o| bound != Some(*o)))
        {
            held[node.at()] += 1;
        }
    }
    for (d, to) in targets(plan) {
        held[to.at()] += 1;
        if let Some(capacity) = view.node(to).capacity {
            prop_assert!(
                held[to.at()] <= capacity,
                "{:?} is one too many for {:?}",
                d,
                view.node(to)
            );
        }
    }
    Ok(())
}
