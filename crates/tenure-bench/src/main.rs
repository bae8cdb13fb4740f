//! The `tenure-bench` program: figures, each beside its baseline in the same run.
//!
//! Every case is repeated; the table gives the median with the lowest and highest, because machines are noisy and a single
//! number says little. Where a baseline makes sense it is measured in turn with the case, so that both see the same noise.

mod failover;
mod gate;
mod hash;
mod idle;
mod measure;
mod moves;
mod planner;
mod program;
mod queue;
mod restarts;
mod router;
mod store;
mod store_access;
mod worker;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use serde::Serialize;
use tenure_console::{duration, exit, logging, table};

use exit::Exit;
use measure::ReportRow;

/// Measure Tenure on this machine, and compare each figure with a baseline
#[derive(Debug, Parser)]
#[command(
    name = "tenure-bench",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  tenure-bench                      all areas\n  tenure-bench gate hash            two areas\n  \
                        tenure-bench failover --repeat 10 --json\n  tenure-bench store --store etcd://127.0.0.1:2379/bench\n  \
                        tenure-bench moves --load 1ms --load 1s\n  tenure-bench restarts --requests 1000000"
)]
struct Bench {
    /// Log filter for standard error, such as info or tenure=debug
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        env = "TENURE_LOG",
        hide_env_values = true,
        default_value = "warn"
    )]
    log: String,
    #[command(subcommand)]
    of: Option<Of>,
    /// Areas to measure; default: all
    #[arg(value_enum)]
    areas: Vec<Area>,
    /// Number of repetitions of each case
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// Benchmarks with settings of their own.
#[derive(Debug, Subcommand)]
enum Of {
    Store(store::StoreBench),
    Moves(moves::MovesBench),
    Restarts(restarts::RestartsBench),
    Router(router::RouterBench),
    Queue(queue::QueueBench),
    #[command(name = "__node", hide = true)]
    Node(worker::BenchNode),
}

/// Benchmarks that share their settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Area {
    /// Admission of a request by a gate
    Gate,
    /// Hash of a key to its shard
    Hash,
    /// Store requests, processor time and memory of an idle node
    Idle,
    /// Time of a shard without an owner after a crash or a clean exit
    Failover,
    /// Duration, moves and balance of plans
    Planner,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    repeat: u32,
    rows: Vec<ReportRow>,
}

/// Machine that the figures were measured on.
#[derive(Debug, Serialize)]
struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    profile: &'static str,
    version: &'static str,
}

/// Writes a report to standard output, as data or in words.
fn put_out(
    json: bool,
    report: &impl Serialize,
    print: impl FnOnce(&mut std::io::StdoutLock<'_>) -> std::io::Result<()>,
) -> Result<ExitCode, Exit> {
    let mut out = std::io::stdout().lock();
    let written = if json {
        serde_json::to_writer_pretty(&mut out, report)
            .map_err(std::io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        print(&mut out)
    };
    written
        .map_err(|e| Exit::failed(format!("writing the report to standard output failed: {e}")))?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    exit::finish(execute(Bench::parse()))
}

fn execute(bench: Bench) -> Result<ExitCode, Exit> {
    logging::start(&bench.log).map_err(|e| Exit::usage(format!("--log: {e}")))?;
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|e| Exit::failed(format!("the async runtime cannot be started: {e}")))?;
    let done = runtime.block_on(bench.run());
    // A store call without an answer must not block the exit.
    runtime.shutdown_background();
    done
}

impl Bench {
    async fn run(self) -> Result<ExitCode, Exit> {
        match self.of {
            Some(Of::Store(bench)) => return bench.run().await,
            Some(Of::Moves(bench)) => return bench.run().await,
            Some(Of::Restarts(bench)) => return bench.run().await,
            Some(Of::Router(bench)) => return bench.run().await,
            Some(Of::Queue(bench)) => return bench.run().await,
            Some(Of::Node(node)) => return node.run().await,
            None => {}
        }
        let all = [
            Area::Gate,
            Area::Hash,
            Area::Idle,
            Area::Failover,
            Area::Planner,
        ];
        let areas = if self.areas.is_empty() {
            all.to_vec()
        } else {
            self.areas.clone()
        };
        let machine = Machine::this();
        machine.warn();
        let mut rows = Vec::new();
        for area in areas {
            eprintln!(
                "measuring {} …",
                area.to_possible_value()
                    .map(|v| v.get_name().to_owned())
                    .unwrap_or_default()
            );
            rows.extend(match area {
                Area::Gate => gate::measure(self.repeat),
                Area::Hash => hash::measure(self.repeat),
                Area::Idle => idle::measure(self.repeat).await?,
                Area::Failover => failover::measure(self.repeat).await?,
                Area::Planner => planner::measure(self.repeat)?,
            });
        }
        let report = Report {
            machine,
            repeat: self.repeat,
            rows,
        };
        put_out(self.json, &report, |out| report.print(out))
    }
}

impl Report {
    fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        self.machine.print(out)?;
        writeln!(out, "median of {} (lowest – highest)\n", self.repeat)?;
        print_rows(&self.rows, out)
    }
}

/// The rows, each area under its name.
fn print_rows(rows: &[ReportRow], out: &mut impl std::io::Write) -> std::io::Result<()> {
    let mut area = "";
    for row in rows {
        if row.area != area {
            area = row.area;
            writeln!(out, "{area}")?;
        }
        row.print(out)?;
    }
    Ok(())
}

impl Machine {
    fn this() -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = info
            .lines()
            .find_map(|l| l.strip_prefix("model name"))
            .and_then(|l| l.split_once(':'));
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: cpu.map_or_else(
                || "unknown processor".to_owned(),
                |(_, name)| name.trim().to_owned(),
            ),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
            profile: if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            },
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// Says so if the figures are worth little.
    fn warn(&self) {
        if self.profile == "debug" {
            eprintln!("warning: this is a debug build; a release build is several times faster");
        }
    }

    fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        writeln!(
            out,
            "{} × {}, Linux {}, {} build, tenure {}",
            self.cores, self.cpu, self.kernel, self.profile, self.version
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use tenure_console::reference;

    use super::*;

    #[test]
    fn the_reference_of_commands_is_what_the_parser_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/bench.md");
        reference::check(Bench::command(), "tenure-bench", path.as_ref());
    }

    #[test]
    fn the_parser_is_consistent() {
        Bench::command().debug_assert();
    }
}
