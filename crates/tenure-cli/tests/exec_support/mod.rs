//! Real `tenure exec` processes, what happens to them, and what the judge says of their children.

#![allow(dead_code, reason = "no test file uses all of it")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, test_kill_process};
use tempfile::TempDir;
use tenure_console::program;
use tenure_judge::{Judge, Requirements, Verdict, read_logs};
use tenure_sim::validate::validate;

#[path = "../sigstop/mod.rs"]
mod sigstop;
pub(crate) use sigstop::{send, stop_outside};

pub(crate) const TTL: Duration = Duration::from_millis(1500);
pub(crate) const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

/// Program of the children that log that they are alive.
pub(crate) fn beat_program() -> PathBuf {
    program::example("beat", "tenure-cli").unwrap()
}

/// How long anything may take that is bound to happen.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Whether the long versions are asked for.
pub(crate) fn full() -> bool {
    std::env::var_os("FULL_TESTS").is_some_and(|value| value == "1")
}

/// A place with a store and the logs of all children.
pub(crate) struct TestCluster {
    dir: TempDir,
    pub(crate) shards: u32,
    /// How many traces there are.
    traces: AtomicU32,
}

impl TestCluster {
    pub(crate) fn new(shards: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("logs")).unwrap();
        fs::create_dir(dir.path().join("traces")).unwrap();
        Self {
            dir,
            shards,
            traces: AtomicU32::new(0),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.path("logs")
    }

    pub(crate) fn store(&self) -> String {
        format!("sqlite:{}", self.path("store.db").display())
    }

    /// Where the next process of a node writes down what it does.
    pub(crate) fn trace(&self, node: &str) -> PathBuf {
        let number = self.traces.fetch_add(1, Ordering::Relaxed);
        self.path("traces").join(format!("{node}.{number}.jsonl"))
    }

    /// A command `tenure exec …` with its data directory, up to the `--`.
    pub(crate) fn command(&self, node: &str) -> Command {
        let mut command = self.command_on(node, &self.store());
        command.args(["--ttl", &format!("{}ms", TTL.as_millis())]);
        command
    }

    /// The same on a store of one's choice, with its own ttl.
    pub(crate) fn command_on(&self, node: &str, store: &str) -> Command {
        let mut command = Command::new(TENURE);
        command
            .args(["exec", "--cluster", "c", "--keyspace", "k", "--node", node])
            .args(["--store", store])
            .args(["--shards", &self.shards.to_string()])
            // The leader does not take its time, so that a test need not wait.
            .args([
                "--set",
                "planning_settle_time=250ms",
                "--set",
                "cool_down=0ms",
            ])
            .args(["--set", "rejoin_after=0ms"])
            .arg("--data-dir")
            .arg(self.path(node))
            .arg("--trace")
            .arg(self.trace(node))
            .stdin(Stdio::null());
        command
    }

    /// Starts `tenure exec` whose children write down that they are alive.
    pub(crate) fn beating(&self, node: &str, options: &[&str], beat: &[&str]) -> Exec {
        let mut command = self.command(node);
        command.args(options);
        self.spawn_beating(node, command, beat)
    }

    /// The same on a store of one's choice.
    pub(crate) fn beating_on(&self, node: &str, store: &str) -> Exec {
        self.spawn_beating(node, self.command_on(node, store), &[])
    }

    fn spawn_beating(&self, node: &str, mut command: Command, beat: &[&str]) -> Exec {
        command
            .arg("--")
            .arg(beat_program())
            .arg(self.logs())
            .args(beat);
        self.spawn(node, command)
    }

    pub(crate) fn spawn(&self, node: &str, mut command: Command) -> Exec {
        let log = self.path(&format!("{node}.err"));
        let stderr = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let process = command.stderr(stderr).spawn().unwrap();
        Exec {
            node: node.to_owned(),
            process,
        }
    }

    /// Stops an `exec`, at a moment at which others can go on.
    pub(crate) fn stop(&self, exec: &Exec) {
        stop_outside(exec.pid(), &self.path("store.db"));
    }

    /// What the processes of a node have said.
    pub(crate) fn said(&self, node: &str) -> String {
        fs::read_to_string(self.path(&format!("{node}.err"))).unwrap_or_default()
    }

    /// What the judge says of all that was logged so far.
    pub(crate) fn verdict(&self, demands: &Requirements) -> Verdict {
        let mut judge = Judge::default();
        match read_logs(&[self.logs()], &mut judge) {
            Ok(_) | Err(tenure_judge::ReadError::NoLogs(_)) => judge.verdict(demands),
            Err(trouble) => panic!("{trouble}"),
        }
    }

    fn demands(&self) -> Requirements {
        Requirements {
            restarts: true,
            ..Requirements::of_keyspace("k", self.shards)
        }
    }

    /// Nothing speaks against what happened so far.
    pub(crate) fn assert_clean(&self) -> Verdict {
        let verdict = self.verdict(&Requirements {
            shards: None,
            ..self.demands()
        });
        assert!(verdict.is_clean(), "{:?}\n{verdict:#?}", verdict.against());
        self.assert_traces_clean();
        verdict
    }

