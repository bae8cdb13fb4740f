//! Administrative operations: everything that the `tenure` command changes, through the library alone.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::admin::{
    AssignedBy, ClusterRecord, GcOutcome, KeyspaceCreation, KeyspaceName, NewKeyspace, NodeStatus,
    OwnedShards, RecordRepair, RepairableRecord, ResumedNode, ShardProblem, ShardRepair,
    StopRequest, StoppedCluster, cluster_summaries, clusters,
};
use tenure::plan::Budgets;
use tenure::store::fault::{FaultConfig, FaultStore};
use tenure::store::{Op, PutIf, Store};
use tenure::{AdminClient, AdminError, KeyspaceKind, NodeMode, NodeName, SessionId};
use tenure_core::keys::Key;
use tenure_core::record::{EndReason, Ended, Ownership, Quarantine, Record};

use crate::test_cluster::*;

fn admin(world: &TestCluster) -> AdminClient {
    AdminClient::new(world.store.clone(), world.cluster.clone())
        .with_settings(&settings())
        .with_clock(world.clock.clone())
}

fn orders() -> KeyspaceName {
    "orders".parse().unwrap()
}

fn name(name: &str) -> NodeName {
    name.parse().unwrap()
}

/// Time after which every lease of the test has expired.
fn proof() -> Duration {
    TTL + TTL / 100
}

/// A cluster with a keyspace of four shards and no nodes.
async fn with_orders() -> (TestCluster, AdminClient) {
    let world = TestCluster::new();
    let admin = admin(&world);
    let new = NewKeyspace::new(orders(), KeyspaceKind::Hashed(4));
    let created = admin.create_keyspace(&new, |_| ()).await;
    assert_eq!(created, Ok(KeyspaceCreation::Created));
    (world, admin)
}

/// Replaces the record of the cluster by hand.
async fn edit_cluster(world: &TestCluster, change: impl FnOnce(&mut ClusterRecord)) {
    let snapshot = admin(world).snapshot().await.unwrap();
    let mut record = snapshot.view.cluster.get(&()).unwrap().clone();
    record.head.rev += 1;
    change(&mut record);
    let value = Record::Cluster(Arc::new(record)).encode();
    world.overwrite(&Key::Cluster, &value).await;
}

#[tokio::test(start_paused = true)]
async fn a_keyspace_is_created_once_and_another_one_of_its_name_is_refused() {
    let (_world, admin) = with_orders().await;
    let mut new = NewKeyspace::new(orders(), KeyspaceKind::Hashed(4));
    let again = admin.create_keyspace(&new, |_| ()).await;
    assert_eq!(again, Ok(KeyspaceCreation::Existing));
    new.kind = KeyspaceKind::Hashed(8);
    let refused = admin.create_keyspace(&new, |_| ()).await.unwrap_err();
    assert!(matches!(refused, AdminError::Refused(_)), "{refused}");
    new.kind = KeyspaceKind::Hashed(0);
    let invalid = admin.create_keyspace(&new, |_| ()).await.unwrap_err();
    assert!(matches!(invalid, AdminError::Invalid(_)), "{invalid}");
    let snapshot = admin.snapshot().await.unwrap();
    assert_eq!(
        snapshot.shards(&orders(), KeyspaceKind::Hashed(4)).count(),
        4
    );
    assert_eq!(snapshot.keyspace(&orders()).unwrap().generation, 1);
}

#[tokio::test(start_paused = true)]
async fn planning_settings_change_together_or_not_at_all() {
    let (_world, admin) = with_orders().await;
    let slow = Some(Duration::from_secs(300));
    let update = async |budget| {
        let change = |mut planning: tenure::PlanningSettings| {
            planning.cool_down = slow;
            planning.budgets = Some(Budgets {
                total: budget,
                ..Budgets::default()
            });
            Ok(planning)
        };
        admin.update_planning(&orders(), change).await
    };
    let invalid = update(0).await.unwrap_err();
    assert!(matches!(invalid, AdminError::Invalid(_)), "{invalid}");
    assert!(update(8).await.unwrap().changed);
    assert!(!update(8).await.unwrap().changed);
    let record = admin.keyspace(&orders()).await.unwrap().unwrap();
    assert_eq!(record.planning.cool_down, slow);
}

