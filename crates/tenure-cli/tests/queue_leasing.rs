//! Workers that own shards, and workers that do not: B1 to B8, with real processes.
//!
//! Each scene is played on a store that it is given; `scenes!` names the stores.

mod queue_support;

use std::time::{Duration, Instant};

use queue_support::*;
use rustix::process::Signal;
use serde_json::Value;
use tenure_store::servers::binary;
use tenure_store::servers::postgres::Postgres;
use tenure_store::servers::s3::S3Service;

/// Where `.ci/servers` puts libraries unless told otherwise.
const FETCHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/servers");
/// Short, but long enough for a bucket that is looked at every tenth of a second, and for a disk that is busy elsewhere.
const LEASED: &[&str] = &["TENURE_WORKER_OWNERSHIP_TTL_SECS=4"];
const SWEEPING: &[&str] = &["TENURE_WORKER_OWNERSHIP=false"];

/// Plays every scene on each store.
macro_rules! scenes {
    ($($scene:ident)*) => {
        mod sqlite {
            $(#[test] fn $scene() { super::$scene(super::TestCluster::new()); })*
        }
        mod s3 {
            $(#[test] fn $scene() {
                let s3 = super::S3Service::start();
                super::$scene(super::TestCluster::on(&super::bucket(&s3)));
            })*
        }
    };
}

scenes! {
    workers_with_and_without_leasing_share_a_queue_whose_objects_are_all_readable
    a_killed_owners_shards_and_task_are_taken_over_and_the_task_runs_once_more
    a_stopped_owner_that_wakes_up_claims_nothing_and_takes_part_again
    a_worker_that_stops_has_its_shards_polled_by_others_at_once
    a_task_longer_than_the_lease_costs_its_worker_neither_the_task_nor_its_shards
    every_shard_is_polled_by_one_worker_and_a_joining_one_gets_its_share
    a_corrupt_record_of_ownership_costs_no_task
    a_killed_worker_with_a_data_directory_takes_its_shards_back_at_once
}

/// A place in a bucket, which nodes look at more often than they would if that were paid for.
fn bucket(s3: &S3Service) -> String {
    s3.url("queue").replace("poll=20ms", "poll=100ms")
}

fn until_shares(site: &TestCluster, names: &[&str], wanted: &[usize]) {
    until(&format!("{names:?} have {wanted:?}"), || {
        site.shares(names) == wanted
    });
}

// B1
fn workers_with_and_without_leasing_share_a_queue_whose_objects_are_all_readable(
    site: TestCluster,
) {
    let site = site.with_queue(&[]);
    // A submission before, beside and after a change of the workers is the same command.
    let early = site.submit(&["early"]);
    let script = r#"echo "$TENURE_TASK_ID $WORKER" >> "$MARKS"; cat"#;
    let start = |name: &str, options: &[&str]| {
        let mut command = site.worker_command(name, options);
        command.env("MARKS", site.path("marks")).env("WORKER", name);
        Process::spawn(command.args(["--concurrency", "1", "--", "sh", "-c", script]))
    };
    let mut sweeper = start("sweeper", SWEEPING);
    assert_eq!(state(&site.ended(&early)), "done");
    let _owner = start("owner", LEASED);
    until_shares(&site, &["owner", "sweeper"], &[16, 0]);
    let mut count = 1;
    until("both have done something", || {
        site.ended(&site.submit(&["more"]));
        count += 1;
        ["owner", "sweeper"].iter().all(|name| {
            let marks = site.marks("marks");
            marks.iter().any(|mark| mark.ends_with(name))
        })
    });
    assert!(sweeper.terminate().success());
    site.ended(&site.submit(&["late"]));
    let marks = site.marks("marks");
    assert_eq!(marks.len(), count + 1, "each once: {marks:?}");
    for (key, value) in records(&site) {
        let is_entry = ["ready", "lease", "done", "dead"]
            .iter()
            .any(|index| key.contains(&format!("/q/{index}/")));
        let read = serde_json::from_slice::<Value>(&value);
        assert!(is_entry || read.is_ok(), "{key} is no JSON");
    }
}

