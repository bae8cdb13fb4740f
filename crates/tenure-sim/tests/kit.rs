//! The test kit runs right applications without complaint and catches wrong ones.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{AssignedBy, Grant, Handler, Hashed, Node, Result, Shard, SharedState};
use tenure_sim::kit::{Kit, Scenario, SeedReport, Table, WriteResult};

/// How an application counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Writes, then acknowledges.
    Right,
    /// Acknowledges what is in memory alone.
    Hasty,
    /// A loop of its own writes on when its grant is over.
    Deaf,
    /// Panics at the tenth request.
    Fragile,
    /// Has a check that fails.
    Doubtful,
}

struct Tally {
    way: Way,
    table: Table<u64>,
}

impl Handler for Tally {
    type State = (Shard, u64);

    async fn load(&self, shard: &Shard) -> Result<(Shard, u64)> {
        self.table.fence(shard.id(), shard.epoch())?;
        tokio::time::sleep(Duration::from_millis(3)).await;
        let count = self.table.read(shard.name().as_str()).unwrap_or(0);
        Ok((shard.clone(), count))
    }

    async fn run(&self, grant: Grant, _state: SharedState<(Shard, u64)>) -> Result<()> {
        if self.way == Way::Deaf {
            let (table, grant) = (self.table.clone(), grant.clone());
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    let row = format!("beat of {}", grant.shard());
                    table.write(grant.shard(), grant.epoch(), row, 0);
                }
            });
        }
        grant.cancelled().await;
        Ok(())
    }
}

struct Scene {
    way: Way,
    table: Table<u64>,
    acknowledged: Mutex<[u64; 4]>,
    admitted: AtomicU64,
}

impl Scenario for Scene {
    type Handler = Tally;

    fn handler(&self, _node: &str) -> Tally {
        Tally {
            way: self.way,
            table: self.table.clone(),
        }
    }

    async fn request(&self, node: &Node, n: u64) {
        assert!(self.way != Way::Fragile || n != 10, "the tenth is too much");
        let shard = format!("tally/{}", n % 4).parse().unwrap();
        let Ok(entered) = node.enter_shard::<Tally>(&shard) else {
            return;
        };
        self.admitted.fetch_add(1, Ordering::Relaxed);
        let done = entered.run(async |(shard, count), grant| {
            tokio::time::sleep(Duration::from_millis(n % 7)).await;
            *count += 1;
            let row = shard.name().as_str();
            self.way == Way::Hasty
                || self.table.write(shard.id(), grant.epoch(), row, *count) == WriteResult::Done
        });
        if done.await == Ok(true) {
            self.acknowledged.lock().unwrap()[(n % 4) as usize] += 1;
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.way == Way::Doubtful && self.admitted.load(Ordering::Relaxed) > 5 {
            return Err("I have my doubts".to_owned());
        }
        self.table.stale()
    }

    fn finally(&self) -> Result<(), String> {
        for (shard, count) in self.acknowledged.lock().unwrap().iter().enumerate() {
            let written = self.table.read(&shard.to_string()).unwrap_or(0);
            if written < *count {
                return Err(format!("{count} acknowledged, {written} written"));
            }
        }
        Ok(())
    }
}

fn scene(way: Way, table: Table<u64>) -> Arc<Scene> {
    Arc::new(Scene {
        way,
        table,
        acknowledged: Mutex::default(),
        admitted: AtomicU64::new(0),
    })
}

fn kit() -> Kit {
    Kit::new("tally", Hashed(4)).span(Duration::from_secs(40))
}

/// The first of the first thirty seeds that fails.
fn caught(way: Way, table: fn() -> Table<u64>) -> Option<SeedReport> {
    let mut reports = (0..30).map(|seed| kit().run(seed, scene(way, table())));
    reports.find(|report| report.failure.is_some())
}

#[test]
fn an_application_that_writes_before_it_acknowledges_loses_nothing() {
    kit().check(0..8, || scene(Way::Right, Table::fencing()));
    kit()
        .mode(AssignedBy::FairShare)
        .check(8..12, || scene(Way::Right, Table::fencing()));
}

#[test]
fn one_that_acknowledges_what_is_in_memory_alone_is_caught() {
    let report = caught(Way::Hasty, Table::fencing).expect("the loss is seen");
    let failure = report.failure.unwrap();
    assert!(failure.contains("acknowledged"), "{failure}");
}

#[test]
fn a_loop_that_ignores_the_end_of_its_grant_is_caught() {
    let report = caught(Way::Deaf, Table::not_fencing).expect("the stale write is seen");
    let failure = report.failure.unwrap();
    assert!(failure.contains("after epoch"), "{failure}");
}

#[test]
fn a_table_that_fences_keeps_such_a_loop_out() {
    let table = Table::fencing();
    let (shard, old, new) = ("tally/0".parse().unwrap(), 1, 2);
    assert_eq!(
        table.write(&shard, tenure::Epoch(old), "a", 1),
        WriteResult::Done
    );
    table.fence(&shard, tenure::Epoch(new)).unwrap();
    assert_eq!(
        table.write(&shard, tenure::Epoch(old), "a", 2),
        WriteResult::Fenced
    );
    assert!(table.fence(&shard, tenure::Epoch(old)).is_err());
    assert_eq!((table.read("a"), table.stale()), (Some(1), Ok(())));
}

#[test]
fn a_request_that_panics_and_a_check_that_fails_fail_the_run() {
    for (way, said) in [
        (Way::Fragile, "panicked"),
        (Way::Doubtful, "I have my doubts"),
    ] {
        let report = kit().run(0, scene(way, Table::fencing()));
        let failure = report.failure.expect("it fails");
        assert!(failure.contains(said), "{failure}");
    }
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..3 {
        let [a, b] = [(); 2].map(|()| kit().run(seed, scene(Way::Right, Table::fencing())));
        assert_eq!(a, b);
    }
    let [a, b] = [1, 2].map(|seed| kit().run(seed, scene(Way::Right, Table::fencing())));
    assert_ne!(a.story, b.story);
}

#[test]
fn things_do_go_wrong_and_work_is_done_all_the_same() {
    let mut told = String::new();
    let (mut requests, mut openings) = (0, 0);
    for seed in 20..32 {
        let report = kit().run(seed, scene(Way::Right, Table::fencing()));
        assert_eq!(report.failure, None);
        told += &report.story.join("\n");
        requests += report.requests;
        openings += report.openings;
    }
    for fault in [
        "killed",
        "good order",
        "suspended",
        "refused",
        "not answered",
        "no answers",
        "late",
        "hears of no",
    ] {
        assert!(told.contains(fault), "never {fault}");
    }
    assert!(requests > 5_000 && openings > 50, "{requests} {openings}");
    let calm = kit()
        .without_faults()
        .run(0, scene(Way::Right, Table::fencing()));
    assert_eq!(calm.failure, None);
    assert!(!calm.story.iter().any(|line| line.contains("killed")));
}
