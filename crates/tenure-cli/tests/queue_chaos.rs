//! Eight workers that are killed, stopped and continued at random while there is work. A script that shares no code with the
//! queue reads what the tasks' programs left behind, and says whether everything was done.
//!
//! `QUEUE_CHAOS_TASKS` makes it longer. `QUEUE_CHAOS_STORE` names another store, which must be empty; `s3` alone starts a server for it:
//! `QUEUE_CHAOS_TASKS=10000 QUEUE_CHAOS_STORE=s3 cargo nextest run --release -p tenure-cli --test queue_chaos --no-capture`.

mod queue_support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use queue_support::*;
use rustix::process::Signal;
use serde_json::Value;
use tenure_store::servers::s3::S3Service;

const WORKERS: usize = 8;
/// Leaves its mark, and then takes a moment in which it may be killed.
const PROGRAM: &str =
    r#"echo "$TENURE_TASK_ID $TENURE_TASK_ATTEMPT $TENURE_TASK_CLAIM" >> "$EFFECTS"; sleep 0.01"#;

/// What was done to a worker, and when that is undone.
enum Slot {
    Runs(Process),
    Stopped(Process, Instant),
    Gone(Instant),
}

/// A random number generator of which all that is asked is that a seed gives the same again.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

#[test]
fn whatever_is_killed_and_stopped_every_task_is_finished_and_nothing_is_done_twice_without_a_trace()
{
    let tasks: usize = setting("QUEUE_CHAOS_TASKS").map_or(2000, |text| text.parse().unwrap());
    let seed = setting("QUEUE_CHAOS_SEED").map_or(11, |text| text.parse().unwrap());
    let store = setting("QUEUE_CHAOS_STORE");
    let s3 = (store.as_deref() == Some("s3")).then(S3Service::start);
    let site = match (&s3, store) {
        (Some(s3), _) => TestCluster::on(&s3.url("chaos").replace("poll=20ms", "poll=200ms")),
        (None, Some(store)) => TestCluster::on(&store),
        (None, None) => TestCluster::new(),
    };
    println!("{tasks} tasks on {}, QUEUE_CHAOS_SEED={seed}", site.store);
    let site = site.with_queue(&[
        "--claim-timeout",
        "2s",
        "--max-attempts",
        "60",
        "--shards",
        "32",
    ]);
    let ids = submit(&site, tasks);
    fs::write(site.path("ids"), ids).unwrap();
    fs::write(site.path("effects"), "").unwrap();
    let begun = Instant::now();
    let faults = storm(&site, tasks, seed);
    println!("done in {:?} under {faults:?}", begun.elapsed());
    let verdict = judged(&site);
    println!("{verdict}");
    assert_eq!(verdict["against_count"], 0, "{verdict:#}");
    assert_eq!(verdict["tasks"], tasks);
    // Not a calm day: attempts were cut short again and again.
    assert!(
        verdict["expired"].as_u64() > Some(tasks as u64 / 200),
        "{verdict:#}"
    );
}

fn submit(site: &TestCluster, tasks: usize) -> String {
    let mut lines = String::new();
    for n in 0..tasks {
        let _ = writeln!(lines, r#"{{"payload": {n}, "key": "n-{n}"}}"#);
    }
    let ran = site.run_fed(&["task", "submit", "q", "--batch", "-"], lines.as_bytes());
    ran.with(0).out
}

fn start(site: &TestCluster, n: usize) -> Process {
    let name = format!("w{n}");
    let ttl = match site.file() {
        Some(_) => "1.5",
        None => "4",
    };
    let ttl = format!("TENURE_WORKER_OWNERSHIP_TTL_SECS={ttl}");
    let options = [&ttl, "--concurrency", "3"];
    let mut command = site.worker_command(&name, &options);
    command.env("EFFECTS", site.path("effects"));
    Process::spawn(command.args(["--", "sh", "-c", PROGRAM]))
}

/// Disturbs workers until everything is done; what was done to them, by kind.
fn storm(site: &TestCluster, tasks: usize, seed: u64) -> BTreeMap<&'static str, u32> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Counting takes its time on some stores; the storm does not wait for it.
        let counting = scope.spawn(|| {
            let _over = SetWhenDropped(&over);
            count_until_done(site, tasks);
        });
        let mut chance = Chance(seed | 1);
        let mut slots: Vec<Slot> = (0..WORKERS).map(|n| Slot::Runs(start(site, n))).collect();
        let mut faults = BTreeMap::new();
        while !over.load(Ordering::SeqCst) {
            pass(Duration::from_millis(100 + chance.below(500)));
            let at = chance.below(WORKERS as u64) as usize;
            let slot = std::mem::replace(&mut slots[at], Slot::Gone(Instant::now()));
            slots[at] = match slot {
                Slot::Runs(process) => disturb(site, process, &mut chance, &mut faults),
                other => other,
            };
            for (n, slot) in slots.iter_mut().enumerate() {
                recover(site, n, slot);
            }
        }
        counting.join().unwrap();
        faults
    })
}

