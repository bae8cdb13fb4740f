//! Rare courses of things that once broke a promise: each test states what must hold.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::test_cluster::{TestCluster, ms};
use crate::ids::{Epoch, NodeName, ShardId};
use crate::keys::Key;
use crate::machine::{Action, Event};
use crate::record::{AssignedBy, NodeMode, Record};
use crate::telemetry::NodeEvent;

fn assert_epochs_never_reused(bench: &TestCluster) {
    let mut owner: BTreeMap<(ShardId, Epoch), crate::ids::SessionId> = BTreeMap::new();
    let mut high: BTreeMap<ShardId, Epoch> = BTreeMap::new();
    for (shard, epoch, session) in &bench.claims {
        let first = owner.entry((shard.clone(), *epoch)).or_insert(*session);
        assert_eq!(
            first, session,
            "{shard} at {epoch} was owned by two sessions"
        );
        let h = high.entry(shard.clone()).or_insert(*epoch);
        assert!(*epoch >= *h, "{shard} went back from {h} to {epoch}");
        *h = *epoch;
    }
}

#[test]
fn a_second_loss_of_a_record_raises_the_generation_again() {
    for victim in [0, 1] {
        let mut bench = TestCluster::new(4);
        for name in ["n1", "n2"] {
            let i = bench.start(name);
            bench.latency.insert(i, ms(6));
        }
        bench.run(ms(5000));
        let id: ShardId = "orders/1".parse().unwrap();
        let mut last = bench.shard(&id).epoch;
        for round in 0..2 {
            bench.delete(Key::Shard(id.clone()));
            bench.run(bench.ttl() * 3);
            let epoch = bench.shard(&id).epoch;
            assert!(epoch > last, "victim {victim}: {last} -> {epoch}");
            last = epoch;
            if round == 0 {
                bench.kill(victim);
                bench.run(bench.ttl() * 2);
                last = bench.shard(&id).epoch;
            }
        }
        assert_epochs_never_reused(&bench);
    }
}

#[test]
fn a_wiped_prefix_does_not_take_epochs_back() {
    let mut bench = TestCluster::new(2);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    for _ in 0..3 {
        bench.wipe();
        bench.run(bench.ttl() * 6);
        assert_eq!(bench.serving(n1), 2);
    }
    assert_epochs_never_reused(&bench);
}

#[test]
fn a_store_that_went_back_to_nothing_does_not_take_epochs_back() {
    let mut bench = TestCluster::new(2);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    bench.run(bench.ttl() * 6); // a tick asks for the revision
    bench.reset_store();
    bench.run(bench.ttl() * 12);
    assert!(
        bench
            .notes(n1)
            .any(|n| matches!(n, NodeEvent::StoreReplaced { .. }))
            || bench.serving(n1) == 0
    );
    assert_epochs_never_reused(&bench);
}

#[test]
fn started_comes_although_a_first_claim_failed_and_another_took_the_shard() {
    let mut bench = TestCluster::new(8);
    let a = bench.start("n1");
    bench.run(ms(1000));
    bench.send(a, Event::Stop);
    bench.run(ms(100));
    let n3 = bench.start("n3");
    bench.fail_shard_puts.insert(n3);
    bench.run(ms(20));
    let n2 = bench.start("n2");
    bench.run(ms(1000));
    bench.fail_shard_puts.clear();
    bench.run(bench.ttl() * 20);
    assert_eq!(bench.serving(n2) + bench.serving(n3), 8);
    assert!(bench.started(n2));
    assert!(bench.started(n3), "n3 never says that it has started");
}

#[test]
fn greedy_takes_the_shards_of_a_session_whose_end_is_proven_by_time_alone() {
    let mut bench = TestCluster::new(8);
    bench.mode(AssignedBy::FairShare);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(5000));
    let session = bench.node(n1).session().unwrap();
    bench.kill(n1);
    bench.delete(Key::Session(session));
    bench.run(bench.ttl() * 100);
    assert_eq!(bench.serving(n2), 8);
}

