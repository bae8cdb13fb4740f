//! `tenure task list`: the tasks of a queue.

use std::process::ExitCode;

use clap::Args;
use tenure_queue::{Filter, Queue, StoreTime, Task, TaskState, TaskStatus};

use crate::cmd::queue::{metadata, open, or_interrupted};
use crate::config::Config;
use crate::exit::Exit;
use crate::stdout;
use crate::table::{Table, cut};

/// Number of tasks read at once.
const PAGE: usize = 500;

/// List the tasks of a queue
#[derive(Debug, Args)]
#[command(
    after_help = "With --json, one task per line, with payload and history. Tasks that cannot be read are reported on standard\n\
    error; the exit code is then 1.\n\n\
    Examples:\n  tenure task list mails --state dead --state running\n  \
    tenure task list mails --metadata user=42 --all --json"
)]
pub(super) struct List {
    /// Queue name
    queue: String,
    /// Only tasks in this state: ready, running, done, dead or cancelled; repeat to list several states
    #[arg(long = "state", value_name = "STATE", value_parser = state)]
    states: Vec<TaskStatus>,
    /// Only tasks with this metadata; repeat to require several
    #[arg(long, value_name = "NAME=VALUE", value_parser = metadata)]
    metadata: Vec<(String, String)>,
    /// Only tasks submitted at this time or later
    #[arg(long, value_name = "TIME")]
    since: Option<StoreTime>,
    /// Only tasks submitted before this time
    #[arg(long, value_name = "TIME")]
    before: Option<StoreTime>,
    /// Maximum number of tasks
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// List all tasks, without a limit
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn state(text: &str) -> Result<TaskStatus, String> {
    let found = TaskStatus::ALL.into_iter().find(|is| is.as_str() == text);
    found.ok_or_else(|| {
        let names: Vec<_> = TaskStatus::ALL.iter().map(|is| is.as_str()).collect();
        format!(
            "{text:?} is not a state; expected one of {}",
            names.join(", ")
        )
    })
}

impl List {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let filter = Filter {
            states: self.states.clone(),
            metadata: self.metadata.iter().cloned().collect(),
            created_from: self.since,
            created_before: self.before,
        };
        let left = || "the list is not complete".to_owned();
        or_interrupted(self.tasks(&queue, &filter), left).await
    }

    async fn tasks(&self, queue: &Queue, filter: &Filter) -> Result<ExitCode, Exit> {
        let most = if self.all { usize::MAX } else { self.limit };
        let mut table = Table::new(&["TASK", "STATE", "#ATTEMPTS", "#AGE", "DETAIL"]);
        let now = queue.now().await?;
        let (mut from, mut count, mut corrupt) = (None, 0, 0);
        loop {
            let page = queue
                .list(filter, PAGE.min(most - count).max(1), from.as_deref())
                .await?;
            for (key, reason) in page.corrupt {
                eprintln!("warning: {key} is corrupt: {reason}");
                corrupt += 1;
            }
            for task in page.tasks.iter().take(most - count) {
                match self.json {
                    true => stdout::json_line(task),
                    false => table.row(row(task, now)),
                }
                count += 1;
            }
            from = page.next;
            if from.is_none() || count >= most {
                break;
            }
        }
        if !self.json {
            // Ids are there to be copied: only the last column is shortened.
            stdout::text(&table.render(usize::MAX));
        }
        if from.is_some() {
            eprintln!("there may be more tasks; use --all to list them");
        }
        match corrupt {
            0 => Ok(ExitCode::SUCCESS),
            corrupt => Err(Exit::failed(format!(
                "{corrupt} tasks cannot be read; inspect them, then delete their keys"
            ))),
        }
    }
}

/// Maximum length of the last column: the result, or the reason of a failure.
const DETAIL: usize = 24;

fn row(task: &Task, now: StoreTime) -> Vec<String> {
    let (since, detail) = match &task.state {
        TaskState::Ready { due } => (*due, "due".to_owned()),
        TaskState::Running(running) => {
            let note = running.progress.as_ref().map(|progress| {
                let permille = progress.permille.map(|p| format!(" {}%", p / 10));
                format!("{} {}", permille.unwrap_or_default(), progress.note)
            });
            let by = format!("on {}{}", running.worker, note.unwrap_or_default());
            (running.since, by)
        }
        TaskState::Done { at, result, .. } => {
            let text = String::from_utf8_lossy(&result.to_bytes()).into_owned();
            (*at, text.lines().next().unwrap_or("").to_owned())
        }
        TaskState::Dead { at, reason } => (*at, reason.lines().next().unwrap_or("").to_owned()),
        TaskState::Cancelled { at } => (*at, String::new()),
    };
    vec![
        task.id.to_string(),
        task.status().to_string(),
        format!("{}/{}", task.attempts, task.retry.max_attempts),
        age(now, since),
        cut(&detail, DETAIL),
    ]
}

/// Formats the time since or until `at`, in the largest unit that fits.
fn age(now: StoreTime, at: StoreTime) -> String {
    let (ahead, time) = match at > now {
        true => ("in ", at.since(now)),
        false => ("", now.since(at)),
    };
    let seconds = time.as_secs();
    let text = match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    };
    format!("{ahead}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_use_the_largest_unit_that_fits() {
        let at = StoreTime::from_millis(1_000_000_000_000);
        for (seconds, wanted) in [(5, "5s"), (180, "3m"), (10_800, "3h"), (300_000, "3d")] {
            let later = at.plus(std::time::Duration::from_secs(seconds));
            assert_eq!(age(later, at), wanted);
            assert_eq!(age(at, later), format!("in {wanted}"));
        }
    }
}
