//! C9: one shard's trouble is its own.

use tenure::NodeEvent;

use crate::test_cluster::*;

#[tokio::test(start_paused = true)]
async fn a_shard_that_fails_to_load_does_not_hold_back_the_others() {
    let world = TestCluster::new();
    let handler = Counter::default();
    handler.failing.lock().unwrap().insert("1".to_owned(), 2);
    let (node, _) = world.start("a", &handler).await;
    assert_eq!(node.owned().len(), 3, "ready without the one that failed");
    let retried = owns(&node, 4).await;
    assert!(retried >= ms(90), "{retried:?}");
    assert_eq!(node.metrics().value("tenure_load_failures_total", ""), 2.0);
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_one_node_cannot_load_goes_to_another() {
    let world = TestCluster::new();
    let (bad, good) = (Counter::default(), Counter::default());
    for i in 0..4 {
        bad.failing.lock().unwrap().insert(i.to_string(), u32::MAX);
    }
    let (a, _) = world.start("a", &bad).await;
    let (b, _) = world.start("b", &good).await;
    owns(&b, 4).await;
    assert!(a.owned().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_three_nodes_cannot_load_is_quarantined_with_its_reason() {
    let world = TestCluster::new();
    let handler = Counter::default();
    handler
        .failing
        .lock()
        .unwrap()
        .insert("3".to_owned(), u32::MAX);
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(world.start(name, &handler).await.0);
    }
    until("quarantine", async || {
        world.record(&shard(3)).await.quarantine.is_some()
    })
    .await;
    let record = world.record(&shard(3)).await;
    assert!(record.owner().is_none());
    let reason = record.quarantine.unwrap().reason;
    assert!(reason.contains("the disk is on fire"), "{reason}");
    let served = async || nodes.iter().map(|n| n.owned().len()).sum::<usize>() == 3;
    until("the others are served", served).await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_is_an_error_of_its_shard() {
    struct Panics;
    impl tenure::Handler for Panics {
        type State = ();
        async fn load(&self, shard: &tenure::Shard) -> tenure::Result<()> {
            assert_ne!(shard.name().as_str(), "0", "no zero, please");
            Ok(())
        }
    }
    let world = TestCluster::new();
    let (builder, _) = world.bare("a");
    let node = started(builder.keyspace("orders", tenure::Hashed(4), Panics))
        .await
        .unwrap();
    owns(&node, 3).await;
    let error = note(&mut node.events(), |n| match n {
        NodeEvent::LoadFailed { error, .. } => Some(error.clone()),
        _ => None,
    })
    .await;
    assert!(error.contains("no zero, please"), "{error}");
}
