//! Nodes with a leader: who plans, what of it is done, and what happens when the leader goes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::test_cluster::{TestCluster, ms};
use crate::ids::{KeyspaceName, NodeName, ShardId, ShardName, Version};
use crate::keys::Key;
use crate::machine::{Action, Event, Request};
use crate::node::OwnPolicy;
use crate::plan::{BalanceBy, Placement, Policy, PolicyInput, PolicyKind};
use crate::reason::Reason;
use crate::record::{
    AssignedBy, LeaderRecord, LoadFailure, NodeMode, Ownership, PlanningSettings, Record,
    RecordError, Role,
};
use crate::telemetry::{NodeEvent, ShardStep};

fn led(shards: u32) -> TestCluster {
    let mut bench = TestCluster::new(shards);
    bench.mode(AssignedBy::Leader);
    bench
}

fn shard(n: u32) -> ShardId {
    ShardId::new(KeyspaceName::new("orders").unwrap(), ShardName::index(n))
}

fn name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

fn leader(bench: &TestCluster) -> &LeaderRecord {
    match bench.get(&Key::Leader) {
        Some(Record::Leader(record)) => record,
        other => panic!("{other:?}"),
    }
}

fn plans(bench: &TestCluster, i: usize) -> usize {
    let planned = |n: &&NodeEvent| matches!(n, NodeEvent::Planned { .. });
    bench.notes(i).filter(planned).count()
}

pub(super) fn leads(bench: &TestCluster, i: usize) -> bool {
    leader(bench).node == bench.node(i).ctx.config.name && !leader(bench).resigned
}

