//! How nodes come back, and what operators tell them. Each scene is played on every store.

use std::thread;
use std::time::Duration;

use tenure::admin::{MoveStatus, NodeStatus};
use tenure::{AdminClient, NodeMode, NodeName, RejoinMode, ShardId};

use super::operator::{admin, mode, names, node_record, until_mode};
use crate::process::Process;
use crate::test_cluster::{SLACK, TestCluster, between, until};
use crate::worker::{Own, now};

/// Every order in which three can come back.
pub(crate) const ORDERS: [[usize; 3]; 6] = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
];

pub(crate) fn comes_back(rejoin: RejoinMode) -> Own {
    Own {
        rejoin: Some(rejoin),
        ..Own::default()
    }
}

fn manual(site: &TestCluster, node: &str) -> Process {
    site.start_as(node, comes_back(RejoinMode::Manual))
}

/// Longer than any session lasts that nobody renews.
fn long(site: &TestCluster, late: Duration) -> Duration {
    site.ttl().mul_f64(1.3) + late
}

// C3
pub(crate) fn a_restart_within_the_ttl(site: TestCluster) {
    let mut a = manual(&site, "a");
    let _b = manual(&site, "b");
    let before = site.await_settled(&["a", "b"]);
    a.kill();
    let killed = now();
    let _a = manual(&site, "a");
    let started = site.await_start("a", 2);
    let took = between(killed, started.t);
    println!("measured: from SIGKILL to a start that has loaded: {took:.2?}");
    assert!(took < site.ttl(), "{took:?}\n{}", site.scene());
    assert_eq!(started.owned.len(), before.of("a").len());
    let after = site.await_settled(&["a", "b"]);
    for shard in before.of("a") {
        assert_eq!(after.0[&shard].node, "a", "{shard}");
    }
    assert_eq!(mode(&site, "a"), NodeMode::Active);
    site.assert_clean();
}

// C4, C7
pub(crate) fn a_restart_after_the_ttl(site: TestCluster, late: Duration) {
    let mut a = manual(&site, "a");
    let _b = manual(&site, "b");
    site.await_settled(&["a", "b"]);
    assert_eq!(
        mode(&site, "a"),
        NodeMode::Active,
        "a first start is active"
    );
    everybody_knows_who_lives(&site, &["a", "b"]);
    let killed = now();
    a.kill();
    let without = site.await_served("b has them all", |held| held.nodes() == ["b"]);
    println!(
        "measured: from SIGKILL to new owners: {:.2?}",
        between(killed, without.last_start())
    );
    thread::sleep(long(&site, late));
    let _a = manual(&site, "a");
    let started = site.await_start("a", 2);
    assert!(started.owned.is_empty(), "{:?}", started.owned);
    assert_eq!(mode(&site, "a"), NodeMode::drained("stale_restart"));
    let said = site.said("a");
    assert!(said.contains("tenure node resume"), "{said}");
    assert!(said.contains("reason=\"stale_restart\""), "{said}");
    thread::sleep(site.ttl());
    assert_eq!(site.await_settled(&["b"]).nodes(), ["b"]);
    activate(&site, "a");
    site.await_settled(&["a", "b"]);
    let joins = Own {
        join: true,
        ..Own::default()
    };
    let _c = site.start_as("c", joins);
    site.await_start("c", 1);
    assert_eq!(mode(&site, "c"), NodeMode::drained("joined"));
    activate(&site, "c");
    site.await_settled(&["a", "b", "c"]);
    site.assert_clean();
}

fn activate(site: &TestCluster, node: &str) {
    let name = NodeName::new(node).expect("a name");
    let told = now();
    let resumed = admin(site, async |admin: AdminClient| admin.resume(&name).await);
    assert!(resumed.changed);
    let resumed = admin(site, async |admin: AdminClient| admin.resume(&name).await);
    assert!(!resumed.changed, "twice changes nothing");
    println!("activated {node} at {told}");
}

// C5, C10
pub(crate) fn a_whole_cluster(
    site: TestCluster,
    order: [usize; 3],
    rejoin: RejoinMode,
    late: Duration,
) {
    let nodes = ["a", "b", "c"];
    let mut running: Vec<Process> = nodes
        .iter()
        .map(|node| site.start_as(node, comes_back(rejoin)))
        .collect();
    site.await_settled(&nodes);
    everybody_knows_who_lives(&site, &nodes);
    let boot = boot(&site);
    running.iter_mut().for_each(Process::kill);
    thread::sleep(long(&site, late));
    let begun = now();
    running = Vec::new();
    for n in order {
        running.push(site.start_as(nodes[n], comes_back(rejoin)));
        // So that each finds those before it at work, or not yet.
        thread::sleep(site.ttl() / 3);
    }
    let after = site.await_settled(&nodes);
    println!(
        "measured: {order:?}, {rejoin}: from the first start to every shard in its place: {:.2?}",
        between(begun, after.last_start())
    );
    for node in nodes {
        let record = node_record(&site, node);
        assert_eq!(record.mode, NodeMode::Active, "{node}\n{}", site.scene());
    }
    assert_eq!(self::boot(&site), boot + 1, "{}", site.scene());
    site.assert_clean();
    drop(running);
}

/// Where the store keeps the time, who dies before that may have been dead before the other's start.
pub(crate) fn everybody_knows_who_lives(site: &TestCluster, nodes: &[&str]) {
    until("everybody knows who lives", || {
        nodes.iter().all(|n| !node_record(site, n).unsure)
    });
}

fn boot(site: &TestCluster) -> u64 {
    let snapshot = admin(site, async |admin: AdminClient| admin.snapshot().await);
    snapshot.view.cluster.get(&()).expect("a cluster").boot
}

