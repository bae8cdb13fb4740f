//! A11: keys deleted by hand under a live owner.

use std::time::Duration;

use tenure::{Epoch, Node, ShardId};
use tenure_core::layout::Key;

use crate::world::*;

/// Two nodes that share the shards, and a shard that the first one owns.
async fn pair(world: &World) -> (Node, Node, ShardId) {
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
async fn check_comes_back(world: &World, nodes: [&Node; 2], shard: &ShardId, before: Epoch) {
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
    let world = World::new();
    let (a, b, shard) = pair(&world).await;
    let before = world.record(&shard).await.epoch;
    world.delete(&Key::Shard(shard.clone())).await;
    check_comes_back(&world, [&a, &b], &shard, before).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_session_costs_its_holder_the_shards_but_not_before_a_ttl() {
    let world = World::new();
    let (a, b, shard) = pair(&world).await;
    let record = world.record(&shard).await;
    let session = record.owner().unwrap().session;
    world.delete(&Key::Session(session)).await;
    check_comes_back(&world, [&a, &b], &shard, record.epoch).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_keyspace_comes_back_after_a_ttl_at_greater_epochs() {
    let world = World::new();
    let (a, b, shard) = pair(&world).await;
    let before = world.record(&shard).await.epoch;
    world.delete(&Key::Keyspace(shard.keyspace.clone())).await;
    check_comes_back(&world, [&a, &b], &shard, before).await;
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_record_stands_alone() {
    let world = World::new();
    let (a, b, shard) = pair(&world).await;
    let key = Key::Shard(shard.clone());
    world.overwrite(&key, b"{\"epoch\":").await;
    until("closed", async || !a.owned().contains(&shard)).await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(
            a.owned().len() + b.owned().len(),
            3,
            "the others are served on"
        );
    }
    assert!(a.metrics().value("tenure_damaged_records_total", "") >= 1.0);
}
