//! A4, A5, A6, A8: detached is detached, and it passes by itself.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::{Node, NodeEvent, RejectReason};

use crate::test_cluster::*;

async fn detached(node: &Node) {
    let detached = async || node.metrics().value("tenure_detached", "") == 1.0;
    until("detached", detached).await;
}

#[tokio::test(start_paused = true)]
async fn while_detached_nothing_is_owned_and_nothing_runs() {
    let world = TestCluster::new();
    let handler = Counter::default();
    let (node, faults) = world.start("a", &handler).await;
    owns(&node, 4).await;
    until("loops run", async || {
        handler.running.load(Ordering::SeqCst) == 4
    })
    .await;
    let before = world.epochs().await;
    faults.outage();
    detached(&node).await;
    for _ in 0..100 {
        tokio::time::sleep(ms(100)).await;
        assert!(node.owned().is_empty());
        assert_eq!(handler.running.load(Ordering::SeqCst), 0);
        let refused = node.enter::<Counter>("orders", "user").unwrap_err();
        assert_eq!(refused.reason, RejectReason::NotReady);
    }
    assert_eq!(world.epochs().await, before, "records are left alone");
    assert_eq!(
        handler.journal.count("seal 0"),
        0,
        "what is lost is not sealed"
    );
}

#[tokio::test(start_paused = true)]
async fn detachment_wins_against_a_claim_that_is_already_on_its_way() {
    let world = TestCluster::new();
    let (here, there) = (Counter::default(), Counter::default());
    let (a, _) = world.start("a", &here).await;
    let (b, faults) = world.start("b", &there).await;
    until("balance", async || {
        a.owned().len() + b.owned().len() == 4 && !b.owned().is_empty()
    })
    .await;
    let given = some_shard(&a);
    let owner = async || {
        let record = world.record(&given).await;
        record.owner().map(|owner| owner.node.clone())
    };
    // The claim takes a while to arrive, and then hangs on the way: it lands when the store comes back.
    faults.slow(ms(300));
    world.release(&given, &b).await;
    tokio::time::sleep(ms(450)).await;
    faults.hang();
    detached(&b).await;
    assert!(b.owned().is_empty());
    assert_eq!(owner().await, None, "the claim has landed before its time");
    faults.heal();
    let healed = world.clock.now();
    tokio::time::sleep(ms(5)).await;
    assert_eq!(owner().await.as_ref(), Some(b.name()), "no claim landed");
    // The lease had ended before the claim succeeded, so nothing is served until the window of health has passed.
    while world.clock.now().since(healed) < TTL / 3 {
        assert!(b.owned().is_empty(), "{:?}", b.owned());
        assert!(b.enter_shard::<Counter>(&given).is_err());
        tokio::time::sleep(ms(50)).await;
    }
    until("served", async || b.owned().contains(&given)).await;
}

