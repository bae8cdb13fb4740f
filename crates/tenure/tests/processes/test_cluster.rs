//! A place where workers meet: one store, one set of logs, one resource.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior};
use rustix::process::Signal;
use serde::Deserialize;
use tempfile::TempDir;
use tenure::PlanningSettings;
use tenure_judge::{Judge, Requirements, Verdict, read_logs};
use tenure_sim::validate::{ValidationReport, validate};

use crate::logs::{Holder, Holders, Logs};
use crate::process::Process;
use crate::worker::{KEYSPACE, Own, ROLE, Role, Work, now};

/// The ttl where a test waits for it to pass.
pub(crate) const TTL: Duration = Duration::from_millis(1500);

/// The ttl where a test does not: what must happen sooner has more room on a busy machine.
pub(crate) const LONG_TTL: Duration = Duration::from_secs(3);

/// What a busy machine may add to anything.
pub(crate) const SLACK: Duration = Duration::from_millis(1500);

/// How long anything may take that is bound to happen.
const TIMEOUT: Duration = Duration::from_secs(40);

/// How long owners must be unchanged to be those that will stay: twice what a rebalance waits for.
const SETTLED: Duration = Duration::from_millis(500);

/// How old the last line of a shard may be that counts as served now.
const FRESH: u64 = 300_000_000;

/// The name of the test that a worker begins in.
const ENTRANCE: &str = "this_binary_is_its_own_worker_and_refuses_a_role_that_it_does_not_know";

pub(crate) struct TestCluster {
    dir: TempDir,
    store: String,
    shards: u32,
    ttl: Duration,
    role: Role,
    effects: bool,
    plan: PlanningSettings,
    /// Variables of the workers that are started from now on.
    pub(crate) variables: Vec<(&'static str, String)>,
    logs: RefCell<Logs>,
}

/// A leader that does not take its time: what returns gets its share at once.
pub(crate) fn lively() -> PlanningSettings {
    PlanningSettings {
        settle_time: Some(Duration::from_millis(250)),
        rejoin_after: Some(Duration::ZERO),
        cool_down: Some(Duration::ZERO),
        ..PlanningSettings::default()
    }
}

impl TestCluster {
    pub(crate) fn new(shards: u32) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["logs", "traces"] {
            fs::create_dir(dir.path().join(name)).expect("a directory");
        }
        let store = format!("sqlite:{}", dir.path().join("store.db").display());
        Self {
            dir,
            store,
            shards,
            ttl: TTL,
            role: Role::Node,
            effects: false,
            plan: lively(),
            variables: Vec::new(),
            logs: RefCell::default(),
        }
    }

    pub(crate) fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    pub(crate) fn with_plan(mut self, plan: PlanningSettings) -> Self {
        self.plan = plan;
        self
    }