    /// What the nodes wrote down of themselves is what the machines do, and keeps the promises.
    pub(crate) fn assert_traces_clean(&self) {
        let traces = fs::read_dir(self.path("traces")).unwrap();
        let report = validate(traces.map(|entry| entry.unwrap().path())).unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
        assert_eq!((report.replayed, &report.gaps), (report.steps, &vec![]));
        assert!(report.openings > 0, "{report:#?}");
        println!(
            "{} steps of {} processes run again, {} failovers",
            report.steps, report.processes, report.failovers
        );
    }

    /// Shards on which nobody was alive in the last 300 ms.
    pub(crate) fn uncovered(&self) -> u64 {
        let window = 300_000_000;
        let verdict = self.verdict(&Requirements {
            until: Some(now()),
            covered_by: Some(window),
            ..self.demands()
        });
        // Without a single line there is no window in which a shard could be uncovered.
        verdict.uncovered.count.max(verdict.unseen.count)
    }

    /// Waits until there is a child at work on every shard.
    pub(crate) fn await_covered(&self) {
        until("every shard is covered", || self.uncovered() == 0);
    }

    /// Waits until a child of this node has begun on every shard of `count`, after now.
    pub(crate) fn await_starts(&self, node: &str, count: usize) {
        let from = now();
        until(&format!("{node} works on {count} shards"), || {
            self.starts(node, from).len() >= count
        });
    }

    /// Waits until nodes a and b both have shards, and every shard is covered.
    pub(crate) fn await_both(&self) {
        until("both have shards", || {
            !self.starts("a", 0).is_empty() && !self.starts("b", 0).is_empty()
        });
        self.await_covered();
    }

    /// The shards that children of this node have begun on since.
    pub(crate) fn starts(&self, node: &str, since: u64) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for line in self.lines() {
            if line["ev"] == "start" && line["node"] == node && line["t"].as_u64() >= Some(since) {
                found.insert(line["shard"].as_str().unwrap().to_owned());
            }
        }
        found
    }

    /// All whole lines of all logs.
    pub(crate) fn lines(&self) -> Vec<serde_json::Value> {
        let mut lines = Vec::new();
        for entry in fs::read_dir(self.logs()).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
            lines.extend(text.lines().filter_map(|l| serde_json::from_str(l).ok()));
        }
        lines
    }

    /// The processes that have logged, and are alive.
    pub(crate) fn alive(&self) -> BTreeSet<i32> {
        let mut pids = BTreeSet::new();
        for entry in fs::read_dir(self.logs()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let pid: i32 = name.split('-').next().unwrap().parse().unwrap();
            if is_alive(pid) && cmdline(pid).contains("examples/beat") {
                pids.insert(pid);
            }
        }
        pids
    }
}

/// A running `tenure exec`. Killed when dropped, with all that belongs to it.
pub(crate) struct Exec {
    pub(crate) node: String,
    pub(crate) process: Child,
}

impl Exec {
    pub(crate) fn pid(&self) -> i32 {
        self.process.id().cast_signed()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Kills it and waits for its end; its children may live a moment longer.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        self.process.wait().unwrap();
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::CONT);
        self.signal(Signal::TERM);
        self.wait()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("exec ends", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Its watchdog, if there is one just now.
    pub(crate) fn watchdog(&self) -> Option<i32> {
        children_of(self.pid())
            .into_iter()
            .find(|pid| cmdline(*pid).contains("__watchdog"))
    }

    pub(crate) fn await_watchdog(&self) -> i32 {
        let mut found = None;
        until("there is a watchdog", || {
            found = self.watchdog();
            found.is_some()
        });
        found.unwrap()
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        let watchdog = self.watchdog();
        let keepers = watchdog.map(children_of).unwrap_or_default();
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(watchdog) = watchdog {
            // Its keepers kill at once, without the grace that the watchdog would give.
            send(watchdog, Signal::KILL);
        }
        let begun = Instant::now();
        while keepers.iter().any(|pid| is_alive(*pid)) && begun.elapsed() < TIMEOUT {
            pass(Duration::from_millis(5));
        }
    }
}

pub(crate) fn is_alive(pid: i32) -> bool {
    let zombie = stat(pid).is_some_and(|(state, _)| state == 'Z');
    test_kill_process(Pid::from_raw(pid).unwrap()).is_ok() && !zombie
}

pub(crate) fn is_stopped(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state == 'T')
}

fn stat(pid: i32) -> Option<(char, i32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

pub(crate) fn cmdline(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

pub(crate) fn children_of(parent: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(_, p)| p == parent))
        .collect()
}

/// The boot-time clock, by the kernel's own word to a hundredth of a second, as the judge's logs have it.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Waits for something that must come, and says what if it does not.
pub(crate) fn until(what: &str, come: impl FnMut() -> bool) {
    assert!(within(TIMEOUT, come), "not within {TIMEOUT:?}: {what}");
}

/// Waits for something that may come.
pub(crate) fn within(limit: Duration, mut come: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !come() {
        if begun.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Lets real time pass, where that time itself is what the test is about.
pub(crate) fn pass(time: Duration) {
    std::thread::sleep(time);
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code().unwrap_or(-1),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// A random number generator of which all that is asked is that a seed gives the same again.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}
