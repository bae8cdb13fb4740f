//! `tenure queue show`: a task with its history.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure_queue::task::Event;
use tenure_queue::{State, Task, TaskId};

use super::submit::finish;
use super::{open, or_interrupted, task_id};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;
use crate::table::cut;

/// Show a task with its history, now or when it has ended
#[derive(Debug, Args)]
#[command(
    after_help = "With --wait, the exit code is 0 if the task is done, and 1 if it ended otherwise or not in time.\n\
    With --result, only the result goes to standard output.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop queue show mails k-welcome-bob\n  \
    tenure --store sqlite:shop.db --cluster shop queue show sums t0199a2b3c4d-5e6f708192a3b4c5 --wait 1m --result"
)]
pub(super) struct Show {
    /// The queue
    queue: String,
    /// The task
    #[arg(value_parser = task_id)]
    task: TaskId,
    /// Wait until it has ended, for so long at most
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Print the result alone
    #[arg(long, conflicts_with = "json")]
    result: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let id = &self.task;
        let task = match self.wait {
            None => queue.get(id).await?,
            Some(limit) => {
                let work = async { Ok(queue.wait(id, limit).await?) };
                or_interrupted(work, || format!("task {id} goes on")).await?
            }
        };
        match (self.json, self.result) {
            (true, _) => stdout::json(&task),
            (_, true) => {}
            _ => stdout::text(&told(&task)),
        }
        match self.wait.is_some() || self.result {
            true => finish(&task, self.result),
            false => Ok(ExitCode::SUCCESS),
        }
    }
}

fn told(task: &Task) -> String {
    let mut text = format!("task      {}\n", task.id);
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<10}{value}");
    };
    line("state", &standing(task));
    line(
        "tries",
        &format!("{} of {}", task.attempts, task.retry.attempts),
    );
    line("created", &task.created.to_string());
    line("priority", &task.priority.to_string());
    if let Some(timeout) = task.timeout {
        line("timeout", &duration::show(timeout));
    }
    line("lease", &duration::show(task.lease));
    if let Some(key) = &task.key {
        line("key", key);
    }
    for (name, value) in &task.metadata {
        line("meta", &format!("{name}={value}"));
    }
    line("payload", &shown(&task.payload.to_bytes()));
    if let Some(result) = task.result() {
        line("result", &shown(&result.to_bytes()));
    }
    line("history", "");
    for (n, event) in task.history.iter().enumerate() {
        if n == 1 && task.forgotten > 0 {
            let _ = writeln!(text, "  … {} events left out", task.forgotten);
        }
        let _ = writeln!(text, "  {}", event_line(event));
    }
    text
}

fn standing(task: &Task) -> String {
    match &task.state {
        State::Ready { due } => format!("ready, due {due}"),
        State::Running(running) => {
            let cancel = if running.cancel {
                ", to be cancelled"
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
        State::Done { at, .. } => format!("done {at}"),
        State::Dead { at, why } => format!("dead {at}: {why}"),
        State::Cancelled { at } => format!("cancelled {at}"),
    }
}

fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    cut(&text.escape_debug().to_string(), 1000)
}

/// An event on one line.
pub(super) fn event_line(event: &Event) -> String {
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
