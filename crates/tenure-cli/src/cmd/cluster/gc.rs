//! `tenure cluster gc`: references to departed nodes and ended sessions.
//!
//! Running nodes do the same. The command shows what is stale, and cleans up clusters without running nodes.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tenure::admin::{GcOutcome, GcRecord, StaleRecord};

use crate::config::{Config, duration};
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Number of records that are listed as text.
const SHOWN: usize = 40;

/// Remove references to departed nodes, and records of ended sessions that nothing refers to
#[derive(Debug, Args)]
#[command(
    after_help = "Running nodes and the leader do this continuously, so a cluster with running nodes needs no gc. The command\n\
    removes assignments to departed nodes, and deletes the tombstone of a session that no record refers to after\n\
    it was unchanged for the longest ttl. Nodes claim shards of ended sessions themselves, and the next leader\n\
    replaces the leader record. A record that changed meanwhile is skipped. Exits with 1 if a write failed.\n\n\
    Examples:\n  tenure cluster gc --dry-run\n  \
    tenure cluster gc --dry-run --json | jq .counts\n  \
    tenure cluster gc"
)]
pub(crate) struct Gc {
    /// List what would be removed, without changing anything
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One stale record in the output.
#[derive(Serialize)]
struct Line {
    key: String,
    /// Reason, as one word.
    reason: &'static str,
    /// The reason in words, for people.
    message: &'static str,
    /// `found`, `removed`, `skipped` (nodes or the leader remove it), `changed` (concurrently) or `failed`.
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Output of the command, also as JSON.
#[derive(Serialize)]
struct Swept {
    dry_run: bool,
    /// Number of stale records by reason.
    counts: BTreeMap<&'static str, usize>,
    removed: usize,
    failed: usize,
    stale: Vec<Line>,
}

impl Gc {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let lines = match self.dry_run {
            true => {
                let stale = connect::read_existing(config).await?.stale();
                stale.iter().map(|s| line(s, "found", None)).collect()
            }
            false => {
                let admin = connect::open_existing(config).await?;
                let done = admin.gc(watching).await?;
                done.into_iter().map(outcome).collect()
            }
        };
        let swept = Swept::new(self.dry_run, lines);
        match self.json {
            true => stdout::json(&swept),
            false => swept.show(),
        }
        for line in swept.stale.iter().filter(|l| l.outcome == "failed") {
            let error = line.error.as_deref().unwrap_or_default();
            eprintln!("error: cleanup of record {} failed: {error}", line.key);
        }
        Ok(match swept.failed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}

impl Swept {
    fn new(dry_run: bool, stale: Vec<Line>) -> Self {
        let mut counts = BTreeMap::new();
        for line in &stale {
            *counts.entry(line.reason).or_default() += 1;
        }
        let of = |outcome: &str| stale.iter().filter(|l| l.outcome == outcome).count();
        Self {
            dry_run,
            counts,
            removed: of("removed"),
            failed: of("failed"),
            stale,
        }
    }

    fn show(&self) {
        if self.stale.is_empty() {
            return stdout::line("no stale records");
        }
        let counts: Vec<String> = self
            .counts
            .iter()
            .map(|(reason, n)| format!("{n} {reason}"))
            .collect();
        stdout::line(format!(
            "{} stale records: {}",
            self.stale.len(),
            counts.join(", ")
        ));
        for line in self.stale.iter().take(SHOWN) {
            let outcome = match line.outcome {
                "found" => "",
                "removed" => "; removed",
                "skipped" => "; skipped: nodes or the leader remove it",
                "changed" => "; skipped: changed concurrently",
                _ => "; not removed",
            };
            stdout::line(format!("{}: {}{outcome}", line.key, line.message));
        }
        if self.stale.len() > SHOWN {
            stdout::line(format!(
                "and {} more; --json lists all",
                self.stale.len() - SHOWN
            ));
        }
    }
}

fn watching(tombstones: usize, time: Duration) {
    eprintln!(
        "watching {tombstones} tombstones for {} before their deletion",
        duration::show(time)
    );
}

fn outcome(done: GcRecord) -> Line {
    match done.outcome {
        GcOutcome::Removed => line(&done.stale, "removed", None),
        GcOutcome::LeftToNodes => line(&done.stale, "skipped", None),
        GcOutcome::Changed => line(&done.stale, "changed", None),
        GcOutcome::Failed(error) => line(&done.stale, "failed", Some(Exit::from(error).message)),
    }
}

fn line(stale: &StaleRecord, outcome: &'static str, error: Option<String>) -> Line {
    Line {
        key: stale.key.to_string(),
        reason: stale.reason.as_str(),
        message: stale.reason.text(),
        outcome,
        error,
    }
}
