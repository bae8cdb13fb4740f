//! `tenure up`: a small cluster on this machine, to look at and to break.

pub(crate) mod counter_node;
pub(crate) mod fenced_counters;
mod http_demo;
mod node_report;
mod nodes;
mod terminal_view;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio::sync::mpsc;

use crate::cmd::exec::Signals;
use crate::config::{Config, duration};
use crate::exit::Exit;
use fenced_counters::FencedCounters;
use nodes::{NodeProcesses, UpConfig};
use terminal_view::TerminalView;

/// How often the picture is renewed.
const TICK: Duration = Duration::from_millis(500);

/// Run a demo cluster with routers, sidecars and constant load on this machine
#[derive(Debug, Args)]
#[command(
    after_help = "Starts two routers, and sidecars with an example application, under constant load. Prints failed requests, and at the\n\
    end compares the responses with the journal of the application.\n\
    With --library the nodes are processes that use the library, without HTTP: each change of a counter is written with\n\
    the epoch of its shard to a SQLite file that rejects older epochs.\n\
    Kill, stop and continue processes to see how the cluster recovers.\n\n\
    Examples:\n  tenure up\n  tenure up --nodes 5 --shards 128 --duration 30s\n  tenure up --data-dir /tmp/demo\n  \
    tenure up --library                   nodes that use the library; shows the owner of each shard\n  \
    tenure up --library --duration 30s --trace traces && tenure-sim validate traces/*"
)]
pub(crate) struct UpCommand {
    /// Number of node processes
    #[arg(long, default_value = "3", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    nodes: u32,
    /// Number of shards
    #[arg(long, default_value = "64", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    shards: u32,
    /// Run nodes that use the library instead of routers and sidecars
    #[arg(long)]
    library: bool,
    /// Directory for all files; default: a temporary directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Stop after this time; default: on Ctrl-C
    #[arg(long = "duration", value_name = "DURATION", value_parser = duration::parse)]
    time: Option<Duration>,
    /// Time without renewal after which the session of a node expires and other nodes claim its shards
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// Write traces of the nodes to this directory, for `tenure-sim validate`
    #[arg(long, value_name = "DIR", requires = "library")]
    trace: Option<PathBuf>,
}

impl UpCommand {
    pub(crate) async fn run(self, config: &Config) -> Result<ExitCode, Exit> {
        let mut signals = Signals::new()?;
        let temporary = match &self.data_dir {
            Some(_) => None,
            None => Some(
                tempfile::Builder::new()
                    .prefix("tenure-up-")
                    .tempdir()
                    .map_err(|e| {
                        Exit::failed(format!("a temporary directory cannot be created: {e}"))
                    })?,
            ),
        };
        let dir = match (&self.data_dir, &temporary) {
            (Some(dir), _) => dir.clone(),
            (None, Some(temporary)) => temporary.path().to_owned(),
            (None, None) => {
                return Err(Exit::usage(
                    "no data directory is given; pass --data-dir DIR",
                ));
            }
        };
        let made = std::fs::create_dir_all(&dir).and_then(|()| std::path::absolute(&dir));
        let dir = made.map_err(|e| {
            Exit::usage(format!(
                "--data-dir {}: the directory cannot be created: {e}",
                dir.display()
            ))
        })?;
        let trace = match &self.trace {
            None => None,
            Some(dir) => {
                let made = std::fs::create_dir_all(dir).and_then(|()| std::path::absolute(dir));
                Some(made.map_err(|e| {
                    Exit::usage(format!(
                        "--trace {}: the directory cannot be created: {e}",
                        dir.display()
                    ))
                })?)
            }
        };
        if !self.library {
            return self.run_http(config, dir, &mut signals).await;
        }
        let plan = self.plan(config, &dir, trace);
        FencedCounters::open(&plan.work).map_err(|e| work_trouble(&plan.work, &e))?;
        let (sender, mut news) = mpsc::unbounded_channel();
        let mut fleet = NodeProcesses::start(plan.clone(), sender)?;
        let mut view = TerminalView::new(self.shards, std::io::stdout().is_terminal());
        view.say(&welcome(&plan, &fleet));
        let until = tokio::time::sleep(self.time.unwrap_or(Duration::MAX / 4));
        tokio::pin!(until);
        let mut ticks = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                biased;
                () = signals.any() => break,
                () = &mut until => break,
                Some(news) = news.recv() => view.hear(news),
                _ = ticks.tick() => {
                    for line in fleet.look_after() {
                        view.say(&line);
                    }
                    view.draw(&fleet.states());
                }
            }
        }
        view.say("stopping: nodes close gates, stop work, release shards and end sessions");
        fleet.stop(&mut signals).await;
        while let Ok(news) = news.try_recv() {
            view.hear(news);
        }
        view.flush();
        let audit = fenced_counters::audit(&plan.work).map_err(|e| work_trouble(&plan.work, &e))?;
        view.say(&view.summary());
        view.say(&audit.to_string());
        Ok(if audit.is_clean() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    fn plan(&self, config: &Config, dir: &Path, trace: Option<PathBuf>) -> UpConfig {
        let store = match config.text("store") {
            Some(url) => url.to_owned(),
            None => format!("sqlite:{}", dir.join("tenure.db").display()),
        };
        UpConfig {
            store,
            cluster: config.text("cluster").unwrap_or("demo").to_owned(),
            shards: self.shards,
            nodes: self.nodes,
            ttl: self.ttl,
            work: dir.join("work.db"),
            dir: dir.to_owned(),
            trace,
        }
    }
}

fn work_trouble(path: &Path, error: &rusqlite::Error) -> Exit {
    Exit::failed(format!(
        "database {} of the workload cannot be used: {error}",
        path.display()
    ))
}

fn welcome(plan: &UpConfig, fleet: &NodeProcesses) -> String {
    let me = std::env::current_exe().map_or("tenure".to_owned(), |path| path.display().to_string());
    let pids = fleet.pids();
    let pid = pids.first().map_or("PID".to_owned(), ToString::to_string);
    let last = pids.last().map_or("PID".to_owned(), ToString::to_string);
    format!(
        "{} nodes, {} shards; each change of a counter is written with its epoch to {}\n\
         try, in another terminal:\n  \
         kill -9 {pid}                  crash a node: others claim its shards; it restarts after 6s\n  \
         kill -STOP {last}; sleep 5; kill -CONT {last}   pause a node: it resumes after its lease, and its late writes are rejected\n  \
         {me} status --store {}\n  \
         {me} exec --store {} --cluster {} --singleton cron -- sleep 1000\n\
         Ctrl-C stops the cluster\n",
        plan.nodes,
        plan.shards,
        plan.work.display(),
        plan.store,
        plan.store,
        plan.cluster,
    )
}
