//! Sessions whose time the store keeps: what hands, cuts and long grants may do to them.

use std::sync::Arc;
use std::time::Duration;

use super::test_cluster::{TestCluster, ms};
use crate::ids::SessionId;
use crate::keys::Key;
use crate::lease::LeasePhase;
use crate::machine::{Action, Event, Refusal, Request};
use crate::record::{EndReason, Record, Role};
use crate::telemetry::NodeEvent;

const SHARDS: usize = 24;

/// A cluster that has settled: so many nodes, all shards served.
fn settled(nodes: usize) -> TestCluster {
    let mut bench = TestCluster::leased(SHARDS as u32);
    for n in 0..nodes {
        bench.start(&format!("n{n}"));
    }
    bench.run(bench.ttl() * 3);
    assert_all_served(&bench, nodes);
    bench
}

fn served(bench: &TestCluster, nodes: usize) -> usize {
    (0..nodes).map(|i| bench.serving(i)).sum()
}

fn assert_all_served(bench: &TestCluster, nodes: usize) {
    assert_eq!(served(bench, nodes), SHARDS);
    assert_eq!(bench.overlaps(), 0);
}

/// Everyone takes part again: all is served, and everyone serves something.
fn assert_whole(bench: &mut TestCluster, nodes: usize) {
    bench.run(bench.ttl() * 12);
    assert_all_served(bench, nodes);
    for i in 0..nodes {
        assert!(bench.serving(i) > 0, "n{i} takes no part");
    }
    let writes = bench.writes();
    bench.run(bench.ttl() * 6);
    assert_eq!(bench.writes(), writes, "and it is calm again");
}

fn session(bench: &TestCluster, i: usize) -> SessionId {
    bench.node(i).session().unwrap()
}

/// Runs until a node has noticed that its record is not under its lease.
fn run_until_loose(bench: &mut TestCluster, i: usize) {
    let failures = |bench: &TestCluster| {
        let failed = |n: &&NodeEvent| matches!(n, NodeEvent::RenewalFailed { .. });
        bench.notes(i).filter(failed).count()
    };
    let before = failures(bench);
    for _ in 0..1000 {
        bench.run(ms(1));
        if failures(bench) > before {
            return;
        }
    }
    panic!("n{i} does not notice");
}

#[test]
fn nothing_is_written_at_rest() {
    let mut bench = settled(3);
    let writes = bench.writes();
    bench.run(bench.ttl() * 40);
    assert_eq!(bench.writes(), writes);
    assert_all_served(&bench, 3);
}

#[test]
fn a_short_cut_is_not_noticed() {
    let mut bench = settled(2);
    let claims = bench.claims.len();
    for i in [0, 1] {
        bench.leases.away.insert(i);
        bench.run(bench.ttl() / 2);
        assert_all_served(&bench, 2);
        bench.leases.away.clear();
        bench.run(bench.ttl());
    }
    assert_eq!(bench.claims.len(), claims, "no shard was loaded again");
}

