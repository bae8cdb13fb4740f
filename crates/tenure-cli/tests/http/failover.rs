//! Sidecars and routers that are killed: failure is local, and ends with the failover (P5, D4).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::load::{Load, check_journal, latencies};
use crate::test_cluster::{TestCluster, until, with_ttl};

const TTL: [&str; 2] = ["--ttl", "5s"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_that_is_killed_fails_only_what_it_had_and_only_until_failover() {
    let site = TestCluster::new(9);
    let args = with_ttl("5s");
    let mut nodes = ["n1", "n2", "n3"].map(|n| site.node(n, &args));
    let router = site.router("r1", &TTL);
    let owners = site.settled(3).await;
    let load = Load::begin(&[router.address], 40, Duration::from_millis(100), 1_000_000);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let killed = Instant::now();
    nodes[1].signal(Signal::KILL);
    nodes[1].ended().await;
    let owned: BTreeSet<_> = owners.iter().filter(|o| o.1 == "n2").map(|o| o.0).collect();
    assert_eq!(owned.len(), 3);
    until("all shards are served by the others", || {
        let now = site.owners();
        let moved = now.len() == 9 && now.values().all(|node| node != "n2");
        moved.then_some(())
    })
    .await;
    let served = killed.elapsed();
    tokio::time::sleep(Duration::from_secs(1)).await;
    load.stop();
    let outcomes = load.outcomes().await;
    let failed: Vec<_> = outcomes.iter().filter(|o| o.failed.is_some()).collect();
    // What was under way when it died is lost to its clients; everything else was held.
    assert!(failed.len() <= 40, "{} failed", failed.len());
    let journal = site.journal();
    for outcome in &failed {
        let reason = outcome.failed.as_deref().unwrap_or_default();
        assert!(reason.starts_with("502"), "{outcome:?}");
        let since = outcome.at.duration_since(killed);
        assert!(
            since < served,
            "failed {since:?} after the kill, served after {served:?}"
        );
        let shard = journal
            .iter()
            .find(|l| l.2 == outcome.key)
            .map(|l| l.0.clone());
        let shard = shard.unwrap_or_default().replace("orders-", "");
        assert!(owned.contains(&shard), "{outcome:?} was of shard {shard}");
    }
    check_journal(&site, &outcomes);
    println!(
        "killed: {} failed, served elsewhere after {served:?}; {}",
        failed.len(),
        latencies(&outcomes)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_that_is_killed_costs_the_others_nothing_and_wedges_no_move() {
    let site = TestCluster::new(6);
    let args = [&with_ttl("5s")[..], &["--set", "router_hold_timeout=500ms"]].concat();
    let short = ["--ttl", "5s", "--set", "router_hold_timeout=500ms"];
    let mut first = site.node("n1", &args);
    let _second = site.node("n2", &args);
    let alive = site.router("r1", &short);
    let mut dead = site.router("r2", &short);
    site.settled(2).await;
    let load = Load::begin(&[alive.address], 20, Duration::from_millis(50), 1_000_000);
    dead.signal(Signal::KILL);
    dead.ended().await;
    first.stop().await;
    site.settled(1).await;
    first = site.node("n1", &args);
    site.settled(2).await;
    load.stop();
    let outcomes = load.outcomes().await;
    let failed: Vec<_> = outcomes.iter().filter(|o| o.failed.is_some()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    check_journal(&site, &outcomes);
    drop(first);
}
