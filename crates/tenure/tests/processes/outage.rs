//! A store that takes no writes for a while.

use std::thread;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use crate::test_cluster::{TTL, TestCluster, between};
use crate::worker::now;

// A5
#[test]
fn nodes_shut_out_by_a_lock_stop_in_time_and_come_back_to_the_same_shards_and_epochs() {
    let site = TestCluster::new(8);
    let _nodes = (site.start("a"), site.start("b"));
    let before = site.await_settled(&["a", "b"]);
    let mut store = Connection::open(site.path("store.db")).expect("the store");
    store.busy_timeout(Duration::from_secs(10)).expect("a wait");
    let exclusive = TransactionBehavior::Exclusive;
    let lock = store.transaction_with_behavior(exclusive).expect("a lock");
    // Whatever was confirmed was sent before this.
    let locked = now();
    thread::sleep(TTL * 3);
    let (unlocked, last) = (
        now(),
        site.look(|logs| logs.lines.iter().map(|l| l.t).max().unwrap_or_default()),
    );
    drop(lock);
    let worked_on = between(locked, last);
    assert!(
        worked_on <= TTL.mul_f64(0.75),
        "{worked_on:?}\n{}",
        site.scene()
    );
    assert!(
        worked_on >= TTL / 4,
        "nobody stops before it must: {worked_on:?}"
    );
    let after = site.await_served("all are back", |held| {
        held.0.values().all(|h| h.start > unlocked)
    });
    println!(
        "worked on for {worked_on:?}, back after {:?}, ttl {TTL:?}",
        between(unlocked, after.last_start())
    );
    assert_eq!(after.owners(), before.owners(), "{}", site.scene());
    let after = site.await_settled(&["a", "b"]);
    assert_eq!(after.owners(), before.owners(), "{}", site.scene());
    site.assert_clean();
}