#[test]
fn greedy_what_was_offered_to_one_who_has_its_share_is_for_the_others() {
    let mut bench = TestCluster::new(6);
    bench.mode(AssignedBy::FairShare);
    let nodes = ["n1", "n2", "n3"].map(|name| bench.start(name));
    bench.run(bench.ttl() * 20);
    assert_eq!(nodes.map(|n| bench.serving(n)), [2, 2, 2]);
    let [n1, n2, n3] = nodes;
    let left = bench.served_by(n3);
    bench.kill(n3);
    // As if two who both saw n1 below its share had offered it one each: it wants one.
    for id in &left {
        bench.edit_shard(id, |record| {
            record.assigned = Some(NodeName::new("n1").unwrap());
        });
    }
    bench.run(bench.ttl() * 3 / 2);
    assert_eq!((bench.serving(n1), bench.serving(n2)), (3, 3));
}

#[test]
fn greedy_a_shard_that_nobody_can_load_is_quarantined() {
    let mut bench = TestCluster::new(6);
    bench.mode(AssignedBy::FairShare);
    for n in ["n1", "n2", "n3"] {
        bench.start(n);
    }
    let id: ShardId = "orders/2".parse().unwrap();
    bench.fail_loads_of(&id);
    bench.run(Duration::from_secs(60));
    let epoch = bench.shard(&id).epoch;
    let writes = bench.writes();
    bench.run(Duration::from_secs(60));
    eprintln!(
        "epoch {epoch} -> {}, writes {}",
        bench.shard(&id).epoch,
        bench.writes() - writes
    );
    assert!(
        bench.shard(&id).quarantine.is_some(),
        "{:?}",
        bench.shard(&id).failures
    );
}

#[test]
fn a_shard_that_only_its_winner_cannot_load_comes_to_rest_elsewhere() {
    let mut bench = TestCluster::new(1);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3000));
    let id: ShardId = "orders/0".parse().unwrap();
    let winner = if bench.served_by(n1).contains(&id) {
        n1
    } else {
        n2
    };
    bench.failing_at.insert((winner, id.clone()));
    bench.delete(Key::Session(bench.node(winner).session().unwrap()));
    bench.run(Duration::from_secs(60));
    let before = bench.shard(&id).epoch;
    bench.run(Duration::from_secs(60));
    let after = bench.shard(&id).epoch;
    assert_eq!(before, after, "it is passed to and fro");
}

#[test]
fn a_stopping_nodes_released_shards_are_served_while_another_of_its_shards_still_drains() {
    let mut bench = TestCluster::new(16);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3000));
    let slow = bench.served_by(n1).into_iter().next().unwrap();
    bench.hold_drain.insert(slow.clone());
    bench.send(n1, Event::Stop);
    bench.run(ms(2000));
    let free: Vec<_> = bench.shards().filter(|s| s.owner().is_none()).collect();
    assert_eq!(
        free.len(),
        0,
        "released shards lie idle for as long as the slowest drains"
    );
    assert_eq!(bench.serving(n2), 15);
}

#[test]
fn a_node_whose_name_record_was_deleted_takes_part_again() {
    let mut bench = TestCluster::new(8);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3000));
    bench.delete(Key::Node(NodeName::new("n1").unwrap()));
    bench.run(bench.ttl() * 20);
    let left = bench.serving(n1);
    bench.kill(n2);
    bench.run(bench.ttl() * 20);
    assert_eq!(
        bench.serving(n1),
        8,
        "n1 is live and healthy and alone (had {left})"
    );
}

#[test]
fn a_late_copy_of_a_damaged_value_does_not_replace_its_repair() {
    let mut bench = TestCluster::new(1);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    let id: ShardId = "orders/0".parse().unwrap();
    let key = Key::Shard(id.clone());
    let Record::Shard(good) = bench.get(&key).unwrap().clone() else {
        panic!()
    };
    bench.corrupt(key.clone());
    let damaged = bench.raw(&key);
    bench.run(ms(10));
    assert_eq!(bench.serving(n1), 0);
    let mut repaired = (*good).clone();
    repaired.head.rev += 1;
    bench.raw_set(key.clone(), Record::Shard(Arc::new(repaired)));
    bench.run(ms(10));
    assert_eq!(bench.serving(n1), 1);
    let upto = crate::ids::Revision(1);
    bench.send(
        n1,
        Event::Changed {
            changes: vec![(key, Some(damaged))],
            upto,
        },
    );
    bench.run(bench.ttl() * 100);
    assert_eq!(bench.serving(n1), 1);
}