#[tokio::test(start_paused = true)]
async fn a_keyspace_with_owners_is_deleted_only_on_request_and_returns_at_a_higher_generation() {
    let world = TestCluster::new();
    let (node, _faults) = world.start("a", &Counter::default()).await;
    owns(&node, 4).await;
    let admin = admin(&world);
    let check = async |owned| admin.check_keyspace_deletion(&orders(), owned).await;
    let refused = check(OwnedShards::Refuse).await.unwrap_err();
    assert!(matches!(refused, AdminError::Refused(_)), "{refused}");
    let outdated = check(OwnedShards::Release).await.unwrap();
    assert_eq!(outdated.owned(), 4);
    admin.bump_generation(&orders(), 0).await.unwrap();
    let raced = admin.delete_keyspace(outdated).await.unwrap_err();
    assert!(matches!(raced, AdminError::Raced(_)), "{raced}");
    let checked = check(OwnedShards::Release).await.unwrap();
    admin.delete_keyspace(checked).await.unwrap();
    owns(&node, 0).await;
    node.stop().await.unwrap();
    let new = NewKeyspace::new(orders(), KeyspaceKind::Hashed(4));
    admin.create_keyspace(&new, |_| ()).await.unwrap();
    let record = admin.keyspace(&orders()).await.unwrap().unwrap();
    assert_eq!((record.generation, record.min_generation), (3, 3));
}

// P2
#[tokio::test(start_paused = true)]
async fn a_raised_generation_lifts_every_epoch_of_a_served_keyspace() {
    let world = TestCluster::new();
    let (node, _faults) = world.start("a", &Counter::default()).await;
    owns(&node, 4).await;
    let admin = admin(&world);
    assert_eq!(admin.bump_generation(&orders(), 0).await, Ok(2));
    until("all epochs are of generation 2", async || {
        let epochs = world.epochs().await;
        epochs.iter().all(|epoch| epoch.generation() == 2)
    })
    .await;
    owns(&node, 4).await;
    assert_eq!(admin.bump_generation(&orders(), 9).await, Ok(10));
    let invalid = admin.bump_generation(&orders(), u32::MAX).await;
    assert!(matches!(invalid, Err(AdminError::Invalid(_))));
    let unknown = admin.bump_generation(&"users".parse().unwrap(), 0).await;
    let unknown = unknown.unwrap_err();
    assert!(matches!(unknown, AdminError::NotFound(_)), "{unknown}");
    assert!(unknown.to_string().contains("existing keyspaces: orders"));
    node.stop().await.unwrap();
}

// P2
#[tokio::test(start_paused = true)]
async fn a_replaced_store_is_accepted_after_all_keyspaces_were_raised_also_lost_ones() {
    let (world, admin) = with_orders().await;
    edit_cluster(&world, |cluster| {
        cluster.store = "another store".to_owned();
        cluster.keyspaces.insert("lost".parse().unwrap(), 7);
    })
    .await;
    let users = NewKeyspace::new("users".parse().unwrap(), KeyspaceKind::Named);
    let refused = admin.create_keyspace(&users, |_| ()).await.unwrap_err();
    assert!(refused.to_string().contains("restored or replaced"));
    let mut reported = Vec::new();
    let bumped = admin.bump_all_generations(0, |k| reported.push(k.clone()));
    let bumped = bumped.await.unwrap();
    assert!(bumped.store_accepted);
    assert_eq!(bumped.keyspaces, reported);
    let each = reported
        .iter()
        .map(|k| (k.name.as_str(), k.generation, k.record_lost));
    let each: Vec<_> = each.collect();
    assert_eq!(each, [("lost", 8, true), ("orders", 2, false)]);
    assert_eq!(admin.snapshot().await.unwrap().other_store(), None);
    let again = admin.bump_all_generations(0, |_| ()).await.unwrap();
    assert!(!again.store_accepted);
}

