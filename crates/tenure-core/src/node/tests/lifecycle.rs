//! The life of a node: how it comes back, when it is asked for first, and what operators can tell it.

use std::time::Duration;

use super::test_cluster::{TestCluster, ms};
use crate::ids::{KeyspaceName, NodeName, ShardId, ShardName};
use crate::keys::Key;
use crate::machine::{Action, Event};
use crate::reason::Reason;
use crate::record::{
    AssignedBy, MovePhase, NodeMode, NodeRecord, Ownership, Record, RejoinMode, ShardRecord,
};
use crate::telemetry::NodeEvent;

/// Each way in which time is kept, with the leader's mode: the same must come out.
fn on_each_kind(shards: u32, check: impl Fn(TestCluster)) {
    let mut one_machine = TestCluster::new(shards);
    one_machine.share_clock();
    for mut bench in [
        TestCluster::new(shards),
        TestCluster::leased(shards),
        one_machine,
    ] {
        bench.mode(AssignedBy::Leader);
        check(bench);
    }
}

fn manual(bench: &mut TestCluster, name: &str) -> usize {
    bench.start_with(name, |c| c.rejoin = RejoinMode::Manual)
}

/// A restart with the data directory of process `old`.
fn again(bench: &mut TestCluster, name: &str, old: usize, rejoin: RejoinMode) -> usize {
    let last = bench.remembered(old);
    bench.start_with(name, |c| (c.last_session, c.rejoin) = (last, rejoin))
}

fn node(bench: &TestCluster, name: &str) -> NodeRecord {
    match bench.get(&Key::Node(NodeName::new(name).unwrap())) {
        Some(Record::Node(record)) => (**record).clone(),
        other => panic!("{name}: {other:?}"),
    }
}

fn mode(bench: &TestCluster, name: &str) -> NodeMode {
    node(bench, name).mode
}

fn boot(bench: &TestCluster) -> u64 {
    match bench.get(&Key::Cluster) {
        Some(Record::Cluster(record)) => record.boot,
        other => panic!("{other:?}"),
    }
}

fn drained(reason: &str) -> NodeMode {
    NodeMode::drained(reason)
}

fn shard(n: u32) -> ShardId {
    ShardId::new(KeyspaceName::new("orders").unwrap(), ShardName::index(n))
}

/// Longer than any session lasts that nobody renews, on each kind of store.
fn long(bench: &TestCluster) -> Duration {
    bench.ttl() * 2 + ms(2000)
}

fn cut_off(bench: &mut TestCluster, i: usize, time: Duration) {
    bench.leases.away.insert(i);
    bench.deaf.insert(i);
    bench.run(time);
    bench.leases.away.remove(&i);
    bench.deaf.remove(&i);
    bench.send(i, Event::WatchGap);
}

#[test]
fn a_first_start_is_active_and_one_that_only_joins_is_drained_until_it_is_activated() {
    on_each_kind(8, |mut bench| {
        let n1 = manual(&mut bench, "n1");
        let n2 = bench.start_with("n2", |c| c.join = true);
        bench.run(ms(20_000));
        assert_eq!(mode(&bench, "n1"), NodeMode::Active);
        assert_eq!(mode(&bench, "n2"), drained("joined"));
        assert!(bench.started(n2));
        assert_eq!((bench.serving(n1), bench.serving(n2)), (8, 0));
        bench.kill(n2);
        let n2 = again(&mut bench, "n2", n2, RejoinMode::Auto);
        bench.run(ms(20_000));
        assert_eq!(mode(&bench, "n2"), drained("joined"), "over restarts, too");
        bench.set_mode("n2", NodeMode::Active);
        bench.run(ms(60_000));
        assert_eq!((bench.serving(n1), bench.serving(n2)), (4, 4));
    });
}

#[test]
fn a_restart_within_the_ttl_is_active_at_once_whatever_the_operator_wants_to_be_asked() {
    on_each_kind(8, |mut bench| {
        let nodes = ["n1", "n2"].map(|name| manual(&mut bench, name));
        bench.run(ms(20_000));
        let before = bench.served_by(nodes[0]);
        bench.kill(nodes[0]);
        bench.run(ms(500));
        let n1 = again(&mut bench, "n1", nodes[0], RejoinMode::Manual);
        bench.run(ms(100));
        assert!(bench.started(n1));
        assert_eq!(mode(&bench, "n1"), NodeMode::Active);
        assert_eq!(bench.served_by(n1), before);
        bench.run(ms(20_000));
        assert_eq!(boot(&bench), 1, "others lived");
        assert!(!node(&bench, "n1").unsure);
    });
}

