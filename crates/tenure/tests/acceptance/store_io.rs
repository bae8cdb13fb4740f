//! What a node asks of its store, and how little of it.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::memory::MemoryStore;
use tenure::store::observed_store::{CountReader, ObservedStore};
use tenure::store::{Op, PutIf};
use tenure::{Clock, Hashed, Node};

use crate::test_cluster::*;

async fn observed(shards: u32) -> (Node, CountReader) {
    let (store, observer) = ObservedStore::new(Arc::new(MemoryStore::new()));
    let builder = Node::builder("memory:", "shop")
        .name("a")
        .store(Arc::new(store))
        .clock(Clock::runtime())
        .settings(settings());
    let node = started(builder.keyspace("orders", Hashed(shards), Counter::default())).await;
    (node.unwrap(), observer)
}

#[tokio::test(start_paused = true)]
async fn at_rest_a_node_writes_once_per_renewal_and_lists_nothing() {
    let (node, store) = observed(64).await;
    owns(&node, 64).await;
    tokio::time::sleep(TTL * 10).await;
    let before = store.snapshot();
    let renewals = 100;
    tokio::time::sleep(TTL / 6 * renewals).await;
    let cost = store.snapshot().since(&before);
    let writes = cost.writes();
    assert!(writes.abs_diff(u64::from(renewals)) <= 1, "{writes} writes");
    assert_eq!(cost.of(Op::List).calls, 0);
    assert!(
        cost.reads() <= u64::from(renewals) / 2,
        "{} reads",
        cost.reads()
    );
}

#[tokio::test(start_paused = true)]
async fn writes_of_many_shards_go_to_the_store_in_batches() {
    let (node, store) = observed(2000).await;
    owns(&node, 2000).await;
    let puts = *store.snapshot().of(Op::Put);
    assert!(puts.keys >= 5500, "created, claimed and serving: {puts:?}");
    assert!(puts.calls * 10 <= puts.keys, "{puts:?}");
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_not_ours_are_left_alone() {
    let world = TestCluster::new();
    for key in ["shop/notes", "shop/shards/x", "shopping/cluster"] {
        let put = PutIf::create(key, b"hello".to_vec());
        world.store.put_if(put).await.unwrap();
    }
    let (node, _) = world.start("a", &Counter::default()).await;
    owns(&node, 4).await;
    tokio::time::sleep(TTL * 6).await;
    assert_eq!(node.owned().len(), 4);
    for key in ["shop/notes", "shop/shards/x", "shopping/cluster"] {
        let entry = world.store.get(key).await.unwrap().unwrap();
        assert_eq!(&*entry.value, b"hello");
    }
    assert_eq!(
        node.metrics().value("tenure_unreadable_records_total", ""),
        0.0
    );
}

#[tokio::test(start_paused = true)]
async fn a_dropped_node_cuts_its_work_at_once_and_leaves_its_records() {
    let world = TestCluster::new();
    let (node, _) = world.start("a", &Counter::default()).await;
    owns(&node, 4).await;
    let entered = node.enter_shard::<Counter>(&shard(0)).unwrap();
    let grant = entered.grant().clone();
    let work = tokio::spawn(entered.run(async |_, _| std::future::pending::<()>().await));
    tokio::task::yield_now().await;
    drop(node);
    assert!(grant.check().is_err());
    assert_eq!(grant.remaining(), Duration::ZERO);
    work.await.unwrap().unwrap_err();
    tokio::time::sleep(ms(1000)).await;
    assert!(world.record(&shard(0)).await.owner().is_some());
}
