//! Whole nodes against a store that answers at once: the plain course of things. Faults are the simulator's business.

mod acquire;
mod hostile;
mod late_writes;
mod leader;
mod lifecycle;
mod lost_records;
mod mixed;
mod move_batches;
mod moving;
mod regressions;
mod resigned;
mod restored_store;
mod store_leases;
mod test_cluster;
mod write_denied;

use std::collections::BTreeMap;
use std::time::Duration;

use test_cluster::{TestCluster, ms};

use crate::ids::{SessionId, ShardId};
use crate::keys::Key;
use crate::machine::{Action, ActivationId, Event, Refusal};
use crate::record::{AssignedBy, KeyspaceKind, NodeMode, Ownership, Record};
use crate::telemetry::NodeEvent;

#[test]
fn one_node_claims_loads_and_serves_everything_before_it_counts_as_started() {
    let mut bench = TestCluster::new(8);
    let n1 = bench.start("n1");
    bench.run(ms(10));
    assert!(bench.started(n1));
    assert_eq!(bench.serving(n1), 8);
    let started = bench
        .log(n1)
        .iter()
        .position(|a| *a == Action::Started)
        .unwrap();
    let opened = bench
        .log(n1)
        .iter()
        .rposition(|a| matches!(a, Action::Open(_)))
        .unwrap();
    assert!(opened < started);
}

#[test]
fn a_second_node_gets_its_part_and_nobody_is_left_out() {
    let mut bench = TestCluster::new(32);
    let n1 = bench.start("n1");
    bench.run(ms(100));
    let n2 = bench.start("n2");
    bench.run(ms(2000));
    assert_eq!(bench.serving(n1) + bench.serving(n2), 32);
    assert!(bench.serving(n1) > 5 && bench.serving(n2) > 5);
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn a_dead_nodes_shards_are_served_elsewhere_within_the_ttl_and_a_fifth() {
    let mut bench = TestCluster::new(16);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3000));
    bench.kill(n1);
    bench.run(bench.ttl() + bench.ttl() / 5);
    assert_eq!(bench.serving(n2), 16);
}

#[test]
fn a_node_that_stops_hands_over_at_once_and_leaves_an_ended_session() {
    let mut bench = TestCluster::new(16);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3000));
    let session = bench.node(n1).session().unwrap();
    bench.send(n1, Event::Stop);
    bench.run(ms(50));
    assert!(bench.log(n1).contains(&Action::Stopped));
    assert_eq!(bench.serving(n2), 16);
    assert!(bench.session(session).is_proven_end());
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn a_restart_with_its_data_directory_takes_its_shards_back_without_waiting() {
    let mut bench = TestCluster::new(16);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3000));
    let (before, session) = (bench.served_by(n1), bench.node(n1).session());
    bench.kill(n1);
    let again = bench.start_with("n1", |c| c.last_session = session);
    bench.run(ms(50));
    assert!(bench.started(again));
    assert_eq!(bench.served_by(again), before);
    assert_eq!(bench.serving(n2), 16 - before.len());
}

#[test]
fn a_second_process_of_one_name_is_refused_while_the_first_renews() {
    let mut bench = TestCluster::new(4);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    let twin = bench.start("n1");
    bench.run(bench.ttl());
    assert!(
        bench
            .notes(twin)
            .any(|n| matches!(n, NodeEvent::WaitingForName { .. }))
    );
    assert_eq!(bench.refusal(twin), None);
    bench.run(bench.ttl() / 4);
    assert!(matches!(
        bench.refusal(twin),
        Some(Refusal::NameInUse { .. })
    ));
    assert_eq!(bench.serving(n1), 4);
}

#[test]
fn a_second_process_of_one_name_takes_over_when_the_first_is_dead() {
    let mut bench = TestCluster::new(4);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    bench.kill(n1);
    let again = bench.start("n1");
    bench.run(bench.ttl() + bench.ttl() / 5);
    assert_eq!(bench.serving(again), 4);
}

