//! Five `tenure exec` on 32 shards, killed, stopped, continued, terminated and started again at random, judged from outside;
//! and beside them two ways of doing it wrong, which the same judge must see.

mod exec_support;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use exec_support::*;
use rustix::process::Signal;

const NODES: [&str; 5] = ["n1", "n2", "n3", "n4", "n5"];

/// Maximum number of pauses until one has an effect: a holder that is paused just before a renewal does no work when it wakes.
const PAUSES: usize = 10;

/// What was done to an `exec`, and what is still to be undone.
enum Slot {
    Runs(Exec),
    /// Stopped: it, or its watchdog (by number), or both.
    Stopped(Exec, Vec<i32>, Instant),
    Gone(Instant),
}

#[test]
fn judged_from_outside_nothing_overlaps_and_everything_comes_back() {
    let seed = match std::env::var("CHAOS_SEED") {
        Ok(text) => text.parse().unwrap(),
        Err(_) => 4,
    };
    let time = Duration::from_secs(if full() { 60 } else { 15 });
    println!("CHAOS_SEED={seed}");
    std::thread::scope(|scope| {
        scope.spawn(plain_locks_and_unfenced_writers_are_caught);
        storm(seed, time);
    });
}

fn storm(seed: u64, time: Duration) {
    let site = TestCluster::new(32);
    let start = |node: &str| site.beating(node, &[], &[]);
    let mut chance = Chance::new(seed);
    let mut slots: Vec<Slot> = NODES.iter().map(|node| Slot::Runs(start(node))).collect();
    site.await_covered();
    let begun = Instant::now();
    let mut faults = 0;
    while begun.elapsed() < time {
        pass(chance.millis(50, 350));
        faults += 1;
        let at = chance.below(5) as usize;
        let slot = std::mem::replace(&mut slots[at], Slot::Gone(Instant::now()));
        slots[at] = match slot {
            Slot::Runs(exec) => disturb(exec, &mut chance),
            other => other,
        };
        for (slot, node) in slots.iter_mut().zip(NODES) {
            recover(slot, Instant::now(), || start(node));
        }
    }
    let end = Instant::now() + Duration::from_secs(3600);
    for (slot, node) in slots.iter_mut().zip(NODES) {
        recover(slot, end, || start(node));
    }
    let healed = Instant::now();
    site.await_covered();
    println!("covered again after {:?}", healed.elapsed());
    let verdict = site.assert_clean();
    println!(
        "{faults} faults, {} lines, {} works, {} shards",
        verdict.lines, verdict.works, verdict.shards
    );
    // Not a calm day: shards have changed hands again and again.
    assert!(verdict.works > 3 * 32, "{}", verdict.works);
}

fn disturb(mut exec: Exec, chance: &mut Chance) -> Slot {
    let watchdog = exec.watchdog();
    let until = Instant::now() + chance.millis(0, 3000);
    match chance.below(8) {
        0 | 1 => {
            exec.kill();
            Slot::Gone(until)
        }
        2 | 3 => {
            exec.signal(Signal::STOP);
            Slot::Stopped(exec, Vec::new(), until)
        }
        4 => {
            exec.terminate();
            Slot::Gone(until)
        }
        5 => {
            watchdog.inspect(|pid| send(*pid, Signal::KILL));
            Slot::Runs(exec)
        }
        6 => {
            watchdog.inspect(|pid| send(*pid, Signal::STOP));
            if chance.below(2) == 0 {
                exec.signal(Signal::STOP);
            }
            Slot::Stopped(exec, watchdog.into_iter().collect(), until)
        }
        _ => {
            watchdog.inspect(|pid| send(*pid, Signal::KILL));
            exec.kill();
            Slot::Gone(until)
        }
    }
}

/// Undoes what was done to an `exec` once its time has come.
fn recover(slot: &mut Slot, now: Instant, start: impl FnOnce() -> Exec) {
    match std::mem::replace(slot, Slot::Gone(now)) {
        Slot::Gone(until) if now >= until => *slot = Slot::Runs(start()),
        Slot::Stopped(exec, others, until) if now >= until => {
            exec.signal(Signal::CONT);
            others.iter().for_each(|pid| send(*pid, Signal::CONT));
            *slot = Slot::Runs(exec);
        }
        other => *slot = other,
    }
}

/// A process that works on shard `plain/0` under a lock with a ttl.
struct Baseline(Child);

impl Baseline {
    fn start(site: &TestCluster, node: &str, options: &[&str]) -> Self {
        let mut command = Command::new(beat_program());
        command
            .arg(site.logs())
            .args(["--lock-ttl", "500ms"])
            .arg("--lock")
            .arg(site.path("lock"))
            .args(options)
            .env("TENURE_KEYSPACE", "plain")
            .env("TENURE_SHARD", "0")
            .env("TENURE_NODE", node)
            .stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A holder is stopped for longer than its ttl, another takes the lock, the first goes on: what the judge says.
fn pause_under_a_plain_lock(options: &[&str], resource: Option<&Path>) -> tenure_judge::Verdict {
    let site = TestCluster::new(1);
    let mut first = Baseline::start(&site, "first", options);
    until("the first works", || !site.starts("first", 0).is_empty());
    let _second = Baseline::start(&site, "second", options);
    match resource {
        Some(resource) => stop_outside(first.pid(), resource),
        None => send(first.pid(), Signal::STOP),
    }
    until("the second works", || !site.starts("second", 0).is_empty());
    pass(Duration::from_millis(100));
    send(first.pid(), Signal::CONT);
    until("the first gives up", || {
        first.0.try_wait().unwrap().is_some()
    });
    site.verdict(&tenure_judge::Requirements::default())
}

fn plain_locks_and_unfenced_writers_are_caught() {
    let overlaps = || pause_under_a_plain_lock(&[], None).overlaps.count;
    assert!((0..PAUSES).any(|_| overlaps() > 0));
    let stale = || pause_under_a_plain_lock(&["--effects"], None);
    assert!((0..PAUSES).any(|_| stale().stale_effects.count > 0));
    // The same pause, with a resource that keeps the greatest epoch: nothing late gets through.
    let dir = tempfile::tempdir().unwrap();
    let resource = dir.path().join("fence.db");
    let options = ["--effects", "--fence", resource.to_str().unwrap()];
    let fenced = pause_under_a_plain_lock(&options, Some(&resource));
    assert!(fenced.is_clean(), "{:?} {fenced:#?}", fenced.against());
}