#[test]
fn a_start_does_not_wait_for_ever_for_one_who_is_dead_and_whose_record_was_taken_off_its_lease() {
    let mut bench = TestCluster::leased(8);
    let nodes = ["n1", "n2"].map(|name| manual(&mut bench, name));
    bench.run(ms(20_000));
    for n in nodes {
        bench.kill(n);
    }
    let dead = bench.node(nodes[1]).session().unwrap();
    bench.edit_session(dead, |_| ());
    bench.edit_node("n2", |record| record.unsure = true);
    let time = long(&bench);
    bench.run(time);
    assert!(bench.session(dead).is_live(), "nobody is there to end it");
    let n1 = manual(&mut bench, "n1");
    bench.run(ms(60_000));
    assert!(!bench.session(dead).is_live());
    assert_eq!(mode(&bench, "n1"), NodeMode::Active, "nobody else lived");
    assert_eq!((boot(&bench), bench.serving(n1)), (2, 8));
}

#[test]
fn a_start_is_sure_as_soon_as_it_has_seen_another_renew() {
    let mut one_machine = TestCluster::new(8);
    one_machine.share_clock();
    for mut bench in [TestCluster::new(8), one_machine] {
        manual(&mut bench, "n1");
        bench.run(ms(20_000));
        manual(&mut bench, "n2");
        bench.run(ms(50));
        assert!(node(&bench, "n2").unsure);
        let one_renewal = bench.ttl() / 6 + ms(50);
        bench.run(one_renewal);
        assert!(!node(&bench, "n2").unsure);
    }
}

#[test]
fn a_restart_after_the_ttl_while_others_live_is_drained_if_the_operator_wants_to_be_asked() {
    for rejoin in [RejoinMode::Manual, RejoinMode::Auto] {
        on_each_kind(8, |mut bench| {
            let nodes = ["n1", "n2", "n3"].map(|name| bench.start(name));
            bench.run(ms(20_000));
            bench.kill(nodes[0]);
            bench.run(long(&bench));
            let n1 = again(&mut bench, "n1", nodes[0], rejoin);
            bench.run(long(&bench) * 4);
            assert!(bench.started(n1));
            if rejoin == RejoinMode::Auto {
                assert_eq!(mode(&bench, "n1"), NodeMode::Active);
                assert!(bench.serving(n1) > 0);
                return;
            }
            assert_eq!(mode(&bench, "n1"), drained("stale_restart"));
            assert_eq!(bench.serving(n1), 0);
            bench.set_mode("n1", NodeMode::Active);
            bench.run(ms(60_000));
            assert!(bench.serving(n1) > 0);
            assert_eq!(bench.overlaps(), 0);
        });
    }
}

#[test]
fn a_node_that_stopped_in_good_order_is_active_again_however_long_it_was_away() {
    on_each_kind(8, |mut bench| {
        let nodes = ["n1", "n2"].map(|name| manual(&mut bench, name));
        bench.run(ms(20_000));
        bench.send(nodes[0], Event::Stop);
        bench.run(ms(20_000));
        let n1 = again(&mut bench, "n1", nodes[0], RejoinMode::Manual);
        bench.run(ms(60_000));
        assert_eq!(mode(&bench, "n1"), NodeMode::Active);
        assert!(bench.serving(n1) > 0);
    });
}

#[test]
fn a_node_cut_off_for_longer_than_the_ttl_comes_back_as_the_operator_wants() {
    for rejoin in [RejoinMode::Manual, RejoinMode::Auto] {
        on_each_kind(8, |mut bench| {
            let nodes = ["n1", "n2"].map(|name| bench.start_with(name, |c| c.rejoin = rejoin));
            bench.run(ms(20_000));
            let time = long(&bench);
            cut_off(&mut bench, nodes[0], time);
            assert_eq!(bench.serving(nodes[1]), 8);
            bench.run(ms(60_000));
            if rejoin == RejoinMode::Auto {
                assert_eq!(mode(&bench, "n1"), NodeMode::Active);
                assert_eq!(bench.serving(nodes[0]), 4);
                return;
            }
            assert_eq!(mode(&bench, "n1"), drained("registration_expired"));
            assert_eq!(bench.serving(nodes[0]), 0);
            bench.set_mode("n1", NodeMode::Active);
            bench.run(ms(60_000));
            assert_eq!(bench.serving(nodes[0]), 4);
            assert_eq!(bench.overlaps(), 0);
        });
    }
}

