//! The node on a thread of its own, by the machine's own clock.

use std::time::Duration;

use tenure::{Hashed, Node, Settings};

use crate::test_cluster::*;

fn with_ttl(ttl: u64) -> Settings {
    Settings {
        ttl: ms(ttl),
        ..Settings::default()
    }
}

async fn node(settings: Settings) -> Node {
    let builder = Node::builder("memory:", "shop")
        .name("a")
        .settings(settings);
    let keyspace = builder.keyspace("orders", Hashed(2), Counter::default());
    keyspace.start().await.unwrap()
}

fn renewals(node: &Node) -> f64 {
    let name = "tenure_lease_renewals_total";
    node.metrics().value(name, "")
}

#[tokio::test]
async fn a_busy_application_does_not_keep_the_node_from_renewing() {
    // The application may stand still for much longer than it does here, so that only renewals keep the lease.
    let settings = Settings {
        stall_limit: Some(Duration::from_secs(120)),
        ..with_ttl(2400)
    };
    let node = node(settings).await;
    let (before, begun) = (renewals(&node), std::time::Instant::now());
    // Blocks the thread of the application for longer than a lease lasts, and until six renewals, a whole ttl of them, are made.
    while renewals(&node) < before + 6.0 || begun.elapsed() < ms(2500) {
        assert!(begun.elapsed() < ms(60_000), "no renewals");
        std::thread::sleep(ms(20));
    }
    assert_eq!(
        node.metrics().value("tenure_runtime_blocked_total", ""),
        0.0
    );
    assert_eq!(node.owned().len(), 2);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn an_application_that_stands_still_loses_the_lease_and_gets_it_back() {
    let node = node(with_ttl(800)).await;
    std::thread::sleep(ms(2000));
    assert!(node.owned().is_empty());
    assert!(node.metrics().value("tenure_runtime_blocked_total", "") >= 1.0);
    let back = tokio::time::timeout(Duration::from_secs(10), async {
        while node.owned().len() < 2 {
            tokio::time::sleep(ms(10)).await;
        }
    });
    back.await.expect("it comes back by itself");
    node.stop().await.unwrap();
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn two_nodes_share_a_sqlite_file_and_one_takes_over_when_the_other_stops() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("shop.db").display());
    let start = async |name: &str| {
        let builder = Node::builder(&url, "shop").name(name);
        let builder = builder.data_dir(dir.path().join(name));
        let node = builder.keyspace("orders", Hashed(16), Counter::default());
        node.start().await.unwrap()
    };
    let (a, b) = (start("a").await, start("b").await);
    let wait = async |what: &str, ready: &dyn Fn() -> bool| {
        let ready = async {
            while !ready() {
                tokio::time::sleep(ms(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), ready).await;
        waited.unwrap_or_else(|_| panic!("never: {what}"));
    };
    wait("balance", &|| {
        !b.owned().is_empty() && a.owned().len() + b.owned().len() == 16
    })
    .await;
    a.stop().await.unwrap();
    wait("taken over", &|| b.owned().len() == 16).await;
    b.stop().await.unwrap();
}