#[test]
fn a_dead_nodes_shards_are_served_elsewhere_when_its_lease_is_gone() {
    let mut bench = settled(2);
    bench.kill(0);
    bench.run(bench.ttl() * 6 / 5);
    assert_eq!(bench.serving(1), SHARDS);
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn a_lease_that_was_revoked_by_hand_costs_a_new_session_and_nothing_more() {
    for nodes in [1, 3] {
        let mut bench = settled(nodes);
        let old = session(&bench, 0);
        bench.revoke(old);
        assert_whole(&mut bench, nodes);
        assert_ne!(session(&bench, 0), old);
    }
}

#[test]
fn a_record_that_lost_its_lease_gets_it_back() {
    for nodes in [1, 3] {
        let mut bench = settled(nodes);
        let id = session(&bench, 0);
        bench.edit_session(id, |_| ());
        assert!(!bench.is_attached(id));
        bench.run(bench.ttl() / 2);
        assert!(bench.is_attached(id));
        assert_whole(&mut bench, nodes);
        assert_eq!(session(&bench, 0), id);
    }
}

#[test]
fn a_lease_that_goes_before_its_record_is_tied_to_it_again_does_not_hold_the_node_up() {
    for nodes in [1, 2] {
        for deaf in [false, true] {
            let mut bench = settled(nodes);
            let old = session(&bench, 0);
            if deaf {
                bench.deaf.insert(0);
            }
            bench.edit_session(old, |_| ());
            run_until_loose(&mut bench, 0);
            bench.revoke(old);
            bench.run(bench.ttl() * 2);
            assert_ne!(session(&bench, 0), old, "{nodes} nodes, deaf: {deaf}");
            bench.deaf.clear();
            assert_whole(&mut bench, nodes);
        }
    }
}

#[test]
fn a_lease_that_runs_out_before_its_record_is_tied_to_it_again_does_not_hold_the_node_up() {
    let mut bench = settled(1);
    let old = session(&bench, 0);
    bench.edit_session(old, |_| ());
    run_until_loose(&mut bench, 0);
    bench.leases.away.insert(0);
    bench.run(bench.ttl() * 2);
    assert!(!bench.has_lease(old));
    bench.leases.away.clear();
    assert_whole(&mut bench, 1);
    assert_ne!(session(&bench, 0), old);
}

#[test]
fn a_lease_that_goes_while_a_damaged_record_is_rewritten_does_not_hold_the_node_up() {
    let mut bench = settled(1);
    bench.latency.insert(0, ms(20));
    let old = session(&bench, 0);
    bench.corrupt(Key::Session(old));
    // The damage is told, the lease kept alive, the record read: the lease goes just before the write arrives.
    bench.run(ms(10) + ms(20) * 2 + ms(9));
    bench.revoke(old);
    assert_whole(&mut bench, 1);
    assert_ne!(session(&bench, 0), old);
}

#[test]
fn a_damaged_record_is_written_again_whether_or_not_it_is_under_its_lease() {
    for nodes in [1, 3] {
        for attached in [false, true] {
            let mut bench = settled(nodes);
            let id = session(&bench, 0);
            if attached {
                bench.keep_attached(id, |bench| bench.corrupt(Key::Session(id)));
            } else {
                bench.corrupt(Key::Session(id));
            }
            bench.run(bench.ttl() / 2);
            assert!(bench.session(id).is_live(), "attached: {attached}");
            assert_whole(&mut bench, nodes);
            assert_eq!(session(&bench, 0), id);
        }
    }
}

#[test]
fn a_record_that_was_replaced_by_somebody_elses_says_again_who_its_holder_is() {
    for nodes in [1, 3] {
        for attached in [false, true] {
            let mut bench = settled(nodes);
            let id = session(&bench, 0);
            let own = bench.session(id).clone();
            let edit = |bench: &mut TestCluster| {
                bench.edit_session(id, |record| {
                    record.node = crate::ids::NodeName::new("stranger").unwrap();
                    record.role = Role::Shadow;
                    record.stopping = true;
                    record.ttl = ms(1);
                    record.weight = 0;
                });
            };
            if attached {
                bench.keep_attached(id, edit);
            } else {
                edit(&mut bench);
            }
            bench.run(bench.ttl());
            let now = bench.session(id);
            assert_eq!(
                (&now.node, now.role, now.stopping, now.ttl, now.weight),
                (&own.node, own.role, false, own.ttl, own.weight),
                "attached: {attached}"
            );
            assert_whole(&mut bench, nodes);
            assert_eq!(session(&bench, 0), id);
        }
    }
}

#[test]
fn a_record_that_says_less_than_its_lease_ends_nobody_early() {
    for change in [0, 1, 2] {
        let mut bench = settled(2);
        let id = session(&bench, 0);
        bench.deaf.insert(0);
        bench.leases.away.insert(0);
        bench.edit_session(id, |record| {
            record.ttl = ms(50);
            if change > 0 {
                record.leased = None;
            }
            if change > 1 {
                record.boot_clock = Some(crate::record::BootClock {
                    id: "here".to_owned(),
                    until_ns: crate::time::Time(1),
                });
            }
        });
        bench.run(bench.ttl() * 2);
        assert_eq!(bench.overlaps(), 0, "change {change}");
        bench.deaf.clear();
        bench.leases.away.clear();
        assert_whole(&mut bench, 2);
    }
}

#[test]
fn a_record_without_a_lease_whose_holder_is_dead_ends() {
    for change in [0, 1, 2] {
        let mut bench = settled(3);
        let id = session(&bench, 0);
        bench.kill(0);
        match change {
            0 => bench.edit_session(id, |_| ()),
            1 => bench.edit_session(id, |record| record.leased = None),
            _ => bench.corrupt(Key::Session(id)),
        }
        bench.run(bench.ttl() * 6);
        assert_eq!(
            bench.serving(1) + bench.serving(2),
            SHARDS,
            "change {change}"
        );
        assert_eq!(bench.overlaps(), 0);
        assert!(!bench.session(id).is_live());
    }
}

#[test]
fn a_node_past_its_deadline_does_not_take_back_a_record_that_somebody_else_wrote() {
    let mut bench = settled(1);
    let old = session(&bench, 0);
    // The lease is kept alive without the node's knowing.
    bench.leases.mute.insert(0);
    bench.run(bench.ttl());
    assert_eq!(bench.node(0).lease_phase(), Some(LeasePhase::Detached));
    // What stood there in between may have been a tombstone that others acted on.
    bench.edit_session(old, |_| ());
    bench.leases.mute.clear();
    assert_whole(&mut bench, 1);
    assert_ne!(session(&bench, 0), old);
}

#[test]
fn a_session_whose_key_was_deleted_is_taken_over_only_when_its_holder_has_stopped() {
    for cut in [false, true] {
        let mut bench = settled(2);
        let id = session(&bench, 0);
        bench.deaf.insert(0);
        if cut {
            bench.leases.mute.insert(0);
        }
        bench.delete(Key::Session(id));
        bench.run(bench.ttl() * 3);
        assert_eq!(bench.overlaps(), 0);
        bench.deaf.clear();
        bench.leases.mute.clear();
        assert_whole(&mut bench, 2);
        assert_ne!(session(&bench, 0), id);
    }
}

#[test]
fn an_unproven_tombstone_that_is_deleted_does_not_hold_up_the_others() {
    let mut bench = settled(2);
    let id = session(&bench, 0);
    bench.kill(0);
    bench.delete(Key::Session(id));
    for _ in 0..3 {
        bench.run(bench.ttl() / 2);
        bench.delete(Key::Session(id));
    }
    bench.run(bench.ttl() * 6);
    assert_eq!(bench.serving(1), SHARDS);
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn everything_lost_and_every_lease_revoked_comes_back() {
    let mut bench = settled(3);
    let all: Vec<_> = (0..3).map(|i| session(&bench, i)).collect();
    bench.wipe();
    for id in all {
        bench.revoke(id);
    }
    bench.run(bench.ttl() * 8);
    assert_whole(&mut bench, 3);
}

#[test]
fn a_lease_that_is_granted_twice_does_not_bring_an_ended_session_back() {
    for loose in [false, true] {
        let mut bench = settled(2);
        let old = session(&bench, 0);
        bench.leases.away.insert(0);
        bench.deaf.insert(0);
        if loose {
            bench.edit_session(old, |_| ());
        }
        bench.run(bench.ttl() * 6);
        bench.grant_again(old);
        bench.leases.away.clear();
        bench.deaf.clear();
        assert_whole(&mut bench, 2);
        assert_ne!(session(&bench, 0), old);
    }
}

#[test]
fn a_restart_within_the_ttl_takes_everything_back_at_once_and_for_good() {
    for loose in [false, true] {
        let mut bench = settled(1);
        let old = session(&bench, 0);
        bench.kill(0);
        if loose {
            bench.edit_session(old, |_| ());
        }
        let again = bench.start_with("n0", |config| config.last_session = Some(old));
        bench.run(ms(100));
        assert_eq!(bench.serving(again), SHARDS);
        let reason = bench.session(old).ended.map(|ended| ended.reason);
        assert_eq!(reason, Some(EndReason::Replaced));
        bench.run(bench.ttl() * 2);
        assert!(!bench.has_lease(old));
        assert!(
            !bench.session(old).is_live(),
            "the tombstone outlives the lease"
        );
        assert_eq!(bench.overlaps(), 0);
    }
}

#[test]
fn a_name_whose_holder_is_dead_is_waited_for_however_long_its_lease_is() {
    for hand in [0, 1, 2, 3] {
        let mut bench = TestCluster::leased(SHARDS as u32);
        bench.leases.grants = Some(Duration::from_secs(20));
        bench.start("n0");
        bench.run(bench.ttl() * 3);
        let old = session(&bench, 0);
        bench.kill(0);
        match hand {
            0 => (),
            1 => bench.corrupt(Key::Session(old)),
            2 => bench.edit_session(old, |record| record.leased = None),
            _ => bench.delete(Key::Session(old)),
        }
        let again = bench.start("n0");
        bench.run(Duration::from_secs(40));
        assert_eq!(bench.refusal(again), None, "hand {hand}");
        assert_eq!(bench.serving(again), SHARDS, "hand {hand}");
        assert_eq!(bench.overlaps(), 0);
    }
}

#[test]
fn a_name_whose_holder_lives_is_refused_whatever_hands_do_to_its_record() {
    for hand in [0, 1, 2] {
        let mut bench = settled(1);
        let id = session(&bench, 0);
        let twin = bench.start("n0");
        bench.run(bench.ttl() / 2);
        match hand {
            0 => (),
            1 => bench.corrupt(Key::Session(id)),
            _ => bench.edit_session(id, |record| record.leased = None),
        }
        bench.run(bench.ttl() * 4);
        assert_eq!(
            bench.refusal(twin),
            Some(&Refusal::NameInUse { session: id }),
            "hand {hand}"
        );
        assert_all_served(&bench, 1);
    }
}

#[test]
fn a_grant_of_another_length_than_asked_for_changes_no_promise() {
    for grants in [ms(2000), ms(2900), ms(60_000)] {
        let mut bench = TestCluster::leased(SHARDS as u32);
        bench.leases.grants = Some(grants);
        for name in ["n0", "n1"] {
            bench.start(name);
        }
        bench.run(bench.ttl() * 3);
        assert_all_served(&bench, 2);
        bench.leases.away.insert(0);
        bench.run(bench.ttl());
        assert_eq!(bench.serving(0), 0, "granted {grants:?}");
        bench.run(grants + bench.ttl());
        assert_eq!(bench.serving(1), SHARDS, "granted {grants:?}");
        assert_eq!(bench.overlaps(), 0);
        bench.leases.away.clear();
        assert_whole(&mut bench, 2);
    }
}

#[test]
fn a_node_that_stops_while_its_record_is_loose_ends_its_session() {
    for hand in [0, 1, 2] {
        let mut bench = settled(2);
        let id = session(&bench, 0);
        match hand {
            0 => bench.edit_session(id, |_| ()),
            1 => bench.corrupt(Key::Session(id)),
            _ => bench.delete(Key::Session(id)),
        }
        bench.send(0, Event::Stop);
        bench.run(ms(200));
        assert!(bench.log(0).contains(&Action::Stopped), "hand {hand}");
        bench.run(bench.ttl() * 2);
        assert_eq!(bench.serving(1), SHARDS, "hand {hand}");
        assert_eq!(bench.overlaps(), 0);
    }
}

#[test]
fn a_node_that_is_slow_to_stop_keeps_its_lease_although_it_cannot_say_that_it_leaves() {
    let mut bench = settled(2);
    let id = session(&bench, 0);
    let shard = bench.served_by(0).into_iter().next().unwrap();
    bench.hold_drain.insert(shard.clone());
    // Somebody keeps writing the record, so that no write of the node's own goes through.
    bench.send(0, Event::Stop);
    bench.leases.away.insert(0);
    bench.run(ms(100));
    bench.leases.away.clear();
    bench.run(ms(1000));
    assert!(bench.has_lease(id) && bench.is_attached(id));
    assert!(bench.session(id).stopping);
    bench.hold_drain.clear();
    let move_id = bench.shard(&shard).ownership.moving().unwrap().0.id;
    for (i, activation) in std::mem::take(&mut bench.held) {
        bench.send(
            i,
            Event::Frozen {
                activation,
                move_id,
            },
        );
    }
    bench.run(bench.ttl());
    assert!(bench.log(0).contains(&Action::Stopped));
    assert_eq!(bench.serving(1), SHARDS);
}

#[test]
fn a_node_whose_lease_goes_while_it_stops_is_done() {
    let mut bench = settled(2);
    let id = session(&bench, 0);
    bench.deaf.insert(0);
    let shard = bench.served_by(0).into_iter().next().unwrap();
    bench.hold_drain.insert(shard);
    bench.revoke(id);
    bench.send(0, Event::Stop);
    bench.run(ms(100));
    for (i, activation) in std::mem::take(&mut bench.held) {
        bench.send(i, Event::Drained(activation));
    }
    bench.run(bench.ttl() * 2);
    assert!(bench.log(0).contains(&Action::Stopped));
    bench.run(bench.ttl() * 3);
    assert_eq!(bench.serving(1), SHARDS);
}

#[test]
fn a_node_that_stops_before_its_lease_is_granted_leaves_nothing_behind() {
    for wait in 0..16 {
        let mut bench = TestCluster::leased(SHARDS as u32);
        bench.latency.insert(0, ms(10));
        bench.start("n0");
        bench.run(ms(10) * wait);
        bench.send(0, Event::Stop);
        bench.run(bench.ttl() * 10);
        assert!(bench.log(0).contains(&Action::Stopped), "after {wait}");
        for id in bench.leases.asked.iter().filter_map(|(_, r)| match r {
            Request::CreateLease { session, .. } => Some(*session),
            _ => None,
        }) {
            assert!(!bench.has_lease(id), "after {wait}");
            let left = bench.get(&Key::Session(id));
            assert!(
                !matches!(left, Some(crate::record::Record::Session(r)) if r.is_live()),
                "after {wait}"
            );
        }
    }
}

#[test]
fn an_observer_keeps_a_lease_of_its_own_and_ends_nobody() {
    let mut bench = settled(2);
    let watcher = bench.start_with("o", |config| config.role = Role::Shadow);
    bench.run(bench.ttl());
    let id = session(&bench, watcher);
    bench.kill(0);
    bench.edit_session(session(&bench, 0), |_| ());
    bench.run(bench.ttl() * 6);
    assert_eq!(bench.serving(1), SHARDS);
    assert_eq!(bench.serving(watcher), 0);
    assert_eq!(session(&bench, watcher), id);
    let asked = |(i, r): &(usize, Request)| *i == watcher && matches!(r, Request::CheckLease(_));
    assert!(!bench.leases.asked.iter().any(asked));
}

#[test]
fn a_store_that_was_exchanged_is_joined_under_a_new_session_once_it_was_raised() {
    let mut bench = settled(2);
    let old: Vec<_> = (0..2).map(|i| session(&bench, i)).collect();
    bench.store_id = "other".to_owned();
    for i in [0, 1] {
        bench.send(i, Event::WatchGap);
    }
    bench.run(bench.ttl());
    assert_eq!(served(&bench, 2), 0);
    bench.store_id = "uuid".to_owned();
    bench.edit_keyspace(|keyspace| {
        keyspace.generation += 1;
        keyspace.min_generation = keyspace.generation;
    });
    assert_whole(&mut bench, 2);
    for i in [0, 1] {
        assert_ne!(session(&bench, i), old[i]);
    }
}

#[test]
fn a_tombstone_without_proof_counts_for_nobody_once_its_holder_has_written_over_it() {
    for leased in [true, false] {
        let mut bench = TestCluster::new(SHARDS as u32);
        if leased {
            bench = TestCluster::leased(SHARDS as u32);
        }
        for name in ["n0", "n1"] {
            bench.start(name);
        }
        bench.run(bench.ttl() * 3);
        let id = session(&bench, 0);
        bench.deaf.insert(0);
        bench.delete(Key::Session(id));
        bench.run(ms(1));
        assert!(!bench.session(id).is_live(), "n1 has written a tombstone");
        bench.deaf.insert(1);
        bench.corrupt(Key::Session(id));
        bench.run(bench.ttl() * 3);
        assert!(bench.session(id).is_live(), "n0 goes on, as it may");
        assert_eq!(bench.overlaps(), 0, "leased: {leased}");
        bench.deaf.clear();
        bench.run(bench.ttl() * 6);
        assert_all_served(&bench, 2);
    }
}

#[test]
fn the_end_of_a_session_is_seen_by_all_although_its_record_was_set_back_by_hand() {
    let mut bench = settled(3);
    let id = session(&bench, 0);
    // Written again by its holder, the record has come far.
    bench.corrupt(Key::Session(id));
    bench.run(bench.ttl());
    bench.kill(0);
    bench.edit_session(id, |record| record.head.rev = 1);
    bench.run(bench.ttl() * 8);
    assert_eq!(bench.serving(1) + bench.serving(2), SHARDS);
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn a_copy_of_an_unsettled_renewal_that_somebody_has_edited_is_not_believed() {
    for nodes in [1, 2] {
        let mut bench = settled(nodes);
        let id = session(&bench, 0);
        let key = Key::Session(id);
        // The node writes its record again, and the answer is lost.
        bench.unknown_renewals.insert(0);
        bench.edit_session(id, |_| ());
        run_until_loose(&mut bench, 0);
        run_until_loose(&mut bench, 0);
        bench.land();
        let mut record = bench.session(id).clone();
        record.leased = None;
        record.ttl = ms(1);
        record.stopping = true;
        bench.raw_set(key, Record::Session(Arc::new(record)));
        assert_whole(&mut bench, nodes);
        let record = bench.session(session(&bench, 0));
        assert!(record.leased.is_some() && !record.stopping, "{record:?}");
    }
}

#[test]
fn what_a_router_holds_is_told_at_once_also_while_its_lease_is_kept_alive() {
    let mut bench = settled(1);
    let router = bench.start_with("r1", |c| {
        c.role = Role::Router;
        c.keyspaces.clear();
    });
    bench.run(bench.ttl());
    bench.latency.insert(router, ms(4));
    let id = session(&bench, router);
    let shards: Vec<_> = bench.served_by(0).into_iter().collect();
    let holds = |n: usize| {
        let named = shards[..n].iter().map(|s| (s.shard.clone(), 77)).collect();
        [(shards[0].keyspace.clone(), named)].into()
    };
    // The second comes at every point of what follows the first: a write, and a keep-alive.
    for wait in 0..16 {
        bench.send(router, Event::Hold([].into()));
        bench.run(bench.ttl());
        bench.send(router, Event::Hold(holds(1)));
        bench.run(ms(wait));
        bench.send(router, Event::Hold(holds(2)));
        bench.run(ms(20));
        assert_eq!(
            bench.session(id).holds(&shards[1]),
            Some(77),
            "after {wait} ms"
        );
    }
}
