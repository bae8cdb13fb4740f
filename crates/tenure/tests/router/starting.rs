//! What a router knows, and from when on.

use std::sync::Arc;

use tenure::router::{RouteError, SendResult};
use tenure::store::fault::{FaultConfig, FaultStore};
use tenure::{Named, Node};
use tenure_core::keys::Key;
use tenure_core::record::Record;

use crate::test_cluster::*;

#[tokio::test(start_paused = true)]
async fn a_router_knows_every_shard_when_it_has_started() {
    let site = TestCluster::<true>::new();
    let a = site.node("a").await;
    site.owns(&a, 8).await;
    let router = site.router("r1").await;
    for i in 0..SHARDS {
        let shard = format!("orders/{i}").parse().unwrap();
        let found = router.look_up_shard(&shard).unwrap();
        let record = site.record(&shard).await;
        let owner = found.owner.unwrap();
        assert_eq!(owner.node().as_str(), "a");
        assert_eq!(owner.address("wire"), Some("a"));
        assert_eq!(
            (found.epoch, found.rev, found.held),
            (record.epoch, record.head.rev, false)
        );
    }
    let found = router.look_up("orders", "user-42").unwrap();
    assert_eq!(*found.shard, shard_of("user-42"));
    let unknown = router.look_up("order", "k").unwrap_err();
    assert!(
        matches!(unknown, RouteError::UnknownKeyspace { .. }),
        "{unknown}"
    );
    for name in ["orders/8", "orders/01"] {
        let unknown = router.look_up_shard(&name.parse().unwrap()).unwrap_err();
        assert!(
            matches!(unknown, RouteError::UnknownShard { .. }),
            "{unknown}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_router_does_not_start_before_it_has_read_the_records() {
    let site = TestCluster::<true>::new();
    let a = site.node("a").await;
    site.owns(&a, 8).await;
    let (store, faults) = FaultStore::new(site.store.clone(), FaultConfig::none(1));
    faults.hang();
    let builder = site.router_builder("r1").store(Arc::new(store));
    let starting = tokio::spawn(builder.start());
    tokio::time::sleep(ms(20_000)).await;
    assert!(!starting.is_finished());
    faults.heal();
    let router = starting.await.unwrap().unwrap();
    site.send(&router, "k", 1).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_shard_whose_record_cannot_be_read_is_held_and_the_others_are_not() {
    let site = TestCluster::<true>::new();
    let a = site.node("a").await;
    site.owns(&a, 8).await;
    let broken: tenure::ShardId = "orders/3".parse().unwrap();
    let key = Key::Shard(broken.clone());
    let (version, record) = site.get(&key).await;
    assert!(site.put(&key, b"{".to_vec(), version).await);
    let router = site.router("r1").await;
    let held = site.begin(&router, &key_of(&broken), 1);
    site.send(&router, &key_of(&"orders/4".parse().unwrap()), 1)
        .await
        .unwrap();
    tokio::time::sleep(ms(1000)).await;
    assert!(!held.is_finished());
    let entry = site
        .store
        .get(&key.path(&cluster()))
        .await
        .unwrap()
        .unwrap();
    let Record::Shard(mut record) = record else {
        panic!("{record:?}")
    };
    Arc::make_mut(&mut record).head.rev += 1;
    let repaired = Record::Shard(record).encode();
    assert!(site.put(&key, repaired, entry.version).await);
    held.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_keyspace_that_is_created_later_is_learned_and_so_are_its_owners() {
    let site = TestCluster::<true>::new();
    let router = site.router("r1").await;
    let unknown = site.send(&router, "k", 1).await.unwrap_err();
    assert!(
        matches!(unknown, RouteError::UnknownKeyspace { .. }),
        "{unknown}"
    );
    let a = site.node("a").await;
    site.owns(&a, 8).await;
    until("the router has heard", async || {
        router.look_up("orders", "k").is_ok()
    })
    .await;
    site.send(&router, "k", 1).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn named_shards_are_found_by_their_names() {
    let site = TestCluster::<true>::new();
    let ledger = Ledger::<true> {
        disk: site.disk.clone(),
        sealing: site.sealing.subscribe(),
        load_time: ms(1),
    };
    let a = Node::builder("memory:", "shop")
        .store(site.store.clone())
        .name("a")
        .settings(settings())
        .clock(site.clock.clone())
        .keyspace("topics", Named, ledger)
        .start()
        .await
        .unwrap();
    let router = site.router("r1").await;
    let unknown = router.look_up("topics", "eu/payments").unwrap_err();
    assert!(
        matches!(unknown, RouteError::UnknownShard { .. }),
        "{unknown}"
    );
    site.create("topics", "eu/payments").await;
    site.owns(&a, 1).await;
    until("the router has heard", async || {
        router.look_up("topics", "eu/payments").is_ok()
    })
    .await;
    let sent = router.send("topics", "eu/payments", 1, async |route| {
        SendResult::Done(route.owner.node().to_string())
    });
    assert_eq!(sent.await.unwrap(), "a");
}
