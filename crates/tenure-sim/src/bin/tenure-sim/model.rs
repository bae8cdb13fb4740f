//! `tenure-sim model`: exploration of all states of small clusters.

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tenure_sim::model::{self, ModelOptions, ModelResult, SCOPES, Scope};

use tenure_console::exit::Exit;
use tenure_console::stdout;
use tenure_console::table::{Table, WIDTH};

/// Explore every state of small clusters and report invariant violations
#[derive(Debug, Args)]
#[command(
    after_help = "A scope is a small cluster and the faults that may occur in it. Without --scope and --all, explores only the\n\
    scopes that finish quickly. Exits with 1 if an invariant is violated or an expected event\n\
    never occurs, and prints the shortest path to a violation. docs/model.md lists the bounds of each scope.\n\n\
    Examples:\n  tenure-sim model --list\n  tenure-sim model\n  tenure-sim model --scope crash --threads 2 --json"
)]
pub(super) struct Model {
    /// Scope (small cluster with certain faults) to explore; repeatable
    #[arg(long, value_name = "NAME")]
    scope: Vec<String>,
    /// Explore all scopes, also those that take minutes and gigabytes of memory
    #[arg(long, conflicts_with = "scope")]
    all: bool,
    /// List the scopes without exploring them
    #[arg(long)]
    list: bool,
    /// Number of threads; default: one per core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// The summary of all scopes that were explored.
#[derive(Debug, Serialize)]
struct Summary {
    scopes: Vec<ModelResult>,
    states: usize,
    failed: usize,
}

/// A scope, as it is listed.
#[derive(Debug, Serialize)]
struct Listed {
    scope: &'static str,
    about: &'static str,
    nodes: usize,
    everyday: bool,
}

impl Model {
    pub(super) async fn run(self) -> Result<ExitCode, Exit> {
        let scopes = self.scopes()?;
        if self.list {
            self.tell_list();
            return Ok(ExitCode::SUCCESS);
        }
        let json = self.json;
        let checking = tokio::task::spawn_blocking(move || self.explore(&scopes));
        let summary = checking
            .await
            .map_err(|e| Exit::failed(format!("a thread of the model checker panicked: {e}")))?;
        if json {
            stdout::json(&summary);
        } else {
            stdout::text(&told(&summary));
        }
        Ok(match summary.failed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }

    fn scopes(&self) -> Result<Vec<&'static Scope>, Exit> {
        if self.scope.is_empty() {
            return Ok(SCOPES.iter().filter(|s| self.all || s.everyday).collect());
        }
        let named = self.scope.iter().map(|name| {
            model::scope(name).ok_or_else(|| {
                let known: Vec<&str> = SCOPES.iter().map(|scope| scope.name).collect();
                Exit::usage(format!(
                    "there is no scope {name:?}; use one of: {}",
                    known.join(", ")
                ))
            })
        });
        named.collect()
    }

    fn tell_list(&self) {
        let listed: Vec<Listed> = SCOPES
            .iter()
            .map(|scope| Listed {
                scope: scope.name,
                about: scope.about,
                nodes: scope.nodes,
                everyday: scope.everyday,
            })
            .collect();
        if self.json {
            return stdout::json(&listed);
        }
        let mut table = Table::new(&["SCOPE", "#NODES", "DAILY", "ABOUT"]);
        for scope in listed {
            table.row(vec![
                scope.scope.to_owned(),
                scope.nodes.to_string(),
                if scope.everyday { "yes" } else { "no" }.to_owned(),
                scope.about.to_owned(),
            ]);
        }
        stdout::text(&table.render(WIDTH));
    }

    fn explore(&self, scopes: &[&'static Scope]) -> Summary {
        let mut options = ModelOptions::default();
        if let Some(threads) = self.threads {
            options.threads = usize::from(threads);
        }
        let mut summary = Summary {
            scopes: Vec::new(),
            states: 0,
            failed: 0,
        };
        for scope in scopes {
            let mut progress = Progress::default();
            let checked = model::check(scope, &options, |far| {
                progress.tell(scope.name, far.states, far.depth);
            });
            progress.end();
            summary.states += checked.states;
            summary.failed += usize::from(!checked.holds());
            summary.scopes.push(checked);
        }
        summary
    }
}

fn told(summary: &Summary) -> String {
    let mut text = String::new();
    for checked in &summary.scopes {
        if let Some(violation) = &checked.violation {
            text.push_str(&format!("scope {}: {violation}\n", checked.scope));
            for line in &checked.story {
                text.push_str(&format!("  {line}\n"));
            }
        }
        for unseen in &checked.unseen {
            text.push_str(&format!(
                "scope {}: never observed: {unseen}\n",
                checked.scope
            ));
        }
    }
    let mut table = Table::new(&[
        "SCOPE",
        "#STATES",
        "#DEPTH",
        "#RECOVERS IN",
        "#SEEN",
        "#SECONDS",
        "VERDICT",
    ]);
    for checked in &summary.scopes {
        table.row(vec![
            checked.scope.to_owned(),
            checked.states.to_string(),
            checked.depth.to_string(),
            checked.healed_within.to_string(),
            format!(
                "{}/{}",
                checked.sights - checked.unseen.len(),
                checked.sights
            ),
            format!("{:.1}", checked.seconds),
            if checked.holds() { "holds" } else { "BROKEN" }.to_owned(),
        ]);
    }
    text.push_str(&table.render(WIDTH));
    text
}

/// Says how far it is: often on a terminal, now and then in a log.
#[derive(Default)]
struct Progress {
    told: Option<Instant>,
}

impl Progress {
    fn tell(&mut self, scope: &str, states: usize, depth: usize) {
        let terminal = io::stderr().is_terminal();
        let every = Duration::from_millis(if terminal { 200 } else { 10_000 });
        if self.told.is_some_and(|told| told.elapsed() < every) {
            return;
        }
        self.told = Some(Instant::now());
        let line = format!("{scope}: {states} states, depth {depth}");
        if terminal {
            eprint!("\r{line}\x1b[K");
        } else {
            eprintln!("{line}");
        }
    }

    fn end(&self) {
        if self.told.is_some() && io::stderr().is_terminal() {
            eprintln!();
        }
    }
}
