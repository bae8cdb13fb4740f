//! A1, A2, A3: the lease ends work at its time, not before and not after.

use tenure::store::Op;
use tenure::{NodeEvent, RejectReason, Time};

use crate::test_cluster::*;

/// The time at which gates close by themselves, by the last confirmed renewal.
async fn next_renewal_closes_at(world: &TestCluster, node: &tenure::Node) -> Time {
    let took = note(&mut node.events(), |n| match n {
        NodeEvent::Renewed { took, .. } => Some(*took),
        _ => None,
    })
    .await;
    world.clock.now() - took + good_for() - MARGIN
}

enum Cut {
    Outage,
    Hang,
}

async fn check_work_ends_in_time(cut: Cut, late_answers: u64) {
    let world = TestCluster::new();
    let handler = Counter::default();
    let (node, faults) = world.start("a", &handler).await;
    owns(&node, 4).await;
    faults.slow_replies(ms(late_answers));
    next_renewal_closes_at(&world, &node).await;
    let closes_at = next_renewal_closes_at(&world, &node).await;
    match cut {
        Cut::Outage => faults.outage(),
        Cut::Hang => faults.hang(),
    }

    let entered = node.enter::<Counter>("orders", "user").unwrap();
    let grant = entered.grant().clone();
    let work = tokio::spawn(entered.run(async |_, _| std::future::pending::<()>().await));
    world.clock.sleep_until(closes_at - ms(3)).await;
    assert!(!work.is_finished(), "work was interrupted too early");
    assert_eq!(grant.check(), Ok(()));
    assert!(grant.remaining() <= ms(3), "{:?}", grant.remaining());
    drop(node.enter::<Counter>("orders", "user").unwrap());
    world.clock.sleep_until(closes_at).await;
    let refused = node.enter::<Counter>("orders", "user").unwrap_err();
    assert_eq!(refused.reason, RejectReason::NotReady);
    assert!(grant.check().is_err());
    work.await.unwrap().unwrap_err();
    let late = world.clock.now().since(closes_at);
    assert!(late <= ms(3), "work was interrupted {late:?} too late");
}

#[tokio::test(start_paused = true)]
async fn a_lost_keep_alive_ends_work_at_the_deadline_minus_the_margin() {
    check_work_ends_in_time(Cut::Outage, 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_no_better_and_no_worse_than_one_that_fails() {
    check_work_ends_in_time(Cut::Hang, 0).await;
}

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_the_time_the_renewal_was_sent() {
    check_work_ends_in_time(Cut::Outage, 400).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_and_returns_in_time_costs_nothing() {
    let world = TestCluster::new();
    let handler = Counter::default();
    let (node, faults) = world.start("a", &handler).await;
    owns(&node, 4).await;
    let (epochs, loads) = (world.epochs().await, handler.journal.lines());
    for hang in [false, true] {
        next_renewal_closes_at(&world, &node).await;
        if hang {
            faults.hang()
        } else {
            faults.outage()
        }
        let entered = node.enter::<Counter>("orders", "user").unwrap();
        let work = tokio::spawn(entered.run(async |n, _| {
            tokio::time::sleep(ms(5000)).await;
            *n += 1;
        }));
        for _ in 0..40 {
            tokio::time::sleep(ms(100)).await;
            assert_eq!(node.owned().len(), 4);
        }
        faults.heal();
        work.await.unwrap().expect("work goes on");
        assert_eq!(node.owned().len(), 4);
    }
    assert_eq!(world.epochs().await, epochs);
    assert_eq!(handler.journal.lines(), loads, "nothing was loaded again");
}

#[tokio::test(start_paused = true)]
async fn failing_claims_do_not_touch_a_good_lease() {
    let world = TestCluster::new();
    let (a, _) = world.start("a", &Counter::default()).await;
    let (b, faults) = world.start("b", &Counter::default()).await;
    until("balance", async || {
        a.owned().len() == 2 && b.owned().len() == 2
    })
    .await;
    let (own, before) = (b.owned(), world.epochs().await);
    faults.fail_where(|op, key| op == Op::Put && key.contains("/shards/"));
    a.stop().await.unwrap();
    let failed = || {
        let labels = "{kind=\"put\",outcome=\"unavailable\"}";
        b.metrics().value("tenure_store_requests_total", labels)
    };
    for _ in 0..40 {
        tokio::time::sleep(ms(500)).await;
        assert_eq!(b.owned(), own, "keeps what it has");
        assert_eq!(b.metrics().value("tenure_detached", ""), 0.0);
    }
    assert!(failed() >= 3.0, "{} claims have failed", failed());
    assert_eq!(
        b.metrics().value("tenure_lease_renewal_failures_total", ""),
        0.0
    );
    faults.heal();
    owns(&b, 4).await;
    let after = world.epochs().await;
    for i in 0..4 {
        let kept = own.contains(&shard(i));
        assert_eq!(after[i as usize] == before[i as usize], kept, "{i}");
    }
}

#[tokio::test(start_paused = true)]
async fn failing_lists_and_writes_of_others_do_not_touch_a_good_lease() {
    let world = TestCluster::new();
    let handler = Counter::default();
    let (node, faults) = world.start("a", &handler).await;
    owns(&node, 4).await;
    faults.cut_watch();
    faults.fail_where(|_, key| !key.contains("/sessions/"));
    for _ in 0..60 {
        tokio::time::sleep(ms(500)).await;
        assert_eq!(node.owned().len(), 4);
    }
    assert_eq!(
        node.metrics()
            .value("tenure_lease_renewal_failures_total", ""),
        0.0
    );
}
