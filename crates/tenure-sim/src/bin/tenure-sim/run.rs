//! `tenure-sim run`: runs of many seeds, in parts, so that Ctrl-C and a restart lose little.

use std::io::{self, IsTerminal as _};
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tenure_sim::coverage::Coverage;
use tenure_sim::run::{RunOptions, RunSummary, SeedFailure, run_seeds};

use super::state::{Part, State};
use tenure_console::exit::Exit;
use tenure_console::stdout;

/// How long a part should take: what Ctrl-C waits for, and what a crash loses.
const PART: Duration = Duration::from_millis(700);
/// How many failures are described.
const DESCRIBED: usize = 10;
/// The exit code of a run that was interrupted, as shells have it.
const INTERRUPTED: u8 = 130;

/// Simulate many clusters under random faults, one per seed, and report invariant violations
#[derive(Debug, Args)]
#[command(
    after_help = "Exits with 1 if a seed violates an invariant, with 130 if interrupted. Ctrl-C prints the results so far.\n\
    With --state an interrupted run continues, if the program is the same build.\n\n\
    Examples:\n  tenure-sim run --seeds 10000\n  tenure-sim run --seeds 1000000 --state sim.json --json"
)]
pub(super) struct Run {
    /// Number of seeds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// First seed
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    first_seed: u64,
    /// Number of threads; default: one per core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// File with the seeds already run, which are skipped
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// The summary of everything that was asked for, earlier runs included.
#[derive(Debug, Default, Serialize)]
struct Total {
    seeds: u64,
    failed: u64,
    first_failed: Option<u64>,
    seeds_per_second: f64,
    seconds: f64,
    threads: usize,
    first_seed: u64,
    /// How many of the seeds were run earlier.
    resumed: u64,
    interrupted: bool,
    program: String,
    commit: Option<String>,
    /// The lowest few that failed in this run.
    failures: Vec<SeedFailure>,
    /// What happened how often in this run.
    coverage: Coverage,
}

impl Run {
    pub(super) async fn run(self) -> Result<ExitCode, Exit> {
        let interrupted = Arc::new(AtomicBool::new(false));
        let flag = interrupted.clone();
        tokio::spawn(async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                flag.store(true, Ordering::Relaxed);
            }
        });
        let json = self.json;
        let running = tokio::task::spawn_blocking(move || self.all(&interrupted));
        let total = running
            .await
            .map_err(|e| Exit::failed(format!("a thread of the simulator panicked: {e}")))??;
        if json {
            stdout::json(&total);
        } else {
            stdout::text(&told(&total));
        }
        Ok(match (total.failed, total.interrupted) {
            (0, false) => ExitCode::SUCCESS,
            (0, true) => ExitCode::from(INTERRUPTED),
            _ => ExitCode::FAILURE,
        })
    }

    fn all(&self, interrupted: &AtomicBool) -> Result<Total, Exit> {
        let end = self.first_seed.checked_add(self.seeds).ok_or_else(|| {
            Exit::usage(format!(
                "--first-seed {} and --seeds {} exceed the largest seed",
                self.first_seed, self.seeds
            ))
        })?;
        let range = self.first_seed..end;
        let mut state = match &self.state {
            Some(path) => State::load(path)?,
            None => State::new()?,
        };
        let missing = state.missing(&range);
        let to_run: u64 = missing.iter().map(|part| part.end - part.start).sum();
        let mut total = Total {
            first_seed: self.first_seed,
            resumed: self.seeds - to_run,
            program: state.program.clone(),
            commit: state.commit.clone(),
            ..Total::default()
        };
        let mut progress = Progress::new(to_run);
        let mut size = 64;
        for mut rest in missing {
            while !rest.is_empty() && !interrupted.load(Ordering::Relaxed) {
                let part = rest.start..rest.end.min(rest.start.saturating_add(size));
                rest.start = part.end;
                let summary = self.part(&part);
                size = next_size(size, summary.seconds);
                state.add(Part {
                    from: part.start,
                    to: part.end,
                    failed: summary.failed,
                    first_failed: summary.first_failed,
                });
                total.add(summary);
                if let Some(path) = &self.state {
                    state.save(path)?;
                }
                progress.tell(&total);
            }
        }
        progress.end();
        let ran = total.seeds;
        total.seeds_per_second = ran as f64 / total.seconds.max(1e-9);
        total.interrupted = ran < to_run;
        total.count(&state, &range);
        Ok(total)
    }

    fn part(&self, part: &Range<u64>) -> RunSummary {
        let options = RunOptions {
            threads: self.threads.map(usize::from),
            ..RunOptions::default()
        };
        run_seeds(part.clone(), &options, |_, _| ())
    }
}

