//! Shards that move from one node to another: every phase, and everything that may happen in it.

use std::sync::Arc;
use std::time::Duration;

use super::test_cluster::{TestCluster, ms};
use crate::ids::{KeyspaceName, NodeName, ShardId, ShardName};
use crate::keys::Key;
use crate::machine::{Action, Event};
use crate::node::tests::leader::leads;
use crate::reason::Reason;
use crate::record::{
    AssignedBy, Move, MovePhase, NodeMode, Owner, Ownership, Record, RecordError, Role, ShardRecord,
};
use crate::telemetry::{NodeEvent, ShardStep};

pub(super) fn shard(n: u32) -> ShardId {
    ShardId::new(KeyspaceName::new("orders").unwrap(), ShardName::index(n))
}

/// Two nodes, all shards at the first, nothing on its way.
pub(super) fn pair(shards: u32, catches_up: bool) -> (TestCluster, usize, usize) {
    let mut bench = TestCluster::new(shards);
    bench.catch_up(catches_up);
    bench.mode(AssignedBy::Leader);
    // Nobody leads: nothing moves but by the test's own hand.
    bench.damage(Key::Leader, RecordError::Newer(2));
    let n1 = bench.start("n1");
    bench.run(bench.ttl() * 10);
    let n2 = bench.start("n2");
    bench.run(ms(100));
    assert_eq!((bench.serving(n1), bench.serving(n2)), (shards as usize, 0));
    (bench, n1, n2)
}

/// Writes the plan of a move as a leader would.
fn plan(bench: &mut TestCluster, id: &ShardId, to: usize) {
    plan_one(bench, id, to, false);
}

/// The same, of a plan that has or has not more for the same target.
pub(super) fn plan_one(bench: &mut TestCluster, id: &ShardId, to: usize, more: bool) {
    let to = Owner {
        node: bench.node(to).ctx.config.name.clone(),
        session: bench.node(to).session().unwrap(),
    };
    bench.edit_shard(id, |record| {
        let Some(by) = record.owner().cloned() else {
            panic!("nobody has it")
        };
        let reason = Reason::Planned;
        let mv = Move {
            id: 77,
            to,
            reason,
            more,
        };
        record.assigned = Some(mv.to.node.clone());
        record.ownership = Ownership::Warming { by, mv };
    });
}

fn steps(bench: &TestCluster, i: usize, id: &ShardId) -> Vec<ShardStep> {
    let of = |note: &NodeEvent| match note {
        NodeEvent::Shard(t) if t.shard == *id => Some(t.step),
        _ => None,
    };
    bench.notes(i).filter_map(of).collect()
}

pub(super) fn phase(bench: &TestCluster, id: &ShardId) -> Option<MovePhase> {
    bench.shard(id).ownership.moving().map(|(_, phase)| phase)
}

