//! Clusters whose nodes differ: some serve one keyspace, some another, and some are cordoned.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::test_cluster::{TestCluster, ms};
use crate::ids::{KeyspaceName, NodeName, ShardId, ShardName, Version};
use crate::keys::Key;
use crate::machine::{Action, Event, Found};
use crate::members::{self, NAMED, UnservedReason};
use crate::node::NodeConfig;
use crate::record::{AssignedBy, NodeMode, Ownership, Record, Role, UnservedCount, UnservedShards};
use crate::telemetry::NodeEvent;
use crate::time::Time;
use crate::view::View;

const MODES: [AssignedBy; 3] = [
    AssignedBy::Leader,
    AssignedBy::Rendezvous,
    AssignedBy::FairShare,
];
const LEADERLESS: [AssignedBy; 2] = [AssignedBy::Rendezvous, AssignedBy::FairShare];

fn keyspace(name: &str) -> KeyspaceName {
    KeyspaceName::new(name).unwrap()
}

fn shard(of: &str, n: u32) -> ShardId {
    ShardId::new(keyspace(of), ShardName::index(n))
}

/// A cluster with keyspaces `orders` and `bills` of so many shards each.
fn mixed(mode: AssignedBy) -> TestCluster {
    let mut bench = TestCluster::new(16);
    bench.mode(mode);
    bench
}

/// Makes a node serve these keyspaces alone.
fn only(served: &'static [&'static str]) -> impl FnOnce(&mut NodeConfig) {
    move |config| {
        let like = config.keyspaces[&keyspace("orders")].clone();
        let each = served.iter().map(|name| (keyspace(name), like.clone()));
        config.keyspaces = each.collect();
    }
}

fn start(bench: &mut TestCluster, name: &str, served: &'static [&'static str]) -> usize {
    bench.start_with(name, only(served))
}

/// The keyspaces of the shards that a process serves, with their numbers.
fn served(bench: &TestCluster, i: usize) -> Vec<(String, usize)> {
    let ids = bench.served_by(i);
    let names: BTreeSet<_> = ids.iter().map(|id| &id.keyspace).collect();
    let count = |name: &KeyspaceName| ids.iter().filter(|id| id.keyspace == *name).count();
    names.iter().map(|n| (n.to_string(), count(n))).collect()
}

fn all_of(of: &str) -> Vec<(String, usize)> {
    vec![(of.to_owned(), 16)]
}

#[test]
fn each_keyspace_is_served_by_the_nodes_that_serve_it() {
    for mode in MODES {
        let mut bench = mixed(mode);
        let n1 = start(&mut bench, "n1", &["orders"]);
        let n2 = start(&mut bench, "n2", &["bills"]);
        bench.run(ms(30_000));
        assert_eq!(served(&bench, n1), all_of("orders"), "{mode}");
        assert_eq!(served(&bench, n2), all_of("bills"), "{mode}");
        let n3 = start(&mut bench, "n3", &["orders", "bills"]);
        bench.run(ms(60_000));
        for i in [n1, n2] {
            let mine = bench.serving(i);
            assert!((3..=13).contains(&mine), "{mode}: {mine}");
        }
        let all: usize = [n1, n2, n3].iter().map(|i| bench.serving(*i)).sum();
        assert_eq!(all, 32, "{mode}");
        bench.kill(n3);
        bench.run(bench.ttl() * 3);
        assert_eq!(served(&bench, n1), all_of("orders"), "{mode}");
        assert_eq!(served(&bench, n2), all_of("bills"), "{mode}");
        assert_eq!(bench.overlaps(), 0);
    }
}

#[test]
fn a_process_that_only_plans_or_routes_counts_as_no_node() {
    for mode in MODES {
        let mut bench = mixed(mode);
        let n1 = start(&mut bench, "n1", &["orders"]);
        bench.start_with("a-leader", |config| {
            config.role = Role::Planner;
            config.keyspaces.clear();
        });
        bench.start_with("a-router", |config| {
            config.role = Role::Router;
            config.keyspaces.clear();
        });
        bench.run(ms(30_000));
        assert_eq!(served(&bench, n1), all_of("orders"), "{mode}");
    }
}

