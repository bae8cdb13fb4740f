//! Giving up a session is one-way: once its end was sent, nothing is loaded or served in it and nothing renews it, whatever
//! becomes of that write.

use super::test_cluster::{TestCluster, ms};
use crate::ids::SessionId;
use crate::keys::Key;
use crate::lease::LeasePhase;
use crate::machine::{Action, Event, Request};
use crate::record::{AssignedBy, Record, Role};

const SHARDS: u32 = 8;

/// Runs a check where nodes keep the time of sessions and where the store does, with and without a leader.
fn on_each_kind(check: impl Fn(TestCluster)) {
    for mode in [AssignedBy::Rendezvous, AssignedBy::Leader] {
        for mut bench in [TestCluster::new(SHARDS), TestCluster::leased(SHARDS)] {
            bench.mode(mode);
            check(bench);
        }
    }
}

/// Cuts a node off until it is detached, and lets it back before its session is over; it is recovering then.
fn recovering(bench: &mut TestCluster, i: usize) {
    bench.leases.away.insert(i);
    bench.deaf.insert(i);
    bench.run(bench.ttl() * 9 / 10);
    assert_eq!(bench.node(i).lease_phase(), Some(LeasePhase::Detached));
    bench.leases.away.remove(&i);
    bench.deaf.remove(&i);
    bench.send(i, Event::WatchGap);
    while bench.node(i).lease_phase() == Some(LeasePhase::Detached) {
        bench.run(ms(1));
    }
    assert_eq!(bench.node(i).lease_phase(), Some(LeasePhase::Recovering));
}

/// True for the write that ends this session.
fn resigns(action: &Action, id: SessionId) -> bool {
    matches!(action, Action::Store { request: Request::Put { key: Key::Session(key), record: Record::Session(record), .. }, .. }
        if *key == id && record.ended.is_some())
}

/// True for an action that loads or serves a shard, writes a shard's record, or renews this session.
fn goes_on(action: &Action, id: SessionId) -> bool {
    match action {
        Action::Load { .. } | Action::Warm { .. } | Action::Open(_) | Action::Thaw(_) => true,
        Action::Store { request, .. } => match request {
            Request::KeepAlive(session) => *session == id,
            Request::Put {
                key: Key::Session(key),
                record: Record::Session(record),
                ..
            } => *key == id && record.ended.is_none(),
            Request::Put {
                key: Key::Shard(_), ..
            } => true,
            _ => false,
        },
        _ => false,
    }
}

/// The session was resigned, and from then on nothing went on in it.
fn assert_one_way(bench: &TestCluster, i: usize, id: SessionId) {
    let log = bench.log(i);
    let sent = log.iter().position(|action| resigns(action, id));
    let after = &log[sent.expect("it resigns")..];
    let wrong: Vec<_> = after.iter().filter(|a| goes_on(a, id)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(log.contains(&Action::Stopped));
    assert_eq!(bench.overlaps(), 0);
}

#[test]
fn a_lease_that_recovers_while_the_end_of_its_session_is_under_way_serves_nothing() {
    on_each_kind(|mut bench| {
        let nodes = ["n1", "n2"].map(|name| bench.start(name));
        bench.run(bench.ttl() * 8);
        let id = bench.node(nodes[0]).session().unwrap();
        recovering(&mut bench, nodes[0]);
        // Longer than the lease takes to recover.
        bench.latency.insert(nodes[0], ms(2400));
        bench.send(nodes[0], Event::Stop);
        bench.run(bench.ttl() * 10);
        assert_one_way(&bench, nodes[0], id);
        assert_eq!(bench.serving(nodes[1]), SHARDS as usize);
    });
}

#[test]
fn an_end_that_the_store_refuses_is_sent_again_and_nothing_goes_on_meanwhile() {
    on_each_kind(|mut bench| {
        let nodes = ["n1", "n2"].map(|name| bench.start(name));
        bench.run(bench.ttl() * 8);
        let id = bench.node(nodes[0]).session().unwrap();
        recovering(&mut bench, nodes[0]);
        bench.denied_puts.insert(nodes[0], 20);
        bench.send(nodes[0], Event::Stop);
        bench.run(bench.ttl() * 10);
        assert_one_way(&bench, nodes[0], id);
        assert_eq!(bench.serving(nodes[1]), SHARDS as usize);
    });
}

#[test]
fn a_node_that_is_evicted_while_it_recovers_serves_nothing_any_more() {
    on_each_kind(|mut bench| {
        let nodes = ["n1", "n2"].map(|name| bench.start(name));
        bench.run(bench.ttl() * 8);
        let id = bench.node(nodes[0]).session().unwrap();
        recovering(&mut bench, nodes[0]);
        bench.latency.insert(nodes[0], ms(2400));
        bench.edit_node("n1", |record| record.stop_session = Some(id));
        bench.run(bench.ttl() * 10);
        assert_one_way(&bench, nodes[0], id);
        assert_eq!(bench.serving(nodes[1]), SHARDS as usize);
    });
}

#[test]
fn who_owns_nothing_resigns_for_good_too() {
    for role in [Role::Router, Role::Planner, Role::Shadow] {
        on_each_kind(|mut bench| {
            bench.start("n1");
            let other = bench.start_with("other", |config| config.role = role);
            bench.run(bench.ttl() * 8);
            let id = bench.node(other).session().unwrap();
            // The store is slow: renewals would be due while the end is under way, and a router may begin to hold a shard.
            bench.latency.insert(other, ms(1600));
            bench.send(other, Event::Stop);
            bench.run(ms(100));
            let held = [("orders", "0")].map(|(keyspace, shard)| {
                let shards = [(crate::ids::ShardName::new(shard).unwrap(), 1)];
                let keyspace = crate::ids::KeyspaceName::new(keyspace).unwrap();
                (keyspace, shards.into_iter().collect())
            });
            bench.send(other, Event::Hold(held.into_iter().collect()));
            bench.run(bench.ttl() * 4);
            assert_one_way(&bench, other, id);
        });
    }
}

#[test]
fn a_stop_at_any_step_of_the_start_leaves_nothing_that_goes_on() {
    for wait in 0..24 {
        on_each_kind(|mut bench| {
            let n1 = bench.start("n1");
            bench.run(ms(2000));
            let n2 = bench.start("n2");
            bench.latency.insert(n2, ms(10));
            bench.run(ms(10) * wait);
            bench.latency.insert(n2, ms(900));
            bench.send(n2, Event::Stop);
            bench.run(bench.ttl() * 10);
            assert!(bench.log(n2).contains(&Action::Stopped), "after {wait}");
            if let Some(id) = bench.remembered(n2)
                && bench.log(n2).iter().any(|action| resigns(action, id))
            {
                assert_one_way(&bench, n2, id);
            }
            assert_eq!(bench.serving(n1), SHARDS as usize, "after {wait}");
        });
    }
}
