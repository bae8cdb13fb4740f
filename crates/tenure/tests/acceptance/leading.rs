//! Leaders, on a store that fails on purpose. Names in comments are acceptance cases.

use tenure::plan::{Placement, Policy, PolicyInput};
use tenure::store::Op;
use tenure::{Hashed, NodeEvent};
use tenure_core::keys::Key;

use crate::test_cluster::{Counter, TTL, TestCluster, note, owns, shard, started, until};

// E3, E5
#[tokio::test(start_paused = true)]
async fn a_sweep_that_fails_is_told_with_its_key_counted_and_tried_again() {
    let world = TestCluster::new();
    let handler = Counter::default();
    let (leader, faults) = world.start("a", &handler).await;
    owns(&leader, 4).await;
    let mut notes = leader.events();
    faults.fail_where(|op, key| op == Op::Put && key.contains("/shards/"));
    // Whoever wrote this is gone.
    let id = shard(2);
    let mut record = world.record(&id).await;
    record.head.rev += 1;
    record.assigned = Some("departed".parse().unwrap());
    let bytes = tenure_core::record::Record::Shard(record.into()).encode();
    world.overwrite(&Key::Shard(id.clone()), &bytes).await;
    for _ in 0..2 {
        let failed = note(&mut notes, |note| match note {
            NodeEvent::GcFailed { key, error } => Some((key.clone(), error.clone())),
            _ => None,
        });
        let (key, error) = failed.await;
        assert_eq!(key, Key::Shard(id.clone()));
        assert!(!error.is_empty());
    }
    let count = |name: &'static str| leader.metrics().value(name, "");
    assert!(count("tenure_gc_failures_total") >= 2.0);
    // Everything else goes on.
    tokio::time::sleep(TTL * 2).await;
    assert_eq!(leader.owned().len(), 4);
    faults.heal();
    let swept = until("it is put right", async || {
        world
            .record(&id)
            .await
            .assigned
            .as_ref()
            .map(|n| n.as_str())
            != Some("departed")
    });
    assert!(swept.await <= TTL);
    assert!(count("tenure_stale_assignments_removed_total") >= 1.0);
    leader.stop().await.unwrap();
}

/// Gives every shard to the last node by name.
#[derive(Debug)]
struct LastByName;

impl Policy for LastByName {
    fn assign(&self, input: &PolicyInput<'_>) -> Vec<Placement> {
        let name = |node| input.view.node(node).name.clone();
        let last = input.takers.iter().max_by_key(|taker| name(taker.node));
        let Some(node) = last.map(|taker| taker.node) else {
            return Vec::new();
        };
        let shards = input.view.shards().map(|(shard, _)| shard);
        shards.map(|shard| Placement { shard, node }).collect()
    }
}

// D10
#[tokio::test(start_paused = true)]
async fn a_leader_plans_by_a_policy_of_the_applications_own() {
    let world = TestCluster::new();
    let start = async |name: &str| {
        let (builder, _) = world.bare(name);
        let builder = builder.policy("last-by-name", LastByName).keyspace(
            "orders",
            Hashed(4),
            Counter::default(),
        );
        started(builder).await.unwrap()
    };
    let b = start("b").await;
    owns(&b, 4).await;
    let a = start("a").await;
    let c = start("c").await;
    owns(&c, 4).await;
    assert!(a.owned().is_empty() && b.owned().is_empty());
    // The next leader has the same policy.
    c.stop().await.unwrap();
    owns(&b, 4).await;
    b.stop().await.unwrap();
    owns(&a, 4).await;
}
