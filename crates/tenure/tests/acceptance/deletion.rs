//! A11: keys deleted by hand under a live owner.

use std::time::Duration;

use tenure::{Epoch, Node, ShardId};
use tenure_core::keys::Key;

use crate::test_cluster::*;

/// Two nodes that share the shards, and a shard that the first one owns.
async fn pair(world: &TestCluster) -> (Node, Node, ShardId) {
    let (a, _) = world.start("a", &Counter::default()).await;
    let (b, _) = world.start("b", &Counter::default()).await;
    let balance = async || {
        a.owned().len() + b.owned().len() == 4 && !a.owned().is_empty() && !b.owned().is_empty()
    };
    until("balance", balance).await;
    tokio::time::sleep(ms(3000)).await;
    until("balance", balance).await;
    let shard = some_shard(&a);
    (a, b, shard)
}

/// The shard is let go soon, is served again only after a ttl with its drift, and at a greater epoch.
async fn check_comes_back(world: &TestCluster, nodes: [&Node; 2], shard: &ShardId, before: Epoch) {
    let start = world.clock.now();
    let served = |node: &Node| node.owned().contains(shard);
    let closed = until("closed", async || !nodes.iter().any(|n| served(n))).await;
    assert!(closed <= TTL / 6 + ms(50), "closed after {closed:?}");
    until("served again", async || nodes.iter().any(|n| served(n))).await;
    let away = world.clock.now().since(start);
    let proof = TTL + TTL / 100;
    assert!(away >= proof, "claimed {away:?} after the deletion");
    assert!(away <= proof * 3, "came back only after {away:?}");
    let after = world.record(shard).await.epoch;
    assert!(after > before, "{after} after {before}");
    let count = nodes.iter().filter(|n| served(n)).count();
    assert_eq!(count, 1);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_shard_record_comes_back_after_a_ttl_at_a_greater_epoch() {
    let world = TestCluster::new();
    let (a, b, shard) = pair(&world).await;
    let before = world.record(&shard).await.epoch;
    world.delete(&Key::Shard(shard.clone())).await;
    check_comes_back(&world, [&a, &b], &shard, before).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_session_costs_its_holder_the_shards_but_not_before_a_ttl() {
    let world = TestCluster::new();
    let (a, b, shard) = pair(&world).await;
    let record = world.record(&shard).await;
    let session = record.owner().unwrap().session;
    world.delete(&Key::Session(session)).await;
    check_comes_back(&world, [&a, &b], &shard, record.epoch).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_keyspace_comes_back_after_a_ttl_at_greater_epochs() {
    let world = TestCluster::new();
    let (a, b, shard) = pair(&world).await;
    let before = world.record(&shard).await.epoch;
    world.delete(&Key::Keyspace(shard.keyspace.clone())).await;
    check_comes_back(&world, [&a, &b], &shard, before).await;
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_shard_record_comes_back_after_a_ttl_and_concerns_no_other_shard() {
    let world = TestCluster::new();
    let (a, b, shard) = pair(&world).await;
    let before = world.record(&shard).await.epoch;
    let served = || a.owned().into_iter().chain(b.owned());
    let others: Vec<_> = served().filter(|s| *s != shard).collect();
    let mut epochs = Vec::new();
    for other in &others {
        epochs.push(world.record(other).await.epoch);
    }
    world
        .overwrite(&Key::Shard(shard.clone()), b"{\"epoch\":")
        .await;
    check_comes_back(&world, [&a, &b], &shard, before).await;
    for (other, epoch) in others.iter().zip(epochs) {
        assert_eq!(world.record(other).await.epoch, epoch, "{other}");
    }
    assert!(a.metrics().value("tenure_unreadable_records_total", "") >= 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_shard_record_of_a_newer_format_is_never_replaced() {
    let world = TestCluster::new();
    let (a, b, shard) = pair(&world).await;
    let newer = b"{\"format\":2,\"rev\":1,\"nonce\":\"1-1\"}";
    world.overwrite(&Key::Shard(shard.clone()), newer).await;
    until("closed", async || !a.owned().contains(&shard)).await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let served = a.owned().len() + b.owned().len();
        assert_eq!(served, 3, "the others are served on");
    }
}