#[test]
fn a_keyspace_that_differs_is_refused_with_the_way_out() {
    let mut bench = TestCluster::new(4);
    bench.start("n1");
    bench.run(ms(100));
    let other = bench.start_with("n2", |c| {
        c.keyspaces
            .values_mut()
            .for_each(|k| k.kind = KeyspaceKind::Hashed(5));
    });
    bench.run(ms(100));
    let refusal = bench.refusal(other).unwrap().to_string();
    assert!(
        refusal.contains("hashed(4)") && refusal.contains("hashed(5)"),
        "{refusal}"
    );
}

#[test]
fn greedy_nodes_take_their_fair_share_and_give_to_those_who_join() {
    let mut bench = TestCluster::new(10);
    bench.mode(AssignedBy::FairShare);
    let first = bench.start("n1");
    bench.run(ms(100));
    assert_eq!(bench.serving(first), 10);
    let more: Vec<_> = ["n2", "n3"].into_iter().map(|n| bench.start(n)).collect();
    bench.run(ms(5000));
    let mut counts: Vec<_> = more
        .iter()
        .chain([&first])
        .map(|n| bench.serving(*n))
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [3, 3, 4]);
    assert_eq!(bench.overlaps(), 0);
    let writes = bench.writes();
    bench.run(bench.ttl());
    assert!(
        bench.writes() - writes <= 3 * 7,
        "at rest there are renewals only"
    );
}

#[test]
fn at_rest_a_node_writes_once_per_renewal_and_lists_nothing() {
    let mut bench = TestCluster::new(64);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    let (writes, lists) = (bench.writes(), bench.lists(n1));
    bench.run(bench.ttl() * 20);
    assert!(bench.writes() - writes <= 20 * 6 + 1);
    assert_eq!(bench.lists(n1), lists);
}

#[test]
fn a_deleted_shard_record_comes_back_at_a_higher_epoch_after_a_ttl() {
    let mut bench = TestCluster::new(4);
    let n1 = bench.start("n1");
    bench.start("n2");
    bench.run(ms(3000));
    let id = bench.served_by(n1).into_iter().next().unwrap();
    let before = bench.shard(&id).epoch;
    bench.delete(Key::Shard(id.clone()));
    bench.run(ms(10));
    assert!(
        !bench.served_by(n1).contains(&id),
        "its owner closes at its next read"
    );
    bench.run(bench.ttl() - ms(20));
    assert!(
        bench.get(&Key::Shard(id.clone())).is_none(),
        "nobody restores it before the ttl"
    );
    bench.run(bench.ttl());
    assert!(bench.shard(&id).epoch > before);
    assert!(matches!(
        bench.shard(&id).ownership,
        Ownership::Owned { serving: true, .. }
    ));
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn a_deleted_session_costs_its_owner_the_shards_and_nobody_claims_before_a_ttl() {
    let mut bench = TestCluster::new(8);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3000));
    let ids = bench.served_by(n1);
    let epochs: BTreeMap<_, _> = ids
        .iter()
        .map(|id| (id.clone(), bench.shard(id).epoch))
        .collect();
    bench.delete(Key::Session(bench.node(n1).session().unwrap()));
    bench.run(ms(20));
    assert_eq!(bench.serving(n1), 0);
    bench.run(bench.ttl() - ms(40));
    assert!(
        ids.iter().all(|id| bench.shard(id).epoch == epochs[id]),
        "nobody claims before the ttl"
    );
    bench.run(bench.ttl());
    assert_eq!(bench.serving(n1) + bench.serving(n2), 8);
    assert!(ids.iter().all(|id| bench.shard(id).epoch > epochs[id]));
}

#[test]
fn a_deleted_keyspace_record_comes_back_raised_and_every_epoch_grows() {
    let mut bench = TestCluster::new(4);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    let before: Vec<_> = bench
        .served_by(n1)
        .iter()
        .map(|id| bench.shard(id).epoch)
        .collect();
    bench.delete(bench.keyspace_key());
    bench.run(ms(10));
    assert_eq!(bench.serving(n1), 0);
    bench.run(bench.ttl() * 2);
    let after: Vec<_> = bench
        .served_by(n1)
        .iter()
        .map(|id| bench.shard(id).epoch)
        .collect();
    assert_eq!(after.len(), 4);
    assert!(
        before
            .iter()
            .zip(&after)
            .all(|(b, a)| a.generation() > b.generation())
    );
}

