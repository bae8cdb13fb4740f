//! `tenure task show` and `wait`.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure_queue::task::TaskEvent;
use tenure_queue::{QueueError, Task, TaskId, TaskState};

use super::print_result;
use crate::cmd::queue::{open, or_interrupted, task_id};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;
use crate::table::cut;

/// Show a task and its history
#[derive(Debug, Args)]
#[command(
    after_help = "With --result, prints the result alone; the exit code is 1 if the task is not done.\n\n\
    Examples:\n  tenure task show mails k-welcome-bob\n  \
    tenure task show mails k-welcome-bob --json"
)]
pub(super) struct Show {
    /// Queue name
    queue: String,
    /// Task id
    #[arg(value_parser = task_id)]
    task: TaskId,
    /// Print the result alone
    #[arg(long, conflicts_with = "json")]
    result: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Wait until a task has ended, and print its result
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code 0 if the task is done; 1 if it is dead, cancelled, or has not ended in time.\n\n\
    Examples:\n  tenure task wait sums t0199a2b3c4d-5e6f708192a3b4c5 --wait-timeout 1m"
)]
pub(super) struct WaitCommand {
    /// Queue name
    queue: String,
    /// Task id
    #[arg(value_parser = task_id)]
    task: TaskId,
    /// Maximum time to wait; 0s: do not wait [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    wait_timeout: Option<Duration>,
    /// Print the whole task as JSON instead of the result
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let task = queue.get(&self.task).await?;
        match (self.json, self.result) {
            (true, _) => stdout::json(&task),
            (_, true) => return print_result(&task, true),
            _ => stdout::text(&text(&task)),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl WaitCommand {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let (id, limit) = (&self.task, self.wait_timeout.unwrap_or(Duration::MAX));
        let work = async {
            match queue.wait(id, limit).await {
                Err(QueueError::StillGoing { is, .. }) if limit.is_zero() => {
                    Err(Exit::failed(format!("task {id} has not ended: it is {is}")))
                }
                task => Ok(task?),
            }
        };
        let task = or_interrupted(work, || format!("task {id} continues")).await?;
        if self.json {
            stdout::json(&task);
        }
        print_result(&task, !self.json)
    }
}

fn text(task: &Task) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<17}{value}");
    };
    line("task", task.id.as_str());
    line("state", &state(task));
    line(
        "attempts",
        &format!("{} of {}", task.attempts, task.retry.max_attempts),
    );
    line("created", &task.created.to_string());
    line("priority", &task.priority.to_string());
    if let Some(timeout) = task.attempt_timeout {
        line("attempt timeout", &duration::show(timeout));
    }
    line("claim timeout", &duration::show(task.claim_timeout));
    if let Some(key) = &task.key {
        line("idempotency key", key);
    }
    for (name, value) in &task.metadata {
        line("metadata", &format!("{name}={value}"));
    }
    line("payload", &shown(&task.payload.to_bytes()));
    if let Some(result) = task.result() {
        line("result", &shown(&result.to_bytes()));
    }
    line("history", "");
    for (n, event) in task.history.iter().enumerate() {
        if n == 1 && task.dropped_events > 0 {
            let _ = writeln!(text, "  … {} events omitted", task.dropped_events);
        }
        let _ = writeln!(text, "  {}", event_line(event));
    }
    text
}

fn state(task: &Task) -> String {
    match &task.state {
        TaskState::Ready { due } => format!("ready, due {due}"),
        TaskState::Running(running) => {
            let cancel = if running.cancel {
                ", cancellation requested"
            } else {
                ""
            };
            let progress = running.progress.as_ref().map(|progress| {
                let percent = progress.permille.map(|p| format!("{}% ", p / 10));
                format!(", {}{}", percent.unwrap_or_default(), progress.note)
            });
            format!(
                "running on {} since {}, claimed until {}{cancel}{}",
                running.worker,
                running.since,
                running.expires,
                progress.unwrap_or_default()
            )
        }
        TaskState::Done { at, .. } => format!("done {at}"),
        TaskState::Dead { at, reason } => format!("dead {at}: {reason}"),
        TaskState::Cancelled { at } => format!("cancelled {at}"),
    }
}

fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    cut(&text.escape_debug().to_string(), 1000)
}

/// Formats an event on one line.
pub(super) fn event_line(event: &TaskEvent) -> String {
    let kind = serde_json::to_value(event.event).unwrap_or_default();
    let mut line = format!("{}  {:<12}", event.at, kind.as_str().unwrap_or_default());
    if let Some(attempt) = event.attempt {
        let _ = write!(line, "  attempt {attempt}");
    }
    if let Some(by) = &event.by {
        let _ = write!(line, "  by {by}");
    }
    if let Some(note) = &event.note {
        let _ = write!(line, "  {}", note.escape_debug());
    }
    line
}