#[test]
fn a_cut_shorter_than_the_ttl_changes_no_mode() {
    on_each_kind(8, |mut bench| {
        let nodes = ["n1", "n2"].map(|name| manual(&mut bench, name));
        bench.run(ms(20_000));
        let before = bench.served_by(nodes[0]);
        let time = bench.ttl() * 65 / 100;
        cut_off(&mut bench, nodes[0], time);
        bench.run(ms(20_000));
        assert_eq!(mode(&bench, "n1"), NodeMode::Active);
        assert_eq!(bench.served_by(nodes[0]), before);
    });
}

#[test]
fn who_was_seen_alive_was_there_although_it_died_before_anybody_looked_for_it() {
    let mut one_machine = TestCluster::new(8);
    one_machine.share_clock();
    // Where the store keeps the time, nothing is written that could be seen.
    for mut bench in [TestCluster::new(8), one_machine] {
        bench.mode(AssignedBy::Leader);
        let n1 = manual(&mut bench, "n1");
        bench.run(ms(10_000));
        let n2 = manual(&mut bench, "n2");
        // It renews its session once or twice more.
        bench.run(bench.ttl() / 2);
        bench.kill(n1);
        bench.run(long(&bench));
        assert_eq!((boot(&bench), bench.serving(n2)), (1, 8));
        again(&mut bench, "n1", n1, RejoinMode::Manual);
        bench.run(long(&bench));
        assert_eq!(mode(&bench, "n1"), drained("stale_restart"));
    }
}

#[test]
fn a_whole_cluster_that_comes_back_in_any_order_is_active_and_its_boot_number_is_raised_once() {
    const ORDERS: [[usize; 3]; 6] = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    for order in ORDERS {
        for gap in [ms(0), ms(700), ms(9000)] {
            for directories in [true, false] {
                on_each_kind(8, |mut bench| {
                    let names = ["n1", "n2", "n3"];
                    let old = names.map(|name| manual(&mut bench, name));
                    bench.run(ms(20_000));
                    old.iter().for_each(|i| bench.kill(*i));
                    bench.run(long(&bench));
                    let mut new = Vec::new();
                    for n in order {
                        new.push(match directories {
                            true => again(&mut bench, names[n], old[n], RejoinMode::Manual),
                            false => manual(&mut bench, names[n]),
                        });
                        bench.run(gap);
                    }
                    bench.run(ms(60_000));
                    for name in names {
                        let what = format!("{name} of {order:?}, {gap:?}, {directories}");
                        assert_eq!(mode(&bench, name), NodeMode::Active, "{what}");
                        assert!(!node(&bench, name).unsure, "{what}");
                    }
                    let served: usize = new.iter().map(|i| bench.serving(*i)).sum();
                    assert_eq!((served, boot(&bench)), (8, 2));
                    assert_eq!(bench.overlaps(), 0);
                });
            }
        }
    }
}

#[test]
fn a_store_that_was_away_for_all_drains_nobody() {
    on_each_kind(8, |mut bench| {
        let nodes = ["n1", "n2", "n3"].map(|name| manual(&mut bench, name));
        bench.run(ms(20_000));
        bench.leases.away.extend(nodes);
        bench.run(long(&bench) * 2);
        bench.leases.away.clear();
        bench.run(ms(90_000));
        for name in ["n1", "n2", "n3"] {
            assert_eq!(mode(&bench, name), NodeMode::Active, "{name}");
        }
        let served: usize = nodes.iter().map(|i| bench.serving(*i)).sum();
        assert_eq!(served, 8);
    });
}

#[test]
fn one_that_came_back_with_the_whole_cluster_is_asked_for_when_it_is_stale_alone_later() {
    on_each_kind(8, |mut bench| {
        let names = ["n1", "n2"];
        let old = names.map(|name| manual(&mut bench, name));
        bench.run(ms(20_000));
        old.iter().for_each(|i| bench.kill(*i));
        bench.run(long(&bench));
        let new = [0, 1].map(|n| again(&mut bench, names[n], old[n], RejoinMode::Manual));
        bench.run(ms(60_000));
        assert_eq!(boot(&bench), 2);
        bench.kill(new[0]);
        bench.run(long(&bench));
        again(&mut bench, "n1", new[0], RejoinMode::Manual);
        bench.run(ms(60_000));
        assert_eq!(mode(&bench, "n1"), drained("stale_restart"));
        assert_eq!(boot(&bench), 2);
    });
}

