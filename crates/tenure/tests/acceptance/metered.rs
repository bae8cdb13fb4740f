//! Metrics of running nodes. The table of all metrics is tested beside it with events made by hand; these cases show that a
//! node emits the events. Each is a metric that no other test with a running node asserts.

use std::sync::Arc;
use std::time::Duration;

use tenure::plan::Budgets;
use tenure::store::Op;
use tenure::store::fault::{FaultConfig, FaultStore};
use tenure::store::memory::MemoryStore;
use tenure::{Hashed, Node, PlanningSettings, Seal, Settings, Shard};
use tenure_core::keys::Key;
use tenure_core::record::Record;

use crate::test_cluster::*;

fn value(node: &Node, name: &'static str) -> f64 {
    node.metrics().value(name, "")
}

fn labelled(node: &Node, name: &'static str, labels: &[(&str, &str)]) -> f64 {
    let pairs: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
    let labels = format!("{{{}}}", pairs.join(","));
    node.metrics().value(name, &labels)
}

/// The sum over all labels.
fn total(node: &Node, name: &str) -> f64 {
    let text = node.metrics().render();
    let lines = text.lines().filter(|line| line.starts_with(name));
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.sum()
}

#[tokio::test(start_paused = true)]
async fn a_leader_counts_its_plans_and_what_is_in_them() {
    let world = TestCluster::new();
    let (a, _) = world.start("a", &Counter::default()).await;
    owns(&a, 4).await;
    assert_eq!(value(&a, "tenure_leader"), 1.0);
    assert_eq!(value(&a, "tenure_active"), 1.0);
    let term = value(&a, "tenure_leader_term");
    assert!(term >= 1.0, "{term}");
    let (plans, version) = (
        value(&a, "tenure_plans_total"),
        value(&a, "tenure_plan_version"),
    );
    let moved = |node: &Node| labelled(node, "tenure_plan_changes_total", &[("kind", "moved")]);
    assert_eq!(moved(&a), 0.0);
    let (b, _) = world.start("b", &Counter::default()).await;
    owns(&b, 2).await;
    assert_eq!(moved(&a), 2.0);
    assert!(value(&a, "tenure_plans_total") > plans);
    assert!(value(&a, "tenure_plan_version") > version);
    assert_eq!(value(&b, "tenure_leader"), 0.0);
    assert_eq!(value(&b, "tenure_plans_total"), 0.0);
    // Shards that b has taken were claimed, loaded and served there, and stopped at a.
    let steps = |node: &Node, step: &str| {
        let text = node.metrics().render();
        let of = |line: &&str| {
            line.starts_with("tenure_shard_transitions_total{")
                && line.contains(&format!("step=\"{step}\""))
        };
        let lines = text.lines().filter(of);
        let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        counts.sum::<f64>()
    };
    assert_eq!((steps(&a, "serving"), steps(&b, "serving")), (4.0, 2.0));
    assert_eq!((steps(&a, "sealed"), steps(&b, "sealed")), (2.0, 0.0));
    a.stop().await.unwrap();
    until("b leads", async || value(&b, "tenure_leader") == 1.0).await;
    assert_eq!(value(&a, "tenure_leader"), 0.0);
    assert!(value(&b, "tenure_leader_term") > term);
}

