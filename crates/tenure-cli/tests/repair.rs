//! `tenure shard repair`: with and without live nodes, never at the price of a promise.

mod test_cluster;

use tenure_core::keys::Key;
use tenure_core::record::{Ownership, Quarantine, Record, ShardRecord};
use test_cluster::{TestCluster, head, keyspace, node_key, order, problems, served, shard};

fn record(shop: &TestCluster, index: u32) -> ShardRecord {
    match shop.record(&order(index)) {
        Record::Shard(record) => (*record).clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_corrupt_record_under_a_live_owner_comes_back_at_a_higher_epoch_and_disturbs_no_other_shard() {
    let shop = TestCluster::new();
    let node = shop.node("n1", 4);
    let before = shop.until(|s| served(s) == 4);
    shop.lay(&order(2), b"{ not json");
    let damaged = shop.status();
    assert_eq!(problems(&damaged), ["unreadable shards/orders/2"]);
    let help = damaged["problems"][0]["help"].as_str().unwrap();
    assert!(
        help.ends_with("tenure shard repair orders/2")
            && help.contains("write the record again after the longest ttl"),
        "{help}"
    );

    // The node noticed it first, so its wait ends first: it restores the record while the command still watches.
    shop.run(&["shard", "repair", "orders/2", "--yes"])
        .with(0)
        .telling(&["corrupt record", "written by another process"]);
    let after = shop.until(|s| served(s) == 4);
    let epoch = |status: &serde_json::Value, i| shard(status, i)["epoch"].as_u64().unwrap();
    assert!(epoch(&after, 2) > epoch(&before, 2));
    for other in [0, 1, 3] {
        assert_eq!(epoch(&after, other), epoch(&before, other));
    }
    assert!(record(&shop, 2).head.rev > 1);
    shop.stop(&node);
}

#[test]
fn nobody_claims_a_rewritten_shard_before_every_session_that_may_own_it_has_denied_or_ended() {
    let shop = TestCluster::new();
    // A crash: the session may still be serving as far as anybody knows.
    drop(shop.node("n1", 4));
    let session = shop.status()["nodes"][0]["session"]
        .as_str()
        .unwrap()
        .to_owned();
    shop.lay(&order(0), b"?");
    shop.run(&["shard", "repair", "orders/0", "--yes"]).with(0);
    let written = record(&shop, 0);
    let witnesses = Ownership::Free {
        awaiting_disclaimers: vec![session.parse().unwrap()],
    };
    assert_eq!(written.ownership, witnesses);
    assert_eq!(shard(&shop.status(), 0)["state"], "restored");
    // Another node proves the end of the first, and then has them all.
    let node = shop.node("n2", 4);
    let status = shop.until(|s| served(s) == 4);
    assert_eq!(shard(&status, 0)["owner"], "n2");
    assert!(shard(&status, 0)["epoch"].as_u64().unwrap() > written.epoch.0);
    shop.stop(&node);
}

#[test]
fn a_missing_record_is_made_anew_after_a_ttl_at_a_raised_generation() {
    let shop = TestCluster::with_orders(4);
    shop.delete(&order(3));
    assert_eq!(
        problems(&shop.status()),
        ["missing shards/orders/3", "unserved keyspaces/orders"]
    );
    let begun = std::time::Instant::now();
    shop.run(&["shard", "repair", "orders/3", "--yes"])
        .with(0)
        .telling(&["write the record again", "generation 2"]);
    assert!(begun.elapsed() >= std::time::Duration::from_millis(2500));
    assert_eq!(record(&shop, 3).epoch.generation(), 2);
    assert_eq!(problems(&shop.status()), ["unserved keyspaces/orders"]);
}

#[test]
fn a_missing_record_that_a_node_makes_anew_meanwhile_is_left_to_it() {
    let shop = TestCluster::new();
    let node = shop.node("n1", 4);
    shop.until(|s| served(s) == 4);
    shop.delete(&order(1));
    // The command watches for longer than the node's own ttl, by which time the node has done it.
    let ran = shop.run(&["shard", "repair", "orders/1", "--yes"]).with(0);
    assert!(
        ran.err.contains("written by another process") || ran.err.contains("needs no repair"),
        "{}",
        ran.err
    );
    shop.until(|s| served(s) == 4);
    shop.stop(&node);
}

#[test]
fn a_quarantined_shard_may_be_claimed_again() {
    let shop = TestCluster::with_orders(2);
    let mut bad = record(&shop, 0);
    bad.head = head(bad.head.rev + 1);
    bad.quarantine = Some(Quarantine {
        reason: "could not be loaded by n1: disk on fire".to_owned(),
    });
    shop.lay(&order(0), &Record::Shard(bad.clone().into()).encode());
    shop.run(&["shard", "repair", "orders/0", "--yes", "--dry-run"])
        .with(0)
        .telling(&["disk on fire", "would end the quarantine"]);
    assert_eq!(record(&shop, 0), bad);
    shop.run(&["shard", "repair", "orders/0", "--yes"])
        .with(0)
        .telling(&["may claim the shard again"]);
    let lifted = record(&shop, 0);
    assert_eq!(
        (lifted.quarantine, lifted.epoch, lifted.head.rev),
        (None, bad.epoch, bad.head.rev + 1)
    );
    let node = shop.node("n1", 2);
    shop.until(|s| served(s) == 2);
    shop.stop(&node);
}

#[test]
fn a_sound_shard_and_a_dry_run_change_nothing() {
    let shop = TestCluster::with_orders(2);
    shop.lay(&order(1), b"?");
    let before = shop.runtime.block_on(shop.store().list("")).unwrap();
    shop.run(&["shard", "repair", "orders/0", "--yes"])
        .with(0)
        .telling(&["needs no repair"]);
    shop.run(&["shard", "repair", "orders/1", "--yes", "--dry-run"])
        .with(0)
        .telling(&["would watch", "after 0 sessions"]);
    let after = shop.runtime.block_on(shop.store().list("")).unwrap();
    assert_eq!(before, after);
}

#[test]
fn a_sound_record_is_never_deleted_and_a_dry_run_deletes_nothing() {
    let shop = TestCluster::with_orders(2);
    shop.run(&["keyspace", "create", "topics", "--named"])
        .with(0);
    shop.lay(&keyspace("topics"), b"?");
    let before = shop.runtime.block_on(shop.store().list("")).unwrap();
    for sound in ["cluster", "keyspaces/orders"] {
        shop.run(&["cluster", "repair-record", sound, "--yes"])
            .with(0)
            .telling(&["is valid"]);
    }
    shop.run(&[
        "cluster",
        "repair-record",
        "keyspaces/topics",
        "--yes",
        "--dry-run",
    ])
    .with(0)
    .telling(&["corrupt record", "would delete"]);
    let after = shop.runtime.block_on(shop.store().list("")).unwrap();
    assert_eq!(before, after);
}

#[test]
fn corrupt_records_of_a_live_node_come_back_once_they_are_deleted() {
    let shop = TestCluster::new();
    let node = shop.node("n1", 4);
    let before = shop.until(|s| served(s) == 4);
    let Record::Cluster(cluster) = shop.record(&Key::Cluster) else {
        panic!("a cluster record");
    };

    shop.lay(&Key::Cluster, b"garbage");
    shop.run(&["cluster", "repair-record", "cluster", "--yes"])
        .with(0)
        .telling(&["deleted cluster", "a node has written the record again"]);
    let Record::Cluster(again) = shop.record(&Key::Cluster) else {
        panic!("a cluster record");
    };
    assert_eq!(
        (&again.store, &again.keyspaces),
        (&cluster.store, &cluster.keyspaces)
    );

    shop.lay(&node_key("n1"), b"garbage");
    shop.run(&["cluster", "repair-record", "nodes/n1", "--yes"])
        .with(0);
    shop.until(|s| problems(s).is_empty() && served(s) == 4);

    shop.lay(&keyspace("orders"), b"garbage");
    assert_eq!(problems(&shop.status()), ["unreadable keyspaces/orders"]);
    shop.run(&["cluster", "repair-record", "keyspaces/orders", "--yes"])
        .with(0)
        .telling(&["write the record again"]);
    // Right after the keyspace is back its shards still look as they did before: it is their epochs that tell.
    let epoch = |status: &serde_json::Value| shard(status, 0)["epoch"].as_u64();
    shop.until(|s| problems(s).is_empty() && served(s) == 4 && epoch(s) > epoch(&before));
    shop.stop(&node);
}

#[test]
fn without_nodes_a_corrupt_cluster_record_is_made_anew_from_the_others() {
    let shop = TestCluster::with_orders(2);
    shop.run(&["keyspace", "bump-generation", "orders", "--yes"])
        .with(0);
    shop.lay(&Key::Cluster, b"garbage");
    shop.run(&["keyspace", "bump-generation", "orders", "--yes"])
        .with(1)
        .telling(&["tenure cluster repair-record cluster"]);
    shop.run(&["cluster", "repair-record", "cluster", "--yes"])
        .with(0)
        .telling(&["no running node knew", "bump-generation --all"]);
    assert_eq!(
        shop.run(&["keyspace", "bump-generation", "--all", "--yes"])
            .with(0)
            .out,
        "orders 3\n"
    );
    let node = shop.node("n1", 2);
    shop.stop(&node);
}
