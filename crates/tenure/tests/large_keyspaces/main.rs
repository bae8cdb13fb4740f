//! Very many shards: a node and a router start within seconds, and keep their sessions while they do.
//!
//! What can go wrong here is time: answers for all shards in front of the one that keeps the session, steps that take longer
//! than a renewal may, a listing that takes longer than a request may. Each of these once kept a node from ever starting.

use std::time::{Duration, Instant};

use tenure::router::Router;
use tenure::{AssignedBy, Builder, Handler, Hashed, Node, Result, Shard};

const SHARDS: u32 = 20_000;

/// Several times what a busy machine takes in a build without optimisation.
const LIMIT: Duration = Duration::from_secs(100);

struct Orders;

impl Handler for Orders {
    type State = ();
    async fn load(&self, _: &Shard) -> Result<()> {
        Ok(())
    }
}

fn node(url: &str, name: &str, mode: AssignedBy) -> Builder {
    let node = Node::builder(url, "shop").name(name).assigned_by(mode);
    node.keyspace("orders", Hashed(SHARDS), Orders)
}

async fn starts(url: &str, mode: AssignedBy) {
    let begun = Instant::now();
    let started = tokio::time::timeout(LIMIT, async {
        let a = node(url, "a", mode).start().await.expect("a node");
        // Where a leader plans, a start does not wait for the last shard.
        while a.owned().len() < SHARDS as usize {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let owned = begun.elapsed();
        let router = Router::builder(url, "shop").name("r").start().await;
        let router = router.expect("a router");
        let found = router.look_up("orders", "user-42").expect("a shard");
        assert_eq!(found.owner.map(|owner| owner.node().as_str()), Some("a"));
        println!(
            "{mode}, {SHARDS} shards: served after {owned:.1?}, a router {:.1?} later",
            begun.elapsed() - owned
        );
    });
    started.await.expect("all within the limit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_shards_without_a_leader_are_served_within_seconds() {
    starts("memory:many", AssignedBy::Rendezvous).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_shards_on_sqlite_that_a_leader_plans_for_are_served_within_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("shop.db").display());
    starts(&url, AssignedBy::Leader).await;
}