#[test]
fn a_shard_that_cannot_be_loaded_goes_from_node_to_node_and_is_quarantined_after_three() {
    let mut bench = TestCluster::new(4);
    let nodes: Vec<_> = ["n1", "n2", "n3"]
        .into_iter()
        .map(|n| bench.start(n))
        .collect();
    let id = "orders/2".parse().unwrap();
    bench.fail_loads_of(&id);
    bench.run(Duration::from_secs(60));
    assert!(
        nodes.iter().all(|n| bench.started(*n)),
        "one shard does not hold back the others"
    );
    assert_eq!(nodes.iter().map(|n| bench.serving(*n)).sum::<usize>(), 3);
    let reason = bench.shard(&id).quarantine.clone().unwrap().reason;
    assert!(
        ["n1", "n2", "n3"].iter().all(|n| reason.contains(n)),
        "{reason}"
    );
}

#[test]
fn a_drained_node_registers_and_takes_nothing_and_a_draining_one_gives_away() {
    let mut bench = TestCluster::new(8);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3000));
    bench.set_mode("n1", NodeMode::Draining);
    bench.run(ms(500));
    assert_eq!((bench.serving(n1), bench.serving(n2)), (0, 8));
    bench.set_mode("n1", NodeMode::Active);
    bench.run(ms(2000));
    assert!(bench.serving(n1) > 0);
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn an_observer_says_what_it_would_do_and_owns_nothing() {
    let mut bench = TestCluster::new(8);
    bench.start("n1");
    let watcher = bench.start_with("o", |c| c.role = crate::record::Role::Shadow);
    bench.run(ms(3000));
    bench.kill(0);
    bench.run(bench.ttl() * 2);
    assert!(bench.started(watcher));
    assert_eq!(bench.serving(watcher), 0);
    let owners = bench
        .shards()
        .filter(|s| s.owner().is_some_and(|o| o.node.as_str() == "o"))
        .count();
    assert_eq!(owners, 0);
}

#[test]
fn a_raised_floor_makes_owners_claim_their_shards_anew() {
    let mut bench = TestCluster::new(4);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    bench.edit_keyspace(|k| {
        k.generation += 1;
        k.min_generation = k.generation;
    });
    bench.run(ms(500));
    assert_eq!(bench.serving(n1), 4);
    assert!(bench.shards().all(|s| s.epoch.generation() == 2));
}

#[test]
fn a_removed_keyspace_is_given_up() {
    let mut bench = TestCluster::new(4);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    bench.edit_keyspace(|k| k.deleted = true);
    bench.run(ms(500));
    assert_eq!(bench.serving(n1), 0);
    assert!(bench.shards().all(|s| s.owner().is_none()));
}

#[test]
fn tombstones_that_nothing_refers_to_are_swept() {
    let mut bench = TestCluster::new(4);
    let n1 = bench.start("n1");
    bench.start("n0");
    bench.run(ms(1000));
    bench.delete(Key::Session(bench.node(n1).session().unwrap()));
    bench.run(bench.ttl() * 40);
    let ended = bench
        .records()
        .filter(|r| matches!(r, Record::Session(s) if s.ended.is_some()))
        .count();
    assert_eq!(ended, 0);
}

#[test]
fn a_node_whose_application_is_wedged_stops_renewing() {
    let mut bench = TestCluster::new(4);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3000));
    bench.wedge(n1);
    bench.run(bench.ttl() * 3);
    assert!(
        bench
            .notes(n1)
            .any(|n| matches!(n, NodeEvent::RuntimeBlocked { .. }))
    );
    assert_eq!((bench.serving(n1), bench.serving(n2)), (0, 4));
}

/// The run of a shard that began last at a node.
fn last_run(bench: &TestCluster, i: usize, id: &ShardId) -> ActivationId {
    let mut loads = bench.log(i).iter().rev();
    let activation = loads.find_map(|action| match action {
        Action::Load {
            activation, shard, ..
        } if shard == id => Some(*activation),
        _ => None,
    });
    activation.unwrap()
}

