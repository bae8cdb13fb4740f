//! Running seeds: many at once, one again with its story, one twice to see that it is the same.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use serde::Serialize;

use crate::check::Violation;
use crate::clock::SEC;
use crate::coverage::Coverage;
use crate::event_log::EventLog;
use crate::run_config::{Mask, RunConfig};
use crate::world::{self, Outcome, ProtocolVariant};

/// How many seeds a thread takes at a time.
const CHUNK: u64 = 8;
/// How many failures a summary describes.
const DESCRIBED: usize = 10;

/// How to run seeds.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// How many threads to use; `None`: one for each core.
    pub threads: Option<usize>,
    /// How the machines under test behave.
    pub under: ProtocolVariant,
    /// Whether to stop at the first failure.
    pub stop_at_first: bool,
    /// Nodes and shards of every run; `None`: drawn from the seed.
    pub size: Option<(usize, u32)>,
}

/// A seed that broke a promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SeedFailure {
    /// The seed.
    pub seed: u64,
    /// What was broken.
    pub violation: Violation,
}

/// What came of many seeds.
#[derive(Clone, Debug, Serialize)]
pub struct RunSummary {
    /// How many were run.
    pub seeds: u64,
    /// How many broke a promise.
    pub failed: u64,
    /// The lowest of them.
    pub first_failed: Option<u64>,
    /// The lowest few of them, with what they broke.
    pub failures: Vec<SeedFailure>,
    /// How many were run in a second.
    pub seeds_per_second: f64,
    /// How long it took.
    pub seconds: f64,
    /// How many threads ran.
    pub threads: usize,
    /// What happened how often.
    pub coverage: Coverage,
}

/// Runs one seed without its story.
pub fn run_seed(seed: u64, under: ProtocolVariant) -> Outcome {
    run_plan(RunConfig::draw(seed), under, EventLog::Off)
}

/// Runs a plan. A machine that panics has broken its contract.
pub fn run_plan(plan: RunConfig, under: ProtocolVariant, trace: EventLog) -> Outcome {
    let outcome = catch_unwind(AssertUnwindSafe(|| world::run(plan, under, trace)));
    outcome.unwrap_or_else(|panic| {
        let said = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default();
        Outcome {
            violation: Some(Violation::new("contract", 0, format!("panic: {said}"))),
            coverage: Coverage::default(),
            trace: EventLog::Off,
        }
    })
}

/// Runs a range of seeds on several threads. `progress` is told now and then how many are done and how many failed.
pub fn run_seeds(
    range: Range<u64>,
    options: &RunOptions,
    progress: impl Fn(u64, u64) + Sync,
) -> RunSummary {
    let threads = options
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let begun = Instant::now();
    let next = AtomicU64::new(range.start);
    let done = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let failures = Mutex::new(Vec::<SeedFailure>::new());
    let failed = AtomicU64::new(0);
    let total = Mutex::new(Coverage::default());
    let work = || {
        let mut coverage = Coverage::default();
        while !stop.load(Ordering::Relaxed) {
            let from = next.fetch_add(CHUNK, Ordering::Relaxed);
            if from >= range.end {
                break;
            }
            for seed in from..(from + CHUNK).min(range.end) {
                let plan = match options.size {
                    Some((nodes, shards)) => RunConfig::sized(seed, nodes, shards),
                    None => RunConfig::draw(seed),
                };
                let outcome = run_plan(plan, options.under, EventLog::Off);
                coverage.add(&outcome.coverage);
                done.fetch_add(1, Ordering::Relaxed);
                if let Some(violation) = outcome.violation {
                    failed.fetch_add(1, Ordering::Relaxed);
                    keep(&failures, SeedFailure { seed, violation });
                    stop.fetch_or(options.stop_at_first, Ordering::Relaxed);
                }
            }
            progress(done.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
        }
        if let Ok(mut total) = total.lock() {
            total.add(&coverage);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    let seeds = done.into_inner();
    let failures = failures.into_inner().unwrap_or_default();
    RunSummary {
        seeds,
        failed: failed.into_inner(),
        first_failed: failures.first().map(|failure| failure.seed),
        failures,
        seeds_per_second: seeds as f64 / seconds.max(1e-9),
        seconds,
        threads,
        coverage: total.into_inner().unwrap_or_default(),
    }
}

fn keep(failures: &Mutex<Vec<SeedFailure>>, failure: SeedFailure) {
    if let Ok(mut failures) = failures.lock() {
        failures.push(failure);
        failures.sort_by_key(|failure| failure.seed);
        failures.truncate(DESCRIBED);
    }
}

/// A seed with its story.
#[derive(Clone, Debug)]
pub struct ReplayReport {
    /// One line per event; the columns are explained in `docs/simulation.md`.
    pub lines: Vec<String>,
    /// The promise that was broken, if one was.
    pub violation: Option<Violation>,
}

/// Runs a seed again and tells its story, without what the mask leaves out.
pub fn replay(seed: u64, mask: &Mask, under: ProtocolVariant) -> ReplayReport {
    replay_plan(RunConfig::draw(seed).masked(mask), under)
}

/// Runs a plan and tells its story.
pub fn replay_plan(plan: RunConfig, under: ProtocolVariant) -> ReplayReport {
    let mut lines = vec![describe(&plan)];
    lines.extend(
        plan.faults
            .iter()
            .map(|(at, fault)| format!("# at {}.{:03}s {fault}", at / SEC, at % SEC / 1_000_000)),
    );
    let outcome = run_plan(plan, under, EventLog::Keep(Vec::new()));
    lines.extend(outcome.trace.into_lines());
    ReplayReport {
        lines,
        violation: outcome.violation,
    }
}

fn describe(plan: &RunConfig) -> String {
    let t = &plan.timing;
    format!(
        "# seed {}: {:?}, {:?} store, {} nodes, {} routers, {} planners, {} shards, {}, others {:?}, served {:?}, \
         ttl {:?}, tick {:?}, relist {:?}, drift {} permille, acquire watch {} window {:?}, batch {}",
        plan.seed,
        plan.class,
        plan.family,
        plan.nodes,
        plan.routers,
        plan.planners,
        plan.shards,
        plan.mode,
        plan.others,
        plan.serves,
        t.ttl,
        t.tick_interval,
        t.relist_interval,
        t.clock_drift_max_permille,
        t.claim_watch_enabled,
        t.claim_retry_window,
        t.release_batch
    )
}

/// The story of a seed as one number: equal for equal stories.
pub fn fingerprint(seed: u64, under: ProtocolVariant) -> u64 {
    run_plan(RunConfig::draw(seed), under, EventLog::hashing())
        .trace
        .hash()
}