#[test]
fn a_stopping_node_hands_nothing_to_a_stranger_and_ends_at_once() {
    for mode in MODES {
        let mut bench = mixed(mode);
        let n1 = start(&mut bench, "n1", &["orders"]);
        let n2 = start(&mut bench, "n2", &["orders"]);
        for name in ["a", "b", "c"] {
            start(&mut bench, name, &["bills"]);
        }
        bench.run(ms(30_000));
        assert!(bench.serving(n1) > 0, "{mode}");
        bench.send(n1, Event::Stop);
        bench.run(ms(1000));
        assert!(bench.log(n1).contains(&Action::Stopped), "{mode}");
        assert_eq!(served(&bench, n2), all_of("orders"), "{mode}");
        let history = bench.shards().flat_map(|record| &record.history);
        let strangers = ["a", "b", "c"].map(|name| NodeName::new(name).unwrap());
        let bills: Vec<_> = bench.keys();
        assert!(!bills.is_empty());
        for past in history.filter(|past| past.from == Some(NodeName::new("n1").unwrap())) {
            let to = past.to.as_ref();
            assert!(to.is_none_or(|to| !strangers.contains(to)), "{mode}");
        }
        // The last one that serves the keyspace releases everything, and ends at once too.
        bench.send(n2, Event::Stop);
        bench.run(ms(1000));
        assert!(bench.log(n2).contains(&Action::Stopped), "{mode}");
        for n in 0..16 {
            let record = bench.shard(&shard("orders", n));
            assert!(matches!(record.ownership, Ownership::Free { .. }), "{mode}");
        }
        assert_eq!(bench.overlaps(), 0);
    }
}

#[test]
fn a_draining_node_hands_nothing_to_a_stranger() {
    for mode in MODES {
        let mut bench = mixed(mode);
        let n1 = start(&mut bench, "n1", &["orders"]);
        let a = start(&mut bench, "a", &["bills"]);
        bench.run(ms(30_000));
        bench.set_mode("n1", NodeMode::Draining);
        bench.run(bench.ttl() * 10);
        // Nobody else could have them: it keeps them.
        assert_eq!(served(&bench, n1), all_of("orders"), "{mode}");
        let n2 = start(&mut bench, "n2", &["orders"]);
        bench.run(bench.ttl() * 20);
        assert_eq!(served(&bench, n2), all_of("orders"), "{mode}");
        assert_eq!(served(&bench, a), all_of("bills"), "{mode}");
    }
}

#[test]
fn a_doomed_shard_is_deleted_although_the_first_node_is_a_stranger() {
    for mode in MODES {
        let mut bench = mixed(mode);
        start(&mut bench, "a", &["bills"]);
        let n1 = start(&mut bench, "n1", &["orders"]);
        let n2 = start(&mut bench, "n2", &["orders"]);
        bench.run(ms(30_000));
        let id = bench.served_by(n1).first().unwrap().clone();
        bench.kill(n1);
        bench.edit_shard(&id, |record| record.deleting = true);
        bench.run(bench.ttl() * 3);
        assert_eq!(bench.shard(&id).ownership, Ownership::Deleted, "{mode}");
        assert_eq!(bench.serving(n2), 15, "{mode}");
    }
}

#[test]
fn a_doomed_shard_is_deleted_although_every_node_of_its_keyspace_is_drained() {
    for mode in MODES {
        let mut bench = mixed(mode);
        let n1 = start(&mut bench, "n1", &["orders"]);
        start(&mut bench, "n2", &["orders"]);
        bench.run(ms(30_000));
        let id = bench.served_by(n1).first().unwrap().clone();
        bench.kill(n1);
        bench.set_mode("n2", NodeMode::Draining);
        bench.edit_shard(&id, |record| record.deleting = true);
        bench.run(bench.ttl() * 3);
        assert_eq!(bench.shard(&id).ownership, Ownership::Deleted, "{mode}");
    }
}

