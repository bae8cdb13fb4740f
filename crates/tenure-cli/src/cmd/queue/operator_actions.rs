//! `tenure queue pause`, `resume`, `purge` and `repair-index`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure_queue::Purge;

use super::{open, or_interrupted};
use crate::cmd::confirm::confirm;
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;

/// Pause a queue: workers claim no tasks until `tenure queue resume`
#[derive(Debug, Args)]
#[command(
    after_help = "Running attempts continue, and tasks can still be submitted. Workers apply the pause within seconds.\n\n\
    Examples:\n  tenure queue pause mails"
)]
pub(super) struct Pause {
    /// Queue name
    queue: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Resume a paused queue
#[derive(Debug, Args)]
#[command(after_help = "Workers claim tasks again within seconds.\n\n\
    Examples:\n  tenure queue resume mails")]
pub(super) struct Resume {
    /// Queue name
    queue: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Delete finished tasks of a queue
#[derive(Debug, Args)]
#[command(
    after_help = "Without --done and --dead, deletes the tasks whose retention time is over; workers do this regularly. With one\n\
    of the flags, only tasks of that kind are deleted.\n\n\
    Examples:\n  tenure queue purge mails --yes\n  \
    tenure queue purge mails --done 1h --yes"
)]
pub(super) struct PurgeCommand {
    /// Queue name
    queue: String,
    /// Delete tasks that were done or cancelled longer ago than this
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    done: Option<Duration>,
    /// Delete dead letters older than this
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    dead: Option<Duration>,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Rebuild the indexes of a queue from its tasks
#[derive(Debug, Args)]
#[command(
    after_help = "Reads every task, adds missing index entries and deletes wrong ones. Safe while workers and producers run. Tasks\n\
    that cannot be read are reported and left unchanged; the exit code is then 1.\n\n\
    Examples:\n  tenure queue repair-index mails --yes --json"
)]
pub(super) struct RepairIndex {
    /// Queue name
    queue: String,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn report_paused(name: &str, paused: bool, json: bool) {
    eprintln!("queue {name} {}", if paused { "paused" } else { "resumed" });
    if json {
        stdout::json(&json!({ "queue": name, "paused": paused }));
    }
}

impl Pause {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        open(config, &self.queue).await?.pause().await?;
        report_paused(&self.queue, true, self.json);
        Ok(ExitCode::SUCCESS)
    }
}

impl Resume {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        open(config, &self.queue).await?.resume().await?;
        report_paused(&self.queue, false, self.json);
        Ok(ExitCode::SUCCESS)
    }
}

impl PurgeCommand {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let purge = match (self.done, self.dead) {
            (None, None) => Purge::by(&queue.settings()),
            (done, dead) => Purge { done, dead },
        };
        confirm(self.yes, &question(&self.queue, &purge))?;
        let work = async { Ok(queue.purge(&purge).await?) };
        let left = || "some tasks are deleted; run the command again for the rest".to_owned();
        let removed = or_interrupted(work, left).await?;
        eprintln!("queue {}: {removed} tasks deleted", self.queue);
        if self.json {
            stdout::json(&json!({ "queue": self.queue, "removed": removed }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn question(queue: &str, purge: &Purge) -> String {
    let older = |what: &str, limit: Option<Duration>| {
        limit.map(|limit| format!("{what} for more than {}", duration::show(limit)))
    };
    let parts = [
        older("done or cancelled", purge.done),
        older("dead", purge.dead),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!(
        "tasks of queue {queue} that have been {} will be deleted",
        parts.join(", or ")
    )
}

impl RepairIndex {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        confirm(
            self.yes,
            &format!("the indexes of queue {} will be rebuilt", self.queue),
        )?;
        let work = async { Ok(queue.rebuild_index().await?) };
        let left = || "part of the indexes is rebuilt; run the command again".to_owned();
        let rebuilt = or_interrupted(work, left).await?;
        for (key, reason) in &rebuilt.corrupt {
            eprintln!("warning: {key} is corrupt: {reason}");
        }
        for key in &rebuilt.foreign {
            eprintln!("warning: {key} is not a task");
        }
        eprintln!(
            "queue {}: {} tasks read, {} index entries added, {} deleted",
            self.queue, rebuilt.tasks, rebuilt.added, rebuilt.removed
        );
        if self.json {
            stdout::json(&rebuilt);
        }
        match rebuilt.corrupt.is_empty() && rebuilt.foreign.is_empty() {
            true => Ok(ExitCode::SUCCESS),
            false => Ok(ExitCode::from(1)),
        }
    }
}
