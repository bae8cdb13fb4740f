//! What a router makes of refusals.

use std::sync::{Arc, Mutex};

use tenure::Epoch;
use tenure::router::SendResult;

use crate::test_cluster::*;

#[tokio::test(start_paused = true)]
async fn a_refusal_is_followed_once_and_then_the_records_are_waited_for() {
    let site = TestCluster::<true>::new();
    let a = site.node("a").await;
    site.owns(&a, 8).await;
    let router = site.router("r1").await;
    let b = site.node("b").await;
    site.owns(&b, 4).await;
    tokio::time::sleep(ms(100)).await;
    let other = site.session_of("b").await.0;
    let shard = a.owned()[0].clone();
    let calls = Mutex::new(Vec::new());
    let start = tokio::time::Instant::now();
    let answer = router
        .send_to(&shard, 1, async |route| {
            let mut calls = calls.lock().unwrap();
            calls.push((route.owner.node().to_string(), start.elapsed().as_millis()));
            match calls.len() {
                // Whoever has newer knowledge is believed, but not for ever.
                n @ 1..=3 => SendResult::NotOwner {
                    owner: Some(other),
                    epoch: Epoch(route.epoch.0 + 1),
                    rev: route.rev + n as u64,
                },
                _ => SendResult::Done("done"),
            }
        })
        .await;
    assert_eq!(answer, Ok("done"));
    let calls = calls.into_inner().unwrap();
    let nodes: Vec<_> = calls.iter().map(|c| c.0.as_str()).collect();
    assert_eq!(nodes, ["a", "b", "a", "a"]);
    assert_eq!(metric(&router, "tenure_router_extra_hops_total"), 1.0);
    assert!(calls[2].1 > calls[1].1, "not at once: {calls:?}");
    until("open again", async || {
        !router.look_up_shard(&shard).unwrap().held
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_an_owner_answered_is_never_sent_again() {
    let site = TestCluster::<true>::new();
    let a = site.node("a").await;
    site.owns(&a, 8).await;
    let router = site.router("r1").await;
    let calls = Mutex::new(0);
    let answer: Result<Result<(), &str>, _> = router
        .send("orders", "k", 1, async |_| {
            *calls.lock().unwrap() += 1;
            SendResult::Done(Err("out of stock"))
        })
        .await;
    assert_eq!(answer, Ok(Err("out of stock")));
    assert_eq!(calls.into_inner().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn while_an_owner_refuses_one_request_at_a_time_tries_and_the_order_stays() {
    let site = TestCluster::<true>::new();
    let a = site.node("a").await;
    site.owns(&a, 8).await;
    let router = site.router("r1").await;
    let shard = a.owned()[0].clone();
    let start = tokio::time::Instant::now();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let sent: Vec<_> = (0..20u64)
        .map(|n| {
            let (router, shard, calls) = (router.clone(), shard.clone(), calls.clone());
            tokio::spawn(async move {
                router
                    .send_to(&shard, 1, async |route| {
                        tokio::time::sleep(ms(1)).await;
                        let refuses = start.elapsed() < ms(1000);
                        calls.lock().unwrap().push((n, refuses));
                        match refuses {
                            true => SendResult::NotOwner {
                                owner: None,
                                epoch: route.epoch,
                                rev: route.rev,
                            },
                            false => SendResult::Done(()),
                        }
                    })
                    .await
            })
        })
        .collect();
    for sent in sent {
        sent.await.unwrap().unwrap();
    }
    let calls = calls.lock().unwrap();
    let refused = calls.iter().filter(|c| c.1).count();
    assert!((25..40).contains(&refused), "{refused} tries in a second");
    let done: Vec<u64> = calls.iter().filter(|c| !c.1).map(|c| c.0).collect();
    assert_eq!(done, (0..20).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_request_for_another_epoch_is_refused_before_it_has_any_effect() {
    let site = TestCluster::<true>::new();
    let a = site.node("a").await;
    site.owns(&a, 8).await;
    let shard = a.owned()[0].clone();
    let epoch = a.owner(&shard).unwrap().0;
    a.enter_shard_at::<Ledger<true>>(&shard, epoch).unwrap();
    for other in [Epoch(epoch.0 - 1), Epoch(epoch.0 + 1)] {
        let refused = a.enter_shard_at::<Ledger<true>>(&shard, other).unwrap_err();
        assert_eq!(refused.reason, tenure::RejectReason::OtherEpoch);
        assert_eq!(refused.epoch, epoch);
        assert_eq!(refused.rev, site.record(&shard).await.head.rev);
        let key = key_of(&shard);
        a.enter_at::<Ledger<true>>("orders", &key, other)
            .unwrap_err();
    }
}
