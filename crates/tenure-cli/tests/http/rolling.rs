//! A rolling restart of five sidecars under load: nothing fails, nothing is lost, nothing is out of order (D2, P3, P4).

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::load::{Load, check_journal, latencies};
use crate::test_cluster::{QUICK, TestCluster, until};

const REQUESTS: u64 = 20_000;
const KEYS: usize = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_under_load_drops_loses_and_reorders_nothing() {
    let site = TestCluster::new(20);
    let names = ["n1", "n2", "n3", "n4", "n5"];
    let mut nodes: Vec<_> = names.iter().map(|n| site.node(n, &QUICK)).collect();
    let routers = [site.router("r1", &[]), site.router("r2", &[])];
    site.settled(5).await;
    let at = routers.each_ref().map(|r| r.address);
    let load = Load::begin(&at, KEYS, Duration::from_millis(80), REQUESTS);
    let answered = load.answered.clone();
    for (node, name) in nodes.iter_mut().zip(names) {
        // Between two restarts the load goes on for a while.
        let before = answered.load(Ordering::Relaxed);
        until("a thousand requests are answered", || {
            (answered.load(Ordering::Relaxed) >= before + 1000).then_some(())
        })
        .await;
        node.stop().await;
        *node = site.node(name, &QUICK);
    }
    let restarted = answered.load(Ordering::Relaxed);
    assert!(
        restarted < REQUESTS,
        "the load was over before the restarts"
    );
    let outcomes = load.outcomes().await;
    let failed: Vec<_> = outcomes.iter().filter(|o| o.failed.is_some()).collect();
    assert!(
        failed.is_empty(),
        "{} failed, as {:?}",
        failed.len(),
        &failed[..1]
    );
    assert_eq!(outcomes.len() as u64, REQUESTS);
    check_journal(&site, &outcomes);
    println!("with five restarts: {}", latencies(&outcomes));
    // Every key was served by more than one owner, or this has shown nothing.
    let journal = site.journal();
    let epochs: std::collections::BTreeSet<_> = journal.iter().map(|l| (&l.0, l.1)).collect();
    assert!(
        epochs.len() >= 2 * 15,
        "only {} epochs served",
        epochs.len()
    );
}