/// Has the application at a node say how a shard fares that is served there.
fn say(bench: &mut TestCluster, i: usize, id: &ShardId, trouble: Option<&str>) {
    let activation = last_run(bench, i, id);
    let trouble = trouble.map(ToOwned::to_owned);
    bench.send(
        i,
        Event::Trouble {
            activation,
            trouble,
        },
    );
}

#[test]
fn what_an_application_says_of_a_shard_is_in_the_record_until_its_owner_changes() {
    let mut bench = TestCluster::new(8);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3000));
    let id = bench.served_by(n1).into_iter().next().unwrap();
    let writes = bench.writes();
    say(&mut bench, n1, &id, Some(&"long ".repeat(100)));
    bench.run(ms(10));
    assert_eq!(bench.writes() - writes, 1, "told once, although cut");
    let told = bench.shard(&id).trouble.clone().unwrap();
    assert_eq!(told, "long ".repeat(40));
    say(&mut bench, n1, &id, None);
    bench.run(ms(10));
    assert_eq!(bench.shard(&id).trouble, None);
    say(&mut bench, n1, &id, Some("crashes"));
    bench.run(ms(10));
    assert_eq!(bench.shard(&id).trouble.as_deref(), Some("crashes"));
    assert_eq!(bench.shards().filter(|s| s.trouble.is_some()).count(), 1);
    bench.send(n1, Event::Stop);
    bench.run(ms(50));
    assert!(bench.served_by(n2).contains(&id));
    assert_eq!(bench.shard(&id).trouble, None);
    say(&mut bench, n1, &id, Some("of a stay that is over"));
    bench.run(ms(50));
    assert_eq!(bench.shard(&id).trouble, None);
}

#[test]
fn what_an_application_said_in_an_earlier_run_is_taken_back() {
    let mut bench = TestCluster::new(1);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    let id = bench.served_by(n1).into_iter().next().unwrap();
    say(&mut bench, n1, &id, Some("crashes"));
    bench.run(ms(10));
    let before = bench.shard(&id).clone();
    assert_eq!(before.trouble.as_deref(), Some("crashes"));
    let activation = last_run(&bench, n1, &id);
    bench.send(
        n1,
        Event::LoopEnded {
            activation,
            error: None,
        },
    );
    bench.run(ms(1000));
    assert_eq!(bench.serving(n1), 1);
    assert_eq!(bench.shard(&id).epoch, before.epoch);
    assert_eq!(bench.shard(&id).trouble, None);
}

#[test]
fn trouble_that_cannot_be_written_is_written_later_and_holds_up_no_move() {
    let mut bench = TestCluster::new(8);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3000));
    let id = bench.served_by(n1).into_iter().next().unwrap();
    bench.fail_shard_puts.insert(n1);
    say(&mut bench, n1, &id, Some("crashes"));
    let steps = bench.steps;
    bench.run(ms(1000));
    assert_eq!(bench.shard(&id).trouble, None);
    assert!(bench.steps - steps < 200, "tries again and again at once");
    bench.fail_shard_puts.clear();
    bench.run(ms(1000));
    assert_eq!(bench.shard(&id).trouble.as_deref(), Some("crashes"));
    bench.fail_shard_puts.insert(n1);
    say(&mut bench, n1, &id, Some("worse"));
    bench.run(ms(1));
    bench.set_mode("n1", NodeMode::Draining);
    bench.run(ms(1));
    assert!(
        bench.served_by(n1).contains(&id),
        "it cannot be given away yet"
    );
    bench.fail_shard_puts.clear();
    bench.run(ms(1000));
    assert_eq!(bench.serving(n2), 8);
    assert_eq!(bench.shard(&id).trouble, None);
}

#[test]
fn sessions_of_one_process_have_ids_of_their_own() {
    let mut bench = TestCluster::new(1);
    let n1 = bench.start("n1");
    bench.run(ms(100));
    let first = bench.node(n1).session().unwrap();
    bench.delete(Key::Session(first));
    bench.run(bench.ttl() * 3);
    let second = bench.node(n1).session().unwrap();
    assert_ne!(first, second);
    assert_eq!(second, SessionId(first.0 + 1));
}
