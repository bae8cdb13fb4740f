//! `tenure cluster gc`: references to departed nodes and ended sessions.
//!
//! Running nodes do the same. The command shows what is stale, and cleans up clusters without running nodes.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use tenure::Clock;
use tenure_core::ids::{NodeName, SessionId, ShardId};
use tenure_core::keys::Key;
use tenure_core::ownership::{self, Facts, Transition, Writer};
use tenure_core::plan::{Stale, StaleReason};
use tenure_core::record::{Owner, Record};
use tenure_core::rules::Rules;
use tenure_store::{Expect, Version};

use crate::cluster_client::{CasResult, ClusterClient};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::snapshot::Snapshot;
use crate::stdout;

/// How many records are listed as text before "and so many more".
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
        let mut place = match self.dry_run {
            true => ClusterClient::look(config).await?,
            false => ClusterClient::open(config).await?,
        };
        let snapshot = place.existing().await?;
        let stale = snapshot.live(|live| live.stale());
        let lines = match self.dry_run {
            true => stale.iter().map(|s| line(s, "found", None)).collect(),
            false => put_right(&mut place, config, &snapshot, &stale).await,
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

fn line(stale: &Stale, outcome: &'static str, error: Option<String>) -> Line {
    Line {
        key: stale.key.to_string(),
        reason: stale.reason.as_str(),
        message: stale.reason.text(),
        outcome,
        error,
    }
}

/// Outcome of one record.
fn told(stale: &Stale, wrote: Result<CasResult, Exit>) -> Line {
    match wrote {
        Ok(CasResult::Done) => line(stale, "removed", None),
        Ok(CasResult::Lost) => line(stale, "changed", None),
        Err(fail) => line(stale, "failed", Some(fail.message)),
    }
}

/// Removes what is stale; continues after a failure, because records are independent.
async fn put_right(
    place: &mut ClusterClient,
    config: &Config,
    snapshot: &Snapshot,
    stale: &[Stale],
) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut unused: Vec<(&Stale, SessionId, Version)> = Vec::new();
    for one in stale {
        match (&one.key, one.reason) {
            (Key::Shard(id), StaleReason::IntendedGone) => {
                let wrote = take_back(place, snapshot, id).await;
                lines.push(told(one, wrote));
            }
            (Key::Session(id), StaleReason::SessionUnused) => {
                if let Some(seen) = snapshot.view.sessions.seen(id) {
                    unused.push((one, *id, seen.version.clone()));
                }
            }
            _ => lines.push(line(one, "skipped", None)),
        }
    }
    if !unused.is_empty() {
        bury(place, config, snapshot, &unused, &mut lines).await;
    }
    lines
}

/// Removes an assignment with the plan number it was made with, so that the write is rejected after a newer plan.
async fn take_back(
    place: &mut ClusterClient,
    snapshot: &Snapshot,
    id: &ShardId,
) -> Result<CasResult, Exit> {
    let seen = snapshot.shard(id)?;
    let writer = Writer {
        owner: Owner {
            node: NodeName::new("tenure cluster gc")?,
            session: place.writer(),
        },
        nonce: place.nonce(),
    };
    let facts = Facts {
        ended: &|_| false,
        highest_epoch: seen.record.epoch,
        min_generation: 0,
        load: None,
        rules: Rules::sound(),
    };
    let change = Transition::Assign {
        node: None,
        plan: seen.record.plan,
    };
    let record = ownership::apply(&seen.record, &writer, change, &facts).map_err(|reason| {
        Exit::failed(format!(
            "shard {id}: the stale assignment cannot be removed ({reason}); run the command again"
        ))
    })?;
    let expect = Expect::Version(seen.version.clone());
    let key = Key::Shard(id.clone());
    let record = Record::Shard(Arc::new(record));
    place.put(&key, expect, &record).await
}

/// Deletes tombstones without references after they were unchanged for the longest ttl.
async fn bury(
    place: &ClusterClient,
    config: &Config,
    snapshot: &Snapshot,
    unused: &[(&Stale, SessionId, Version)],
    lines: &mut Vec<Line>,
) {
    let settings = config.settings();
    let proof = snapshot.proof(settings.ttl, settings.clock_drift_max_permille);
    eprintln!(
        "watching {} tombstones for {} before their deletion",
        unused.len(),
        duration::show(proof)
    );
    let clock = Clock::boot();
    clock.sleep_until(clock.now() + proof).await;
    let now = match place.snapshot().await {
        Ok(now) => now,
        Err(fail) => {
            let failed = unused
                .iter()
                .map(|(stale, ..)| line(stale, "failed", Some(fail.message.clone())));
            return lines.extend(failed);
        }
    };
    for (stale, id, version) in unused {
        let same = now
            .view
            .sessions
            .seen(id)
            .is_some_and(|s| s.version == *version);
        let unused = same && !now.live(|live| live.is_referred_to(*id));
        let wrote = match unused {
            true => place.delete(&stale.key, version.clone()).await,
            false => Ok(CasResult::Lost),
        };
        lines.push(told(stale, wrote));
    }
}