#[test]
fn a_starter_waits_out_a_namesake_that_died_after_its_first_renewal() {
    let mut bench = TestCluster::new(4);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    let again = bench.start("n1");
    bench.run(ms(1000));
    bench.kill(n1);
    bench.run(bench.ttl() * 3);
    assert_eq!(bench.refusal(again), None);
    assert_eq!(bench.serving(again), 4);
}

#[test]
fn a_corrupt_session_record_of_a_healthy_node_moves_nothing() {
    let mut bench = TestCluster::new(8);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3010));
    let before: Vec<_> = bench.shards().map(|s| s.epoch).collect();
    bench.corrupt(Key::Session(bench.node(n1).session().unwrap()));
    bench.run(bench.ttl() * 5);
    let after: Vec<_> = bench.shards().map(|s| s.epoch).collect();
    assert_eq!(before, after);
    let _ = n2;
}

#[test]
fn a_record_edited_by_hand_without_its_rev_does_not_make_a_node_write_without_pause() {
    let mut bench = TestCluster::new(1);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    let key = Key::Shard("orders/0".parse().unwrap());
    let Record::Shard(good) = bench.get(&key).unwrap().clone() else {
        panic!()
    };
    let mut edited = (*good).clone();
    edited.assigned = Some(NodeName::new("n1").unwrap());
    bench.raw_set(key.clone(), Record::Shard(Arc::new(edited)));
    bench.run(ms(100));
    bench.send(n1, Event::Stop);
    let steps = bench.steps;
    bench.run(ms(100));
    assert!(bench.steps - steps < 1000, "{}", bench.steps - steps);
}

/// P1: B restores a lost record although a session that is not proven to have ended may own the shard.
#[test]
fn a_restored_record_names_every_session_that_is_not_proven_to_have_ended() {
    let mut bench = TestCluster::new(1);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3000));
    let id: ShardId = "orders/0".parse().unwrap();
    let (owner, _other) = if bench.served_by(n1).contains(&id) {
        (n1, n2)
    } else {
        (n2, n1)
    };
    let session = bench.node(owner).session().unwrap();
    // the owner's watch is dead, its renewals are not
    bench.deaf.insert(owner);
    bench.delete(Key::Shard(id.clone()));
    bench.run(bench.ttl() * 19 / 20);
    assert!(bench.served_by(owner).contains(&id));
    // its session record is lost too, and from now on it reaches nothing
    bench.cut.insert(owner);
    bench.delete(Key::Session(session));
    bench.run(bench.ttl() * 2);
    assert_eq!(bench.overlaps(), 0);
}

/// The same with a session record that the restorer cannot read.
#[test]
fn a_restored_record_names_the_holders_of_damaged_session_records() {
    let mut bench = TestCluster::new(1);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3000));
    let id: ShardId = "orders/0".parse().unwrap();
    let owner = if bench.served_by(n1).contains(&id) {
        n1
    } else {
        n2
    };
    let session = bench.node(owner).session().unwrap();
    bench.deaf.insert(owner);
    bench.delete(Key::Shard(id.clone()));
    bench.run(bench.ttl() * 19 / 20);
    bench.cut.insert(owner);
    bench.corrupt(Key::Session(session));
    bench.run(bench.ttl() * 2);
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn a_deletion_told_while_an_older_read_is_under_way_is_still_noticed() {
    use crate::machine::{OpId, Reply, Request};
    let mut bench = TestCluster::new(1);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    let key = Key::Shard("orders/0".parse().unwrap());
    let old = bench.raw(&key);
    // the watch says twice that the key is gone: first too early, then truly
    bench.cut.insert(n1);
    let upto = crate::ids::Revision(1);
    bench.send(
        n1,
        Event::Changed {
            changes: vec![(key.clone(), None)],
            upto,
        },
    );
    bench.run(ms(0));
    let op: OpId = bench
        .log(n1)
        .iter()
        .rev()
        .find_map(|a| match a {
            Action::Store {
                op,
                request: Request::Get(k),
                ..
            } if *k == key => Some(*op),
            _ => None,
        })
        .unwrap();
    bench.cut.clear();
    bench.delete(key.clone());
    bench.run(ms(0));
    bench.send(
        n1,
        Event::Reply {
            op,
            reply: Reply::Got(Some(old)),
        },
    );
    bench.run(bench.ttl() * 100);
    assert!(
        bench.get(&key).is_some(),
        "nobody has noticed that the record is missing"
    );
}