#[test]
fn an_operators_drain_outlives_everything_and_a_draining_node_is_drained_when_it_has_nothing() {
    on_each_kind(8, |mut bench| {
        let nodes = ["n1", "n2"].map(|name| bench.start(name));
        bench.run(ms(20_000));
        bench.set_mode("n1", NodeMode::Draining);
        bench.run(ms(60_000));
        assert_eq!(mode(&bench, "n1"), drained("operator"));
        assert_eq!(bench.serving(nodes[1]), 8);
        nodes.iter().for_each(|i| bench.kill(*i));
        bench.run(long(&bench));
        let n1 = again(&mut bench, "n1", nodes[0], RejoinMode::Auto);
        let n2 = again(&mut bench, "n2", nodes[1], RejoinMode::Auto);
        bench.run(ms(60_000));
        assert_eq!(mode(&bench, "n1"), drained("operator"));
        assert_eq!((bench.serving(n1), bench.serving(n2)), (0, 8));
    });
}

#[test]
fn a_node_that_is_activated_while_it_is_away_comes_back_active() {
    on_each_kind(8, |mut bench| {
        let nodes = ["n1", "n2"].map(|name| manual(&mut bench, name));
        bench.run(ms(20_000));
        bench.kill(nodes[0]);
        bench.run(long(&bench));
        bench.edit_node("n1", |record| record.boot = Some(0));
        let n1 = again(&mut bench, "n1", nodes[0], RejoinMode::Manual);
        bench.run(ms(60_000));
        assert_eq!(mode(&bench, "n1"), NodeMode::Active);
        assert!(bench.serving(n1) > 0);
    });
}

#[test]
fn a_node_that_is_evicted_stops_in_good_order_and_its_next_incarnation_is_not_asked_again() {
    on_each_kind(8, |mut bench| {
        let nodes = ["n1", "n2"].map(|name| bench.start(name));
        bench.run(ms(20_000));
        let session = bench.node(nodes[0]).session().unwrap();
        bench.edit_node("n1", |record| record.stop_session = Some(session));
        bench.run(ms(1000));
        assert!(bench.log(nodes[0]).contains(&Action::Stopped));
        let told = |n: &NodeEvent| matches!(n, NodeEvent::StopRequested { .. });
        assert!(bench.notes(nodes[0]).any(told));
        assert_eq!(bench.serving(nodes[1]), 8);
        let n1 = again(&mut bench, "n1", nodes[0], RejoinMode::Manual);
        bench.run(ms(60_000));
        assert_eq!(bench.serving(n1), 4);
        assert_eq!(node(&bench, "n1").stop_session, None);
    });
}

#[test]
fn a_frozen_cluster_moves_nothing_but_serves_what_is_lost() {
    for keyspace in [
        AssignedBy::Leader,
        AssignedBy::Rendezvous,
        AssignedBy::FairShare,
    ] {
        on_each_kind(12, |mut bench| {
            bench.mode(keyspace);
            let n1 = bench.start("n1");
            bench.run(ms(20_000));
            bench.pause_moves(Some(None));
            let n2 = bench.start("n2");
            bench.set_mode("n1", NodeMode::Draining);
            bench.run(ms(60_000));
            assert_eq!((bench.serving(n1), bench.serving(n2)), (12, 0));
            bench.kill(n1);
            bench.run(long(&bench) * 4);
            assert_eq!(bench.serving(n2), 12, "what is lost is served elsewhere");
            let n3 = bench.start("n3");
            bench.run(ms(60_000));
            assert_eq!(bench.serving(n3), 0);
            bench.pause_moves(None);
            bench.run(ms(60_000));
            assert!(bench.serving(n3) > 0, "{keyspace}: and then it goes on");
        });
    }
}

#[test]
fn a_pause_with_a_duration_ends_by_itself_and_is_removed_from_the_record() {
    for keyspace in [
        AssignedBy::Leader,
        AssignedBy::Rendezvous,
        AssignedBy::FairShare,
    ] {
        on_each_kind(12, |mut bench| {
            bench.mode(keyspace);
            bench.start("n1");
            bench.run(ms(20_000));
            bench.pause_moves(Some(Some(Duration::from_secs(60))));
            let n2 = bench.start("n2");
            bench.run(ms(59_000));
            assert_eq!(bench.serving(n2), 0);
            assert!(bench.pause().is_some());
            // The pause is repeated before its end: its duration starts again.
            bench.pause_moves(Some(Some(Duration::from_secs(60))));
            bench.run(ms(58_000));
            assert_eq!(bench.serving(n2), 0);
            bench.run(ms(62_000));
            assert!(bench.serving(n2) > 0, "{keyspace}: moves go on");
            assert_eq!(bench.pause(), None);
        });
    }
}

