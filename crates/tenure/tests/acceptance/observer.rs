//! A12: an observer says what it would do, and does none of it.

use tenure::{AssignedBy, Hashed, NodeEvent, ShardStep};

use crate::test_cluster::*;

#[tokio::test(start_paused = true)]
async fn an_observer_joins_and_owns_nothing() {
    let world = TestCluster::new();
    let symmetric = |name: &str, handler: &Counter| {
        let (builder, _) = world.bare(name);
        builder
            .assigned_by(AssignedBy::Rendezvous)
            .keyspace("orders", Hashed(4), handler.clone())
    };
    let a = started(symmetric("a", &Counter::default())).await.unwrap();
    owns(&a, 4).await;
    let handler = Counter::default();
    let watcher = symmetric("watcher", &handler).shadow(true);
    let watcher = started(watcher).await.unwrap();
    tokio::time::sleep(TTL * 3).await;
    assert_eq!(a.owned().len(), 4, "nothing is given away to an observer");
    let refused = watcher.enter::<Counter>("orders", "user").unwrap_err();
    assert_eq!(refused.owner.unwrap().node.as_str(), "a");
    let epochs = world.epochs().await;

    let mut notes = watcher.events();
    a.stop().await.unwrap();
    let step = note(&mut notes, |n| match n {
        NodeEvent::WouldDo { step, .. } => Some(*step),
        _ => None,
    });
    assert_eq!(step.await, ShardStep::Claimed);
    tokio::time::sleep(TTL).await;
    let would = watcher.metrics().value(
        "tenure_shadow_transitions_total",
        "{step=\"claimed\",reason=\"free\"}",
    );
    assert!(would >= 4.0, "{would}");
    assert!(watcher.owned().is_empty());
    assert_eq!(world.epochs().await, epochs);
    assert!(handler.journal.lines().is_empty());
    watcher.stop().await.unwrap();
}
