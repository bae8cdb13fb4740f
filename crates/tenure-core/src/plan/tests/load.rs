//! Balance by load: what it must do, and above all what it must not.

use std::time::Duration;

use super::harness::*;
use crate::hash::mix;
use crate::ids::ShardName;
use crate::plan::{
    BalanceBy, Decision, LoadAverage, NodeState, PlanReason, PlanSettings, PlanShardRecord,
    PlanView, ShardIx, ZoneRule, plan,
};

fn by_load(settings: &mut PlanSettings) {
    settings.balance_by = BalanceBy::Cost;
    unlimited(settings);
}

fn world(nodes_: u32, loads: &[u32]) -> World {
    let owners = (0..loads.len() as u32).map(|i| i % nodes_);
    let mut shards = owned(owners);
    for (shard, load) in shards.iter_mut().zip(loads) {
        shard.load = *load;
    }
    World::new(view(nodes(nodes_), shards), rules(by_load))
}

fn zipf(shards: u32) -> Vec<u32> {
    (1..=shards).map(|i| 100_000 / i).collect()
}

fn loads(view: &PlanView) -> Vec<u64> {
    let mut loads = vec![0; view.nodes().len()];
    for (_, shard) in view.shards() {
        loads[shard.bound_for().unwrap().at()] += u64::from(shard.load);
    }
    loads
}

/// Settles, and gives how many moves it took.
fn settle(world: &mut World) -> u32 {
    let before = world.moves;
    world.run(300);
    assert!(world.round().is_quiet());
    world.moves - before
}

fn set_loads(view: &mut PlanView, load: impl Fn(u32) -> u32) {
    for i in 0..view.shard_count() as u32 {
        let mut shard = view.shard(ShardIx(i));
        shard.load = load(i);
        view.set_shard(ShardIx(i), shard);
    }
}

#[test]
fn a_node_that_joins_beside_one_hot_shard_still_gets_its_share() {
    let mut all = vec![100; 100];
    all[0] = 100_000;
    let mut world = world(4, &all);
    settle(&mut world);
    world.join("n9");
    settle(&mut world);
    // The hot shard fills a node by itself; the others divide what is left.
    let loads = loads(&world.view);
    let joined = loads[world.node("n9").at()];
    assert!((2000..3000).contains(&joined), "{loads:?}");
    let hot = world.view.find_shard(&ShardName::index(0)).unwrap();
    assert!(!world.changes.contains_key(&hot), "moving it helps nobody");
}

#[test]
fn under_constant_load_moves_stop_and_stay_zero() {
    let mut world = world(7, &zipf(500));
    let settling = settle(&mut world);
    assert!(settling > 0);
    world.run(1000);
    assert_eq!(world.moves, settling);
}

#[test]
fn load_is_spread_within_the_band() {
    let mut world = world(5, &zipf(1000)[20..]);
    settle(&mut world);
    let loads = loads(&world.view);
    let mean = loads.iter().sum::<u64>() / 5;
    assert!(
        loads
            .iter()
            .all(|l| l * 10 < mean * 11 && l * 10 > mean * 9),
        "{loads:?}"
    );
}

#[test]
fn noise_of_a_tenth_moves_nothing() {
    for base in [zipf(400), vec![500; 400], (0..400).map(|i| i * 3).collect()] {
        let mut world = world(6, &base);
        settle(&mut world);
        let settled = world.moves;
        let names: Vec<ShardName> = (0..400).map(ShardName::index).collect();
        let number: Vec<usize> = (0..400)
            .map(|i| {
                let name = world.view.shard_name(ShardIx(i));
                names.iter().position(|n| n == name).unwrap()
            })
            .collect();
        let mut smooth = vec![LoadAverage::default(); 400];
        for second in 0..600u64 {
            world.wait(SECOND);
            for (i, s) in smooth.iter_mut().enumerate() {
                let base = u64::from(base[number[i]]);
                let noise = mix(second * 1000 + i as u64) % (base / 5 + 1);
                let load = base - base / 10 + noise;
                *s = s.report(load as u32, world.now, Duration::from_secs(30));
            }
            set_loads(&mut world.view, |i| smooth[i as usize].load());
            world.round();
        }
        assert_eq!(world.moves, settled);
    }
}

