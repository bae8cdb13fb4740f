//! Shard records that are missing or cannot be read.

use std::sync::Arc;

use super::test_cluster::{TestCluster, ms};
use crate::ids::{Epoch, ShardId};
use crate::keys::Key;
use crate::machine::{Action, Event, Expect, Request};
use crate::record::{Ownership, Record, RecordError};
use crate::telemetry::NodeEvent;

/// Two nodes that have settled, a shard that the first serves, and its epoch.
fn settled() -> (TestCluster, ShardId, Epoch) {
    let mut bench = TestCluster::new(4);
    bench.start("n1");
    bench.start("n2");
    bench.run(ms(3000));
    let id = bench.served_by(0).into_iter().next().unwrap();
    let epoch = bench.shard(&id).epoch;
    (bench, id, epoch)
}

fn assert_served_above(bench: &TestCluster, id: &ShardId, epoch: Epoch) {
    let record = bench.shard(id);
    assert!(record.epoch.generation() > epoch.generation());
    assert!(matches!(
        record.ownership,
        Ownership::Owned { serving: true, .. }
    ));
    assert_eq!(bench.overlaps(), 0);
}

/// Restored records that a node has tried to write: what each was to replace, and how many witnesses were left in it.
fn restored(bench: &TestCluster, i: usize) -> Vec<(Expect, usize)> {
    let of = |action: &Action| match action {
        Action::Store {
            request:
                Request::Put {
                    key: Key::Shard(_),
                    expect,
                    record: Record::Shard(record),
                },
            ..
        } if record.epoch.generation() > 1
            && record.epoch == Epoch::first(record.epoch.generation()) =>
        {
            match &record.ownership {
                Ownership::Free {
                    awaiting_disclaimers,
                } if record.history.is_empty() => {
                    Some((expect.clone(), awaiting_disclaimers.len()))
                }
                _ => None,
            }
        }
        _ => None,
    };
    bench.log(i).iter().filter_map(of).collect()
}

#[test]
fn a_corrupt_record_stops_its_own_shard_only_and_is_restored_after_a_ttl() {
    let (mut bench, id, before) = settled();
    let others: usize = bench.serving(0) + bench.serving(1) - 1;
    bench.corrupt(Key::Shard(id.clone()));
    bench.run(ms(10));
    assert_eq!(bench.serving(0) + bench.serving(1), others);
    let told = |n: &NodeEvent| {
        matches!(
            n,
            NodeEvent::RecordUnreadable {
                damage: RecordError::Corrupt(_),
                ..
            }
        )
    };
    assert!(bench.notes(0).any(told));
    bench.run(bench.ttl() - ms(20));
    let key = Key::Shard(id.clone());
    assert!(bench.raw(&key).record.is_err(), "nobody may replace it yet");
    assert_eq!(bench.serving(0) + bench.serving(1), others);
    bench.run(bench.ttl());
    assert_served_above(&bench, &id, before);
}

#[test]
fn a_restored_record_replaces_exactly_what_was_unreadable_and_asks_every_session() {
    for corrupt in [true, false] {
        let (mut bench, id, before) = settled();
        let key = Key::Shard(id.clone());
        match corrupt {
            true => bench.corrupt(key.clone()),
            false => bench.delete(key.clone()),
        }
        bench.run(ms(10));
        let version = bench.raw(&key).version;
        bench.run(bench.ttl() * 2);
        let wrote = [0, 1].into_iter().flat_map(|i| restored(&bench, i));
        let replaced: Vec<_> = wrote.filter(|(_, witnesses)| *witnesses == 2).collect();
        assert!(!replaced.is_empty());
        let exactly = (Expect::Version(version), 2);
        assert!(replaced.iter().all(|r| *r == exactly), "{replaced:?}");
        assert_served_above(&bench, &id, before);
    }
}