#[test]
fn a_shard_that_fails_to_load_is_not_given_up_for_strangers() {
    for mode in MODES {
        let mut bench = mixed(mode);
        let id = shard("orders", 3);
        bench.fail_loads_of(&id);
        let n1 = start(&mut bench, "n1", &["orders"]);
        for name in ["a", "b", "c"] {
            start(&mut bench, name, &["bills"]);
        }
        bench.run(ms(120_000));
        // The only node that could have it goes on trying.
        let record = bench.shard(&id);
        assert_eq!(record.failures, [], "{mode}");
        assert!(record.quarantine.is_none(), "{mode}");
        let failed = |note: &&NodeEvent| matches!(note, NodeEvent::LoadFailed { .. });
        assert!(bench.notes(n1).filter(failed).count() > 5, "{mode}");
        assert_eq!(bench.serving(n1), 15, "{mode}");
    }
}

#[test]
fn a_cordoned_node_keeps_what_it_has_and_gets_nothing_more() {
    for mode in MODES {
        let mut bench = mixed(mode);
        let n1 = start(&mut bench, "n1", &["orders"]);
        let n2 = start(&mut bench, "n2", &["orders"]);
        bench.run(ms(30_000));
        let kept = bench.served_by(n1);
        assert!((3..=13).contains(&kept.len()), "{mode}: {}", kept.len());
        bench.edit_node("n1", |node| node.cordoned = true);
        bench.run(ms(60_000));
        assert_eq!(bench.served_by(n1), kept, "{mode}");
        // A node that joins takes from the other one alone.
        let n3 = start(&mut bench, "n3", &["orders"]);
        bench.run(ms(60_000));
        assert_eq!(bench.served_by(n1), kept, "{mode}");
        assert!(bench.serving(n3) > 0, "{mode}");
        assert_eq!(bench.serving(n2) + bench.serving(n3), 16 - kept.len());
        // What the others leave is not for it either, whether they die or stop.
        bench.kill(n2);
        bench.run(bench.ttl() * 3);
        assert_eq!(bench.served_by(n1), kept, "{mode}");
        assert_eq!(bench.serving(n3), 16 - kept.len(), "{mode}");
        assert_eq!(bench.node(n3).waiting().held_elsewhere, 0, "{mode}");
        bench.send(n3, Event::Stop);
        bench.run(bench.ttl() * 12);
        assert!(bench.log(n3).contains(&Action::Stopped), "{mode}");
        assert_eq!(bench.served_by(n1), kept, "{mode}");
        bench.edit_node("n1", |node| node.cordoned = false);
        bench.run(bench.ttl() * 12);
        assert_eq!(bench.serving(n1), 16, "{mode}");
        assert_eq!(bench.overlaps(), 0);
    }
}

#[test]
fn a_cordoned_node_that_is_restarted_gets_its_own_shards_back() {
    for mode in MODES {
        let mut bench = mixed(mode);
        let n1 = start(&mut bench, "n1", &["orders"]);
        let n2 = start(&mut bench, "n2", &["orders"]);
        bench.run(ms(30_000));
        let kept = bench.served_by(n1);
        bench.edit_node("n1", |node| node.cordoned = true);
        bench.run(ms(1000));
        bench.kill(n1);
        let last = bench.remembered(n1);
        let again = bench.start_with("n1", |config| {
            only(&["orders"])(config);
            config.last_session = last;
        });
        bench.run(bench.ttl() * 5);
        assert_eq!(bench.served_by(again), kept, "{mode}");
        assert_eq!(bench.serving(n2), 16 - kept.len(), "{mode}");
        // One that stays away keeps nothing.
        bench.kill(again);
        bench.run(bench.ttl() * 3);
        assert_eq!(bench.serving(n2), 16, "{mode}");
    }
}

#[test]
fn a_shard_that_a_cordoned_node_cannot_load_goes_to_another() {
    for mode in LEADERLESS {
        let mut bench = mixed(mode);
        let n1 = start(&mut bench, "n1", &["orders"]);
        let n2 = start(&mut bench, "n2", &["orders"]);
        bench.run(ms(30_000));
        bench.edit_node("n1", |node| node.cordoned = true);
        bench.run(ms(1000));
        let id = bench.served_by(n2).first().unwrap().clone();
        bench.failing_at.insert((n2, id.clone()));
        bench.kill(n2);
        let n3 = start(&mut bench, "n3", &["orders"]);
        bench.run(bench.ttl() * 5);
        assert!(bench.served_by(n3).contains(&id), "{mode}");
        assert!(!bench.served_by(n1).contains(&id), "{mode}");
    }
}

