//! Settings take effect: each is set to two values, and what it is for is measured in virtual time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::plan::BalanceBy;
use tenure::{
    AssignedBy, Builder, Grant, Handler, Hashed, Node, NodeEvent, PlanningSettings, Result,
    Settings, Shard, ShardStep, SharedState,
};

use tenure_core::keys::Key;
use tenure_core::record::Record;

use crate::test_cluster::*;

fn with(settings: Settings, builder: Builder) -> Builder {
    builder.settings(settings)
}

/// A node with these settings that owns all four shards.
async fn alone(
    world: &TestCluster,
    settings: Settings,
) -> (Node, tenure::store::fault::FaultHandle) {
    let (builder, faults) = world.node("a", &Counter::default());
    let node = started(with(settings, builder)).await.unwrap();
    owns(&node, 4).await;
    (node, faults)
}

#[tokio::test(start_paused = true)]
async fn renew_retry_interval_paces_the_renewals_of_an_outage() {
    let mut failures = Vec::new();
    for interval in [50, 300] {
        let world = TestCluster::new();
        let set = Settings {
            renew_retry_interval: Some(ms(interval)),
            ..settings()
        };
        let (node, faults) = alone(&world, set).await;
        faults.outage();
        let count = || {
            let name = "tenure_lease_renewal_failures_total";
            node.metrics().value(name, "")
        };
        until("the first", async || count() > 0.0).await;
        let before = count();
        tokio::time::sleep(ms(1500)).await;
        failures.push(count() - before);
    }
    assert!((28.0..=31.0).contains(&failures[0]), "{failures:?}");
    assert!((4.0..=6.0).contains(&failures[1]), "{failures:?}");
}

#[tokio::test(start_paused = true)]
async fn tick_interval_bounds_how_long_a_change_that_leads_to_no_claim_is_left() {
    for tick in [2000, 60_000] {
        let world = TestCluster::new();
        let (a, _) = world.start("a", &Counter::default()).await;
        owns(&a, 4).await;
        let (builder, _) = world.node("b", &Counter::default());
        // Neither the watch nor retries lead to a claim.
        let set = Settings {
            claim_watch_enabled: false,
            claim_retry_window: Duration::ZERO,
            tick_interval: Some(ms(tick)),
            ..settings()
        };
        let b = started(with(set, builder)).await.unwrap();
        owns(&b, 2).await;
        let given = some_shard(&a);
        world.release(&given, &b).await;
        let start = tokio::time::Instant::now();
        while !b.owned().contains(&given) {
            assert!(start.elapsed() < Duration::from_secs(600), "never");
            tokio::time::sleep(ms(5)).await;
        }
        let took = start.elapsed();
        assert!(took <= ms(tick + 100), "{tick}: {took:?}");
        assert!(tick < 60_000 || took > ms(4000), "{tick}: {took:?}");
        let retries = "tenure_claim_retries_total";
        assert_eq!(b.metrics().value(retries, ""), 0.0, "a window of zero");
    }
}

#[tokio::test(start_paused = true)]
async fn relist_interval_is_how_often_everything_is_read_although_nothing_is_amiss() {
    // At a tick, of 5 s.
    for (interval, wanted) in [(10_000, 40..=60), (100_000, 5..=6)] {
        let world = TestCluster::new();
        let set = Settings {
            tick_interval: Some(ms(5000)),
            relist_interval: Some(ms(interval)),
            ..settings()
        };
        let (node, _) = alone(&world, set).await;
        // Somebody else writes: of one's own writes nothing can be missed.
        let (_b, _) = world.start("b", &Counter::default()).await;
        let lists = || {
            let labels = "{kind=\"list\",outcome=\"ok\"}";
            node.metrics().value("tenure_store_requests_total", labels) as u32
        };
        tokio::time::sleep(TTL).await;
        let before = lists();
        tokio::time::sleep(ms(600_000)).await;
        let count = lists() - before;
        assert!(wanted.contains(&count), "{interval}: {count}");
    }
}

/// Two rendezvous nodes of sixteen shards, the second of which has just started.
async fn joined(world: &TestCluster, settings: &Settings) -> (Node, Node) {
    let start = async |name: &str| {
        let (builder, _) = world.bare(name);
        let builder = builder
            .assigned_by(AssignedBy::Rendezvous)
            .settings(settings.clone())
            .keyspace("orders", Hashed(16), Counter::default());
        started(builder).await.unwrap()
    };
    let a = start("a").await;
    owns(&a, 16).await;
    let b = start("b").await;
    (a, b)
}

