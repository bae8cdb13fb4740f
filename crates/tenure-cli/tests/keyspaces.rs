//! Making, removing and raising keyspaces, as records and with live nodes.

mod test_cluster;

use std::thread;

use serde_json::json;
use tenure_core::ids::KeyspaceName;
use tenure_core::keys::Key;
use tenure_core::record::{ClusterRecord, Record};
use test_cluster::{TestCluster, keyspace, order, ran, served};

fn generation(shop: &TestCluster, name: &str) -> (u32, u32) {
    match shop.record(&keyspace(name)) {
        Record::Keyspace(record) => (record.generation, record.min_generation),
        other => panic!("{other:?}"),
    }
}

/// The highest generation that the cluster's record says was drawn.
fn drawn(shop: &TestCluster, name: &str) -> Option<u32> {
    match shop.record(&Key::Cluster) {
        Record::Cluster(record) => record
            .keyspaces
            .get(&KeyspaceName::new(name).unwrap())
            .copied(),
        other => panic!("{other:?}"),
    }
}

fn edit_cluster(shop: &TestCluster, change: impl FnOnce(&mut ClusterRecord)) {
    let Record::Cluster(record) = shop.record(&Key::Cluster) else {
        panic!("a cluster record");
    };
    let mut record = (*record).clone();
    record.head.rev += 1;
    change(&mut record);
    shop.lay(&Key::Cluster, &Record::Cluster(record.into()).encode());
}

#[test]
fn a_keyspace_that_can_be_seen_has_all_its_shards_and_creating_it_again_changes_nothing() {
    let shop = TestCluster::with_orders(3000);
    let before = shop.runtime.block_on(shop.store().list("")).unwrap();
    // The shards, the keyspace, and the cluster's record that lists it.
    assert_eq!(before.entries.len(), 3002);
    shop.run(&["keyspace", "create", "orders", "--shards", "3000"])
        .with(0)
        .telling(&["already exists"]);
    let after = shop.runtime.block_on(shop.store().list("")).unwrap();
    assert_eq!(before, after);
    assert_eq!(generation(&shop, "orders"), (1, 0));
}

#[test]
fn racing_creators_of_equal_keyspaces_all_succeed() {
    let shop = TestCluster::new();
    thread::scope(|scope| {
        let all: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    shop.run(&["keyspace", "create", "orders", "--shards", "700"])
                        .code
                })
            })
            .collect();
        for creator in all {
            assert_eq!(creator.join().unwrap(), 0);
        }
    });
    assert_eq!(shop.status()["keyspaces"][0]["shards"], 700);
    // No node runs.
    assert_eq!(test_cluster::problems(&shop.status()).len(), 1);
}

