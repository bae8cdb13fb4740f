//! C3 and the rules about node names.

use tenure::{NodeEvent, Refusal, StartError};

use crate::test_cluster::*;

#[tokio::test(start_paused = true)]
async fn a_node_that_crashed_takes_its_shards_back_at_once() {
    let world = TestCluster::new();
    let dir = tempfile::tempdir().unwrap();
    let (builder, _) = world.node("a", &Counter::default());
    let node = started(builder.data_dir(dir.path())).await.unwrap();
    owns(&node, 4).await;
    let epochs = world.epochs().await;
    drop(node);
    let start = world.clock.now();
    let handler = Counter::default();
    let node = loop {
        let (builder, _) = world.node("a", &handler);
        match started(builder.data_dir(dir.path())).await {
            Ok(node) => break node,
            // What is left of the crashed node still has the lock.
            Err(StartError::DataDir(_)) => tokio::time::sleep(ms(1)).await,
            Err(other) => panic!("{other}"),
        }
    };
    let took = world.clock.now().since(start);
    assert!(took < TTL / 4, "{took:?}");
    assert_eq!(node.owned().len(), 4, "loaded before the start returns");
    for (before, after) in epochs.iter().zip(world.epochs().await) {
        assert!(after > *before);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_data_directory_it_waits_for_the_ttl() {
    let world = TestCluster::new();
    let (node, _) = world.start("a", &Counter::default()).await;
    owns(&node, 4).await;
    drop(node);
    let start = world.clock.now();
    let (node, _) = world.start("a", &Counter::default()).await;
    owns(&node, 4).await;
    let took = world.clock.now().since(start);
    assert!(took > TTL / 2 && took <= TTL * 6 / 5, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_name_in_use_by_a_live_node_is_refused_in_time() {
    let world = TestCluster::new();
    let (first, _) = world.start("a", &Counter::default()).await;
    owns(&first, 4).await;
    let start = world.clock.now();
    let (builder, _) = world.node("a", &Counter::default());
    let refused = started(builder).await.err();
    let took = world.clock.now().since(start);
    assert!(
        matches!(
            refused,
            Some(StartError::Refused(Refusal::NameInUse { .. }))
        ),
        "{refused:?}"
    );
    // A store that keeps the time may be late by a little.
    let late = if crate::LEASES { ms(1000) } else { ms(0) };
    assert!(took <= TTL * 6 / 5 + late + ms(100), "{took:?}");
    assert_eq!(first.owned().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn others_take_over_from_a_dead_node_in_time_and_from_a_stopped_one_at_once() {
    let world = TestCluster::new();
    let (a, _) = world.start("a", &Counter::default()).await;
    let (b, _) = world.start("b", &Counter::default()).await;
    let (c, _) = world.start("c", &Counter::default()).await;
    let all = async || a.owned().len() + b.owned().len() + c.owned().len() == 4;
    until("balance", all).await;
    tokio::time::sleep(ms(2000)).await;
    until("balance", all).await;
    b.stop().await.unwrap();
    let both = until("stopped", async || a.owned().len() + c.owned().len() == 4).await;
    assert!(both <= ms(100), "{both:?}");
    let mut notes = a.events();
    drop(c);
    let took = owns(&a, 4).await;
    assert!(took <= TTL * 6 / 5, "{took:?}");
    note(&mut notes, |n| {
        matches!(n, NodeEvent::SessionEnded { .. }).then_some(())
    })
    .await;
}