#[test]
fn a_node_that_starts_during_a_pause_counts_its_duration_from_its_start() {
    on_each_kind(12, |mut bench| {
        let n1 = bench.start("n1");
        bench.run(ms(20_000));
        bench.pause_moves(Some(Some(Duration::from_secs(60))));
        bench.run(ms(40_000));
        bench.kill(n1);
        let n2 = bench.start("n2");
        bench.run(long(&bench) * 2);
        assert_eq!(bench.serving(n2), 12);
        let n3 = bench.start("n3");
        bench.run(ms(40_000));
        assert_eq!(bench.serving(n3), 0, "both count from their own start");
        bench.run(ms(90_000));
        assert!(bench.serving(n3) > 0);
        assert_eq!(bench.pause(), None);
    });
}

#[test]
fn a_frozen_cluster_lets_a_stopping_node_hand_over() {
    on_each_kind(12, |mut bench| {
        let nodes = ["n1", "n2"].map(|name| bench.start(name));
        bench.run(ms(30_000));
        bench.pause_moves(Some(None));
        bench.send(nodes[0], Event::Stop);
        bench.run(ms(3000));
        assert!(bench.log(nodes[0]).contains(&Action::Stopped));
        assert_eq!(bench.serving(nodes[1]), 12);
    });
}

#[test]
fn a_wish_moves_a_shard_once_and_what_cannot_be_is_taken_back() {
    on_each_kind(8, |mut bench| {
        let nodes = ["n1", "n2"].map(|name| bench.start(name));
        bench.run(ms(30_000));
        let id = bench.served_by(nodes[0]).into_iter().next().unwrap();
        let wish = |to: &str| {
            let to = NodeName::new(to).unwrap();
            move |record: &mut ShardRecord| record.move_request = Some(to)
        };
        bench.edit_shard(&id, wish("n2"));
        bench.run(ms(2000));
        assert!(bench.served_by(nodes[1]).contains(&id));
        assert_eq!(bench.shard(&id).move_request, None);
        let past = bench.shard(&id).history.last().cloned().unwrap();
        assert_eq!(past.reason, Reason::Taken);
        for impossible in ["n2", "n9"] {
            bench.edit_shard(&id, wish(impossible));
            bench.run(ms(2000));
            assert_eq!(bench.shard(&id).move_request, None, "{impossible}");
        }
        bench.pause_moves(Some(None));
        bench.edit_shard(&id, wish("n1"));
        bench.run(ms(20_000));
        assert!(bench.served_by(nodes[1]).contains(&id));
        bench.pause_moves(None);
        bench.run(ms(5000));
        assert!(bench.served_by(nodes[0]).contains(&id));
    });
}

#[test]
fn a_keyspace_that_is_to_be_even_now_is_so_without_the_usual_waits() {
    on_each_kind(12, |mut bench| {
        bench.plan_spec(|plan| plan.settle_time = Some(Duration::from_secs(3600)));
        let n1 = bench.start("n1");
        bench.run(ms(20_000));
        let n2 = bench.start("n2");
        bench.run(ms(60_000));
        assert_eq!(bench.serving(n2), 0);
        bench.edit_keyspace(|record| record.rebalance = true);
        bench.run(ms(20_000));
        assert_eq!((bench.serving(n1), bench.serving(n2)), (6, 6));
        bench.edit_keyspace(|record| assert!(!record.rebalance, "it is granted once"));
    });
}

#[test]
fn a_doomed_shard_is_stopped_by_its_owner_and_keeps_its_epoch() {
    for keyspace in [
        AssignedBy::Leader,
        AssignedBy::Rendezvous,
        AssignedBy::FairShare,
    ] {
        on_each_kind(4, |mut bench| {
            bench.mode(keyspace);
            let nodes = ["n1", "n2"].map(|name| bench.start(name));
            bench.run(ms(20_000));
            let served: usize = nodes.iter().map(|i| bench.serving(*i)).sum();
            assert_eq!(served, 4);
            let before = bench.shard(&shard(1)).epoch;
            bench.edit_shard(&shard(1), |record| record.deleting = true);
            bench.run(ms(1000));
            let after = bench.shard(&shard(1)).clone();
            assert_eq!(
                (after.ownership, after.deleting),
                (Ownership::Deleted, false)
            );
            assert_eq!(after.epoch, before);
            bench.run(ms(60_000));
            let served: usize = nodes.iter().map(|i| bench.serving(*i)).sum();
            assert_eq!(served, 3);
        });
    }
}