// B2, B8
fn a_killed_owners_shards_and_task_are_taken_over_and_the_task_runs_once_more(site: TestCluster) {
    let site = site.with_queue(&["--claim-timeout", "5s"]);
    let script = r#"echo "$TENURE_TASK_ATTEMPT $WORKER" >> "$MARKS"; [ "$WORKER" = a ] && sleep 600; echo ok"#;
    let start = |name: &str| {
        let mut command = site.worker_command(name, LEASED);
        command.env("MARKS", site.path("marks")).env("WORKER", name);
        Process::spawn(command.args(["--", "sh", "-c", script]))
    };
    let mut a = start("a");
    until_shares(&site, &["a"], &[16]);
    let id = site.submit(&["x"]);
    until("a is at it", || !site.marks("marks").is_empty());
    let _b = start("b");
    // A live owner's shards are taken only by its giving them.
    until_shares(&site, &["a", "b"], &[8, 8]);
    a.kill();
    let task = site.ended(&id);
    assert_eq!((state(&task), &task["attempts"]), ("done", &2.into()));
    let wanted = ["submitted", "claimed", "expired", "claimed", "finished"];
    assert_eq!(events(&task), wanted);
    assert_eq!(site.marks("marks"), ["1 a", "2 b"]);
    until_shares(&site, &["a", "b"], &[0, 16]);
}

// B3
fn a_stopped_owner_that_wakes_up_claims_nothing_and_takes_part_again(site: TestCluster) {
    let site = site.with_queue(&["--claim-timeout", "5s"]);
    let script = r#"echo "$TENURE_TASK_ID $WORKER" >> "$MARKS""#;
    let start = |name: &str| {
        let mut command = site.worker_command(name, &["TENURE_WORKER_OWNERSHIP_TTL_SECS=8"]);
        command.env("MARKS", site.path("marks")).env("WORKER", name);
        Process::spawn(command.args(["--", "sh", "-c", script]))
    };
    let a = start("a");
    until_shares(&site, &["a"], &[16]);
    let b = start("b");
    until_shares(&site, &["a", "b"], &[8, 8]);
    site.freeze(&a);
    until_shares(&site, &["a", "b"], &[0, 16]);
    // There is something to claim in every shard, also in those that the sleeper had, and b leaves it alone for a while: it
    // sleeps for less than its own lease lasts.
    site.freeze(&b);
    let frozen = Instant::now();
    let ids: Vec<String> = (0..24).map(|_| site.submit(&["x"])).collect();
    a.signal(Signal::CONT);
    // Longer than the poll interval by far: a worker that still took itself for an owner would claim now.
    pass(Duration::from_millis(1000));
    let early = site.marks("marks");
    b.signal(Signal::CONT);
    let asleep = frozen.elapsed();
    assert!(
        asleep < Duration::from_secs(6),
        "a slow machine: {asleep:?}"
    );
    assert_eq!(early, Vec::<String>::new(), "claims of shards that b has");
    for id in &ids {
        let task = site.ended(id);
        assert_eq!(events(&task), ["submitted", "claimed", "finished"]);
    }
    assert_eq!(site.marks("marks").len(), ids.len(), "each once");
    until_shares(&site, &["a", "b"], &[8, 8]);
    // It takes part again: it has done something by now, or does so from now on.
    until("a works", || {
        site.ended(&site.submit(&["x"]));
        site.marks("marks").iter().any(|mark| mark.ends_with(" a"))
    });
}

// B3
fn a_worker_that_stops_has_its_shards_polled_by_others_at_once(site: TestCluster) {
    let site = site.with_queue(&[]);
    // So long a lease that nothing could come of waiting for its end.
    let long = ["TENURE_WORKER_OWNERSHIP_TTL_SECS=40"];
    let mut a = site.worker("a", &long, "cat");
    until_shares(&site, &["a"], &[16]);
    let _b = site.worker("b", &long, "cat");
    until_shares(&site, &["a", "b"], &[8, 8]);
    // Tasks come in all the while, so that some are waiting in a's shards when it goes.
    let feeding = std::sync::atomic::AtomicBool::new(true);
    let ids = std::thread::scope(|scope| {
        let feeder = scope.spawn(|| {
            let mut ids = Vec::new();
            while feeding.load(std::sync::atomic::Ordering::Relaxed) {
                ids.push(site.submit(&["x"]));
            }
            ids
        });
        pass(Duration::from_millis(500));
        let stopped = a.terminate();
        pass(Duration::from_millis(1500));
        feeding.store(false, std::sync::atomic::Ordering::Relaxed);
        assert!(stopped.success());
        feeder.join().unwrap()
    });
    assert!(ids.len() > 16, "{} tasks", ids.len());
    // The history has the times of the store: no task has waited for longer than a poll, in any shard. The rest
    // is for a busy machine, and far below a lease.
    let mut waits: Vec<Duration> = Vec::new();
    for id in &ids {
        let task = site.ended(id);
        assert_eq!(events(&task), ["submitted", "claimed", "finished"]);
        waits.push(moment(&task["history"][1]).since(moment(&task["history"][0])));
    }
    waits.sort_unstable();
    let longest = waits[waits.len() - 1];
    println!(
        "{} tasks through a clean stop: half claimed within {:?}, all within {longest:?}",
        waits.len(),
        waits[waits.len() / 2]
    );
    assert!(longest < Duration::from_millis(1500), "{waits:?}");
}

