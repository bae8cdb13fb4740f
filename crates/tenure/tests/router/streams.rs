//! Requests that do not end by themselves: told to close when their shard freezes, and cut when they do not (P4).

use std::time::Duration;

use tenure::router::{Router, SendResult};
use tenure::{Node, ShardId};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::test_cluster::*;

/// When a stream was told that its shard moves, and when it ended.
struct Ended {
    told: Instant,
    ended: Instant,
}

/// Opens a stream through a router. A polite one ends when it is told to, the others when they are cut.
fn stream(router: &Router, node: &Node, key: String, polite: bool) -> JoinHandle<Ended> {
    let (router, node) = (router.clone(), node.clone());
    tokio::spawn(async move {
        let sent = router.send("orders", &key, 100, async |route| {
            let entered = match node.enter_at::<Ledger<true>>("orders", &key, route.epoch) {
                Ok(entered) => entered,
                Err(refused) => return refused.into(),
            };
            entered.grant().move_requested().await;
            let told = Instant::now();
            if !polite {
                entered.grant().stream_deadline().await;
            }
            let ended = Instant::now();
            drop(entered);
            SendResult::Done(Ended { told, ended })
        });
        sent.await.unwrap()
    })
}

#[tokio::test(start_paused = true)]
async fn streams_are_told_to_close_at_the_freeze_and_those_that_do_not_are_cut_in_time_for_the_move()
 {
    let site = TestCluster::<true>::new();
    let a = site.node("a").await;
    site.owns(&a, 8).await;
    let router = site.router("r1").await;
    let streams: Vec<(ShardId, JoinHandle<Ended>, JoinHandle<Ended>)> = (0..SHARDS)
        .map(|i| {
            let shard: ShardId = format!("orders/{i}").parse().unwrap();
            let key = key_of(&shard);
            let polite = stream(&router, &a, key.clone(), true);
            (shard, polite, stream(&router, &a, key, false))
        })
        .collect();
    tokio::time::sleep(ms(50)).await;
    let begun = Instant::now();
    let b = site.node("b").await;
    site.owns(&b, 4).await;
    let moved = begun.elapsed();
    let settings = settings();
    let cut_after = settings.drain_timeout / 4 * 3;
    // The router has streams in flight, so that it says nothing and the owner waits for it no longer than it must.
    let limit = settings.router_hold_timeout + settings.drain_timeout + Duration::from_secs(2);
    assert!(moved < limit, "{moved:?}");
    let mut count = 0;
    for (shard, polite, deaf) in streams {
        if !b.owned().contains(&shard) {
            assert!(!polite.is_finished() && !deaf.is_finished(), "{shard}");
            polite.abort();
            deaf.abort();
            continue;
        }
        count += 1;
        let (polite, deaf) = (polite.await.unwrap(), deaf.await.unwrap());
        assert_eq!(polite.told, polite.ended);
        let apart = polite.told.max(deaf.told) - polite.told.min(deaf.told);
        assert!(apart < ms(5), "both are told at the freeze: {apart:?}");
        let cut = deaf.ended - deaf.told;
        assert!(cut >= cut_after - ms(5), "{cut:?}");
        assert!(cut < cut_after + ms(50), "{cut:?}");
        // And what comes next is the new owner's.
        site.send(&router, &key_of(&shard), 1).await.unwrap();
    }
    assert_eq!(count, 4);
}