#[test]
fn weights_and_capacities_take_effect_in_greedy_keyspaces() {
    let mut bench = TestCluster::new(40);
    bench.mode(AssignedBy::FairShare);
    let n1 = bench.start("n1");
    let n2 = bench.start_with("n2", |config| config.weight = 300);
    let n3 = bench.start_with("n3", |config| config.weight = 0);
    bench.run(ms(60_000));
    assert_eq!([n1, n2, n3].map(|i| bench.serving(i)), [10, 30, 0]);
    let n4 = bench.start_with("n4", |config| {
        config.weight = 400;
        config.capacity = Some(5);
    });
    bench.run(ms(60_000));
    let shares = [n1, n2, n3, n4].map(|i| bench.serving(i));
    assert!(
        shares == [9, 26, 0, 5] || shares == [8, 27, 0, 5],
        "{shares:?}"
    );
    bench.kill(n2);
    bench.run(bench.ttl() * 3);
    assert_eq!([n1, n3, n4].map(|i| bench.serving(i)), [35, 0, 5]);
    bench.kill(n1);
    bench.run(bench.ttl() * 3);
    assert_eq!([n3, n4].map(|i| bench.serving(i)), [0, 5]);
}

#[test]
fn a_capacity_counts_the_shards_of_all_keyspaces() {
    let mut bench = mixed(AssignedBy::FairShare);
    let n1 = bench.start_with("n1", |config| {
        only(&["orders", "bills"])(config);
        config.capacity = Some(10);
    });
    bench.run(ms(30_000));
    assert_eq!(bench.serving(n1), 10);
    let n2 = start(&mut bench, "n2", &["orders", "bills"]);
    bench.run(ms(60_000));
    assert_eq!((bench.serving(n1), bench.serving(n2)), (10, 22));
    let claims = bench.claims.len();
    bench.run(ms(60_000));
    assert_eq!(bench.claims.len(), claims, "nothing is passed around");
}