#[test]
fn shards_on_their_way_out_are_forgotten_with_the_session() {
    let mut bench = TestCluster::new(400);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    // n1 begins to give shards to n2; its releases fail until its session is gone
    bench.fail_shard_puts.insert(n1);
    let n2 = bench.start("n2");
    bench.run(ms(1000));
    bench.delete(Key::Session(bench.node(n1).session().unwrap()));
    bench.run(ms(100));
    bench.fail_shard_puts.clear();
    bench.run(bench.ttl() * 5);
    assert_eq!(bench.serving(n1) + bench.serving(n2), 400);
    bench.kill(n2);
    bench.run(bench.ttl() * 5);
    assert_eq!(bench.serving(n1), 400);
    let n3 = bench.start("n3");
    bench.run(bench.ttl() * 20);
    assert!(
        bench.serving(n3) > 100,
        "{} {}",
        bench.serving(n1),
        bench.serving(n3)
    );
}

#[test]
fn a_lost_drain_order_is_noticed_at_a_tick() {
    let mut bench = TestCluster::new(8);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3000));
    bench.deaf.insert(n1);
    bench.set_mode("n1", NodeMode::Draining);
    bench.deaf.clear();
    bench.run(bench.ttl() * 100);
    assert_eq!((bench.serving(n1), bench.serving(n2)), (0, 8));
}

#[test]
fn a_late_copy_of_the_last_value_before_a_deletion_does_not_revive_it() {
    let mut bench = TestCluster::new(1);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    let key = Key::Shard("orders/0".parse().unwrap());
    let old = bench.raw(&key);
    bench.delete(key.clone());
    bench.run(ms(10));
    assert_eq!(bench.served_by(n1), BTreeSet::new());
    let upto = crate::ids::Revision(1);
    bench.send(
        n1,
        Event::Changed {
            changes: vec![(key.clone(), Some(old))],
            upto,
        },
    );
    bench.run(ms(10));
    assert!(bench.get(&key).is_none());
    assert_eq!(
        bench.served_by(n1),
        BTreeSet::new(),
        "it serves a shard that has no record"
    );
}

/// P1 and P2: a starter takes a keyspace whose records were all deleted for one that never was.
#[test]
fn a_keyspace_whose_records_were_all_lost_is_not_taken_for_a_new_one() {
    let mut bench = TestCluster::new(2);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    bench.deaf.insert(n1); // its watch is late
    for key in bench.keys() {
        if matches!(key, Key::Shard(_) | Key::Keyspace(_)) {
            bench.delete(key);
        }
    }
    bench.start("n2");
    bench.run(ms(500));
    assert_eq!(bench.overlaps(), 0);
    assert_epochs_never_reused(&bench);
}

/// P1: without the cluster's record nobody knows how long the others' ttl is.
#[test]
fn a_lost_cluster_record_does_not_shorten_the_proof_of_a_missing_session() {
    let mut bench = TestCluster::new(4);
    let n1 = bench.start_with("n1", |c| {
        c.timing = crate::settings::Settings {
            ttl: ms(30_000),
            ..Default::default()
        }
        .check(Duration::ZERO)
        .unwrap();
    });
    bench.run(ms(1000));
    let n2 = bench.start("n2");
    bench.run(ms(4000));
    assert!(bench.serving(n1) > 0);
    bench.deaf.insert(n1);
    bench.cut.insert(n1);
    bench.delete(Key::Cluster);
    bench.delete(Key::Session(bench.node(n1).session().unwrap()));
    bench.run(ms(15_000));
    let _ = n2;
    assert_eq!(bench.overlaps(), 0);
}

