//! `tenure cluster`: what a store holds, and taking a whole cluster away.

mod test_cluster;

use serde_json::json;
use test_cluster::{TestCluster, ran};

#[test]
fn every_cluster_of_a_store_is_listed() {
    let shop = TestCluster::with_orders(4);
    let url = shop.url();
    ran(&[
        "--store",
        &url,
        "--cluster",
        "a/b=c",
        "keyspace",
        "create",
        "x",
        "--named",
    ])
    .with(0);
    let listed = ran(&["--store", &url, "cluster", "list", "--json"])
        .with(0)
        .json();
    let names: Vec<_> = listed["clusters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].clone())
        .collect();
    assert_eq!(names, [json!("a/b=c"), json!("shop")]);
    assert_eq!(listed["clusters"][1]["records"], 6);
    assert!(
        ran(&["--store", &url, "cluster", "list"])
            .with(0)
            .out
            .contains("a/b=c")
    );
}

#[test]
fn a_cluster_is_removed_only_when_no_session_is_live() {
    let shop = TestCluster::new();
    let node = shop.node("n1", 4);
    let url = shop.url();
    let other = ran(&[
        "--store",
        &url,
        "--cluster",
        "other",
        "keyspace",
        "create",
        "x",
        "--named",
    ]);
    other.with(0);
    shop.run(&["cluster", "delete", "shop", "--yes"])
        .with(1)
        .telling(&["of node n1 is live", "--force"]);
    assert_eq!(test_cluster::served(&shop.status()), 4);
    shop.stop(&node);
    shop.run(&["cluster", "delete", "shop", "--yes"])
        .with(0)
        .telling(&["deleted"]);
    let listed = ran(&["--store", &url, "cluster", "list", "--json"])
        .with(0)
        .json();
    assert_eq!(listed["clusters"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed["clusters"][0]["name"], "other");
    shop.run(&["cluster", "delete", "other", "--yes"])
        .with(2)
        .telling(&["name different clusters"]);
}

#[test]
fn a_cluster_whose_nodes_crashed_is_removed_once_a_ttl_has_shown_that_they_are_dead() {
    let shop = TestCluster::new();
    drop(shop.node("n1", 4));
    shop.run(&["cluster", "delete", "shop", "--yes"])
        .with(0)
        .telling(&["watching 1 session", "deleted"]);
    shop.run(&["status"]).with(1).telling(&["holds no cluster"]);
}

#[test]
fn a_cluster_is_removed_by_force_under_its_nodes() {
    let shop = TestCluster::new();
    let node = shop.node("n1", 4);
    shop.run(&["cluster", "delete", "shop", "--yes", "--force"])
        .with(0)
        .telling(&["deleted"]);
    drop(node);
}
