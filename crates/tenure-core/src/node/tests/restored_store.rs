//! A store that was restored from a backup, and records that are lost while a node starts.

use std::sync::Arc;

use super::test_cluster::{TestCluster, ms};
use crate::ids::ShardId;
use crate::keys::Key;
use crate::machine::Event;
use crate::record::{ClusterRecord, Record};
use crate::telemetry::NodeEvent;

fn cluster(bench: &TestCluster) -> ClusterRecord {
    match bench.get(&Key::Cluster) {
        Some(Record::Cluster(record)) => (**record).clone(),
        other => panic!("no cluster record: {other:?}"),
    }
}

fn only_shard(bench: &TestCluster, i: usize) -> ShardId {
    bench.served_by(i).into_iter().next().unwrap()
}

/// Seed 210436790: no revision request was answered before the restore.
#[test]
fn a_list_alone_shows_that_the_store_went_back() {
    let mut bench = TestCluster::new(2);
    bench.start("n1");
    bench.run(ms(1000));
    let n2 = bench.start("n2");
    bench.run(ms(1000));
    bench.reset_store();
    bench.send(n2, Event::WatchGap);
    bench.run(ms(10));
    let noticed = |note: &NodeEvent| matches!(note, NodeEvent::StoreReplaced { .. });
    assert!(bench.notes(n2).any(noticed));
    assert_eq!(bench.serving(n2), 0);
}

/// Seed 210644098: the cluster record of the backup lists a lower generation than the one in use, and a record lost later was
/// restored below it.
#[test]
fn a_node_that_registers_again_raises_the_listed_generations_to_those_it_has_seen() {
    let mut bench = TestCluster::new(1);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    let id = only_shard(&bench, n1);
    let mut backup = cluster(&bench);
    bench.delete(Key::Shard(id.clone()));
    bench.run(bench.ttl() * 3);
    let used = bench.shard(&id).epoch.generation();
    assert!(used > backup.keyspaces[&id.keyspace]);
    backup.head.rev = cluster(&bench).head.rev + 1;
    bench.raw_set(Key::Cluster, Record::Cluster(Arc::new(backup)));
    let session = bench.node(n1).session().unwrap();
    bench.delete(Key::Session(session));
    bench.run(bench.ttl() * 3);
    assert_eq!(bench.serving(n1), 1);
    assert!(cluster(&bench).keyspaces[&id.keyspace] >= used);
}

/// Seed 210245414: a starting node had listed the sessions before the owner came, and replaced the placeholder of the owner's
/// record at once.
#[test]
fn a_start_waits_for_the_longest_ttl_after_a_record_was_lost_again() {
    let mut bench = TestCluster::new(1);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    let key = Key::Shard(only_shard(&bench, n1));
    bench.send(n1, Event::Stop);
    bench.run(ms(1000));
    bench.delete(bench.keyspace_key());
    bench.delete(key.clone());
    let starting = bench.start("n2");
    bench.deaf.insert(starting);
    bench.fail_shard_puts.insert(starting);
    bench.run(bench.ttl() * 3 / 2);
    let owner = bench.start("n3");
    bench.run(bench.ttl() * 4);
    assert_eq!(bench.serving(owner), 1);
    bench.delete(key.clone());
    bench.run(ms(1));
    bench.fail_shard_puts.clear();
    bench.run(bench.ttl() - ms(20));
    let found = bench.raw(&key).record;
    assert!(found.is_err(), "nobody may replace it yet: {found:?}");
    bench.run(bench.ttl() * 3);
    assert_eq!(bench.serving(owner) + bench.serving(starting), 1);
    assert_eq!(bench.overlaps(), 0);
}