#[test]
fn a_doomed_shard_whose_owner_is_dead_is_deleted_by_another() {
    on_each_kind(4, |mut bench| {
        let nodes = ["n1", "n2"].map(|name| bench.start(name));
        bench.run(ms(20_000));
        let id = bench.served_by(nodes[0]).into_iter().next().unwrap();
        bench.kill(nodes[0]);
        bench.edit_shard(&id, |record| record.deleting = true);
        bench.run(ms(500));
        assert!(
            bench.shard(&id).owner().is_some(),
            "not before the ttl proves it"
        );
        bench.run(long(&bench) * 4);
        assert_eq!(bench.shard(&id).ownership, Ownership::Deleted);
        assert_eq!(bench.serving(nodes[1]), 3);
    });
}

#[test]
fn a_doomed_shard_on_the_move_is_deleted_by_its_next_owner() {
    on_each_kind(4, |mut bench| {
        bench.catch_up(true);
        let nodes = ["n1", "n2"].map(|name| bench.start(name));
        bench.run(ms(20_000));
        let id = bench.served_by(nodes[0]).into_iter().next().unwrap();
        bench.hold_warm.insert(id.clone());
        bench.edit_shard(&id, |r| r.move_request = Some(NodeName::new("n2").unwrap()));
        bench.run(ms(500));
        let phase = bench.shard(&id).ownership.moving().map(|(_, phase)| phase);
        assert_eq!(phase, Some(MovePhase::Warming));
        bench.edit_shard(&id, |record| record.deleting = true);
        bench.hold_warm.clear();
        for (i, activation) in std::mem::take(&mut bench.held) {
            bench.send(i, Event::Loaded(activation));
        }
        bench.run(ms(5000));
        assert_eq!(bench.shard(&id).ownership, Ownership::Deleted);
        assert_eq!(bench.overlaps(), 0);
    });
}

#[test]
fn a_doomed_shard_on_the_move_whose_owner_dies_is_deleted() {
    for target in ["n1", "n2"] {
        on_each_kind(4, |mut bench| {
            bench.catch_up(true);
            let nodes = ["n1", "n2", "n3"].map(|name| bench.start(name));
            bench.run(ms(20_000));
            let id = bench.served_by(nodes[2]).into_iter().next().unwrap();
            bench.hold_warm.insert(id.clone());
            bench.edit_shard(&id, |r| {
                r.move_request = Some(NodeName::new(target).unwrap())
            });
            bench.run(ms(500));
            assert!(bench.shard(&id).ownership.moving().is_some());
            bench.edit_shard(&id, |record| record.deleting = true);
            bench.kill(nodes[2]);
            bench.run(long(&bench) * 4);
            assert_eq!(
                bench.shard(&id).ownership,
                Ownership::Deleted,
                "to {target}"
            );
        });
    }
}

#[test]
fn what_is_recorded_of_an_ephemeral_node_goes_after_a_day_unless_an_operator_set_something() {
    let mut bench = TestCluster::new(4);
    bench.start("n1");
    let others =
        ["n2", "n3", "n4", "n5"].map(|name| bench.start_with(name, |c| c.ephemeral = name != "n5"));
    bench.run(ms(10_000));
    bench.set_mode("n3", drained(NodeMode::BY_OPERATOR));
    bench.edit_node("n4", |record| record.cordoned = true);
    bench.run(ms(10_000));
    others.iter().for_each(|i| bench.kill(*i));
    bench.run_roughly(Duration::from_secs(23 * 3600));
    let there = |bench: &TestCluster, name: &str| {
        let key = Key::Node(NodeName::new(name).unwrap());
        bench.get(&key).is_some()
    };
    assert!(there(&bench, "n2"));
    bench.run_roughly(Duration::from_secs(2 * 3600));
    let left = ["n1", "n2", "n3", "n4", "n5"].map(|name| there(&bench, name));
    assert_eq!(left, [true, false, true, true, true]);
}