/// Ends the storm, also if counting fails.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn count_until_done(site: &TestCluster, tasks: usize) {
    let (mut last, mut progress) = (0, Instant::now());
    loop {
        let asked = site.queue(&["stats", "q", "--json"]);
        assert!(progress.elapsed() < TIMEOUT, "nothing more: {asked:?}");
        // A store that is busy with all the others may not answer in time.
        if asked.code == 0 {
            let stats = asked.json();
            let done = stats["done"].as_u64().unwrap() as usize;
            assert_eq!(stats["dead"], 0, "{stats:#}");
            if done >= tasks {
                return;
            }
            if done > last {
                (last, progress) = (done, Instant::now());
            }
        }
        pass(Duration::from_millis(300));
    }
}

fn disturb(
    site: &TestCluster,
    mut process: Process,
    chance: &mut Chance,
    faults: &mut BTreeMap<&'static str, u32>,
) -> Slot {
    let until = Instant::now() + Duration::from_millis(chance.below(5000));
    match chance.below(2) {
        0 => {
            *faults.entry("kills").or_default() += 1;
            process.kill();
            Slot::Gone(until)
        }
        _ => {
            *faults.entry("stops").or_default() += 1;
            site.freeze(&process);
            Slot::Stopped(process, until)
        }
    }
}

/// Undoes what was done to a worker once its time has come.
fn recover(site: &TestCluster, n: usize, slot: &mut Slot) {
    let now = Instant::now();
    *slot = match std::mem::replace(slot, Slot::Gone(now)) {
        Slot::Gone(until) if now >= until => Slot::Runs(start(site, n)),
        Slot::Stopped(process, until) if now >= until => {
            process.signal(Signal::CONT);
            Slot::Runs(process)
        }
        other => other,
    };
}

fn judged(site: &TestCluster) -> Value {
    let listed = site.run(&["task", "list", "q", "--all", "--json"]).with(0);
    fs::write(site.path("tasks"), &listed.out).unwrap();
    let judge = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/queue_chaos/judge.py");
    let mut command = Command::new("python3");
    command.arg(judge);
    for name in ["ids", "tasks", "effects"] {
        command.arg(site.path(name));
    }
    ran(&mut command).json()
}

/// A judge that finds nothing would be of no use.
#[test]
fn the_judge_sees_what_is_lost_done_twice_or_done_by_nobody() {
    let event = |what: &str, claim: &str, attempt: u32| serde_json::json!({ "event": what, "claim": claim, "attempt": attempt });
    let done = |history: Vec<Value>| {
        let state = serde_json::json!({ "status": "done", "claim": "b" });
        serde_json::json!({ "id": "t", "state": state, "history": history })
    };
    let fine = done(vec![
        event("claimed", "a", 1),
        event("expired", "a", 1),
        event("claimed", "b", 2),
        event("finished", "b", 2),
    ]);
    let untold = done(vec![
        event("claimed", "a", 1),
        event("claimed", "b", 2),
        event("finished", "b", 2),
    ]);
    let mut unfinished = fine.clone();
    unfinished["state"]["status"] = "ready".into();
    for (what, tasks, effects, against) in [
        ("fine", vec![fine.clone()], "t 1 a\nt 2 b\n", 0),
        ("once", vec![fine.clone()], "t 2 b\n", 0),
        ("lost", vec![], "t 2 b\n", 1),
        ("no effect", vec![fine.clone()], "t 1 a\n", 1),
        (
            "twice in one attempt",
            vec![fine.clone()],
            "t 2 b\nt 2 b\n",
            1,
        ),
        ("by nobody", vec![fine.clone()], "t 2 b\nt 3 c\n", 1),
        ("another attempt", vec![fine.clone()], "t 3 b\n", 1),
        ("twice without a trace", vec![untold], "t 1 a\nt 2 b\n", 1),
        ("not finished", vec![unfinished], "t 2 b\n", 1),
        ("of nothing", vec![fine], "t 2 b\nx 1 a\n", 1),
    ] {
        let site = TestCluster::new();
        let lines: Vec<String> = tasks.iter().map(|task| format!("{task}\n")).collect();
        fs::write(site.path("ids"), "t\n").unwrap();
        fs::write(site.path("effects"), effects).unwrap();
        let mut command = Command::new("python3");
        command.arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/queue_chaos/judge.py"
        ));
        fs::write(site.path("tasks"), lines.concat()).unwrap();
        for name in ["ids", "tasks", "effects"] {
            command.arg(site.path(name));
        }
        let ran = ran(&mut command);
        assert_eq!(ran.json()["against_count"], against, "{what}: {ran:?}");
        assert_eq!(ran.code, i32::from(against > 0), "{what}");
    }
}