#[test]
fn a_shard_that_is_not_served_for_long_is_reported_with_the_reason() {
    for mode in MODES {
        let mut bench = mixed(mode);
        let n1 = start(&mut bench, "n1", &["orders"]);
        let a = start(&mut bench, "a", &["bills"]);
        bench.run(ms(30_000));
        let unserved = |bench: &TestCluster, i| {
            let waiting = bench.node(i).waiting().unserved;
            waiting.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(unserved(&bench, n1), [], "{mode}");
        assert_eq!(unserved(&bench, a), [], "{mode}");
        bench.kill(n1);
        bench.run(bench.ttl() * 2);
        assert_eq!(unserved(&bench, a), [], "{mode}: not at once");
        bench.run(bench.ttl() * 4);
        assert_eq!(
            unserved(&bench, a),
            [(UnservedReason::NoNode, 16)],
            "{mode}"
        );
        let n2 = start(&mut bench, "n2", &["orders"]);
        bench.run(bench.ttl() * 10);
        assert_eq!(unserved(&bench, a), [], "{mode}");
        start(&mut bench, "n3", &["orders"]);
        bench.run(bench.ttl() * 20);
        bench.edit_node("n3", |node| node.cordoned = true);
        bench.run(ms(1000));
        let left = bench.serving(n2);
        bench.kill(n2);
        bench.run(bench.ttl() * 6);
        assert_eq!(
            unserved(&bench, a),
            [(UnservedReason::Cordoned, left)],
            "{mode}"
        );
    }
}

/// Returns the reports in the sessions of these processes, of those that report anything.
fn reported(bench: &TestCluster, processes: &[usize]) -> Vec<(usize, UnservedShards)> {
    let said = processes.iter().map(|i| {
        let session = bench.node(*i).session().unwrap();
        (*i, bench.session(session).unserved.clone())
    });
    said.filter(|(_, said)| !said.is_empty()).collect()
}

#[test]
fn one_node_of_a_keyspace_reports_in_its_session_what_is_unserved_for_long() {
    for leased in [false, true] {
        let mut bench = match leased {
            true => TestCluster::leased(16),
            false => TestCluster::new(16),
        };
        bench.mode(AssignedBy::Rendezvous);
        let a = start(&mut bench, "a", &["bills"]);
        let [n1, n2, n3] = ["n1", "n2", "n3"].map(|name| start(&mut bench, name, &["orders"]));
        let all = [a, n2, n3];
        bench.run(bench.ttl() * 10);
        let lost: BTreeSet<ShardId> = bench.served_by(n1);
        assert!(!lost.is_empty() && bench.serving(n2) > 0 && bench.serving(n3) > 0);
        // Nobody can claim what the dead node had.
        bench.fail_shard_puts.extend([n2, n3]);
        bench.kill(n1);
        bench.run(bench.ttl() * 3);
        assert_eq!(reported(&bench, &all), [], "not at once");
        bench.run(bench.ttl() * 4);
        let said = reported(&bench, &all);
        let [(by, said)] = said.try_into().expect("one node reports");
        assert!(by != a, "a node of another keyspace");
        let found = &said[&keyspace("orders")]["unclaimed"];
        let names: Vec<ShardName> = lost.iter().map(|id| id.shard.clone()).collect();
        assert_eq!(found.count as usize, names.len());
        assert_eq!(found.shards, names[..names.len().min(NAMED)]);
        assert_eq!((said.len(), said[&keyspace("orders")].len()), (1, 1));
        let view = bench.node(a).view();
        let ended = |session| view.sessions.get(&session).is_none_or(|s| !s.is_live());
        let stuck = members::stuck(view, &keyspace("orders"), ended, None);
        let [stuck] = stuck.try_into().expect("one reason");
        assert_eq!(stuck.reason, UnservedReason::Unclaimed);
        assert_eq!(
            (stuck.count, stuck.shards),
            (names.len(), found.shards.clone())
        );
        // Where renewals are no writes, a report that stays the same is none either.
        let writes = bench.writes();
        bench.run(bench.ttl() * 20);
        assert!(
            !leased || bench.writes() == writes,
            "{}",
            bench.writes() - writes
        );
        bench.fail_shard_puts.clear();
        bench.run(bench.ttl() * 10);
        assert_eq!(bench.serving(n2) + bench.serving(n3), 16);
        assert_eq!(reported(&bench, &all), []);
        let writes = bench.writes();
        bench.run(bench.ttl() * 20);
        assert!(
            !leased || bench.writes() == writes,
            "{}",
            bench.writes() - writes
        );
    }
}

#[test]
fn a_report_counts_only_as_far_as_the_records_still_show_it() {
    let mut bench = mixed(AssignedBy::Rendezvous);
    let n1 = start(&mut bench, "n1", &["orders"]);
    bench.run(ms(30_000));
    let session = bench.node(n1).session().unwrap();
    let mut view = bench.node(n1).view().clone();
    let stuck = |view: &View| members::stuck(view, &keyspace("orders"), |_| false, None);
    let mut told = bench.session(session).clone();
    let word = |count, shards: &[u32]| UnservedCount {
        count,
        shards: shards.iter().map(|n| ShardName::index(*n)).collect(),
    };
    let reasons = [
        ("unclaimed".to_owned(), word(9, &[3, 4])),
        ("of_a_later_version".to_owned(), word(1, &[5])),
    ];
    told.unserved = [(keyspace("orders"), reasons.into())].into();
    told.head.rev += 1;
    let set = |view: &mut View, key: Key, version: u64, record: Record| {
        let version = Version::Number(1_000_000 + version);
        let record = Ok(record);
        view.apply(Time(1), &key, Found { version, record });
    };
    set(
        &mut view,
        Key::Session(session),
        1,
        Record::Session(Arc::new(told)),
    );
    assert_eq!(stuck(&view), [], "all of them are served by now");
    let id = shard("orders", 4);
    let mut free = bench.shard(&id).clone();
    free.head.rev += 1;
    free.ownership = Ownership::FREE;
    set(&mut view, Key::Shard(id), 2, Record::Shard(Arc::new(free)));
    let left = members::UnservedGroup {
        reason: UnservedReason::Unclaimed,
        count: 1,
        shards: vec![ShardName::index(4)],
    };
    assert_eq!(stuck(&view), [left]);
}