/// The time of an event in a task's history.
fn moment(event: &Value) -> tenure_queue::StoreTime {
    event["at"].as_str().unwrap().parse().unwrap()
}

// B4
fn a_task_longer_than_the_lease_costs_its_worker_neither_the_task_nor_its_shards(
    site: TestCluster,
) {
    // A lease that a slow disk does not cost, and a task that is longer than it all the same.
    let site = site.with_queue(&["--claim-timeout", "5s"]);
    let long = ["TENURE_WORKER_OWNERSHIP_TTL_SECS=5"];
    let script = r#"echo 'tenure-progress 45% half way' >&2; echo begun >> "$MARKS"; sleep "$(cat)"; echo slept"#;
    let mut command = site.worker_command("a", &long);
    command.env("MARKS", site.path("marks"));
    let _a = Process::spawn(command.args(["--", "sh", "-c", script]));
    until_shares(&site, &["a"], &[16]);
    let id = site.submit(&["16"]);
    until("the program has begun", || !site.marks("marks").is_empty());
    let first = &site.task(&id)["state"]["expires"];
    // A rival that would take whatever it could get.
    let _b = site.worker("b", &long, "echo rival");
    until_shares(&site, &["a", "b"], &[8, 8]);
    until("the claim is extended and the progress noted", || {
        let task = site.task(&id);
        state(&task) == "running"
            && task["state"]["expires"].as_str() > first.as_str()
            && task["state"]["progress"]["permille"] == 450
    });
    let task = site.ended(&id);
    assert_eq!(events(&task), ["submitted", "claimed", "finished"]);
    assert_eq!(task["state"]["result"]["text"], "slept\n");
    assert_eq!(site.shares(&["a", "b"]), [8, 8]);
    assert_eq!(sessions(&site, "a").len(), 1);
}

// B5
fn every_shard_is_polled_by_one_worker_and_a_joining_one_gets_its_share(site: TestCluster) {
    let site = site.with_queue(&["--shards", "3"]);
    let names = ["a", "b", "c", "d"];
    let mut workers = Vec::new();
    for (n, wanted) in [&[3][..], &[2, 1], &[1, 1, 1], &[1, 1, 1, 0]]
        .iter()
        .enumerate()
    {
        workers.push(site.worker(names[n], LEASED, "cat"));
        let mut sorted = Vec::new();
        until(&format!("{} workers have {wanted:?}", n + 1), || {
            sorted = site.shares(&names[..=n]);
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            sorted == *wanted
        });
        let id = site.submit(&["x"]);
        assert_eq!(state(&site.ended(&id)), "done");
    }
}

// B7
fn a_corrupt_record_of_ownership_costs_no_task(site: TestCluster) {
    let site = site.with_queue(&["--shards", "4"]);
    let mut a = site.worker("a", LEASED, "cat");
    until_shares(&site, &["a"], &[4]);
    a.kill();
    let ids: Vec<String> = (0..20).map(|_| site.submit(&["x"])).collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let key = format!("{CLUSTER}/shards/queue.q/2");
    runtime.block_on(async {
        let store = tenure_store::open(&site.store).await.unwrap();
        let entry = store.get(&key).await.unwrap().unwrap();
        let put = tenure_store::PutIf::update(&key, &b"{ no record"[..], entry.version);
        store.put_if(put).await.unwrap();
    });
    let _b = site.worker("b", LEASED, "cat");
    // Nobody has to repair it.
    until("all shards are served", || site.shares(&["b"]) == [4]);
    for id in &ids {
        assert_eq!(state(&site.ended(id)), "done");
    }
}

