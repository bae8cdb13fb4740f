//! Shards that move to one node freeze together, so that every router writes once for all of them.

use std::collections::{BTreeMap, BTreeSet};

use super::moving::{pair, phase, plan_one, shard};
use super::test_cluster::{TestCluster, ms};
use crate::ids::ShardId;
use crate::machine::Event;
use crate::node::NodeConfig;
use crate::record::{AssignedBy, MovePhase, Role};

/// A router that never says that it holds anything: what freezes stays so for the freeze timeout.
fn silent_router(bench: &mut TestCluster) {
    bench.start_with("r1", |c| {
        c.role = Role::Router;
        c.keyspaces.clear();
    });
    bench.run(ms(100));
}

fn frozen(bench: &TestCluster, shards: u32) -> usize {
    let freezing = |n: &u32| phase(bench, &shard(*n)) == Some(MovePhase::Freezing);
    (0..shards).filter(freezing).count()
}

#[test]
fn all_moves_of_a_plan_freeze_together_although_the_budgets_let_few_load_at_a_time() {
    let mut bench = TestCluster::new(100);
    bench.catch_up(true);
    bench.mode(AssignedBy::Leader);
    let n1 = bench.start("n1");
    bench.run(ms(3000));
    silent_router(&mut bench);
    let n2 = bench.start("n2");
    let (mut groups, mut loading) = (Vec::new(), 0);
    for _ in 0..10_000 {
        let before = frozen(&bench, 100);
        bench.run(ms(1));
        let now = frozen(&bench, 100);
        if now > before {
            groups.push(now - before);
        }
        let warming = |n: &u32| phase(&bench, &shard(*n)) == Some(MovePhase::Warming);
        let warming = (0..100).filter(warming).count();
        if warming > 0 {
            let held = &bench.session(bench.node(n2).session().unwrap()).held;
            let told: usize = held.values().map(BTreeMap::len).sum();
            loading = loading.max(warming.saturating_sub(told));
        }
    }
    assert_eq!((bench.serving(n1), bench.serving(n2)), (50, 50));
    assert_eq!(groups, [50], "one batch");
    assert!((1..=16).contains(&loading), "{loading}");
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn a_loaded_shard_waits_for_the_rest_of_its_plan_for_a_while_and_its_owner_serves() {
    let (mut bench, n1, n2) = pair(1, true);
    silent_router(&mut bench);
    let id = shard(0);
    let patience = bench.ttl().min(ms(2000));
    plan_one(&mut bench, &id, n2, true);
    bench.run(patience - ms(50));
    assert_eq!(phase(&bench, &id), Some(MovePhase::Warming));
    assert!(bench.served_by(n1).contains(&id));
    let session = bench.node(n2).session().unwrap();
    assert_eq!(bench.session(session).holds(&id), Some(77));
    bench.run(ms(100));
    assert_eq!(phase(&bench, &id), Some(MovePhase::Freezing));
    bench.run(ms(5000));
    assert!(bench.served_by(n2).contains(&id));
    assert_eq!(
        bench.session(session).holds(&id),
        None,
        "told with a renewal"
    );
}

#[test]
fn the_last_move_of_a_plan_brings_the_others_along() {
    let (mut bench, _, n2) = pair(3, true);
    silent_router(&mut bench);
    for n in 0..2 {
        plan_one(&mut bench, &shard(n), n2, true);
    }
    bench.run(ms(500));
    assert_eq!(frozen(&bench, 3), 0);
    plan_one(&mut bench, &shard(2), n2, false);
    bench.run(ms(100));
    assert_eq!(frozen(&bench, 3), 3);
}

#[test]
fn nobody_waits_for_a_load_that_takes_much_longer_than_its_own_or_fails() {
    let (mut bench, n1, n2) = pair(3, true);
    silent_router(&mut bench);
    let slow: BTreeSet<ShardId> = [shard(2)].into();
    bench.hold_warm.clone_from(&slow);
    for n in 0..3 {
        plan_one(&mut bench, &shard(n), n2, false);
    }
    bench.run(ms(200));
    assert_eq!(frozen(&bench, 3), 2, "all but the one that loads");
    assert!(bench.served_by(n1).contains(&shard(2)));
    let (i, activation) = bench.held.pop().unwrap();
    bench.send(i, Event::Loaded(activation));
    bench.run(ms(100));
    assert_eq!(phase(&bench, &shard(2)), Some(MovePhase::Freezing));
}

#[test]
fn without_routers_nothing_waits() {
    let (mut bench, _, n2) = pair(1, true);
    let id = shard(0);
    plan_one(&mut bench, &id, n2, true);
    bench.run(ms(50));
    assert!(bench.served_by(n2).contains(&id));
}

/// Starts a node whose moves are never written, kills it, starts another one, and returns the number of shards that the
/// last one serves after the time in which a cluster without failed writes has moved all of them.
fn moved_after(failed_writes: bool) -> usize {
    let mut bench = TestCluster::new(32);
    let batch = |config: &mut NodeConfig| config.timing.release_batch = 4;
    let n1 = bench.start_with("n1", batch);
    bench.run(ms(5000));
    if failed_writes {
        bench.fail_shard_puts.insert(n1);
    }
    let n2 = bench.start_with("n2", batch);
    bench.run(bench.ttl());
    bench.kill(n2);
    bench.run(bench.ttl() * 3);
    bench.fail_shard_puts.clear();
    bench.run(ms(5000));
    assert_eq!(bench.serving(n1), 32, "n1 serves everything again");
    let n3 = bench.start_with("n3", batch);
    bench.run(ms(4000));
    bench.serving(n3)
}

#[test]
fn moves_whose_first_write_failed_do_not_delay_later_moves() {
    let expected = moved_after(false);
    assert!(expected > 8, "more than two batches: {expected}");
    assert_eq!(moved_after(true), expected);
}
