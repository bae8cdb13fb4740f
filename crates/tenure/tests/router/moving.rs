//! One move, looked at closely.

use std::sync::Arc;

use tenure_core::ids::SessionId;
use tenure_core::keys::Key;
use tenure_core::record::{MovePhase, Ownership, Record};

use crate::test_cluster::*;

/// A node that has all shards, a router, and a second node to which some are about to move but cannot: the first does not
/// finish sealing.
async fn about_to_move() -> (
    Arc<TestCluster<true>>,
    tenure::Node,
    tenure::Node,
    tenure::Router,
) {
    let site = Arc::new(TestCluster::<true>::new());
    let a = site.node("a").await;
    site.owns(&a, 8).await;
    let router = site.router("r1").await;
    site.sealing.send_replace(Sealing::Wait);
    let b = site.node("b").await;
    (site, a, b, router)
}

/// Lines of one key on the disk, in order.
fn order(site: &TestCluster<true>, key: &str) -> Vec<u64> {
    let disk = site.disk.lock().unwrap();
    let lines = disk.get(&shard_of(key)).into_iter().flatten();
    lines.filter(|l| l.key == key).map(|l| l.n).collect()
}

#[tokio::test(start_paused = true)]
async fn requests_that_come_during_a_move_are_answered_by_the_new_owner_in_the_order_of_their_arrival()
 {
    // D11
    let (site, _a, b, router) = about_to_move().await;
    let shard = site.moving(MovePhase::Freezing).await;
    until("the router holds", async || {
        router.look_up_shard(&shard).unwrap().held
    })
    .await;
    let key = key_of(&shard);
    let mut sent: Vec<_> = (1..=40).map(|n| site.begin(&router, &key, n)).collect();
    tokio::time::sleep(ms(100)).await;
    assert!(order(&site, &key).is_empty(), "nothing passes");
    assert_eq!(metric(&router, "tenure_router_held_requests"), 40.0);
    site.sealing.send_replace(Sealing::Go);
    // More come while what was held is on its way.
    until("the flush has begun", async || {
        !order(&site, &key).is_empty()
    })
    .await;
    sent.extend((41..=60).map(|n| site.begin(&router, &key, n)));
    for sent in sent {
        sent.await.unwrap().unwrap();
    }
    assert_eq!(order(&site, &key), (1..=60).collect::<Vec<_>>());
    assert!(b.owned().contains(&shard));
    assert_eq!(metric(&router, "tenure_router_extra_hops_total"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_move_that_is_called_off_flushes_to_the_owner_that_stayed() {
    // D11
    let (site, a, _b, router) = about_to_move().await;
    let shard = site.moving(MovePhase::Freezing).await;
    let before = site.record(&shard).await;
    until("the router holds", async || {
        router.look_up_shard(&shard).unwrap().held
    })
    .await;
    let key = key_of(&shard);
    let sent: Vec<_> = (1..=10).map(|n| site.begin(&router, &key, n)).collect();
    tokio::time::sleep(ms(50)).await;
    site.sealing.send_replace(Sealing::Fail);
    for sent in sent {
        sent.await.unwrap().unwrap();
    }
    assert_eq!(order(&site, &key), (1..=10).collect::<Vec<_>>());
    let after = site.record(&shard).await;
    assert_eq!(after.owner(), before.owner());
    assert_eq!(after.epoch, before.epoch);
    assert!(a.owned().contains(&shard));
}

#[tokio::test(start_paused = true)]
async fn a_router_that_never_acknowledges_delays_a_move_by_the_freeze_timeout_and_one_that_does_by_next_to_nothing()
 {
    // D5
    for mute in [false, true] {
        let site = Arc::new(TestCluster::<true>::new());
        let a = site.node("a").await;
        site.owns(&a, 8).await;
        let router = site.router("r1").await;
        if mute {
            site.mute_router(&router).await;
        }
        let b = site.node("b").await;
        let shard = site.moving(MovePhase::Freezing).await;
        let took = until("it has moved", async || b.owned().contains(&shard)).await;
        let limit = settings().router_hold_timeout;
        if mute {
            assert!(took >= limit - ms(20) && took < limit + ms(100), "{took:?}");
        } else {
            assert!(took < ms(50), "{took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn late_and_repeated_acknowledgements_change_nothing() {
    // D6
    let (site, _a, b, router) = about_to_move().await;
    let mute = site.mute_router(&router).await;
    let shard = site.moving(MovePhase::Freezing).await;
    let Ownership::Freezing { mv, .. } = site.record(&shard).await.ownership else {
        panic!("it freezes")
    };
    site.sealing.send_replace(Sealing::Go);
    site.owns(&b, 4).await;
    let before = site.record(&shard).await;
    for _ in 0..2 {
        acknowledge(&site, mute, &shard, mv.id).await;
        tokio::time::sleep(ms(500)).await;
        let after = site.record(&shard).await;
        assert_eq!(
            (after.epoch, after.ownership),
            (before.epoch, before.ownership.clone())
        );
    }
    let key = key_of(&shard);
    site.send(&router, &key, 1).await.unwrap();
}

/// Has a session say that it holds what comes for a shard.
async fn acknowledge(
    site: &TestCluster<true>,
    session: SessionId,
    shard: &tenure::ShardId,
    mv: u64,
) {
    let key = Key::Session(session);
    let (version, record) = site.get(&key).await;
    let Record::Session(record) = record else {
        panic!("{record:?}")
    };
    let mut record = (*record).clone();
    record.head.rev += 1;
    let held = record.held.entry(shard.keyspace.clone()).or_default();
    held.insert(shard.shard.clone(), mv);
    let value = Record::Session(Arc::new(record)).encode();
    assert!(site.put(&key, value, version).await);
}

#[tokio::test(start_paused = true)]
async fn one_write_tells_owners_of_all_moves_of_a_batch() {
    // D9
    let (site, _a, b, router) = about_to_move().await;
    site.moving(MovePhase::Freezing).await;
    until("four shards freeze", async || {
        let mut freezing = 0;
        for i in 0..SHARDS {
            let shard = format!("orders/{i}").parse().unwrap();
            let record = site.record(&shard).await;
            freezing += usize::from(matches!(record.ownership, Ownership::Freezing { .. }));
        }
        freezing == 4
    })
    .await;
    tokio::time::sleep(ms(20)).await;
    let session = site.session_of("r1").await.1;
    assert_eq!(
        session.held.values().map(|held| held.len()).sum::<usize>(),
        4
    );
    assert_eq!(
        metric(&router, "tenure_router_hold_acknowledgements_total"),
        1.0
    );
    site.sealing.send_replace(Sealing::Go);
    site.owns(&b, 4).await;
    until("the next renewal says that nothing is held", async || {
        site.session_of("r1").await.1.held.is_empty()
    })
    .await;
    assert_eq!(
        metric(&router, "tenure_router_hold_acknowledgements_total"),
        1.0
    );
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_went_and_came_back_moves_again_at_once() {
    let mut site = TestCluster::<true>::new();
    // Without a leader, which would give a node that comes back some time.
    site.mode = tenure::AssignedBy::Rendezvous;
    let a = site.node("a").await;
    site.owns(&a, 8).await;
    for _ in 0..3 {
        let start = tokio::time::Instant::now();
        let b = site.node("b").await;
        until("b has its share", async || site.settled(&a, &b)).await;
        // Whoever takes it for called off waits for as long as a drain may take.
        assert!(
            start.elapsed() < settings().drain_timeout / 2,
            "{:?}",
            start.elapsed()
        );
        b.stop().await.unwrap();
        site.owns(&a, 8).await;
    }
}