#[tokio::test(start_paused = true)]
async fn a_pin_is_set_moved_and_removed_each_once() {
    let (world, admin) = with_orders().await;
    let pin = async |to: &str| admin.pin_shard(&shard(1), &name(to)).await.unwrap();
    let first = pin("zeta").await;
    assert_eq!((first.previous, first.changed), (None, true));
    assert!(!first.target_exists, "no node of this name");
    assert!(!pin("zeta").await.changed);
    assert_eq!(pin("eta").await.previous, Some(name("zeta")));
    assert_eq!(world.record(&shard(1)).await.pin, Some(name("eta")));
    let removed = admin.unpin_shard(&shard(1)).await.unwrap();
    assert_eq!(
        (removed.previous, removed.changed),
        (Some(name("eta")), true)
    );
    assert!(!admin.unpin_shard(&shard(1)).await.unwrap().changed);
    assert_eq!(world.record(&shard(1)).await.pin, None);
    let unknown = admin.unpin_shard(&shard(9)).await.unwrap_err();
    assert!(
        unknown.to_string().contains("the shards 0 to 3"),
        "{unknown}"
    );

    let mut topics = NewKeyspace::new("topics".parse().unwrap(), KeyspaceKind::Hashed(1));
    topics.assigned_by = AssignedBy::FairShare;
    admin.create_keyspace(&topics, |_| ()).await.unwrap();
    let topic = "topics/0".parse().unwrap();
    let refused = admin.pin_shard(&topic, &name("eta")).await.unwrap_err();
    assert!(matches!(refused, AdminError::Refused(_)), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_cordoned_node_gets_no_shards_until_it_is_uncordoned() {
    let world = TestCluster::new();
    let (a, _faults) = world.start("a", &Counter::default()).await;
    owns(&a, 4).await;
    let admin = admin(&world);
    let (b, _faults) = world.start("b", &Counter::default()).await;
    owns(&b, 2).await;
    assert_eq!(admin.cordon(&name("b")).await, Ok(true));
    assert_eq!(admin.cordon(&name("b")).await, Ok(false));
    a.stop().await.unwrap();
    tokio::time::sleep(TTL * 2).await;
    assert_eq!(b.owned().len(), 2, "a cordoned node keeps what it has");
    assert_eq!(admin.uncordon(&name("b")).await, Ok(true));
    assert_eq!(admin.uncordon(&name("b")).await, Ok(false));
    owns(&b, 4).await;
    let unknown = admin.cordon(&name("c")).await.unwrap_err();
    assert!(matches!(unknown, AdminError::NotFound(_)), "{unknown}");
    assert!(unknown.to_string().contains("existing nodes: a, b"));
    b.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_is_drained_resumed_and_stopped_each_once() {
    let world = TestCluster::new();
    let (a, _faults) = world.start("a", &Counter::default()).await;
    let (b, _faults) = world.start("b", &Counter::default()).await;
    owns(&b, 2).await;
    let admin = admin(&world);
    let limit = Duration::from_secs(60);
    assert_eq!(admin.drain(&name("b")).await, Ok(true));
    let mut seen = Vec::new();
    let progress = |status: &NodeStatus| seen.push(status.shards);
    let drained = admin.wait_until_drained(&name("b"), limit, progress).await;
    assert!(drained.unwrap().is_drained());
    assert_eq!(seen.last(), Some(&0), "{seen:?}");
    assert_eq!(admin.drain(&name("b")).await, Ok(false));
    let resumed = admin.resume(&name("b")).await;
    let previous = NodeMode::drained("operator");
    let expected = ResumedNode {
        previous,
        changed: true,
    };
    assert_eq!(resumed, Ok(expected));
    assert!(!admin.resume(&name("b")).await.unwrap().changed);
    let Ok(StopRequest::Requested(session)) = admin.stop_node(&name("b")).await else {
        panic!("a request");
    };
    let again = admin.stop_node(&name("b")).await;
    assert_eq!(again, Ok(StopRequest::AlreadyRequested(session)));
    let node = name("b");
    let stopped = admin.wait_until_stopped(&node, session, limit, |_| ());
    stopped.await.unwrap();
    let over = admin.stop_node(&node).await;
    assert_eq!(over, Ok(StopRequest::NotRunning));
    drop(b);
    owns(&a, 4).await;
    a.stop().await.unwrap();
}

/// Writes a tombstone that no record refers to.
async fn lay_tombstone(world: &TestCluster, session: SessionId) -> Key {
    let snapshot = admin(world).snapshot().await.unwrap();
    let (_, any) = snapshot.view.sessions.iter().next().unwrap();
    let mut record = (*any.record).clone();
    record.ended = Some(Ended {
        by: session,
        reason: EndReason::Expired,
    });
    let key = Key::Session(session);
    let value = Record::Session(Arc::new(record)).encode();
    let put = PutIf::create(key.path(&world.cluster), value);
    world.store.put_if(put).await.unwrap();
    key
}

#[tokio::test(start_paused = true)]
async fn garbage_collection_removes_what_names_the_departed_and_skips_what_changes_meanwhile() {
    let world = TestCluster::new();
    let (node, _faults) = world.start("a", &Counter::default()).await;
    owns(&node, 4).await;
    node.stop().await.unwrap();
    let mut free = world.record(&shard(2)).await;
    free.head.rev += 1;
    free.assigned = Some(name("ghost"));
    let value = Record::Shard(Arc::new(free)).encode();
    world.overwrite(&Key::Shard(shard(2)), &value).await;
    let unused = lay_tombstone(&world, SessionId(1)).await;
    let touched = lay_tombstone(&world, SessionId(2)).await;

    let admin = admin(&world);
    let stale = admin.snapshot().await.unwrap().stale();
    let value = world.store.get(&touched.path(&world.cluster)).await;
    let again = PutIf {
        value: value.unwrap().unwrap().value,
        ..PutIf::update(
            touched.path(&world.cluster),
            *b"",
            version(&world, &touched).await,
        )
    };
    let watched = Arc::new(Mutex::new(None));
    let (store, seen) = (world.store.clone(), watched.clone());
    let watching = move |tombstones, time| {
        *seen.lock().unwrap() = Some((tombstones, time));
        tokio::spawn(async move { store.put_if(again).await });
    };
    let done = admin.gc(watching).await.unwrap();
    assert_eq!(*watched.lock().unwrap(), Some((2, proof())));
    assert_eq!(done.len(), stale.len());
    let outcome = |key: &Key| {
        let mut all = done.iter();
        all.find(|record| record.stale.key == *key)
            .map(|record| record.outcome.clone())
    };
    assert_eq!(outcome(&Key::Shard(shard(2))), Some(GcOutcome::Removed));
    assert_eq!(outcome(&unused), Some(GcOutcome::Removed));
    assert_eq!(outcome(&touched), Some(GcOutcome::Changed));
    assert_eq!(world.record(&shard(2)).await.assigned, None);
    let left = admin.snapshot().await.unwrap().stale();
    assert!(left.iter().any(|stale| stale.key == touched), "{left:?}");
    assert!(left.iter().all(|stale| stale.key != unused), "{left:?}");
}

async fn version(world: &TestCluster, key: &Key) -> tenure_core::ids::Version {
    let entry = world.store.get(&key.path(&world.cluster)).await;
    entry.unwrap().unwrap().version
}

// P1, P2, A11
#[tokio::test(start_paused = true)]
async fn a_lost_shard_is_restored_after_a_ttl_at_a_raised_generation_unless_somebody_else_does() {
    let (world, admin) = with_orders().await;
    let sound = admin.inspect_shard(&shard(0)).await.unwrap();
    assert_eq!(sound.problem(), &ShardProblem::None);
    let nothing = admin.repair_shard(&sound).await;
    assert_eq!(nothing, Ok(ShardRepair::NotNeeded));
    let beyond = admin.inspect_shard(&shard(4)).await;
    assert!(matches!(beyond, Err(AdminError::Invalid(_))));

    world.overwrite(&Key::Shard(shard(0)), b"{ not json").await;
    let corrupt = admin.inspect_shard(&shard(0)).await.unwrap();
    assert!(matches!(corrupt.problem(), ShardProblem::Corrupt { .. }));
    assert_eq!((corrupt.watch_time(), corrupt.witnesses()), (proof(), 0));
    let begun = tokio::time::Instant::now();
    let restored = ShardRepair::Restored {
        generation: 2,
        witnesses: 0,
    };
    assert_eq!(admin.repair_shard(&corrupt).await, Ok(restored));
    assert!(begun.elapsed() >= proof());
    assert_eq!(world.record(&shard(0)).await.epoch.generation(), 2);

    let record = Record::Shard(Arc::new(world.record(&shard(1)).await)).encode();
    world.delete(&Key::Shard(shard(1))).await;
    let missing = admin.inspect_shard(&shard(1)).await.unwrap();
    assert_eq!(missing.problem(), &ShardProblem::Missing);
    let rewrite = async {
        tokio::time::sleep(TTL / 2).await;
        let path = Key::Shard(shard(1)).path(&world.cluster);
        world.store.put_if(PutIf::create(path, record)).await
    };
    let (repaired, _) = tokio::join!(admin.repair_shard(&missing), rewrite);
    assert_eq!(repaired, Ok(ShardRepair::WrittenByOther));
    assert_eq!(world.record(&shard(1)).await.epoch.generation(), 1);
}

// P1
#[tokio::test(start_paused = true)]
async fn a_restored_shard_waits_for_the_sessions_that_may_own_it() {
    let world = TestCluster::new();
    let (node, _faults) = world.start("a", &Counter::default()).await;
    owns(&node, 4).await;
    drop(node);
    let admin = admin(&world);
    world.overwrite(&Key::Shard(shard(3)), b"?").await;
    let corrupt = admin.inspect_shard(&shard(3)).await.unwrap();
    assert_eq!(corrupt.witnesses(), 1);
    admin.repair_shard(&corrupt).await.unwrap();
    let Ownership::Free {
        awaiting_disclaimers,
    } = world.record(&shard(3)).await.ownership
    else {
        panic!("a free shard");
    };
    assert_eq!(awaiting_disclaimers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_quarantine_ends_by_a_repair_of_exactly_the_inspected_record() {
    let (world, admin) = with_orders().await;
    let quarantine = async || {
        let mut record = world.record(&shard(0)).await;
        record.head.rev += 1;
        let reason = "the disk is on fire".to_owned();
        record.quarantine = Some(Quarantine { reason });
        let value = Record::Shard(Arc::new(record)).encode();
        world.overwrite(&Key::Shard(shard(0)), &value).await;
    };
    quarantine().await;
    let outdated = admin.inspect_shard(&shard(0)).await.unwrap();
    quarantine().await;
    let raced = admin.repair_shard(&outdated).await.unwrap_err();
    assert!(matches!(raced, AdminError::Raced(_)), "{raced}");
    let inspected = admin.inspect_shard(&shard(0)).await.unwrap();
    let ShardProblem::Quarantined { reason } = inspected.problem() else {
        panic!("{inspected:?}");
    };
    assert_eq!(reason, "the disk is on fire");
    let repaired = admin.repair_shard(&inspected).await;
    assert_eq!(repaired, Ok(ShardRepair::QuarantineEnded));
    assert_eq!(world.record(&shard(0)).await.quarantine, None);
}

// P2
#[tokio::test(start_paused = true)]
async fn a_corrupt_record_is_deleted_after_its_generation_was_reserved() {
    let (world, admin) = with_orders().await;
    let record = RepairableRecord::Keyspace(orders());
    let valid = admin.inspect_record(&record).await.unwrap();
    assert_eq!(valid.damage(), None);
    let nothing = admin.repair_record(&valid, || ()).await;
    assert_eq!(nothing, Ok(RecordRepair::NotNeeded));
    world.overwrite(&Key::Keyspace(orders()), b"garbage").await;
    let corrupt = admin.inspect_record(&record).await.unwrap();
    assert!(corrupt.damage().is_some());
    let mut deleted = false;
    let repaired = admin.repair_record(&corrupt, || deleted = true).await;
    assert_eq!((repaired, deleted), (Ok(RecordRepair::Deleted), true));
    let snapshot = admin.snapshot().await.unwrap();
    assert!(snapshot.view.keyspaces.cell(&orders()).is_none());
    assert_eq!(snapshot.highest_generation(&orders()), 2);
    let missing = admin.inspect_record(&record).await.unwrap_err();
    assert!(matches!(missing, AdminError::NotFound(_)), "{missing}");

    world.overwrite(&Key::Cluster, b"garbage").await;
    let unreadable = admin.bump_all_generations(0, |_| ()).await.unwrap_err();
    assert!(unreadable.to_string().contains("repair-record cluster"));
    let cluster = admin.inspect_record(&RepairableRecord::Cluster).await;
    let rebuilt = admin.repair_record(&cluster.unwrap(), || ()).await;
    assert_eq!(rebuilt, Ok(RecordRepair::Rebuilt));
    let snapshot = admin.snapshot().await.unwrap();
    assert!(snapshot.view.cluster.get(&()).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_cluster_is_deleted_only_once_no_session_of_it_is_live() {
    let world = TestCluster::new();
    let (node, _faults) = world.start("a", &Counter::default()).await;
    owns(&node, 4).await;
    let admin = admin(&world);
    let mut watched = None;
    let refused = admin.prove_stopped(|n, time| watched = Some((n, time)));
    let refused = refused.await.unwrap_err();
    assert!(matches!(refused, AdminError::Refused(_)), "{refused}");
    assert!(refused.to_string().contains("of node a is live"));
    assert_eq!(watched, Some((1, proof())));
    owns(&node, 4).await;

    // The process dies without a tombstone. Its session is dead once it was unchanged for its lease.
    drop(node);
    let stopped = admin.prove_stopped(|_, _| ()).await.unwrap();
    let records = admin.snapshot().await.unwrap().records();
    assert_eq!(admin.delete_cluster(stopped).await, Ok(records));
    assert_eq!(clusters(&*world.store).await, Ok(Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn the_clusters_of_a_store_are_listed_and_one_can_be_deleted_by_force() {
    let (world, admin) = with_orders().await;
    let other = AdminClient::new(world.store.clone(), "other".parse().unwrap());
    let topics = NewKeyspace::new("topics".parse().unwrap(), KeyspaceKind::Named);
    other.create_keyspace(&topics, |_| ()).await.unwrap();
    let all = cluster_summaries(&world.store).await.unwrap();
    let all: Vec<_> = all
        .iter()
        .map(|c| (c.name.as_str(), c.sessions, c.keyspaces, c.records))
        .collect();
    assert_eq!(all, [("other", 0, 1, 2), ("shop", 0, 1, 6)]);
    let (node, _faults) = world.start("a", &Counter::default()).await;
    let foreign = StoppedCluster::unchecked(other.cluster().clone());
    let invalid = admin.delete_cluster(foreign).await;
    assert!(matches!(invalid, Err(AdminError::Invalid(_))));
    let forced = StoppedCluster::unchecked(world.cluster.clone());
    let forced = admin.delete_cluster(forced).await;
    assert!(forced.is_ok_and(|deleted| deleted >= 6));
    assert!(other.existing_snapshot().await.is_ok());
    drop(node);
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_is_lost_is_settled_by_reading_back() {
    let (world, plain) = with_orders().await;
    let (store, faults) = FaultStore::new(world.store.clone(), FaultConfig::none(1));
    let admin = AdminClient::new(Arc::new(store), world.cluster.clone());
    let before = world.record(&shard(0)).await;
    // Every write follows the read of the store's identity, and alone loses its reply.
    let switch = faults.clone();
    faults.fail_where(move |op, _| {
        switch.lose_replies(if op == Op::Identity { 1000 } else { 0 });
        false
    });
    let pinned = admin.pin_shard(&shard(0), &name("a")).await.unwrap();
    assert!(pinned.changed);
    let after = world.record(&shard(0)).await;
    assert_eq!(after.head.rev, before.head.rev + 1, "written once");
    assert!(
        !plain
            .pin_shard(&shard(0), &name("a"))
            .await
            .unwrap()
            .changed
    );
}

#[tokio::test(start_paused = true)]
async fn concurrent_changes_of_one_record_are_all_made() {
    let (world, _) = with_orders().await;
    let (store, faults) = FaultStore::new(world.store.clone(), FaultConfig::none(1));
    faults.slow(ms(10));
    let store: Arc<dyn Store> = Arc::new(store);
    let before = world.record(&shard(0)).await;
    let pin = async |to: &str| {
        let admin = AdminClient::new(store.clone(), world.cluster.clone());
        let pinned = admin.pin_shard(&shard(0), &name(to)).await;
        pinned.unwrap().changed
    };
    let changed = tokio::join!(pin("a"), pin("b"), pin("c"), pin("d"));
    assert_eq!(changed, (true, true, true, true));
    let after = world.record(&shard(0)).await;
    assert_eq!(after.head.rev, before.head.rev + 4);
}

/// Operations can be spawned on a runtime with several threads.
#[test]
fn futures_of_operations_are_send() {
    fn is_send<T: Send>(_: &T) {}
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let world = TestCluster::new();
    let admin = admin(&world);
    let (a, limit) = (name("a"), Duration::ZERO);
    is_send(&admin.cordon(&a));
    is_send(&admin.resume(&a));
    is_send(&admin.stop_node(&a));
    is_send(&admin.wait_until_drained(&a, limit, |_| ()));
    is_send(&admin.pin_shard(&shard(0), &a));
    is_send(&admin.move_shard(&shard(0), &a));
    is_send(&admin.bump_all_generations(0, |_| ()));
    is_send(&admin.gc(|_, _| ()));
    is_send(&admin.prove_stopped(|_, _| ()));
    let new = NewKeyspace::new(orders(), KeyspaceKind::Named);
    is_send(&admin.create_keyspace(&new, |_| ()));
}
