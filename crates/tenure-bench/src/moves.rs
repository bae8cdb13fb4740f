//! `tenure-bench moves`: cost of planned moves for clients, the store, and lookups of owners.
//!
//! Four tables, all from one run: how long a shard gives no answer, beside a bare durable write of the same store; how many
//! writes a move takes; what a lookup takes; and, in the simulator, our order of steps beside two published ones.

mod lookups;
mod unavailability;
mod writes;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tenure_core::record::{AssignedBy, PlanningSettings};
use tenure_sim::orders::{self, MoveOrder};

use super::Machine;
use super::worker::Scratch;
use crate::duration;
use crate::exit::Exit;
use crate::table::{Table, WIDTH};

/// Measure planned moves: pauses seen by clients, store writes, router lookups, and moves with other orders of steps
///
/// Writes only to clusters with random names and deletes them at the end. Uses the store of the configuration only if
/// --store names it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tenure-bench moves                                  a temporary SQLite file\n  \
    tenure-bench moves --store etcd://127.0.0.1:2379/bench --repeat 20\n  \
    tenure-bench moves --load 1ms --load 1s --json\n  \
    tenure-bench moves --store sqlite:bench.db --store postgres://bench@127.0.0.1:5432/bench")]
pub(crate) struct MovesBench {
    /// Store for the measurement, created if it does not exist; repeatable. Default: a temporary SQLite file. Writes
    /// are also counted on the memory store
    #[arg(long, value_name = "URL")]
    store: Vec<String>,
    /// Assignment of the shards: leader, rendezvous or fair-share; repeatable
    #[arg(long, value_name = "MODE", default_values_t = [AssignedBy::Leader])]
    assigned_by: Vec<AssignedBy>,
    /// Part of the benchmark to run; repeatable; default: all
    #[arg(long, value_name = "PART", value_enum)]
    only: Vec<Part>,
    /// Simulated time to load a shard; repeatable
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_values = ["1ms", "10s"])]
    load: Vec<Duration>,
    /// Number of times that a node joins and leaves; only once for each --load of 1s or more
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Number of shards in the measurement of pauses; about half of them move when a node joins
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=1000))]
    shards: u32,
    /// Number of routers in the measurement of store writes; repeatable
    #[arg(long, value_name = "N", default_values_t = [1, 10, 50], value_parser = clap::value_parser!(u32).range(1..=200))]
    routers: Vec<u32>,
    /// Number of shards in the measurement of router lookups
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    lookups: u32,
    /// Write traces of the nodes and the router to this directory, for `tenure-sim validate`
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Pause seen by clients of a moving shard
    Pause,
    /// Store writes to shard and session records per move
    Writes,
    /// Lookups of owners in a router
    Lookups,
    /// Moves with other orders of steps, simulated
    Orders,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    repeat: u32,
    stores: Vec<unavailability::Store>,
    writes: Vec<writes::Writes>,
    lookups: Option<lookups::Lookups>,
    orders: Vec<Order>,
}

/// One order of the steps of a move, in the simulator.
#[derive(Debug, Serialize)]
struct Order {
    order: MoveOrder,
    load_ms: f64,
    moves: u64,
    answered: u64,
    held: u64,
    held_p50_ms: f64,
    held_p99_ms: f64,
    held_max_ms: f64,
    failed: u64,
    lost: u64,
}

impl MovesBench {
    pub(crate) async fn run(self) -> Result<ExitCode, Exit> {
        let scratch = Scratch::new()?;
        let urls = match self.store.as_slice() {
            [] => vec![format!("sqlite:{}", scratch.database().display())],
            urls => urls.to_vec(),
        };
        let machine = Machine::this();
        machine.warn();
        let mut stores = Vec::new();
        if self.has(Part::Pause) {
            for url in &urls {
                stores.push(unavailability::measure(url.clone(), &self).await?);
            }
        }
        let mut counted = Vec::new();
        if self.has(Part::Writes) {
            let others = self.store.iter().map(String::as_str);
            for url in std::iter::once("memory:").chain(others) {
                for &mode in &self.assigned_by {
                    for &routers in &self.routers {
                        counted.push(writes::count(url, mode, routers).await?);
                    }
                }
            }
        }
        let lookups = match self.has(Part::Lookups) {
            true => Some(lookups::measure(self.lookups).await?),
            false => None,
        };
        let orders = match self.has(Part::Orders) {
            true => self.orders().await?,
            false => Vec::new(),
        };
        let report = Report {
            machine,
            repeat: self.repeat,
            stores,
            writes: counted,
            lookups,
            orders,
        };
        super::put_out(self.json, &report, |out| report.print(out))
    }

    fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// The three orders, for each load; on a thread of its own, for it computes.
    async fn orders(&self) -> Result<Vec<Order>, Exit> {
        let mut all = Vec::new();
        for &load in &self.load {
            eprintln!("simulating loads of {} …", duration::show(load));
            let run = tokio::task::spawn_blocking(move || orders::compare(load));
            let figures = run
                .await
                .map_err(|e| Exit::failed(e.to_string()))?
                .map_err(|e| Exit::failed(format!("the simulation of moves failed: {e:?}")))?;
            all.extend(figures.into_iter().map(|f| Order {
                order: f.arm,
                load_ms: millis(f.load),
                moves: f.moves,
                answered: f.answered,
                held: f.held,
                held_p50_ms: millis(f.held_p50),
                held_p99_ms: millis(f.held_p99),
                held_max_ms: millis(f.held_max),
                failed: f.failed,
                lost: f.lost,
            }));
        }
        Ok(all)
    }
}

/// Returns the planner settings for the measurement: the defaults without the waits that keep a cluster calm.
fn prompt() -> PlanningSettings {
    PlanningSettings {
        settle_time: Some(Duration::from_millis(100)),
        rejoin_after: Some(Duration::ZERO),
        cool_down: Some(Duration::ZERO),
        ..PlanningSettings::default()
    }
}

/// The time that the host gave to others, and all time, in the ticks of `/proc/stat`; nothing where it cannot be read.
#[derive(Clone, Copy, Debug, Default)]
struct Steal {
    stolen: u64,
    all: u64,
}

impl Steal {
    fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = stat.lines().next().unwrap_or_default();
        let ticks = line.split_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = ticks.filter_map(|t| t.parse().ok()).collect();
        Self {
            stolen: ticks.get(7).copied().unwrap_or_default(),
            all: ticks.iter().sum(),
        }
    }

    /// Returns the stolen part of the time since `self`, in percent.
    fn percent_since(self) -> f64 {
        let now = Self::now();
        let all = now.all.saturating_sub(self.all).max(1);
        now.stolen.saturating_sub(self.stolen) as f64 * 100.0 / all as f64
    }
}

/// Milliseconds.
fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// A number as a table shows it.
fn shown(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl Report {
    fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        self.machine.print(out)?;
        for store in &self.stores {
            store.print(out)?;
        }
        if !self.writes.is_empty() {
            writes::print(&self.writes, out)?;
        }
        if let Some(lookups) = &self.lookups {
            lookups.print(out)?;
        }
        if self.orders.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "\nother orders of the steps, simulated: hold time of requests, and lost acknowledged writes\n"
        )?;
        let mut table = Table::new(&[
            "ORDER", "#LOAD ms", "#MOVES", "#HELD", "#p50 ms", "#p99 ms", "#max ms", "#FAILED",
            "#LOST",
        ]);
        for o in &self.orders {
            let name = match o.order {
                MoveOrder::Ours => "ours",
                MoveOrder::FreezeThenWarm => "freeze, then warm",
                MoveOrder::WarmThenSwitch => "warm, then move",
            };
            table.row(vec![
                name.to_owned(),
                shown(o.load_ms),
                o.moves.to_string(),
                o.held.to_string(),
                shown(o.held_p50_ms),
                shown(o.held_p99_ms),
                shown(o.held_max_ms),
                o.failed.to_string(),
                o.lost.to_string(),
            ]);
        }
        write!(out, "{}", table.render(WIDTH))
    }
}