    /// On another store than the file of its own.
    #[allow(dead_code, reason = "for stores that are servers")]
    pub(crate) fn with_store(mut self, url: String) -> Self {
        self.store = url;
        self
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    pub(crate) fn with_role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    pub(crate) fn with_effects(mut self) -> Self {
        self.effects = true;
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a worker with the data directory that goes with its name.
    pub(crate) fn start(&self, node: &str) -> Process {
        self.start_with(node, node)
    }

    /// Starts a worker with another data directory.
    pub(crate) fn start_with(&self, node: &str, data_dir: &str) -> Process {
        self.launch(node, data_dir, &self.store)
    }

    /// Starts a worker that has a way of its own to the store, or another store.
    pub(crate) fn launch(&self, node: &str, data_dir: &str, store: &str) -> Process {
        self.launch_as(node, data_dir, store, Own::default())
    }

    /// Starts a worker in another role than the others.
    pub(crate) fn start_in(&self, role: Role, node: &str, own: Own) -> Process {
        self.launch_in(role, node, node, &self.store, own)
    }

    /// Starts a worker that says this of itself.
    pub(crate) fn start_as(&self, node: &str, own: Own) -> Process {
        self.launch_as(node, node, &self.store, own)
    }

    /// The same with a way of its own to the store.
    pub(crate) fn launch_as(&self, node: &str, data_dir: &str, store: &str, own: Own) -> Process {
        self.launch_in(self.role, node, data_dir, store, own)
    }

    fn launch_in(&self, role: Role, node: &str, data_dir: &str, store: &str, own: Own) -> Process {
        let work = Work {
            role,
            node: node.to_owned(),
            site: self.dir.path().to_owned(),
            store: store.to_owned(),
            data_dir: self.path(&format!("{data_dir}.d")),
            shards: self.shards,
            ttl: self.ttl,
            effects: self.effects,
            plan: self.plan.clone(),
            own,
        };
        let role = serde_json::to_string(&work).expect("plain values");
        // Workers with other data than their own name speak for themselves.
        self.spawn(data_dir, role)
    }

    /// Starts this binary again with a role; what it says is kept under `voice`.
    pub(crate) fn spawn(&self, voice: &str, role: String) -> Process {
        let stderr = File::options()
            .create(true)
            .append(true)
            .open(self.path(&format!("{voice}.err")))
            .expect("a file");
        let child = Command::new(std::env::current_exe().expect("this binary"))
            .args([ENTRANCE, "--exact", "--nocapture"])
            .env(ROLE, role)
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn();
        Process::new(voice, child.expect("a process"))
    }

    /// Everything that a worker has said.
    pub(crate) fn said(&self, voice: &str) -> String {
        fs::read_to_string(self.path(&format!("{voice}.err"))).unwrap_or_default()
    }

    /// Waits until a start of this worker has returned for the `count`th time: what it owned and had loaded then.
    pub(crate) fn await_start(&self, voice: &str, count: usize) -> Started {
        let mut told = None;
        until(&format!("{voice} has started {count} times"), || {
            let said = self.said(voice);
            let mut starts = said
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            let mut starts = starts
                .by_ref()
                .filter_map(|line| line.strip_prefix("started "));
            told = starts.nth(count - 1).map(str::to_owned);
            told.is_some()
        });
        serde_json::from_str(&told.expect("just seen")).expect("what a worker tells")
    }

    /// Looks at the logs as they are now.
    pub(crate) fn look<T>(&self, see: impl FnOnce(&Logs) -> T) -> T {
        let mut logs = self.logs.borrow_mut();
        logs.read(&self.path("logs"));
        see(&logs)
    }

    /// Who works on each shard now, if somebody works on every one.
    pub(crate) fn served(&self) -> Option<Holders> {
        self.look(|logs| {
            let fresh = now() - FRESH;
            let held = |holder: &Holder| !holder.over && holder.last >= fresh;
            let all =
                logs.holders.0.len() == self.shards as usize && logs.holders.0.values().all(held);
            all.then(|| logs.holders.clone())
        })
    }

    /// Waits until every shard is served, and `enough` holds of who serves it.
    pub(crate) fn await_served(
        &self,
        what: &str,
        mut enough: impl FnMut(&Holders) -> bool,
    ) -> Holders {
        let mut found = None;
        let reached = in_time(|| {
            found = self.served().filter(&mut enough);
            found.is_some()
        });
        assert!(reached, "never: {what}\n{}", self.scene());
        found.expect("just seen")
    }

    /// Waits until exactly these nodes serve every shard, and nothing has changed for longer than a rebalance waits.
    pub(crate) fn await_settled(&self, nodes: &[&str]) -> Holders {
        let mut known = (Instant::now(), None);
        self.await_served(&format!("settled on {nodes:?}"), |held| {
            let owners = Some(held.owners());
            if known.1 != owners {
                known = (Instant::now(), owners);
            }
            held.nodes() == nodes && known.0.elapsed() > SETTLED
        })
    }

    /// Stops a process between two of its writes: one that is stopped inside a write has the lock of the whole store, and
    /// the test would be about that.
    pub(crate) fn pause(&self, process: &Process) {
        if !self.store.starts_with("sqlite:") {
            return process.pause();
        }
        let mut store = Connection::open(self.path("store.db")).expect("the store");
        store.busy_timeout(Duration::ZERO).expect("no wait");
        for _ in 0..100 {
            process.pause();
            for _ in 0..20 {
                let free = TransactionBehavior::Immediate;
                if store.transaction_with_behavior(free).is_ok() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            process.signal(Signal::CONT);
            std::thread::sleep(Duration::from_millis(7));
        }
        panic!("{} is always writing", process.node);
    }

    /// What the judge says of all that was logged: safety, and that every shard was worked on.
    pub(crate) fn verdict(&self) -> Verdict {
        let mut judge = Judge::default();
        read_logs(&[self.path("logs")], &mut judge).expect("logs that can be judged");
        judge.verdict(&Requirements::of_keyspace(KEYSPACE, self.shards))
    }

    /// Nothing speaks against what happened.
    pub(crate) fn assert_clean(&self) -> Verdict {
        let verdict = self.verdict();
        let against = verdict.against();
        assert!(
            verdict.is_clean(),
            "{against:?}\n{verdict:#?}\n{}",
            self.scene()
        );
        if self.role != Role::Naive {
            self.assert_traces_clean();
        }
        verdict
    }

    /// What the nodes wrote down of themselves is what the machines do, and keeps the promises.
    pub(crate) fn assert_traces_clean(&self) -> ValidationReport {
        let traces = fs::read_dir(self.path("traces")).expect("a directory");
        let traces = traces.map(|entry| entry.expect("an entry").path());
        let report = validate(traces).expect("traces that can be read");
        println!(
            "{} steps of {} processes run again: {:?}; {} failovers; a wake-up was {:.0} ms late",
            report.replayed,
            report.processes,
            report.writes,
            report.failovers,
            report.longest_wake_delay_ms
        );
        assert!(report.is_clean(), "{:#?}", report.findings);
        assert_eq!((report.replayed, &report.gaps), (report.steps, &vec![]));
        assert!(report.openings > 0, "{report:#?}");
        report
    }

    /// Everything there is to know when a test fails.
    pub(crate) fn scene(&self) -> String {
        let holders = self.look(|logs| format!("{:#?}", logs.holders));
        let mut scene = format!("now {}\n{holders}\n", now());
        for entry in fs::read_dir(self.dir.path()).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "err") {
                let said = fs::read_to_string(&path).unwrap_or_default();
                let lines: Vec<_> = said.lines().collect();
                let last = &lines[lines.len().saturating_sub(60)..];
                scene += &format!("--- {}\n{}\n", path.display(), last.join("\n"));
            }
        }
        scene
    }
}

/// What a worker tells when its start has returned.
#[derive(Debug, Deserialize)]
pub(crate) struct Started {
    pub(crate) t: u64,
    pub(crate) owned: BTreeSet<String>,
    pub(crate) loaded: BTreeSet<String>,
}

/// Waits until `ready` holds, or fails.
pub(crate) fn until(what: &str, ready: impl FnMut() -> bool) {
    assert!(in_time(ready), "never: {what}");
}

fn in_time(mut ready: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !ready() {
        if start.elapsed() > TIMEOUT {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// The time between two stamps.
pub(crate) fn between(from: u64, until: u64) -> Duration {
    Duration::from_nanos(until.saturating_sub(from))
}
