//! The node on a thread of its own, by the machine's own clock.

use std::time::Duration;

use tenure::{Hashed, Node, Settings};

use crate::world::*;

fn quick() -> Settings {
    Settings {
        ttl: ms(800),
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
    let name = "tenure_lease_keepalive_successes_total";
    node.metrics().value(name, "")
}

#[tokio::test]
async fn a_busy_application_does_not_keep_the_node_from_renewing() {
    let node = node(quick()).await;
    let before = renewals(&node);
    // Less than the stall limit, which is the ttl, and more than the lease lasts without renewals.
    std::thread::sleep(ms(720));
    assert!(renewals(&node) > before + 2.0);
    assert_eq!(node.owned().len(), 2);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn an_application_that_stands_still_loses_the_lease_and_gets_it_back() {
    let node = node(quick()).await;
    std::thread::sleep(ms(2000));
    assert!(node.owned().is_empty());
    assert!(node.metrics().value("tenure_wedged_total", "") >= 1.0);
    let back = tokio::time::timeout(Duration::from_secs(10), async {
        while node.owned().len() < 2 {
            tokio::time::sleep(ms(10)).await;
        }
    });
    back.await.expect("it comes back by itself");
    node.stop().await.unwrap();
}