#[tokio::test(start_paused = true)]
async fn one_store_restart_is_survived_with_the_same_shards_and_epochs() {
    for outage in [ms(5000), ms(20_000), Duration::from_secs(3600)] {
        let world = TestCluster::new();
        let handler = Counter::default();
        let (a, faults_a) = world.start("a", &handler).await;
        let (b, faults_b) = world.start("b", &handler).await;
        until("balance", async || {
            a.owned().len() + b.owned().len() == 4 && !b.owned().is_empty()
        })
        .await;
        tokio::time::sleep(ms(2000)).await;
        let (of_a, of_b, epochs) = (a.owned(), b.owned(), world.epochs().await);
        faults_a.outage();
        faults_b.outage();
        tokio::time::sleep(outage).await;
        assert!(a.owned().is_empty() && b.owned().is_empty());
        faults_a.heal();
        faults_b.heal();
        let back = owns(&a, of_a.len()).await.max(owns(&b, of_b.len()).await);
        if crate::LEASES && outage > TTL {
            // The store went on without these nodes: their sessions are over, and each has its part again under another.
            let shares = (of_a.len(), of_b.len());
            let settled = async || (a.owned().len(), b.owned().len()) == shares;
            until("the same parts", settled).await;
            continue;
        }
        assert!(back >= TTL / 3 - ms(50), "back after {back:?} of health");
        assert_eq!((a.owned(), b.owned()), (of_a, of_b));
        assert_eq!(world.epochs().await, epochs, "after {outage:?}");
        a.enter_shard::<Counter>(&some_shard(&a)).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_signal_restarts_the_window_of_health() {
    let world = TestCluster::new();
    let handler = Counter::default();
    let (node, faults) = world.start("a", &handler).await;
    owns(&node, 4).await;
    faults.outage();
    detached(&node).await;
    for _ in 0..5 {
        // Long enough for a renewal to succeed, and for the next one to fail before the window is over.
        faults.heal();
        tokio::time::sleep(ms(700)).await;
        faults.outage();
        tokio::time::sleep(ms(1500)).await;
        assert!(node.owned().is_empty());
    }
    faults.heal();
    let back = owns(&node, 4).await;
    assert!(back >= TTL / 3 - ms(50) && back < TTL, "{back:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_left_and_came_back_serves_again() {
    let world = TestCluster::new();
    let (here, there) = (Counter::default(), Counter::default());
    let (a, _) = world.start("a", &here).await;
    owns(&a, 4).await;
    for _ in 0..3 {
        let (b, _) = world.start("b", &there).await;
        until("balance", async || {
            a.owned().len() + b.owned().len() == 4 && !b.owned().is_empty()
        })
        .await;
        let moved = some_shard(&b);
        let refused = a.enter_shard::<Counter>(&moved).unwrap_err();
        assert_eq!(refused.reason, RejectReason::Elsewhere);
        let owner = refused.owner.unwrap();
        assert_eq!(owner.node.as_str(), "b");
        assert_eq!(owner.addresses["http"], "http://b");
        b.stop().await.unwrap();
        owns(&a, 4).await;
        let entered = a.enter_shard::<Counter>(&moved).unwrap();
        assert!(entered.grant().epoch() > refused.epoch);
        entered.run(async |n, _| *n += 1).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_follow_the_lease_and_each_change_is_told_once() {
    let world = TestCluster::new();
    let (node, faults) = world.start("a", &Counter::default()).await;
    owns(&node, 4).await;
    let value = |name| node.metrics().value(name, "");
    until("a renewal", async || {
        value("tenure_lease_renewals_total") > 0.0
    })
    .await;
    node.metrics().render();
    let lag = value("tenure_lease_remaining_seconds");
    assert!((4.0..=6.0).contains(&lag), "{lag}");
    assert_eq!(
        node.metrics().value("tenure_shards", "{state=\"serving\"}"),
        4.0
    );

    let mut notes = node.events();
    faults.outage();
    detached(&node).await;
    // A store that keeps the time goes on without the node, and would end its session.
    tokio::time::sleep(ms(if crate::LEASES { 900 } else { 3000 })).await;
    let failures = value("tenure_lease_renewal_failures_total");
    assert!(failures > 5.0, "{failures}");
    assert_eq!(value("tenure_lease_renewal_failure_streak"), failures);
    node.metrics().render();
    assert!(crate::LEASES || value("tenure_lease_remaining_seconds") < 0.0);
    faults.heal();
    owns(&node, 4).await;
    assert_eq!(value("tenure_detached"), 0.0);
    assert_eq!(value("tenure_lease_renewal_failure_streak"), 0.0);

    let mut changes = Vec::new();
    while let Ok(note) = notes.try_recv() {
        if let NodeEvent::Lease { to, .. } = &*note {
            changes.push(to.as_str());
        }
    }
    assert_eq!(changes, ["degraded", "detached", "recovering", "attached"]);
}