#[tokio::test(start_paused = true)]
async fn changes_that_a_plan_puts_off_and_its_problems_are_counted() {
    let world = TestCluster::new();
    let one_at_a_time = PlanningSettings {
        settle_time: Some(ms(250)),
        rejoin_after: Some(Duration::ZERO),
        budgets: Some(Budgets {
            total: 1,
            per_source: 1,
            per_target: 1,
        }),
        ..PlanningSettings::default()
    };
    let node = |name: &str, capacity: u32| {
        let (builder, _) = world.bare(name);
        builder
            .plan(one_at_a_time.clone())
            .capacity(capacity)
            .keyspace("orders", Hashed(4), Counter::default())
    };
    // Three of four shards have room: the planner has a problem with the fourth.
    let a = started(node("a", 3)).await.unwrap();
    owns(&a, 3).await;
    let problems = value(&a, "tenure_plan_problems_total");
    assert!(problems >= 1.0, "{problems}");
    // Work in every shard keeps moves under way, so that the second one has to wait for the first.
    let work: Vec<_> = a.owned().into_iter().collect();
    let work: Vec<_> = work
        .iter()
        .map(|id| a.enter_shard::<Counter>(id).unwrap())
        .collect();
    let b = started(node("b", 9)).await.unwrap();
    until("a change is put off", async || {
        value(&a, "tenure_plan_deferred_changes") >= 1.0
    })
    .await;
    drop(work);
    until("balance", async || {
        a.owned().len() == 2 && b.owned().len() == 2
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_session_is_counted_by_its_holder_and_by_whoever_proves_it() {
    let world = TestCluster::new();
    let (a, _) = world.start("a", &Counter::default()).await;
    let (b, faults) = world.start("b", &Counter::default()).await;
    until("balance", async || {
        a.owned().len() == 2 && b.owned().len() == 2
    })
    .await;
    assert_eq!(total(&a, "tenure_sessions_ended_total{"), 0.0);
    faults.outage();
    owns(&a, 4).await;
    assert_eq!(
        labelled(&a, "tenure_sessions_ended_total", &[("reason", "expired")]),
        1.0
    );
    assert_eq!(total(&b, "tenure_sessions_lost_total{"), 0.0);
    faults.heal();
    owns(&b, 2).await;
    assert_eq!(total(&b, "tenure_sessions_lost_total{"), 1.0);
    assert_eq!(total(&a, "tenure_sessions_lost_total{"), 0.0);
    let change = |from, to| {
        labelled(
            &b,
            "tenure_lease_transitions_total",
            &[("from", from), ("to", to)],
        )
    };
    assert_eq!(change("attached", "degraded"), 1.0);
    assert_eq!(change("degraded", "detached"), 1.0);
    // The tombstone is removed when nothing refers to it any more.
    let swept = || {
        value(&a, "tenure_tombstones_removed_total") + value(&b, "tenure_tombstones_removed_total")
    };
    let begun = tokio::time::Instant::now();
    while swept() == 0.0 {
        assert!(begun.elapsed() < Duration::from_secs(3 * 86_400), "never");
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn shards_that_nobody_owns_and_shards_that_are_waited_for_are_counted_with_their_age() {
    let world = TestCluster::new();
    let (builder, _) = world.node("a", &Counter::default());
    let patient = Settings {
        drain_timeout: TTL * 10,
        ..settings()
    };
    let a = started(builder.settings(patient)).await.unwrap();
    owns(&a, 4).await;
    let work: Vec<_> = (0..4)
        .map(|i| a.enter_shard::<Counter>(&shard(i)).unwrap())
        .collect();
    let (b, faults) = world.start("b", &Counter::default()).await;
    until("b waits", async || {
        value(&b, "tenure_owned_elsewhere_shards") == 2.0
    })
    .await;
    tokio::time::sleep(ms(8000)).await;
    let age = value(&b, "tenure_owned_elsewhere_age_seconds");
    assert!((6.0..=9.0).contains(&age), "{age}");
    let retries = value(&b, "tenure_claim_retries_total");
    assert!(retries >= 1.0, "{retries}");
    drop(work);
    owns(&b, 2).await;
    until("nothing is waited for", async || {
        value(&b, "tenure_owned_elsewhere_shards") == 0.0
    })
    .await;
    assert_eq!(value(&b, "tenure_unowned_shards"), 0.0);
    // Nobody is left who could take what a gives up.
    faults.fail_where(|op, key| op == Op::Put && key.contains("/shards/"));
    a.stop().await.unwrap();
    until("they are free", async || {
        value(&b, "tenure_unowned_shards") == 2.0
    })
    .await;
    let unserved = |reason: &str| labelled(&b, "tenure_unserved_shards", &[("reason", reason)]);
    assert_eq!(unserved("unclaimed"), 0.0, "not free for long");
    tokio::time::sleep(ms(30_000)).await;
    let age = value(&b, "tenure_unowned_age_seconds");
    assert!((20.0..=45.0).contains(&age), "{age}");
    assert_eq!(unserved("unclaimed"), 2.0);
    assert_eq!(unserved("no_node"), 0.0);
    faults.heal();
    owns(&b, 4).await;
    until("all are served", async || unserved("unclaimed") == 0.0).await;
    until("none is free", async || {
        value(&b, "tenure_unowned_shards") == 0.0
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn requests_to_the_store_are_counted_by_kind_and_outcome_and_renewals_are_timed() {
    let world = TestCluster::new();
    let (a, faults) = world.start("a", &Counter::default()).await;
    owns(&a, 4).await;
    let count = |kind, outcome| {
        let labels = [("kind", kind), ("outcome", outcome)];
        labelled(&a, "tenure_store_requests_total", &labels)
    };
    assert!(count("put", "won") >= 5.0, "{}", count("put", "won"));
    assert!(count("list", "ok") >= 1.0);
    assert_eq!(count("put", "unavailable"), 0.0);
    faults.slow(ms(70));
    tokio::time::sleep(TTL / 2).await;
    let took = value(&a, "tenure_lease_renewal_duration_seconds");
    assert!((0.07..0.08).contains(&took), "{took}");
    faults.outage();
    tokio::time::sleep(TTL / 2).await;
    assert!(count("put", "unavailable") >= 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_missing_record_is_counted() {
    let world = TestCluster::new();
    let (a, _) = world.start("a", &Counter::default()).await;
    owns(&a, 4).await;
    assert_eq!(value(&a, "tenure_missing_records_total"), 0.0);
    world.delete(&Key::Shard(shard(1))).await;
    until("it is noticed", async || {
        value(&a, "tenure_missing_records_total") >= 1.0
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_not_scheduled_is_counted() {
    let world = TestCluster::new();
    let (a, _) = world.start("a", &Counter::default()).await;
    owns(&a, 4).await;
    tokio::time::sleep(TTL).await;
    assert_eq!(value(&a, "tenure_clock_jumps_total"), 0.0);
    // In one step: no timer in between is looked at.
    tokio::time::advance(TTL / 2).await;
    until("it is noticed", async || {
        value(&a, "tenure_clock_jumps_total") >= 1.0
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_exchanged_is_counted() {
    let world = TestCluster::new();
    let (builder, _) = world.node("a", &Counter::default());
    // All of it is read again soon.
    let set = Settings {
        relist_interval: Some(TTL * 4),
        ..settings()
    };
    let a = started(builder.settings(set)).await.unwrap();
    owns(&a, 4).await;
    assert_eq!(value(&a, "tenure_store_replacements_total"), 0.0);
    // The records now say that they belong to another store, as after a copy.
    let key = Key::Cluster;
    let entry = world.store.get(&key.path(&world.cluster)).await.unwrap();
    let mut record = match Record::decode(&key, &entry.unwrap().value) {
        Ok(Record::Cluster(record)) => (*record).clone(),
        other => panic!("{other:?}"),
    };
    record.head.rev += 1;
    record.store = "another".to_owned();
    let bytes = Record::Cluster(record.into()).encode();
    world.overwrite(&key, &bytes).await;
    until("it is noticed", async || {
        value(&a, "tenure_store_replacements_total") == 1.0
    })
    .await;
}

/// A handler whose shards cannot be sealed.
#[derive(Clone)]
struct Unsealable;

impl tenure::Handler for Unsealable {
    type State = ();

    async fn load(&self, _: &Shard) -> tenure::Result<()> {
        Ok(())
    }

    async fn seal(&self, _: &Shard, (): &mut ()) -> tenure::Result<Seal> {
        Err("the disk is full".into())
    }
}

#[tokio::test(start_paused = true)]
async fn seals_that_fail_are_counted() {
    let world = TestCluster::new();
    let node = |name: &str| {
        let (builder, _) = world.bare(name);
        let plan = PlanningSettings {
            settle_time: Some(ms(250)),
            ..PlanningSettings::default()
        };
        builder.plan(plan).keyspace("orders", Hashed(4), Unsealable)
    };
    let a = started(node("a")).await.unwrap();
    owns(&a, 4).await;
    assert_eq!(value(&a, "tenure_seal_failures_total"), 0.0);
    let _b = started(node("b")).await.unwrap();
    until("a seal has failed", async || {
        value(&a, "tenure_seal_failures_total") >= 1.0
    })
    .await;
}

/// In real time: work that blocks its thread cannot be stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_work_that_does_not_stop_is_counted() {
    let (store, faults) = FaultStore::new(Arc::new(MemoryStore::new()), FaultConfig::none(1));
    let set = Settings {
        ttl: ms(1200),
        ..Settings::default()
    };
    let builder = Node::builder("memory:", "shop")
        .store(Arc::new(store))
        .name("a")
        .settings(set);
    let node = builder.keyspace("orders", Hashed(1), Counter::default());
    let node = node.start().await.unwrap();
    let entered = node.enter_shard::<Counter>(&shard(0)).unwrap();
    let work = tokio::spawn(entered.run(async |_, _| std::thread::sleep(ms(3000))));
    assert_eq!(value(&node, "tenure_overdue_cancellations_total"), 0.0);
    faults.outage();
    let counted = async {
        while value(&node, "tenure_overdue_cancellations_total") < 1.0 {
            tokio::time::sleep(ms(10)).await;
        }
    };
    let counted = tokio::time::timeout(ms(2800), counted).await;
    counted.expect("the work is told to be overdue while it runs");
    assert!(!work.is_finished());
}