#[test]
fn a_record_of_a_newer_format_is_never_replaced() {
    let (mut bench, id, _) = settled();
    let key = Key::Shard(id);
    let version = bench.damage(key.clone(), RecordError::Newer(2));
    bench.run(bench.ttl() * 10);
    assert_eq!(bench.raw(&key).version, version);
}

#[test]
fn a_missing_record_gets_a_placeholder_at_once() {
    let (mut bench, id, before) = settled();
    let key = Key::Shard(id.clone());
    bench.delete(key.clone());
    bench.run(ms(10));
    assert_eq!(bench.raw(&key).record, Err(RecordError::placeholder()));
    // What comes late finds the key taken, also the write that once made the record.
    bench.run(bench.ttl() * 2);
    assert_served_above(&bench, &id, before);
}

#[test]
fn a_late_restoration_does_not_bring_an_old_generation_back() {
    for land_after_deletion in [true, false] {
        let (mut bench, id, before) = settled();
        let key = Key::Shard(id.clone());
        // What the first node writes of shards is under way for long.
        bench.unknown_puts.insert(0);
        bench.delete(key.clone());
        bench.run(bench.ttl() * 3 / 2);
        bench.unknown_puts.clear();
        bench.run(bench.ttl() * 3);
        assert_served_above(&bench, &id, before);
        let restored = bench.shard(&id).epoch;
        if land_after_deletion {
            bench.delete(key.clone());
            bench.land();
            let found = bench.raw(&key).record;
            assert!(found.is_err(), "only a placeholder may land: {found:?}");
        } else {
            bench.land();
            assert!(bench.shard(&id).epoch >= restored);
            bench.delete(key.clone());
        }
        bench.run(bench.ttl() * 4);
        assert_served_above(&bench, &id, restored);
    }
}

/// Restored records of a shard that a node has tried to write, by generation.
fn generations(bench: &TestCluster, i: usize) -> Vec<u32> {
    let of = |action: &Action| match action {
        Action::Store {
            request:
                Request::Put {
                    key: Key::Shard(_),
                    record: Record::Shard(record),
                    ..
                },
            ..
        } if record.epoch.count() == 0 => Some(record.epoch.generation()),
        _ => None,
    };
    bench.log(i).iter().filter_map(of).collect()
}

/// Seed 70011318: while the restored record of a starting node is under way, others restore the shard with a later generation,
/// and it is lost again.
#[test]
fn a_start_does_not_restore_with_a_generation_that_it_drew_before_the_loss() {
    let mut bench = TestCluster::new(1);
    let n1 = bench.start("n1");
    bench.run(ms(1000));
    let id = bench.served_by(n1).into_iter().next().unwrap();
    let key = Key::Shard(id.clone());
    bench.send(n1, Event::Stop);
    bench.run(ms(1000));
    let old = bench.shard(&id).clone();
    bench.delete(bench.keyspace_key());
    bench.delete(key.clone());
    let n2 = bench.start("n2");
    // Its watch reports nothing, and its requests take long enough for that to happen.
    bench.deaf.insert(n2);
    bench.latency.insert(n2, ms(100));
    while generations(&bench, n2).is_empty() {
        bench.run(ms(10));
    }
    assert_eq!(generations(&bench, n2), [2]);
    let Some(Record::Cluster(cluster)) = bench.get(&Key::Cluster).cloned() else {
        panic!()
    };
    let mut drawn = (*cluster).clone();
    drawn.head.rev += 1;
    drawn.keyspaces.insert(id.keyspace.clone(), 3);
    bench.raw_set(Key::Cluster, Record::Cluster(Arc::new(drawn)));
    let mut restored = old;
    restored.epoch = Epoch::first(3);
    bench.raw_set(key.clone(), Record::Shard(Arc::new(restored)));
    bench.delete(key.clone());
    bench.damage(key, RecordError::placeholder());
    bench.run(bench.ttl() * 4);
    assert_eq!(generations(&bench, n2), [2, 4]);
    assert_eq!(bench.shard(&id).epoch.generation(), 4);
    assert_eq!(bench.served_by(n2), [id].into());
}