// C2, where a process stands still for longer than its ttl
pub(crate) fn an_owner_that_slept(site: TestCluster, rejoin: RejoinMode) {
    let a = site.start_as("a", comes_back(rejoin));
    let _b = site.start_as("b", comes_back(rejoin));
    site.await_settled(&["a", "b"]);
    everybody_knows_who_lives(&site, &["a", "b"]);
    site.pause(&a);
    site.await_served("b has them all", |held| held.nodes() == ["b"]);
    thread::sleep(site.ttl() / 2);
    a.signal(rustix::process::Signal::CONT);
    comes_back_expired(&site, rejoin);
}

/// What is to be seen of node `a` once it can reach the store again after its session ran out.
pub(crate) fn comes_back_expired(site: &TestCluster, rejoin: RejoinMode) {
    let healed = now();
    if rejoin == RejoinMode::Manual {
        until_mode(site, "a", &NodeMode::drained("registration_expired"));
        println!(
            "measured: from the return to drained(registration_expired): {:.2?}",
            between(healed, now())
        );
        thread::sleep(site.ttl());
        assert_eq!(site.await_settled(&["b"]).nodes(), ["b"]);
        let said = site.said("a");
        assert!(said.contains("reason=\"registration_expired\""), "{said}");
        activate(site, "a");
    }
    site.await_settled(&["a", "b"]);
    assert_eq!(mode(site, "a"), NodeMode::Active);
    site.assert_clean();
}

// C7
pub(crate) fn operators(site: TestCluster) {
    let (a, b) = names();
    let _a = site.start("a");
    let mut second = site.start("b");
    let before = site.await_settled(&["a", "b"]);
    // Drain: everything moves, the process lives on, twice changes nothing.
    let told = now();
    let patience = Duration::from_secs(30);
    let drained = admin(&site, async |admin: AdminClient| {
        assert!(admin.drain(&b).await?);
        let mut seen: Vec<usize> = Vec::new();
        let tell = |s: &NodeStatus| seen.push(s.shards);
        let drained = admin.wait_until_drained(&b, patience, tell).await?;
        assert!(!admin.drain(&b).await?);
        assert_eq!(seen.last(), Some(&0), "{seen:?}");
        Ok(drained)
    });
    assert_eq!(drained.mode, NodeMode::drained("operator"));
    let held = site.await_settled(&["a"]);
    println!(
        "measured: drained of {} shards: {:.2?}",
        before.of("b").len(),
        between(told, held.last_start())
    );
    // Frozen, nothing comes back; then it does.
    let frozen = admin(&site, async |admin: AdminClient| {
        assert!(admin.pause_moves("a test", None).await?);
        assert!(!admin.pause_moves("a test", None).await?);
        let short = Some(Duration::from_millis(1));
        assert!(admin.pause_moves("over soon", short).await?, "replaced");
        assert!(admin.pause_moves("a test", None).await?, "without an end");
        admin.resume(&b).await?;
        Ok(admin.rebalance(&keyspace()).await.unwrap_err().to_string())
    });
    assert!(frozen.contains("a test"), "{frozen}");
    thread::sleep(site.ttl() * 2);
    assert_eq!(site.await_settled(&["a"]).nodes(), ["a"]);
    admin(&site, async |admin: AdminClient| {
        assert!(admin.resume_moves().await?);
        admin.rebalance(&keyspace()).await?;
        admin
            .wait_until_balanced(&keyspace(), patience, |_| ())
            .await
    });
    let held = site.await_settled(&["a", "b"]);
    // One shard, once.
    let first = held.of("a").into_iter().next().expect("a shard");
    let shard: ShardId = first.parse().expect("a shard");
    let moved = admin(&site, async |admin: AdminClient| {
        assert!(admin.move_shard(&shard, &b).await?);
        admin.wait_until_moved(&shard, &b, patience, |_| ()).await
    });
    assert_eq!(moved, MoveStatus::Done);
    let there = site.await_served("it is there", |held| held.0[&shard.to_string()].node == "b");
    assert!(there.0[&shard.to_string()].epoch > held.0[&shard.to_string()].epoch);
    // Evicted, it stops in good order.
    let told = now();
    admin(&site, async |admin: AdminClient| {
        let session = admin.stop_node(&b).await?.session();
        let session = session.expect("it is there");
        admin
            .wait_until_stopped(&b, session, patience, |_| ())
            .await
    });
    assert_eq!(second.wait().code(), Some(0), "{}", site.said("b"));
    let held = site.await_settled(&["a"]);
    let took = between(told, held.last_start());
    println!("measured: evicted: {took:.2?}");
    assert!(took < site.ttl() + SLACK, "{took:?}");
    assert_eq!(mode(&site, "a"), NodeMode::Active);
    drop(a);
    site.assert_clean();
}

fn keyspace() -> tenure_core::ids::KeyspaceName {
    tenure_core::ids::KeyspaceName::new(crate::worker::KEYSPACE).expect("a name")
}

// C7: one that does not answer is not hurried.
pub(crate) fn an_eviction_of_one_that_sleeps(site: TestCluster) {
    let (_, b) = names();
    let _a = site.start("a");
    let second = site.start("b");
    site.await_settled(&["a", "b"]);
    site.pause(&second);
    let paused = now();
    admin(&site, async |admin: AdminClient| {
        let session = admin.stop_node(&b).await?.session();
        let session = session.expect("it is there");
        admin
            .wait_until_stopped(&b, session, Duration::from_secs(30), |_| ())
            .await
    });
    let took = between(paused, now());
    let sure = site.ttl().mul_f64(0.6);
    assert!(took > sure, "not before the ttl proves it: {took:?}");
    let held = site.await_served("a has them all", |held| held.nodes() == ["a"]);
    assert!(between(paused, held.last_start()) > sure);
    site.assert_clean();
}