#[test]
fn idle_and_almost_idle_shards_are_left_alone() {
    let mut world = world(5, &[0; 200]);
    for second in 0..300u64 {
        world.wait(SECOND);
        set_loads(&mut world.view, |i| {
            (mix(second * 1000 + u64::from(i)) % 3) as u32
        });
        world.round();
    }
    assert_eq!(world.moves, 0);
}

#[test]
fn a_node_that_joins_an_idle_cluster_gets_its_share_of_shards() {
    let mut world = world(4, &[0; 100]);
    world.join("n9");
    settle(&mut world);
    assert!(
        (19..=21).contains(&world.has("n9")),
        "{:?}",
        counts(&world.view)
    );
    assert!(world.moves <= 21);
}

#[test]
fn a_shard_that_has_become_hot_drives_others_away_and_stays() {
    let mut world = world(4, &[100; 80]);
    let hot = ShardIx(7);
    let mut shard = world.view.shard(hot);
    shard.load = 4000;
    world.view.set_shard(hot, shard);
    let owner = shard.owner.unwrap();
    settle(&mut world);
    assert_eq!(world.view.shard(hot).owner, Some(owner));
    assert!(
        counts(&world.view)[owner.at()] <= 2,
        "{:?}",
        counts(&world.view)
    );
}

#[test]
fn capacity_zones_pins_and_cordons_hold_for_load_too() {
    let mut world = world(4, &zipf(80));
    world.rules = rules(|s| {
        by_load(s);
        s.zones = ZoneRule::Spread { most_percent: 60 };
    });
    for (i, zone) in ["a", "a", "a", "b"].into_iter().enumerate() {
        let mut node = world.view.node(crate::plan::NodeIx(i as u32)).clone();
        node.zone = Some(zone.to_owned());
        node.capacity = (i == 1).then_some(7);
        if i == 2 {
            node.state = NodeState::Cordoned;
        }
        world.view.put_node(node);
    }
    let had = world.has("n2");
    settle(&mut world);
    let counts = counts(&world.view);
    assert_eq!(counts[1], 7, "{counts:?}");
    assert_eq!(counts[2], had, "{counts:?}");
    assert!(counts[..3].iter().sum::<u32>() <= 48, "{counts:?}");
}

#[test]
fn zones_that_are_not_preferred_are_emptied_under_load_too() {
    let mut world = world(3, &[100; 30]);
    world.rules = rules(|s| {
        by_load(s);
        s.zones = ZoneRule::Prefer {
            zones: vec!["a".to_owned()],
        };
    });
    for (i, zone) in ["a", "a", "b"].into_iter().enumerate() {
        let mut node = world.view.node(crate::plan::NodeIx(i as u32)).clone();
        node.zone = Some(zone.to_owned());
        world.view.put_node(node);
    }
    let first = plan(&world.view, &world.rules, world.now);
    assert!(
        first
            .actions()
            .all(|d| d.reason() == PlanReason::ZonePreference)
    );
    settle(&mut world);
    assert_eq!(counts(&world.view), [15, 15, 0]);
}

#[test]
fn the_hottest_shards_of_a_dead_node_are_spread_over_the_others() {
    let mut world = world(5, &zipf(100));
    settle(&mut world);
    world.set("n0", NodeState::Away);
    let plan = world.round();
    assert!(plan.actions().all(|d| matches!(d, Decision::Intend { .. })));
    settle(&mut world);
    assert_eq!(world.has("n0"), 0);
}

#[test]
fn pinned_shards_stay_whatever_their_load() {
    let mut shards: Vec<PlanShardRecord> = owned([0, 0, 0, 0, 1]);
    for shard in &mut shards[..2] {
        shard.load = 1000;
        shard.pin = Some(name("n0"));
    }
    let mut world = World::new(view(nodes(2), shards), rules(by_load));
    settle(&mut world);
    assert!(world.view.shard(ShardIx(0)).owner == world.view.shard(ShardIx(1)).owner);
    assert_eq!(counts(&world.view), [2, 3]);
}