#[tokio::test(start_paused = true)]
async fn rebalance_debounce_is_how_long_shards_stay_after_a_node_has_joined() {
    for debounce in [100, 3000] {
        let world = TestCluster::new();
        let set = Settings {
            assignment_settle_time: ms(debounce),
            ..settings()
        };
        let (a, b) = joined(&world, &set).await;
        let begun = tokio::time::Instant::now();
        until("a gives something", async || a.owned().len() < 16).await;
        let waited = begun.elapsed();
        // The start of b took a while itself, after its session was there.
        assert!(waited <= ms(debounce + 200), "{debounce}: {waited:?}");
        assert!(waited + ms(200) >= ms(debounce), "{debounce}: {waited:?}");
        until("b has its share", async || !b.owned().is_empty()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn release_batch_is_how_many_shards_are_given_away_at_a_time() {
    for batch in [1, 3] {
        let world = TestCluster::new();
        let start = async |name: &str| {
            let (builder, _) = world.bare(name);
            let set = Settings {
                release_batch: batch,
                drain_timeout: TTL * 10,
                ..settings()
            };
            let builder = builder
                .assigned_by(AssignedBy::Rendezvous)
                .settings(set)
                .keyspace("orders", Hashed(16), Counter::default());
            started(builder).await.unwrap()
        };
        let a = start("a").await;
        owns(&a, 16).await;
        // What is at work does not go.
        let work: Vec<_> = (0..16)
            .map(|i| a.enter_shard::<Counter>(&shard(i)).unwrap())
            .collect();
        let b = start("b").await;
        tokio::time::sleep(TTL * 2).await;
        assert_eq!(16 - a.owned().len(), batch, "on their way");
        assert!(b.owned().is_empty());
        drop(work);
        until("b has its share", async || b.owned().len() >= 4).await;
    }
}

/// A handler that takes its time to load, or fails to.
#[derive(Clone, Copy)]
struct Loads(Option<Duration>);

impl tenure::Handler for Loads {
    type State = ();

    async fn load(&self, _: &Shard) -> tenure::Result<()> {
        match self.0 {
            Some(time) => tokio::time::sleep(time).await,
            None => return Err("the disk is on fire".into()),
        }
        Ok(())
    }
}

/// The times of the first failed loads of one shard, from the start of the first load on.
async fn failed_loads(set: Settings, handler: Loads, count: usize) -> Vec<Duration> {
    let world = TestCluster::new();
    let (builder, _) = world.bare("a");
    let builder = builder.settings(set).keyspace("orders", Hashed(1), handler);
    let starting = tokio::spawn(builder.start());
    let mut begun = None;
    let node = starting.await.unwrap().unwrap();
    let mut notes = node.events();
    let mut times = Vec::new();
    while times.len() < count {
        let failed = note(&mut notes, |n| match n {
            NodeEvent::LoadFailed { attempt, .. } => Some((*attempt, true)),
            NodeEvent::Shard(t) if t.step == ShardStep::Loading => Some((0, false)),
            _ => None,
        });
        let now = world.clock.now();
        let (_, is_failure) = failed.await;
        let now_after = world.clock.now();
        if is_failure {
            times.push(now_after.since(*begun.get_or_insert(now)));
        } else {
            begun.get_or_insert(now_after);
        }
    }
    times
}

#[tokio::test(start_paused = true)]
async fn load_timeout_ends_a_load_that_hangs() {
    for limit in [700, 4000] {
        let set = Settings {
            load_timeout: ms(limit),
            load_retry_min: ms(100),
            load_retry_max: ms(100),
            ..settings()
        };
        let hangs = Loads(Some(Duration::from_secs(3600)));
        let times = failed_loads(set, hangs, 3).await;
        for pair in times.windows(2) {
            let each = pair[1] - pair[0];
            // The load, and the wait before it.
            assert!(
                each >= ms(limit + 50) && each <= ms(limit + 220),
                "{times:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn load_retries_wait_from_load_retry_min_to_load_retry_max() {
    let set = Settings {
        load_retry_min: ms(200),
        load_retry_max: ms(1000),
        load_attempts: 50,
        ..settings()
    };
    let times = failed_loads(set, Loads(None), 7).await;
    let waits: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits[0] >= ms(100) && waits[0] <= ms(420), "{waits:?}");
    for wait in &waits[4..] {
        assert!(*wait >= ms(500) && *wait <= ms(1020), "{waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_load_attempts_a_shard_goes_to_another_node() {
    for attempts in [2, 5] {
        let world = TestCluster::new();
        let set = || Settings {
            load_attempts: attempts,
            load_retry_min: ms(50),
            load_retry_max: ms(50),
            ..settings()
        };
        let handler = Counter::default();
        for i in 0..4 {
            let mut failing = handler.failing.lock().unwrap();
            failing.insert(i.to_string(), u32::MAX);
        }
        let (builder, _) = world.node("a", &handler);
        let a = started(with(set(), builder)).await.unwrap();
        let good = Counter::default();
        let (builder, _) = world.node("b", &good);
        let b = started(with(set(), builder)).await.unwrap();
        owns(&b, 4).await;
        let failures = a.metrics().value("tenure_load_failures_total", "");
        // Those that went to b by balance were not tried to the end.
        assert!(
            failures <= f64::from(4 * attempts),
            "{attempts}: {failures}"
        );
        assert!(failures > f64::from(attempts), "{attempts}: {failures}");
    }
}

#[tokio::test(start_paused = true)]
async fn take_timeout_is_how_long_a_sealed_shard_waits_for_its_new_owner() {
    for limit in [800, 3000] {
        let world = TestCluster::new();
        let set = Settings {
            take_timeout: ms(limit),
            ..settings()
        };
        let (a, _) = alone(&world, set.clone()).await;
        let mut notes = a.events();
        let (builder, faults) = world.node("b", &Counter::default());
        // Enough for the test to be quicker than the taking.
        faults.slow(ms(200));
        let _b = started(with(set, builder)).await.unwrap();
        let sealed = note(&mut notes, |n| match n {
            NodeEvent::Shard(t) if t.step == ShardStep::Sealed => Some(t.clone()),
            _ => None,
        });
        let sealed = sealed.await;
        faults.fail_where(|op, key| op == tenure::store::Op::Put && key.contains("/shards/"));
        let again = note(&mut notes, |n| match n {
            NodeEvent::Shard(t) if t.shard == sealed.shard && t.step == ShardStep::Reclaimed => {
                Some(t.time)
            }
            _ => None,
        });
        let waited = again.await.since(sealed.time);
        assert!(waited >= ms(limit), "{waited:?}");
        assert!(waited <= ms(limit + 400), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn clock_drift_max_permille_is_added_to_the_wait_for_whoever_may_have_owned_a_lost_record() {
    for permille in [10, 100] {
        let world = TestCluster::new();
        let set = Settings {
            clock_drift_max_permille: permille,
            ..settings()
        };
        let (_a, _) = alone(&world, set).await;
        let key = Key::Shard(shard(1));
        world.delete(&key).await;
        let took = until("the record is back", async || {
            let entry = world.store.get(&key.path(&world.cluster)).await;
            // A placeholder, which cannot be read, is there at once.
            entry
                .unwrap()
                .is_some_and(|entry| Record::decode(&key, &entry.value).is_ok())
        })
        .await;
        let proof = TTL + TTL * permille / 1000;
        assert!(took >= proof && took <= proof + ms(300), "{took:?}");
    }
}

#[tokio::test]
async fn stall_limit_is_how_long_the_application_may_stand_still() {
    let wedged = async |stall_limit: Option<Duration>| {
        let set = Settings {
            ttl: ms(2400),
            stall_limit,
            ..Settings::default()
        };
        let builder = Node::builder("memory:", "shop").name("a").settings(set);
        let node = builder.keyspace("orders", Hashed(2), Counter::default());
        let node = node.start().await.unwrap();
        std::thread::sleep(ms(1700));
        let wedged = node.metrics().value("tenure_runtime_blocked_total", "");
        node.stop().await.unwrap();
        wedged
    };
    assert_eq!(wedged(None).await, 0.0);
    assert!(wedged(Some(ms(850))).await >= 1.0);
}

#[tokio::test(start_paused = true)]
async fn load_window_is_the_time_over_which_reported_load_is_smoothed() {
    let mut loads = Vec::new();
    for window in [1, 1000] {
        let world = TestCluster::new();
        let (builder, _) = world.bare("a");
        let plan = PlanningSettings {
            balance_by: Some(BalanceBy::Cost),
            cost_window: Some(Duration::from_secs(window)),
            ..PlanningSettings::default()
        };
        let builder = builder.plan(plan).settings(settings());
        let builder = builder.keyspace("orders", Hashed(4), Counter::default());
        let node = started(builder).await.unwrap();
        owns(&node, 4).await;
        let work = node.enter_shard::<Counter>(&shard(0)).unwrap();
        let grant = work.grant();
        for load in [[100; 30], [1000; 30]].into_iter().flatten() {
            grant.report_cost(load);
            tokio::time::sleep(ms(1000)).await;
        }
        let key = Key::Session(grant.session());
        let entry = world.store.get(&key.path(&world.cluster)).await.unwrap();
        let Ok(Record::Session(record)) = Record::decode(&key, &entry.unwrap().value) else {
            panic!("no session");
        };
        loads.push(record.cost_of(&shard(0)).unwrap());
    }
    // A short window follows the last reports, a long one hardly knows them.
    assert!(loads[0] > 900 && loads[1] < 300, "{loads:?}");
}

/// Runs two nodes of four shards for a minute. The shards of the first node always report the first two loads, those of the
/// second node the others. Returns how many shards each node has in the end.
async fn evened_out(plan: PlanningSettings, loads: [u32; 4]) -> [usize; 2] {
    let world = TestCluster::new();
    let plan = PlanningSettings {
        cost_window: plan.balance_by.map(|_| ms(1000)),
        settle_time: Some(ms(250)),
        cool_down: Some(Duration::ZERO),
        rejoin_after: Some(Duration::ZERO),
        ..plan
    };
    let start = async |name: &str| {
        let (builder, _) = world.bare(name);
        let builder = builder.plan(plan.clone());
        let builder = builder.keyspace("orders", Hashed(4), Counter::default());
        started(builder).await.unwrap()
    };
    let nodes = [start("a").await, start("b").await];
    until("balance", async || {
        nodes.iter().all(|node| node.owned().len() == 2)
    })
    .await;
    let shards = nodes.iter().flat_map(Node::owned);
    let loads: BTreeMap<_, _> = shards.zip(loads).collect();
    for _ in 0..60 {
        for node in &nodes {
            for id in node.owned() {
                if let Ok(work) = node.enter_shard::<Counter>(&id) {
                    work.grant().report_cost(loads[&id]);
                }
            }
        }
        tokio::time::sleep(ms(1000)).await;
    }
    nodes.map(|node| node.owned().len())
}

fn by_load() -> PlanningSettings {
    PlanningSettings {
        balance_by: Some(BalanceBy::Cost),
        ..PlanningSettings::default()
    }
}

#[tokio::test(start_paused = true)]
async fn measure_says_whether_reported_load_moves_shards() {
    let loads = [6000, 6000, 10, 10];
    let by_shards = PlanningSettings::default();
    assert_eq!(evened_out(by_shards, loads).await, [2, 2]);
    assert_eq!(evened_out(by_load(), loads).await, [1, 3]);
}

#[tokio::test(start_paused = true)]
async fn band_load_permille_is_how_far_off_its_part_a_node_may_be() {
    // The first node is 8 % above its part and the second below; one shard of 50 evens that out.
    let loads = [600, 50, 500, 50];
    let within = |permille| PlanningSettings {
        band_cost_permille: Some(permille),
        ..by_load()
    };
    assert_eq!(evened_out(within(300), loads).await, [2, 2]);
    assert_eq!(evened_out(within(20), loads).await, [1, 3]);
}

#[tokio::test(start_paused = true)]
async fn load_floor_is_what_every_shard_counts_for_besides_its_load() {
    let loads = [600, 600, 10, 10];
    let floor = |floor| PlanningSettings {
        cost_floor: Some(floor),
        ..by_load()
    };
    // With a high floor all shards count for about the same.
    assert_eq!(evened_out(floor(100_000), loads).await, [2, 2]);
    assert_eq!(evened_out(floor(1), loads).await, [1, 3]);
}

/// A handler whose loop goes on after it was asked to return. Notes how long it did so.
#[derive(Clone, Default)]
struct Stubborn(Arc<Mutex<Vec<Duration>>>);

struct Dropped(tokio::time::Instant, Arc<Mutex<Vec<Duration>>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(self.0.elapsed());
    }
}

impl Handler for Stubborn {
    type State = ();

    async fn load(&self, _: &Shard) -> Result<()> {
        Ok(())
    }

    async fn run(&self, grant: Grant, _: SharedState<()>) -> Result<()> {
        grant.cancelled().await;
        let _dropped = Dropped(tokio::time::Instant::now(), self.0.clone());
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn kill_grace_is_how_long_a_loop_goes_on_after_it_was_asked_to_return() {
    for grace in [100, 1300] {
        let world = TestCluster::new();
        let set = Settings {
            kill_grace: Some(ms(grace)),
            ..settings()
        };
        let (builder, _) = world.bare("a");
        let handler = Stubborn::default();
        let builder = builder.keyspace("orders", Hashed(1), handler.clone());
        let node = started(with(set, builder)).await.unwrap();
        owns(&node, 1).await;
        node.stop().await.unwrap();
        let went_on = handler.0.lock().unwrap().clone();
        assert_eq!(went_on.len(), 1);
        assert!(
            went_on[0] >= ms(grace) && went_on[0] <= ms(grace + 20),
            "{grace}: {went_on:?}"
        );
    }
}