/// A shard that failed to load now and then, with long healthy service in between, has not failed in a row.
#[test]
fn failures_to_load_do_not_add_up_over_months() {
    let mut bench = TestCluster::new(2);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(3000));
    let id = bench.served_by(n1).into_iter().next().unwrap();
    for _ in 0..4 {
        // one failed load after an outage of the record, then service
        let key = Key::Shard(id.clone());
        let Record::Shard(good) = bench.get(&key).unwrap().clone() else {
            panic!()
        };
        bench.corrupt(key.clone());
        bench.run(ms(10));
        bench.failing_at.insert((n1, id.clone()));
        let mut repaired = (*good).clone();
        repaired.head.rev += 1;
        bench.raw_set(key, Record::Shard(Arc::new(repaired)));
        bench.run(ms(10));
        bench.failing_at.clear();
        bench.run(Duration::from_secs(100));
        assert!(
            bench.shard(&id).epoch == good.epoch,
            "given away although it failed once only"
        );
    }
    let _ = n2;
}

/// "May be called too early, too often": an answer that nobody asked for must not make the machine lose track of a run.
#[test]
fn a_drained_that_nobody_asked_for_does_not_lose_the_run() {
    let mut bench = TestCluster::new(2);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    let activation = bench
        .log(n1)
        .iter()
        .find_map(|a| match a {
            Action::Open(activation) => Some(*activation),
            _ => None,
        })
        .unwrap();
    bench.send(n1, Event::Drained(activation));
    bench.run(ms(10));
    bench.delete(Key::Session(bench.node(n1).session().unwrap()));
    bench.run(bench.ttl() * 10);
    assert_eq!(bench.serving(n1), 2);
}

/// A claim that lands late, and whose watch event is left out, must be found by its owner in the end.
/// A store that was put back counts the same versions again. Whoever has not noticed must not take the value that it knows for
/// the one that is there.
#[test]
fn another_value_under_a_known_version_is_believed_once_it_was_read() {
    for told in [true, false] {
        let mut bench = TestCluster::new(4);
        let n1 = bench.start("n1");
        bench.start("n2");
        bench.run(ms(20_000));
        let id = bench.served_by(1).into_iter().next().unwrap();
        let key = Key::Shard(id.clone());
        let mut record = bench.shard(&id).clone();
        record.head.nonce.n += 1000;
        record.plan.seq += 7;
        let seq = record.plan.seq;
        if !told {
            bench.deaf.insert(n1);
        }
        bench.replace(key, Record::Shard(Arc::new(record)));
        if !told {
            bench.deaf.clear();
            bench.send(n1, Event::WatchGap);
        }
        bench.run(ms(10));
        let known = bench.node(n1).view().shards.get(&id).unwrap();
        assert_eq!(known.plan.seq, seq, "told by the watch: {told}");
    }
}

#[test]
fn a_claim_that_landed_late_and_unheard_is_found_by_its_owner() {
    let mut bench = TestCluster::new(8);
    let n0 = bench.start("n0");
    bench.run(ms(1000));
    bench.send(n0, Event::Stop);
    bench.run(ms(100));
    let n1 = bench.start("n1");
    bench.unknown_puts.insert(n1);
    bench.run(ms(10));
    let n2 = bench.start("n2");
    bench.fail_shard_puts.insert(n2);
    bench.run(ms(20));
    bench.deaf.insert(n1);
    bench.land();
    bench.deaf.clear();
    bench.fail_shard_puts.clear();
    bench.run(bench.ttl() * 100);
    assert_eq!(bench.serving(n1) + bench.serving(n2), 8);
}