#[test]
fn one_of_three_leads_and_everyone_has_the_same_part() {
    let mut bench = led(30);
    let nodes = ["n1", "n2", "n3"].map(|name| bench.start(name));
    bench.run(ms(10_000));
    assert_eq!(nodes.map(|i| bench.serving(i)), [10, 10, 10]);
    let leaders = nodes.iter().filter(|i| leads(&bench, **i)).count();
    assert_eq!((leaders, leader(&bench).term), (1, 1));
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn five_nodes_that_join_within_a_second_are_one_change_of_plan() {
    let mut bench = led(60);
    let first = bench.start("n0");
    bench.run(ms(5000));
    assert_eq!(bench.serving(first), 60);
    let before = bench.claims.len();
    let joined: Vec<_> = (1..=5)
        .map(|n| {
            bench.run(ms(200));
            bench.start(&format!("n{n}"))
        })
        .collect();
    bench.run(ms(60_000));
    assert_eq!(bench.serving(first), 10);
    for i in joined {
        assert_eq!(bench.serving(i), 10);
    }
    // Every shard that had to move has moved once.
    assert_eq!(bench.claims.len() - before, 50);
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn a_dead_leaders_office_and_shards_go_to_others_in_time_and_no_record_names_it() {
    let mut bench = led(30);
    let nodes = ["n1", "n2", "n3"].map(|name| bench.start(name));
    bench.run(ms(10_000));
    let dead = nodes.into_iter().find(|i| leads(&bench, *i)).unwrap();
    let gone = bench.node(dead).ctx.config.name.clone();
    let seq = bench.shards().map(|s| s.plan).max().unwrap();
    bench.kill(dead);
    bench.run(bench.ttl() + bench.ttl() / 5);
    let left: usize = nodes
        .iter()
        .filter(|i| **i != dead)
        .map(|i| bench.serving(*i))
        .sum();
    assert_eq!((left, leader(&bench).term), (30, 2));
    assert_ne!(leader(&bench).node, gone);
    for record in bench.shards() {
        assert_ne!(record.assigned.as_ref(), Some(&gone));
        assert_ne!(record.owner().map(|o| &o.node), Some(&gone));
    }
    // Plans only grow, over all leaders.
    let moved = bench.shards().map(|s| s.plan).filter(|p| *p > seq).count();
    assert!(moved >= 10, "{moved}");
}

#[test]
fn a_stopping_leader_deletes_nothing_and_a_standby_plans_at_once() {
    let mut bench = led(30);
    let nodes = ["n1", "n2", "n3"].map(|name| bench.start(name));
    bench.run(ms(10_000));
    let old = nodes.into_iter().find(|i| leads(&bench, *i)).unwrap();
    let before = bench.keys();
    bench.send(old, Event::Stop);
    bench.run(ms(1000));
    assert!(bench.log(old).contains(&Action::Stopped));
    let new = nodes.into_iter().find(|i| leads(&bench, *i)).unwrap();
    assert!(new != old && leader(&bench).term == 2);
    let after: BTreeSet<Key> = bench.keys().into_iter().collect();
    assert!(before.iter().all(|key| after.contains(key)));
    let served: usize = nodes
        .iter()
        .filter(|i| **i != old)
        .map(|i| bench.serving(*i))
        .sum();
    assert_eq!(served, 30);
}

#[test]
fn a_leader_that_loses_its_lease_stops_planning_and_nothing_it_sends_later_counts() {
    let mut bench = led(30);
    let nodes = ["n1", "n2", "n3"].map(|name| bench.start(name));
    bench.run(ms(10_000));
    let old = nodes.into_iter().find(|i| leads(&bench, *i)).unwrap();
    // Its last word on a shard is still under way when it is cut off.
    bench.unknown_puts.insert(old);
    let added = bench.start("n4");
    bench.run(ms(3000));
    bench.cut.insert(old);
    bench.run(bench.ttl() * 3);
    let of_new_term: Vec<_> = bench.shards().cloned().collect();
    bench.land();
    let mut refused = 0;
    for (before, after) in of_new_term.iter().zip(bench.shards()) {
        if before.plan.term == 2 {
            assert_eq!(before, after, "a deposed leader's late writes are refused");
            refused += 1;
        }
    }
    assert!(refused > 0);
    bench.cut.clear();
    bench.run(bench.ttl() * 10);
    let all: usize = nodes
        .iter()
        .chain([&added])
        .map(|i| bench.serving(*i))
        .sum();
    assert_eq!((all, bench.overlaps()), (30, 0));
    assert!(bench.node(old).session().is_some(), "it is back");
    assert_eq!(leader(&bench).term, 2, "who comes back does not push in");
}

#[test]
fn a_leader_that_slept_for_three_ttl_changes_nothing() {
    let mut bench = led(12);
    let nodes = ["n1", "n2", "n3"].map(|name| bench.start(name));
    bench.run(ms(10_000));
    let old = nodes.into_iter().find(|i| leads(&bench, *i)).unwrap();
    bench.cut.insert(old);
    bench.run(bench.ttl() * 3);
    let what = |bench: &TestCluster| -> Vec<_> {
        let shards = bench.shards();
        shards
            .map(|r| (r.plan, r.owner().cloned(), r.assigned.clone(), r.epoch))
            .collect()
    };
    let (before, term) = (what(&bench), leader(&bench).term);
    assert!(!leads(&bench, old));
    bench.cut.clear();
    let woke = bench.log(old).len();
    // Until it has its session again, it is no node that shards could move to.
    bench.run(ms(20));
    assert_eq!((what(&bench), leader(&bench).term), (before, term));
    // Long enough for shards to move to it again: then there is something to plan, for whoever takes itself for the leader.
    bench.run(bench.ttl() * 20);
    assert_eq!(bench.serving(old), 4, "it takes part again");
    assert_eq!(leader(&bench).term, term, "the other leads on");
    assert!(!leads(&bench, old));
    let plans = |action: &&Action| match action {
        Action::Store {
            request: Request::Put { record, .. },
            ..
        } => match record {
            Record::Leader(_) => true,
            Record::Shard(shard) => shard.plan.term < term,
            _ => false,
        },
        _ => false,
    };
    let planned = bench.log(old)[woke..].iter().find(plans);
    assert_eq!(planned, None, "it writes no plan of its term");
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn who_is_back_first_after_an_outage_leaves_the_others_what_is_theirs() {
    for last in 0..3 {
        let mut bench = TestCluster::leased(30);
        bench.mode(AssignedBy::Leader);
        let nodes = ["n1", "n2", "n3"].map(|name| bench.start(name));
        bench.run(ms(10_000));
        let before = nodes.map(|i| bench.served_by(i));
        bench.leases.away.extend(nodes);
        bench.run(bench.ttl() * 2);
        assert_eq!(nodes.map(|i| bench.serving(i)), [0, 0, 0]);
        // Every lease is gone, and one after the other comes back: the last takes most of a ttl.
        for i in nodes.into_iter().filter(|i| *i != last).chain([last]) {
            bench.leases.away.remove(&i);
            bench.run(bench.ttl() / 3);
        }
        bench.run(bench.ttl() * 2);
        assert_eq!(nodes.map(|i| bench.served_by(i)), before, "last: {last}");
        assert_eq!(bench.overlaps(), 0);
    }
}

#[test]
fn a_leader_without_shards_plans_for_the_others() {
    let mut bench = led(20);
    let alone = bench.start_with("boss", |c| c.role = Role::Planner);
    bench.run(ms(100));
    let nodes = ["n1", "n2"].map(|name| bench.start(name));
    bench.run(ms(10_000));
    assert!(leads(&bench, alone) && plans(&bench, alone) > 0);
    assert_eq!(nodes.map(|i| bench.serving(i)), [10, 10]);
    assert_eq!(bench.serving(alone), 0);
    bench.kill(alone);
    bench.run(bench.ttl() * 2);
    assert_eq!(
        nodes.map(|i| bench.serving(i)),
        [10, 10],
        "losing it stops planning only"
    );
    assert!(nodes.into_iter().any(|i| leads(&bench, i)));
}

#[test]
fn a_newer_versions_leader_is_left_alone() {
    let mut bench = led(4);
    let n1 = bench.start("n1");
    bench.run(ms(10));
    let version: Version = bench.damage(Key::Leader, RecordError::Newer(2));
    bench.run(bench.ttl() * 12);
    assert_eq!(bench.raw(&Key::Leader).version, version);
    assert_eq!(bench.serving(n1), 4, "serving does not need a leader");
}

#[test]
fn shards_without_a_leader_are_served_after_a_while() {
    let mut bench = led(4);
    bench.damage(Key::Leader, RecordError::Newer(2));
    let n1 = bench.start("n1");
    bench.run(bench.ttl());
    assert!(!bench.started(n1), "a plan may still come");
    bench.run(bench.ttl() * 11 / 10);
    assert!(
        bench.started(n1),
        "nobody plans, and a start does not wait for ever"
    );
    bench.run(bench.ttl() * 10);
    assert_eq!(bench.serving(n1), 4);
}

#[test]
fn a_shard_that_is_left_to_a_node_which_once_failed_to_load_it_is_served_again() {
    let mut bench = led(2);
    let n1 = bench.start("n1");
    bench.run(bench.ttl());
    let session = bench.node(n1).session().unwrap();
    bench.edit_shard(&shard(0), |record| {
        record.ownership = Ownership::FREE;
        record.assigned = Some(name("n1"));
        record.failures = vec![LoadFailure {
            node: name("n1"),
            session,
            error: "x".to_owned(),
        }];
    });
    bench.run(bench.ttl());
    assert_eq!(bench.serving(n1), 2, "nobody else could load it");
}

#[test]
fn the_first_node_counts_as_started_once_it_serves_what_its_own_plan_gives_it() {
    let mut bench = led(8);
    let n1 = bench.start("n1");
    bench.run(bench.ttl() / 2);
    assert_eq!((bench.started(n1), bench.serving(n1)), (true, 8));
    let log = bench.log(n1);
    let started = log.iter().position(|a| *a == Action::Started).unwrap();
    let opened = log.iter().rposition(|a| matches!(a, Action::Open(_)));
    assert!(opened.unwrap() < started);
}

#[test]
fn a_drained_node_gives_everything_away_and_gets_nothing_back_until_it_is_active() {
    let mut bench = led(20);
    let nodes = ["n1", "n2"].map(|name| bench.start(name));
    bench.run(ms(10_000));
    bench.set_mode("n1", NodeMode::Draining);
    bench.run(ms(5000));
    assert_eq!(nodes.map(|i| bench.serving(i)), [0, 20]);
    bench.set_mode("n1", NodeMode::Active);
    bench.run(ms(100_000));
    assert_eq!(nodes.map(|i| bench.serving(i)), [10, 10]);
}

#[test]
fn a_cordoned_node_keeps_what_it_has_and_is_given_nothing() {
    let mut bench = led(20);
    let (n1, n2) = (bench.start("n1"), bench.start("n2"));
    bench.run(ms(10_000));
    bench.edit_node("n1", |node| node.cordoned = true);
    bench.kill(n2);
    bench.run(bench.ttl() * 20);
    assert_eq!(bench.serving(n1), 10, "not even what nobody has");
    bench.edit_node("n1", |node| node.cordoned = false);
    bench.run(bench.ttl() * 2);
    assert_eq!(bench.serving(n1), 20);
}

#[test]
fn a_pin_holds_a_shard_where_it_is_wanted() {
    let mut bench = led(10);
    let nodes = ["n1", "n2"].map(|name| bench.start(name));
    bench.run(ms(10_000));
    let mine = bench.served_by(nodes[0]).into_iter().next().unwrap();
    bench.edit_shard(&mine, |record| record.pin = Some(name("n2")));
    bench.run(ms(5000));
    assert!(bench.served_by(nodes[1]).contains(&mine));
    assert_eq!(bench.shard(&mine).pin, Some(name("n2")));
    bench.edit_shard(&mine, |record| record.pin = Some(name("n9")));
    bench.run(ms(5000));
    assert!(
        bench.served_by(nodes[1]).contains(&mine),
        "a pin to nobody moves nothing"
    );
    let unknown = |note: &NodeEvent| matches!(note, NodeEvent::PlanProblem { problem, .. } if problem.contains("tenure shard unpin"));
    let told: usize = nodes
        .iter()
        .map(|i| bench.notes(*i).filter(|n| unknown(n)).count())
        .sum();
    assert_eq!(told, 1);
}

#[test]
fn capacity_and_labels_bound_what_a_node_is_given() {
    let mut bench = led(20);
    let small = bench.start_with("n1", |c| c.capacity = Some(3));
    let large = bench.start("n2");
    bench.run(ms(10_000));
    assert_eq!((bench.serving(small), bench.serving(large)), (3, 17));
    let ssd = bench.start_with("n3", |c| {
        c.labels.insert("disk".to_owned(), "ssd".to_owned());
    });
    bench.edit_keyspace(|k| {
        k.planning.required_labels = [("disk".to_owned(), "ssd".to_owned())].into();
    });
    bench.run(ms(60_000));
    assert_eq!(bench.serving(ssd), 20);
}

#[test]
fn a_keyspaces_record_says_how_it_is_planned() {
    let mut bench = led(40);
    let nodes = ["n1", "n2"].map(|name| bench.start(name));
    bench.run(ms(10_000));
    assert_eq!(nodes.map(|i| bench.serving(i)), [20, 20]);
    bench.edit_keyspace(|k| k.planning.policy = Some(PolicyKind::Rendezvous));
    bench.run(ms(200_000));
    let by_hash = |id: &ShardId| {
        let ranking = &bench
            .node(nodes[0])
            .membership
            .of(&shard(0).keyspace)
            .ranking;
        ranking.winner(id, |_| true).cloned()
    };
    for id in bench.served_by(nodes[0]) {
        assert_eq!(by_hash(&id), Some(name("n1")), "{id}");
    }
}

#[derive(Debug)]
struct EverythingToTheLast;

impl Policy for EverythingToTheLast {
    fn assign(&self, input: &PolicyInput<'_>) -> Vec<Placement> {
        let Some(last) = input.takers.last() else {
            return Vec::new();
        };
        let shards = input.view.shards();
        shards
            .map(|(shard, _)| Placement {
                shard,
                node: last.node,
            })
            .collect()
    }
}

#[test]
fn a_policy_of_ones_own_is_followed() {
    let mut bench = led(10);
    let policy = || Some(OwnPolicy::new("last", Arc::new(EverythingToTheLast)));
    let n1 = bench.start_with("n1", |c| c.policy = policy());
    let n2 = bench.start_with("n2", |c| c.policy = policy());
    bench.run(ms(200_000));
    assert_eq!((bench.serving(n1), bench.serving(n2)), (0, 10));
}

fn by_load() -> PlanningSettings {
    PlanningSettings {
        balance_by: Some(BalanceBy::Cost),
        cool_down: Some(Duration::ZERO),
        ..PlanningSettings::default()
    }
}

#[test]
fn reported_load_is_evened_out_and_goes_along_with_a_shard() {
    let mut bench = led(8);
    let heavy = |id: &ShardId| if *id == shard(0) { 7000 } else { 1000 };
    let nodes = ["n1", "n2"].map(|name| {
        bench.start_with(name, |c| {
            c.keyspaces.values_mut().for_each(|k| k.plan = by_load());
        })
    });
    for _ in 0..120 {
        for i in nodes {
            bench.report_costs(i, heavy);
        }
        bench.run(ms(500));
    }
    let alone = nodes
        .into_iter()
        .find(|i| bench.served_by(*i).contains(&shard(0)))
        .unwrap();
    assert_eq!(
        bench.serving(alone),
        1,
        "what costs as much as all others is alone"
    );
    let other = nodes.into_iter().find(|i| *i != alone).unwrap();
    let session = bench.node(alone).session().unwrap();
    assert_eq!(bench.session(session).cost_of(&shard(0)), Some(7000));
    // Its owner dies; who takes it knows what it costs before anything was measured.
    bench.kill(alone);
    bench.run(bench.ttl() * 2);
    assert!(bench.served_by(other).contains(&shard(0)));
    assert_eq!(bench.shard(&shard(0)).cost, Some(7000));
}

#[test]
fn load_costs_no_write_of_its_own_at_rest() {
    let mut bench = led(8);
    let n1 = bench.start("n1");
    bench.run(ms(5000));
    let writes = |bench: &mut TestCluster, report: bool| {
        let before = bench.writes();
        for _ in 0..40 {
            if report {
                bench.report_costs(n1, |_| 50);
            }
            bench.run(ms(500));
        }
        bench.writes() - before
    };
    let silent = writes(&mut bench, false);
    assert_eq!(writes(&mut bench, true), silent);
}

#[test]
fn a_sweep_that_fails_is_told_with_its_key_and_tried_again() {
    let mut bench = led(6);
    let n1 = bench.start("n1");
    bench.run(ms(5000));
    bench.fail_shard_puts.insert(n1);
    bench.edit_shard(&shard(2), |record| record.assigned = Some(name("departed")));
    bench.run(ms(3000));
    let failed = |note: &&NodeEvent| matches!(note, NodeEvent::GcFailed { key, error } if *key == Key::Shard(shard(2)) && error == "x");
    assert!(bench.notes(n1).filter(failed).count() > 1);
    bench.fail_shard_puts.clear();
    bench.run(ms(3000));
    assert_ne!(bench.shard(&shard(2)).assigned, Some(name("departed")));
    let swept = |note: &&NodeEvent| matches!(note, NodeEvent::StaleAssignmentsRemoved { keys, .. } if keys.contains(&Key::Shard(shard(2))));
    assert!(bench.notes(n1).filter(swept).count() >= 1);
}

#[test]
fn two_leaders_on_diverging_views_do_no_harm_and_converge() {
    let mut bench = led(24);
    let nodes = ["n1", "n2", "n3"].map(|name| bench.start(name));
    bench.run(ms(10_000));
    let old = nodes.into_iter().find(|i| leads(&bench, *i)).unwrap();
    // It hears nothing of the others any more, but its lease is good, and it goes on planning.
    bench.deaf.insert(old);
    let fourth = bench.start("n4");
    bench.run(ms(100));
    let session = bench.node(fourth).session().unwrap();
    let usurper = LeaderRecord {
        head: leader(&bench).head.next(crate::ids::Nonce {
            writer: session,
            n: 9,
        }),
        term: 2,
        session,
        node: name("n4"),
        ..leader(&bench).clone()
    };
    bench.raw_set(Key::Leader, Record::Leader(Arc::new(usurper)));
    bench.run(ms(20_000));
    bench.deaf.clear();
    bench.run(ms(60_000));
    let served = [nodes[0], nodes[1], nodes[2], fourth].map(|i| bench.serving(i));
    assert_eq!(served, [6, 6, 6, 6]);
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn an_observer_says_what_a_leader_would_give_it_and_gets_nothing() {
    let mut bench = led(12);
    let nodes = ["n1", "n2"].map(|name| bench.start(name));
    bench.run(ms(10_000));
    let watcher = bench.start_with("o", |c| c.role = Role::Shadow);
    bench.run(ms(10_000));
    assert_eq!(nodes.map(|i| bench.serving(i)), [6, 6]);
    assert_eq!(bench.serving(watcher), 0);
    let would = bench.notes(watcher).filter_map(|note| match note {
        NodeEvent::WouldDo {
            shard,
            step,
            reason,
        } => Some((shard.clone(), *step, *reason)),
        _ => None,
    });
    let would: BTreeSet<_> = would.collect();
    assert_eq!(would.len(), 4, "a third of all: {would:?}");
    let planned =
        |w: &&(ShardId, ShardStep, Reason)| (w.1, w.2) == (ShardStep::MoveStarted, Reason::Planned);
    assert_eq!(would.iter().filter(planned).count(), 4);
}