impl Total {
    fn add(&mut self, summary: RunSummary) {
        self.seeds += summary.seeds;
        self.failed += summary.failed;
        self.seconds += summary.seconds;
        self.threads = summary.threads;
        self.coverage.add(&summary.coverage);
        self.failures.extend(summary.failures);
        self.failures.sort_by_key(|failure| failure.seed);
        self.failures.truncate(DESCRIBED);
    }

    /// Counts earlier runs in. A part that reaches beyond the range counts whole if it failed: better told twice.
    fn count(&mut self, state: &State, range: &Range<u64>) {
        self.seeds += self.resumed;
        let inside = |part: &&Part| part.from < range.end && part.to > range.start;
        let parts: Vec<&Part> = state.finished.iter().filter(inside).collect();
        self.failed = parts.iter().map(|part| part.failed).sum();
        self.first_failed = parts.iter().filter_map(|part| part.first_failed).min();
    }
}

/// A part that takes about as long as a part should.
fn next_size(size: u64, seconds: f64) -> u64 {
    match seconds / PART.as_secs_f64() {
        short if short < 0.5 => size * 2,
        long if long > 2.0 => (size / 2).max(16),
        _ => size,
    }
}

fn told(total: &Total) -> String {
    let mut text = String::new();
    for failure in &total.failures {
        text.push_str(&format!("seed {}: {}\n", failure.seed, failure.violation));
    }
    if let Some(seed) = total.first_failed {
        text.push_str(&format!(
            "`tenure-sim replay {seed}` prints the events of the first failure\n"
        ));
    }
    let earlier = match total.resumed {
        0 => String::new(),
        n => format!(", {n} of them in earlier runs"),
    };
    text.push_str(&format!(
        "{} seeds from {}{earlier}: {} failed, {:.0} per second{}\n",
        total.seeds,
        total.first_seed,
        total.failed,
        total.seeds_per_second,
        if total.interrupted {
            ", interrupted"
        } else {
            ""
        }
    ));
    text
}

/// Says how far it is: often on a terminal, now and then in a log.
struct Progress {
    to_run: u64,
    begun: Instant,
    told: Option<Instant>,
    terminal: bool,
}

impl Progress {
    fn new(to_run: u64) -> Self {
        Self {
            to_run,
            begun: Instant::now(),
            told: None,
            terminal: io::stderr().is_terminal(),
        }
    }

    fn tell(&mut self, total: &Total) {
        let every = Duration::from_secs(if self.terminal { 0 } else { 10 });
        if self.told.is_some_and(|told| told.elapsed() < every) {
            return;
        }
        self.told = Some(Instant::now());
        let rate = total.seeds as f64 / self.begun.elapsed().as_secs_f64().max(1e-9);
        let line = format!(
            "{} of {} seeds, {} failed, {rate:.0} per second",
            total.seeds, self.to_run, total.failed
        );
        if self.terminal {
            eprint!("\r{line}\x1b[K");
        } else {
            eprintln!("{line}");
        }
    }

    fn end(&self) {
        if self.terminal && self.told.is_some() {
            eprintln!();
        }
    }
}
