//! `tenure queue cancel`, `retry`, `pause`, `resume`, `purge` and `rebuild-index`: laying hands on a queue.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure_queue::{Filter, Purge, Queue, QueueError, TaskId, TaskStatus};

use super::{asker, open, or_interrupted, task_id};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;

/// Call tasks off: at once, or where a worker is at it, by telling it
#[derive(Debug, Args)]
#[command(
    after_help = "A running handler is told with the next extension of its claim; a program gets SIGTERM.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop queue cancel mails k-welcome-bob"
)]
pub(super) struct Cancel {
    /// The queue
    queue: String,
    /// The tasks
    #[arg(required = true, value_parser = task_id)]
    tasks: Vec<TaskId>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Let tasks that are dead or cancelled be tried again from the beginning
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tenure --store sqlite:shop.db --cluster shop queue retry mails k-welcome-bob\n  \
    tenure --store sqlite:shop.db --cluster shop queue retry mails --dead"
)]
pub(super) struct RetryCommand {
    /// The queue
    queue: String,
    /// The tasks
    #[arg(required_unless_present = "dead", conflicts_with = "dead", value_parser = task_id)]
    tasks: Vec<TaskId>,
    /// All dead letters
    #[arg(long)]
    dead: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Let nothing be claimed until `resume`; what is running goes on
#[derive(Debug, Args)]
#[command(
    after_help = "Workers notice within seconds. Doing it twice changes nothing.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop queue pause mails"
)]
pub(super) struct Pause {
    /// The queue
    queue: String,
}

/// End a pause
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tenure --store sqlite:shop.db --cluster shop queue resume mails"
)]
pub(super) struct Resume {
    /// The queue
    queue: String,
}

/// Remove tasks that ended long enough ago
#[derive(Debug, Args)]
#[command(
    after_help = "Workers do this by themselves, as the queue's keep_done and keep_dead say; so does this without --done and\n\
    --dead. With one of them, the others stay.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop queue purge mails\n  \
    tenure --store sqlite:shop.db --cluster shop queue purge mails --done 1h"
)]
pub(super) struct PurgeCommand {
    /// The queue
    queue: String,
    /// Those that are done or cancelled for longer than this
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    done: Option<Duration>,
    /// Dead letters older than this
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    dead: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Read every task and make the indexes what they should be
#[derive(Debug, Args)]
#[command(
    after_help = "Safe at any time, beside workers and producers. Tasks that cannot be read are named and left alone; the exit\n\
    code is then 1.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop queue rebuild-index mails --json"
)]
pub(super) struct RebuildIndex {
    /// The queue
    queue: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Tells what became of each task, and fails if one was not to be had.
struct Tally {
    json: bool,
    failed: u64,
}

impl Tally {
    fn note(&mut self, id: &TaskId, done: Result<TaskStatus, QueueError>) -> Result<(), Exit> {
        let told = match done {
            Ok(is) => {
                eprintln!("task {id} is {is}");
                json!({ "id": id, "state": is })
            }
            Err(e @ QueueError::Store(_)) => return Err(e.into()),
            Err(e) => {
                self.failed += 1;
                eprintln!("error: {e}");
                json!({ "id": id, "error": e.to_string() })
            }
        };
        if self.json {
            stdout::json_line(&told);
        }
        Ok(())
    }

    fn end(self) -> Result<ExitCode, Exit> {
        match self.failed {
            0 => Ok(ExitCode::SUCCESS),
            _ => Ok(ExitCode::from(1)),
        }
    }
}

impl Cancel {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let mut tally = Tally {
            json: self.json,
            failed: 0,
        };
        for id in &self.tasks {
            let done = queue.cancel(id, Some(&asker())).await;
            if let Ok(TaskStatus::Running) = done {
                eprintln!("task {id} is told to stop");
            }
            tally.note(id, done)?;
        }
        tally.end()
    }
}

impl RetryCommand {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let mut tally = Tally {
            json: self.json,
            failed: 0,
        };
        for id in &self.tasks {
            retry(&queue, id, &mut tally).await?;
        }
        if self.dead {
            let left = || "some are tried again, some are not; run the command again".to_owned();
            or_interrupted(all_dead(&queue, &mut tally), left).await?;
        }
        tally.end()
    }
}

async fn retry(queue: &Queue, id: &TaskId, tally: &mut Tally) -> Result<(), Exit> {
    let done = queue.retry(id, Some(&asker())).await;
    tally.note(id, done.map(|()| TaskStatus::Ready))
}

async fn all_dead(queue: &Queue, tally: &mut Tally) -> Result<(), Exit> {
    let mut from = None::<String>;
    loop {
        let page = queue
            .list(&Filter::state(TaskStatus::Dead), 200, from.as_deref())
            .await?;
        for task in &page.tasks {
            retry(queue, &task.id, tally).await?;
        }
        from = page.next;
        if from.is_none() {
            return Ok(());
        }
    }
}

impl Pause {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        open(config, &self.queue).await?.pause().await?;
        eprintln!("queue {} is paused", self.queue);
        Ok(ExitCode::SUCCESS)
    }
}

impl Resume {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        open(config, &self.queue).await?.resume().await?;
        eprintln!("queue {} goes on", self.queue);
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
        let work = async { Ok(queue.purge(&purge).await?) };
        let left = || "some are removed; run the command again for the rest".to_owned();
        let removed = or_interrupted(work, left).await?;
        eprintln!("queue {}: {removed} tasks are removed", self.queue);
        if self.json {
            stdout::json(&json!({ "queue": self.queue, "removed": removed }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl RebuildIndex {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let work = async { Ok(queue.rebuild_index().await?) };
        let left = || "part of the indexes is rebuilt; run the command again".to_owned();
        let rebuilt = or_interrupted(work, left).await?;
        for (key, why) in &rebuilt.corrupt {
            eprintln!("warning: {key} is corrupt: {why}");
        }
        for key in &rebuilt.foreign {
            eprintln!("warning: {key} is no task");
        }
        eprintln!(
            "queue {}: {} tasks, {} entries added, {} removed",
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
