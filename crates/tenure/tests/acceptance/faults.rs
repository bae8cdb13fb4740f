//! C8, A14, P1, P6: whatever the store does, at most one owner, and all is well when it stops doing it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::store::fault::FaultConfig;
use tenure::{Epoch, Node, ShardId};

use crate::test_cluster::*;

fn chance(seed: u64) -> FaultConfig {
    FaultConfig {
        seed,
        unavailable_permille: 250,
        lost_reply_permille: 150,
        delay_permille: 300,
        delay_max: ms(900),
        watch_cut_permille: 100,
    }
}

#[tokio::test(start_paused = true)]
async fn transient_failures_never_end_the_renewals() {
    let world = TestCluster::new();
    let (node, faults) = world.start("a", &Counter::default()).await;
    owns(&node, 4).await;
    faults.random(chance(7));
    tokio::time::sleep(Duration::from_secs(600)).await;
    let value = |name| node.metrics().value(name, "");
    assert!(value("tenure_lease_renewal_failures_total") > 50.0);
    assert!(value("tenure_lease_renewals_total") > 50.0);
    // Where the store keeps the time nothing is written at rest, and a watch that tells nothing does not break.
    assert!(crate::LEASES || value("tenure_watch_gaps_total") > 5.0);
    faults.heal();
    owns(&node, 4).await;
}

/// The greatest epoch that was ever let into each shard, as a resource that fences would keep it.
type Fences = Arc<Mutex<BTreeMap<ShardId, (Epoch, String)>>>;

/// Asks every node for every shard, and checks that at most one lets us in, at an epoch that never goes back (A14).
fn look(nodes: &[Node], fences: &Fences) {
    for i in 0..4 {
        let id = shard(i);
        let inside: Vec<_> = nodes
            .iter()
            .filter_map(|n| Some((n, n.enter_shard::<Counter>(&id).ok()?)))
            .collect();
        assert!(inside.len() <= 1, "{id} has two owners");
        for (node, entered) in inside {
            let mut fences = fences.lock().unwrap();
            let now = (entered.grant().epoch(), node.name().to_string());
            let seen = fences.entry(id.clone()).or_insert(now.clone());
            assert!(now.0 >= seen.0, "{id} went back from {seen:?} to {now:?}");
            assert!(
                now.0 > seen.0 || now.1 == seen.1,
                "{id}: one epoch, two nodes: {now:?}"
            );
            *seen = now;
        }
    }
}

async fn check_chaos(seed: u64) {
    let world = TestCluster::new();
    let fences = Fences::default();
    let mut nodes = Vec::new();
    let mut faults = Vec::new();
    for name in ["a", "b", "c"] {
        let (node, fault) = world.start(name, &Counter::default()).await;
        nodes.push(node);
        faults.push(fault);
    }
    for round in 0..40u64 {
        let fault = &faults[(seed + round) as usize % 3];
        match (seed / 3 + round) % 5 {
            0 => fault.random(chance(seed * 1000 + round)),
            1 => fault.outage(),
            2 => fault.hang(),
            3 => fault.slow_replies(ms(500)),
            _ => faults.iter().for_each(|f| f.heal()),
        }
        for _ in 0..60 {
            tokio::time::sleep(ms(50)).await;
            look(&nodes, &fences);
        }
    }
    faults.iter().for_each(|f| f.heal());
    let served = async || nodes.iter().map(|n| n.owned().len()).sum::<usize>() == 4;
    until("all is well again", served).await;
    tokio::time::sleep(TTL * 2).await;
    assert!(served().await);
    look(&nodes, &fences);
}

#[tokio::test(start_paused = true)]
async fn whatever_the_store_does_a_shard_has_one_owner_and_comes_back() {
    for seed in 0..6 {
        check_chaos(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_never_hears_that_it_has_resigned_waits_before_it_tries_again() {
    let world = TestCluster::new();
    let (node, faults) = world.start("a", &Counter::default()).await;
    owns(&node, 4).await;
    let tried = Arc::new(AtomicU32::new(0));
    let count = tried.clone();
    faults.fail_where(move |op, key| {
        let resigns = op.writes() && key.contains("/sessions/");
        let so_far = count.fetch_add(u32::from(resigns), Ordering::SeqCst);
        resigns && so_far < 1000
    });
    let _ = node.stop().await;
    let tried = tried.load(Ordering::SeqCst);
    assert!((3..500).contains(&tried), "it tried {tried} times");
}
