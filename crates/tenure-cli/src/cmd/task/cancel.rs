//! `tenure task cancel` and `retry`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_queue::{Filter, Queue, QueueError, TaskId, TaskStatus};

use crate::cmd::queue::{caller, open, or_interrupted, task_id};
use crate::config::Config;
use crate::exit::Exit;
use crate::stdout;

/// Cancel tasks
#[derive(Debug, Args)]
#[command(
    after_help = "A task that is not running is cancelled immediately. The worker of a running task notices when it extends its\n\
    claim, and sends SIGTERM to the command. With --json, one object per line.\n\n\
    Examples:\n  tenure task cancel mails k-welcome-bob"
)]
pub(super) struct CancelCommand {
    /// Queue name
    queue: String,
    /// Task ids
    #[arg(value_name = "TASK", required = true, value_parser = task_id)]
    tasks: Vec<TaskId>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Retry dead or cancelled tasks from the beginning
#[derive(Debug, Args)]
#[command(
    after_help = "Resets the number of attempts. With --json, one object per line.\n\n\
    Examples:\n  tenure task retry mails k-welcome-bob\n  \
    tenure task retry mails --dead"
)]
pub(super) struct RetryCommand {
    /// Queue name
    queue: String,
    /// Task ids
    #[arg(
        value_name = "TASK",
        required_unless_present = "dead",
        conflicts_with = "dead",
        value_parser = task_id
    )]
    tasks: Vec<TaskId>,
    /// Retry all dead letters of the queue
    #[arg(long)]
    dead: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Reports the outcome for each task, and counts failures.
struct Report {
    json: bool,
    failed: u64,
}

impl Report {
    fn add(&mut self, id: &TaskId, outcome: Result<TaskStatus, QueueError>) -> Result<(), Exit> {
        let line = match outcome {
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
            stdout::json_line(&line);
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

impl CancelCommand {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let mut report = Report {
            json: self.json,
            failed: 0,
        };
        for id in &self.tasks {
            let outcome = queue.cancel(id, Some(&caller())).await;
            if let Ok(TaskStatus::Running) = outcome {
                eprintln!("task {id}: cancellation requested");
            }
            report.add(id, outcome)?;
        }
        report.end()
    }
}

impl RetryCommand {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let mut report = Report {
            json: self.json,
            failed: 0,
        };
        for id in &self.tasks {
            retry(&queue, id, &mut report).await?;
        }
        if self.dead {
            let left = || "some tasks are retried; run the command again for the rest".to_owned();
            or_interrupted(retry_dead(&queue, &mut report), left).await?;
        }
        report.end()
    }
}

async fn retry(queue: &Queue, id: &TaskId, report: &mut Report) -> Result<(), Exit> {
    let outcome = queue.retry(id, Some(&caller())).await;
    report.add(id, outcome.map(|()| TaskStatus::Ready))
}

async fn retry_dead(queue: &Queue, report: &mut Report) -> Result<(), Exit> {
    let mut from = None::<String>;
    loop {
        let page = queue
            .list(&Filter::state(TaskStatus::Dead), 200, from.as_deref())
            .await?;
        for task in &page.tasks {
            retry(queue, &task.id, report).await?;
        }
        from = page.next;
        if from.is_none() {
            return Ok(());
        }
    }
}