#[test]
fn keyspaces_are_listed_and_shown() {
    let shop = TestCluster::with_orders(4);
    shop.run(&[
        "keyspace",
        "create",
        "topics",
        "--named",
        "--assigned-by",
        "fair-share",
    ])
    .with(0);
    let listed = shop.run(&["keyspace", "list", "--json"]).with(0).json();
    let names: Vec<_> = listed["keyspaces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|k| k["name"].clone())
        .collect();
    assert_eq!(names, ["orders", "topics"]);
    let shown = shop
        .run(&["keyspace", "show", "topics", "--json"])
        .with(0)
        .json();
    assert_eq!(shown["kind"], "named");
    assert_eq!(shown["assigned_by"], "fair-share");
    assert!(
        shop.run(&["keyspace", "show", "orders"])
            .with(0)
            .out
            .contains("hashed(4)")
    );
    shop.run(&["shard", "lookup", "user-42", "--keyspace", "topics"])
        .with(1)
        .telling(&["shard topics/user-42 has no record"]);
    shop.run(&["shard", "lookup", "user-42"])
        .with(2)
        .telling(&["orders, topics"]);
    let unowned = shop
        .run(&["shard", "lookup", "user-42", "--keyspace", "orders"])
        .with(1);
    assert!(unowned.out.contains("orders/0"), "{}", unowned.out);
    assert!(unowned.err.contains("no node owns"), "{}", unowned.err);
    assert_eq!(
        ran(&[
            "shard",
            "lookup",
            "user-42",
            "--offline",
            "--shard-count",
            "64"
        ])
        .with(0)
        .out,
        "14\n"
    );
}

#[test]
fn a_keyspace_is_removed_only_when_nobody_serves_it_and_comes_back_with_higher_epochs() {
    let shop = TestCluster::new();
    let node = shop.node("n1", 4);
    shop.run(&["keyspace", "delete", "orders", "--yes"])
        .with(1)
        .telling(&["4 shards of keyspace orders", "--force"]);
    let before = test_cluster::shard(&shop.status(), 0)["epoch"]
        .as_u64()
        .unwrap();
    shop.stop(&node);
    shop.run(&["keyspace", "delete", "orders", "--yes"]).with(0);
    assert_eq!(shop.status()["keyspaces"], json!([]));
    shop.run(&["shard", "lookup", "k", "--keyspace", "orders"])
        .with(1)
        .telling(&["was deleted", "create orders"]);
    shop.run(&["keyspace", "create", "orders", "--named"])
        .with(1)
        .telling(&["was hashed before"]);

    shop.run(&["keyspace", "create", "orders", "--shards", "4"])
        .with(0);
    assert_eq!(generation(&shop, "orders"), (2, 2));
    let node = shop.node("n1", 4);
    let after = test_cluster::shard(&shop.until(|s| served(s) == 4), 0)["epoch"]
        .as_u64()
        .unwrap();
    assert!(after > before, "{after} {before}");
    shop.stop(&node);
}

#[test]
fn removing_by_force_makes_the_nodes_let_go() {
    let shop = TestCluster::new();
    let node = shop.node("n1", 4);
    shop.run(&["keyspace", "delete", "orders", "--yes", "--force"])
        .with(0)
        .telling(&["releasing 4 shards"]);
    shop.until(|s| s["keyspaces"] == json!([]));
    shop.run(&["keyspace", "create", "orders", "--shards", "4"])
        .with(0);
    shop.stop(&node);
}

#[test]
fn a_raise_lifts_every_epoch_of_a_live_keyspace() {
    let shop = TestCluster::new();
    let node = shop.node("n1", 4);
    let before = test_cluster::shard(&shop.status(), 2)["epoch"]
        .as_u64()
        .unwrap();
    assert_eq!(
        shop.run(&["keyspace", "bump-generation", "orders", "--yes"])
            .with(0)
            .out,
        "orders 2\n"
    );
    assert_eq!(generation(&shop, "orders"), (2, 2));
    let raised = |s: &serde_json::Value| {
        served(s) == 4
            && (0..4).all(|i| test_cluster::shard(s, i)["epoch"].as_u64() > Some(2 << 32))
    };
    let after = shop.until(raised);
    assert!(test_cluster::shard(&after, 2)["epoch"].as_u64().unwrap() > before);
    assert_eq!(
        shop.run(&[
            "keyspace",
            "bump-generation",
            "orders",
            "--yes",
            "--above",
            "9"
        ])
        .with(0)
        .out,
        "orders 10\n"
    );
    shop.run(&["keyspace", "bump-generation"]).with(2);
    shop.run(&["keyspace", "bump-generation", "orders", "--yes", "--all"])
        .with(2);
    shop.stop(&node);
}

#[test]
fn an_exchanged_store_is_refused_until_all_keyspaces_are_raised() {
    let shop = TestCluster::new();
    let node = shop.node("n1", 4);
    shop.stop(&node);
    shop.run(&["keyspace", "create", "topics", "--named"])
        .with(0);
    edit_cluster(&shop, |record| record.store = "another store".to_owned());

    let status = shop.status();
    assert_eq!(
        test_cluster::problems(&status),
        ["store_replaced cluster", "unserved keyspaces/orders"]
    );
    assert_eq!(
        status["problems"][0]["help"],
        "run tenure keyspace bump-generation --all"
    );
    shop.run(&["keyspace", "create", "x", "--named"])
        .with(1)
        .telling(&["bump-generation --all"]);
    shop.run(&["keyspace", "bump-generation", "orders", "--yes"])
        .with(0)
        .telling(&["nodes reject it until", "bump-generation --all"]);
    assert_eq!(
        test_cluster::problems(&shop.status()),
        ["store_replaced cluster", "unserved keyspaces/orders"]
    );
    shop.run(&["keyspace", "bump-generation", "--all", "--yes"])
        .with(0)
        .telling(&["recorded this store"]);
    assert_eq!(generation(&shop, "orders"), (3, 3));
    assert_eq!(generation(&shop, "topics"), (2, 2));
    assert_eq!(
        test_cluster::problems(&shop.status()),
        ["unserved keyspaces/orders"]
    );
    let node = shop.node("n1", 4);
    shop.until(|s| served(s) == 4);
    shop.stop(&node);
}

#[test]
fn a_lost_keyspace_record_is_not_made_anew_under_its_owners_feet() {
    let shop = TestCluster::new();
    // Dropped without a stop, as in a crash: its session is not ended, and its shards stay owned in the records.
    drop(shop.node("n1", 4));
    shop.delete(&keyspace("orders"));
    assert!(
        test_cluster::problems(&shop.status()).contains(&"missing keyspaces/orders".to_owned())
    );
    shop.run(&["keyspace", "create", "orders", "--shards", "4"])
        .with(1)
        .telling(&[
            "missing while 4 of its shards are owned",
            "write the record again",
        ]);
    assert!(shop.get(&keyspace("orders")).is_none());
    assert!(shop.get(&order(0)).is_some());
}

#[test]
fn a_generation_is_drawn_in_the_clusters_record_before_it_is_used() {
    let shop = TestCluster::with_orders(4);
    assert_eq!(drawn(&shop, "orders"), Some(1));
    shop.run(&["keyspace", "bump-generation", "orders", "--yes"])
        .with(0);
    assert_eq!(drawn(&shop, "orders"), Some(2));
    // Somebody has drawn 7 and not yet used it: nobody else may.
    edit_cluster(&shop, |record| {
        record
            .keyspaces
            .insert(KeyspaceName::new("orders").unwrap(), 7);
    });
    assert_eq!(
        shop.run(&["keyspace", "bump-generation", "orders", "--yes"])
            .with(0)
            .out,
        "orders 8\n"
    );
    assert_eq!(generation(&shop, "orders"), (8, 8));
    shop.run(&["keyspace", "delete", "orders", "--yes"]).with(0);
    shop.run(&["keyspace", "create", "orders", "--shards", "6"])
        .with(0);
    assert_eq!(generation(&shop, "orders"), (9, 9));
    assert_eq!(drawn(&shop, "orders"), Some(9));
    let Record::Shard(added) = shop.record(&order(5)) else {
        panic!("a shard record");
    };
    assert_eq!(added.epoch.generation(), 9);
}

#[test]
fn a_lost_keyspace_that_nobody_can_be_serving_is_made_anew_above_all_its_epochs() {
    let shop = TestCluster::new();
    let node = shop.node("n1", 4);
    let before = test_cluster::shard(&shop.status(), 0)["epoch"]
        .as_u64()
        .unwrap();
    shop.stop(&node);
    shop.delete(&keyspace("orders"));
    shop.delete(&order(0));
    assert_eq!(
        test_cluster::problems(&shop.status()),
        ["missing keyspaces/orders"]
    );
    let raised = shop
        .run(&["keyspace", "bump-generation", "--all", "--yes"])
        .with(0);
    assert_eq!(raised.telling(&["orders has no record"]).out, "orders 2\n");
    let begun = std::time::Instant::now();
    shop.run(&["keyspace", "create", "orders", "--shards", "4"])
        .with(0)
        .telling(&["waiting for its record"]);
    assert!(begun.elapsed() >= test_cluster::TTL);
    assert_eq!(generation(&shop, "orders"), (3, 3));
    let node = shop.node("n1", 4);
    let after = test_cluster::shard(&shop.status(), 0)["epoch"]
        .as_u64()
        .unwrap();
    assert!(after > before, "{after} {before}");
    shop.stop(&node);
}

#[test]
fn a_lost_keyspace_is_left_to_the_nodes_while_one_may_be_live() {
    let shop = TestCluster::new();
    let node = shop.node("n1", 4);
    shop.run(&["keyspace", "create", "topics", "--named"])
        .with(0);
    shop.delete(&keyspace("topics"));
    shop.run(&["keyspace", "create", "topics", "--named"])
        .with(1)
        .telling(&[
            "record of keyspace topics is missing",
            "start a node that serves the keyspace",
        ]);
    assert!(shop.get(&keyspace("topics")).is_none());
    shop.stop(&node);
    shop.run(&["keyspace", "create", "topics", "--named"])
        .with(0);
    assert_eq!(generation(&shop, "topics"), (2, 2));
}

#[test]
fn a_missing_cluster_record_is_made_anew_with_what_the_others_tell() {
    let shop = TestCluster::with_orders(4);
    shop.run(&[
        "keyspace",
        "bump-generation",
        "orders",
        "--yes",
        "--above",
        "4",
    ])
    .with(0);
    shop.delete(&Key::Cluster);
    assert_eq!(
        test_cluster::problems(&shop.status()),
        ["missing cluster", "unserved keyspaces/orders"]
    );
    assert_eq!(
        shop.run(&["keyspace", "bump-generation", "--all", "--yes"])
            .with(0)
            .out,
        "orders 6\n"
    );
    assert_eq!(drawn(&shop, "orders"), Some(6));
    assert_eq!(
        test_cluster::problems(&shop.status()),
        ["unserved keyspaces/orders"]
    );
    let node = shop.node("n1", 4);
    shop.stop(&node);
}