#[test]
fn a_move_goes_from_owner_to_target_in_four_writes_and_the_target_loads_while_the_owner_serves() {
    let (mut bench, n1, n2) = pair(2, true);
    let id = shard(0);
    bench.hold_warm.insert(id.clone());
    plan(&mut bench, &id, n2);
    bench.run(ms(500));
    assert!(
        bench.served_by(n1).contains(&id),
        "the owner serves meanwhile"
    );
    assert_eq!(bench.warmed, [(n2, id.clone())]);
    assert_eq!(phase(&bench, &id), Some(MovePhase::Warming));
    let (rev, epoch) = (bench.shard(&id).head.rev, bench.shard(&id).epoch);
    let (i, activation) = bench.held.pop().unwrap();
    bench.send(i, Event::Loaded(activation));
    bench.run(ms(10));
    assert!(bench.served_by(n2).contains(&id));
    assert_eq!(bench.caught_up, [(n2, "sealed by n1".to_owned())]);
    let record = bench.shard(&id);
    // With the plan's own: warmed, sealed, taken.
    assert_eq!(record.head.rev, rev + 3);
    assert_eq!(record.epoch, epoch.next(0));
    assert_eq!(record.history.last().unwrap().reason, Reason::Taken);
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn a_target_that_cannot_catch_up_loads_once_it_owns_the_shard() {
    let (mut bench, _, n2) = pair(2, false);
    let id = shard(0);
    plan(&mut bench, &id, n2);
    bench.run(ms(10));
    assert!(bench.served_by(n2).contains(&id));
    assert!(bench.warmed.is_empty() && bench.caught_up.is_empty());
    assert_eq!(bench.shard(&id).ownership.name(), "serving");
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn what_is_in_flight_ends_before_the_shard_is_sealed() {
    let (mut bench, n1, n2) = pair(2, true);
    let id = shard(0);
    bench.hold_drain.insert(id.clone());
    plan(&mut bench, &id, n2);
    bench.run(ms(500));
    assert_eq!(phase(&bench, &id), Some(MovePhase::Freezing));
    assert!(!bench.served_by(n1).contains(&id) && !bench.served_by(n2).contains(&id));
    let (i, activation) = bench.held.pop().unwrap();
    bench.send(
        i,
        Event::Frozen {
            activation,
            move_id: 77,
        },
    );
    bench.run(ms(10));
    // The stay that was sealed is closed: that is held up, too.
    let (i, activation) = bench.held.pop().unwrap();
    bench.send(i, Event::Drained(activation));
    bench.run(ms(10));
    assert!(bench.served_by(n2).contains(&id));
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn work_that_does_not_end_calls_the_move_off_and_is_served_on_without_a_load() {
    let (mut bench, n1, n2) = pair(2, true);
    let id = shard(0);
    let epoch = bench.shard(&id).epoch;
    let loads = bench.claims.len();
    bench.hold_drain.insert(id.clone());
    plan(&mut bench, &id, n2);
    bench.run(Duration::from_secs(11));
    assert!(bench.served_by(n1).contains(&id));
    assert_eq!((bench.shard(&id).epoch, phase(&bench, &id)), (epoch, None));
    assert_eq!(bench.claims.len(), loads, "nothing was loaded again");
    assert_eq!(
        bench.shard(&id).assigned,
        Some(NodeName::new("n1").unwrap())
    );
    let told = steps(&bench, n1, &id);
    for step in [ShardStep::Frozen, ShardStep::Aborted, ShardStep::Thawed] {
        assert_eq!(told.iter().filter(|s| **s == step).count(), 1, "{step}");
    }
}

#[test]
fn an_owner_that_cannot_seal_calls_the_move_off_and_does_not_try_it_again() {
    let (mut bench, n1, n2) = pair(2, false);
    let id = shard(0);
    bench.unsealable.insert(id.clone());
    plan(&mut bench, &id, n2);
    bench.run(Duration::from_secs(5));
    assert!(bench.served_by(n1).contains(&id));
    assert_eq!(phase(&bench, &id), None);
    let told = steps(&bench, n1, &id);
    let frozen = told.iter().filter(|s| **s == ShardStep::Frozen);
    assert_eq!(frozen.count(), 1, "{told:?}");
}

#[test]
fn a_target_that_cannot_load_calls_the_move_off_and_is_not_chosen_again() {
    let (mut bench, n1, n2) = pair(2, true);
    let id = shard(0);
    bench.failing_at.insert((n2, id.clone()));
    plan(&mut bench, &id, n2);
    bench.run(ms(100));
    assert!(bench.served_by(n1).contains(&id));
    assert_eq!(phase(&bench, &id), None);
    let session = bench.node(n2).session().unwrap();
    assert!(bench.shard(&id).was_failed_by(session));
}

#[test]
fn a_target_that_dies_while_it_loads_costs_nothing() {
    let (mut bench, n1, n2) = pair(2, true);
    let id = shard(0);
    let epoch = bench.shard(&id).epoch;
    bench.hold_warm.insert(id.clone());
    plan(&mut bench, &id, n2);
    bench.run(ms(100));
    bench.kill(n2);
    bench.run(bench.ttl() * 2);
    assert!(bench.served_by(n1).contains(&id));
    assert_eq!((bench.shard(&id).epoch, phase(&bench, &id)), (epoch, None));
}

#[test]
fn a_target_that_dies_after_the_seal_leaves_the_shard_to_its_last_owner_at_a_new_epoch() {
    let (mut bench, n1, n2) = pair(2, true);
    let id = shard(0);
    let epoch = bench.shard(&id).epoch;
    bench.hold_drain.insert(id.clone());
    plan(&mut bench, &id, n2);
    bench.run(ms(100));
    let (i, activation) = bench.held.pop().unwrap();
    bench.kill(n2);
    bench.send(
        i,
        Event::Frozen {
            activation,
            move_id: 77,
        },
    );
    bench.run(ms(10));
    let (i, activation) = bench.held.pop().unwrap();
    bench.hold_drain.clear();
    bench.send(i, Event::Drained(activation));
    bench.run(ms(10));
    assert_eq!(phase(&bench, &id), Some(MovePhase::Sealed));
    bench.run(bench.ttl() * 2);
    assert!(bench.served_by(n1).contains(&id));
    assert_eq!(bench.shard(&id).epoch, epoch.next(0));
    assert_eq!(
        bench.shard(&id).history.last().unwrap().reason,
        Reason::TargetGone
    );
}

#[test]
fn an_owner_that_dies_while_the_target_loads_is_succeeded_by_the_target() {
    let (mut bench, n1, n2) = pair(2, true);
    let id = shard(0);
    bench.hold_warm.insert(id.clone());
    plan(&mut bench, &id, n2);
    bench.run(ms(100));
    bench.kill(n1);
    bench.run(bench.ttl() * 2);
    assert!(bench.served_by(n2).contains(&id));
    assert_eq!(
        bench.shard(&id).history.last().unwrap().reason,
        Reason::OwnerEnded
    );
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn an_owner_that_dies_after_the_seal_is_succeeded_without_waiting() {
    let (mut bench, n1, n2) = pair(2, true);
    let id = shard(0);
    bench.latency.insert(n2, ms(40));
    plan(&mut bench, &id, n2);
    while phase(&bench, &id) != Some(MovePhase::Sealed) {
        bench.run(ms(1));
    }
    bench.kill(n1);
    bench.run(ms(200));
    assert!(bench.served_by(n2).contains(&id));
    assert_eq!(
        bench.shard(&id).history.last().unwrap().reason,
        Reason::Taken
    );
}

#[test]
fn a_leader_that_changes_its_mind_has_the_target_drop_what_it_loaded() {
    let (mut bench, n1, n2) = pair(2, true);
    let id = shard(0);
    bench.hold_warm.insert(id.clone());
    plan(&mut bench, &id, n2);
    bench.run(ms(100));
    bench.edit_shard(&id, |record| {
        let by = record.owner().cloned().unwrap();
        record.assigned = Some(by.node.clone());
        record.ownership = Ownership::Owned { by, serving: true };
    });
    bench.run(ms(100));
    assert!(bench.served_by(n1).contains(&id));
    let closed = |a: &Action| matches!(a, Action::Close { .. });
    assert!(bench.log(n2).iter().any(closed));
}

#[test]
fn a_seal_whose_outcome_is_unknown_bars_the_owner_and_is_sent_again() {
    let (mut bench, n1, n2) = pair(2, true);
    let id = shard(0);
    bench.hold_drain.insert(id.clone());
    plan(&mut bench, &id, n2);
    bench.run(ms(100));
    let (i, activation) = bench.held.pop().unwrap();
    bench.send(
        i,
        Event::Frozen {
            activation,
            move_id: 77,
        },
    );
    bench.run(ms(10));
    let (i, activation) = bench.held.pop().unwrap();
    bench.hold_drain.clear();
    bench.unknown_puts.insert(n1);
    bench.send(i, Event::Drained(activation));
    bench.run(ms(300));
    assert_eq!(phase(&bench, &id), Some(MovePhase::Freezing));
    assert!(!bench.served_by(n1).contains(&id));
    bench.land();
    bench.run(ms(1000));
    assert!(bench.served_by(n2).contains(&id));
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn a_draining_target_calls_moves_to_itself_off() {
    let (mut bench, n1, n2) = pair(2, true);
    let id = shard(0);
    bench.hold_warm.insert(id.clone());
    plan(&mut bench, &id, n2);
    bench.run(ms(100));
    bench.set_mode("n2", NodeMode::Draining);
    bench.run(ms(100));
    assert!(bench.served_by(n1).contains(&id));
    assert_eq!(phase(&bench, &id), None);
}

#[test]
fn a_node_that_stops_moves_everything_it_has_without_a_gap_in_loading() {
    let mut bench = TestCluster::new(16);
    bench.catch_up(true);
    bench.mode(AssignedBy::Leader);
    let nodes = ["n1", "n2", "n3"].map(|name| bench.start(name));
    bench.run(ms(10_000));
    let old = nodes[0];
    let before: Vec<_> = bench.served_by(old).into_iter().collect();
    bench.send(old, Event::Stop);
    bench.run(ms(500));
    assert!(bench.log(old).contains(&Action::Stopped));
    for id in &before {
        assert_eq!(
            bench.shard(id).history.last().unwrap().reason,
            Reason::Taken,
            "{id}"
        );
    }
    assert_eq!(bench.serving(nodes[1]) + bench.serving(nodes[2]), 16);
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn a_router_that_never_holds_delays_a_move_by_the_freeze_timeout_and_one_that_holds_does_not() {
    let (mut bench, n1, n2) = pair(2, true);
    let router = bench.start_with("r1", |c| {
        c.role = Role::Router;
        c.keyspaces.clear();
    });
    bench.run(ms(100));
    let session = bench.node(router).session().unwrap();
    let id = shard(0);
    plan(&mut bench, &id, n2);
    bench.run(ms(1900));
    assert!(bench.served_by(n1).contains(&id));
    assert_eq!(phase(&bench, &id), Some(MovePhase::Freezing));
    bench.run(ms(200));
    assert!(bench.served_by(n2).contains(&id));
    let id = shard(1);
    let held = [(id.keyspace.clone(), [(id.shard.clone(), 77)].into())].into();
    plan(&mut bench, &id, n2);
    bench.run(ms(50));
    assert!(bench.served_by(n1).contains(&id));
    bench.send(router, Event::Hold(held));
    bench.run(ms(50));
    assert!(bench.served_by(n2).contains(&id));
    assert_eq!(bench.session(session).holds(&id), Some(77));
}

#[test]
fn a_leader_moves_for_balance_and_every_move_is_one_of_four_writes() {
    let mut bench = TestCluster::new(20);
    bench.catch_up(true);
    bench.mode(AssignedBy::Leader);
    let n1 = bench.start("n1");
    bench.run(ms(3000));
    let revs: Vec<u64> = bench.shards().map(|r| r.head.rev).collect();
    let n2 = bench.start("n2");
    bench.run(ms(20_000));
    assert_eq!((bench.serving(n1), bench.serving(n2)), (10, 10));
    assert!(leads(&bench, n1));
    let moved = |r: &ShardRecord| r.owner().unwrap().node.as_str() == "n2";
    for (record, before) in bench.shards().zip(revs) {
        let expected = if moved(record) { 4 } else { 0 };
        assert_eq!(record.head.rev - before, expected);
    }
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn a_corrupted_record_in_the_middle_of_a_move_closes_both_sides() {
    let (mut bench, n1, n2) = pair(2, true);
    let id = shard(0);
    bench.hold_warm.insert(id.clone());
    plan(&mut bench, &id, n2);
    bench.run(ms(100));
    let intact = bench.shard(&id).clone();
    bench.corrupt(Key::Shard(id.clone()));
    bench.run(ms(100));
    assert!(!bench.served_by(n1).contains(&id) && !bench.served_by(n2).contains(&id));
    let mut head = intact.head.clone();
    head.rev += 2;
    let back = Record::Shard(Arc::new(ShardRecord { head, ..intact }));
    bench.raw_set(Key::Shard(id.clone()), back);
    bench.run(bench.ttl() * 10);
    assert!(bench.served_by(n1).contains(&id) || bench.served_by(n2).contains(&id));
    assert_eq!(bench.overlaps(), 0);
}