/// Stores whose clock is their own; that of SQLite is the machine's.
mod clocks {
    use super::*;

    #[test]
    fn in_postgres_a_worker_whose_wall_clock_is_hours_off_changes_nothing() {
        let postgres = Postgres::start();
        a_worker_whose_wall_clock_is_hours_off_changes_nothing(TestCluster::on(&postgres.url()));
    }

    #[test]
    fn in_a_bucket_a_worker_whose_wall_clock_is_hours_off_changes_nothing() {
        let s3 = S3Service::start();
        a_worker_whose_wall_clock_is_hours_off_changes_nothing(TestCluster::on(&bucket(&s3)));
    }
}

// B6
fn a_worker_whose_wall_clock_is_hours_off_changes_nothing(site: TestCluster) {
    let site = site.with_queue(&["--claim-timeout", "4s"]);
    let arch = std::env::consts::ARCH;
    let library = format!("faketime/usr/lib/{arch}-linux-gnu/faketime/libfaketimeMT.so.1");
    let library = binary(&[&library], &[FETCHED]);
    let mut workers = Vec::new();
    for (name, by) in [("early", "-7h"), ("late", "+5h")] {
        let mut command = site.worker_command(name, LEASED);
        command
            .env("LD_PRELOAD", &library)
            .env("FAKETIME", by)
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        let script = r#"date -u +%Y-%m-%dT%H >> "$MARKS"; sleep "$(cat)""#;
        command.env("MARKS", site.path("marks"));
        workers.push(Process::spawn(command.args(["--", "sh", "-c", script])));
    }
    until("both have shards", || {
        site.shares(&["early", "late"]).iter().all(|n| *n > 0)
    });
    // Not due for either of them before its time; long enough that claims have to be extended.
    let delayed = site.submit(&["0", "--delay", "3s"]);
    let ids: Vec<String> = (0..8).map(|_| site.submit(&["6"])).collect();
    let task = site.ended(&delayed);
    let waited = moment(&task["history"][1]).since(moment(&task["history"][0]));
    assert!(waited >= Duration::from_millis(2900), "{waited:?}");
    assert!(waited < Duration::from_secs(60), "{waited:?}");
    for id in &ids {
        let task = site.ended(id);
        assert_eq!(events(&task), ["submitted", "claimed", "finished"]);
    }
    // A task goes to a shard by chance: one worker may have had all of them so far.
    until("tasks have run under both clocks", || {
        let mut hours = site.marks("marks");
        hours.sort_unstable();
        hours.dedup();
        hours.len() >= 2 || {
            site.ended(&site.submit(&["0"]));
            false
        }
    });
}

/// Restarts a killed worker under its name and returns how long the next task takes.
fn restarted(site: &TestCluster, options: &[&str]) -> Duration {
    let start = || {
        let mut command = site.worker_command("a", options);
        Process::spawn(command.args(["--", "sh", "-c", "echo ok"]))
    };
    let mut first = start();
    until_shares(site, &["a"], &[16]);
    assert_eq!(state(&site.ended(&site.submit(&["x"]))), "done");
    first.kill();
    let begin = Instant::now();
    let mut again = start();
    assert_eq!(state(&site.ended(&site.submit(&["y"]))), "done");
    let took = begin.elapsed();
    assert!(again.terminate().success());
    took
}

// B2
fn a_killed_worker_with_a_data_directory_takes_its_shards_back_at_once(site: TestCluster) {
    let site = site.with_queue(&[]);
    const TTL: Duration = Duration::from_secs(8);
    let ttl = ["TENURE_WORKER_OWNERSHIP_TTL_SECS=8"];
    let data = site.path("data-a").display().to_string();
    let with = restarted(&site, &[&ttl[..], &["--data-dir", &data]].concat());
    assert!(with < TTL, "{with:?} with a data directory");
    let without = restarted(&site, &ttl);
    println!("next task after {with:?} with a data directory, {without:?} without");
    assert!(without > TTL, "{without:?} without");
}

#[test]
fn a_data_directory_without_leasing_is_refused() {
    let site = TestCluster::new().with_queue(&[]);
    let data = site.path("data-a").display().to_string();
    let mut command =
        site.worker_command("a", &["TENURE_WORKER_OWNERSHIP=false", "--data-dir", &data]);
    command.stderr(std::process::Stdio::piped());
    let output = command.args(["--", "true"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("no effect without shard ownership"), "{said}");
}
