//! `tenure queue ls`: the tasks of a queue, or the queues of a cluster.

use std::process::ExitCode;

use clap::Args;
use tenure_queue::{Filter, Queue, State, StoreTime, Task, TaskStatus};

use super::{meta, open, or_interrupted};
use crate::cluster_client;
use crate::config::Config;
use crate::exit::Exit;
use crate::stdout;
use crate::table::{Table, cut};

/// How many tasks are asked for at once.
const PAGE: usize = 500;

/// List the tasks of a queue, or without one the queues of the cluster
#[derive(Debug, Args)]
#[command(
    after_help = "With --json, one line per task with all of it, its history included. Tasks that cannot be read are named on\n\
    standard error; the exit code is then 1.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop queue ls\n  \
    tenure --store sqlite:shop.db --cluster shop queue ls mails --state dead --state running\n  \
    tenure --store sqlite:shop.db --cluster shop queue ls mails --meta user=42 --all --json"
)]
pub(super) struct Ls {
    /// The queue
    queue: Option<String>,
    /// Only tasks in this state: ready, running, done, dead or cancelled; may be given several times
    #[arg(long = "state", value_name = "STATE", value_parser = state)]
    states: Vec<TaskStatus>,
    /// Only tasks with this metadata; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = meta)]
    meta: Vec<(String, String)>,
    /// Only tasks that were submitted at this time or later
    #[arg(long, value_name = "TIME")]
    since: Option<StoreTime>,
    /// Only tasks that were submitted before this time
    #[arg(long, value_name = "TIME")]
    before: Option<StoreTime>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// All of them
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn state(text: &str) -> Result<TaskStatus, String> {
    let found = TaskStatus::ALL.into_iter().find(|is| is.as_str() == text);
    found.ok_or_else(|| {
        let names: Vec<_> = TaskStatus::ALL.iter().map(|is| is.as_str()).collect();
        format!("{text:?} is no state; known are {}", names.join(", "))
    })
}

impl Ls {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let Some(name) = &self.queue else {
            return self.queues(config).await;
        };
        let queue = open(config, name).await?;
        let filter = Filter {
            states: self.states.clone(),
            metadata: self.meta.iter().cloned().collect(),
            created_from: self.since,
            created_before: self.before,
        };
        let left = || "the list is not complete".to_owned();
        or_interrupted(self.tasks(&queue, &filter), left).await
    }

    async fn queues(&self, config: &Config) -> Result<ExitCode, Exit> {
        let cluster = cluster_client::named_cluster(config)?;
        let store = cluster_client::open_store(config).await?;
        for name in Queue::names(&*store, cluster.as_str()).await? {
            if !self.json {
                stdout::line(name.as_str());
                continue;
            }
            let queue = Queue::open(store.clone(), cluster.as_str(), name.as_str()).await?;
            stdout::json_line(&serde_json::json!({
                "queue": name, "settings": queue.settings(), "paused": queue.is_paused(),
            }));
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn tasks(&self, queue: &Queue, filter: &Filter) -> Result<ExitCode, Exit> {
        let most = if self.all { usize::MAX } else { self.limit };
        let mut table = Table::new(&["TASK", "STATE", "#TRIES", "#AGE", "WHAT"]);
        let now = queue.now().await?;
        let (mut from, mut count, mut corrupt) = (None, 0, 0);
        loop {
            let page = queue
                .list(filter, PAGE.min(most - count).max(1), from.as_deref())
                .await?;
            for (key, why) in page.corrupt {
                eprintln!("warning: {key} is corrupt: {why}");
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
            // Ids are there to be copied: no column is cut but the last.
            stdout::text(&table.render(usize::MAX));
        }
        if from.is_some() {
            eprintln!("there may be more; --all shows them");
        }
        match corrupt {
            0 => Ok(ExitCode::SUCCESS),
            corrupt => Err(Exit::failed(format!(
                "{corrupt} tasks cannot be read; look at them, then remove their keys"
            ))),
        }
    }
}

/// How much of what a task left, or died of, is shown.
const WHAT: usize = 24;

fn row(task: &Task, now: StoreTime) -> Vec<String> {
    let (since, what) = match &task.state {
        State::Ready { due } => (*due, "due".to_owned()),
        State::Running(running) => {
            let note = running.progress.as_ref().map(|progress| {
                let permille = progress.permille.map(|p| format!(" {}%", p / 10));
                format!("{} {}", permille.unwrap_or_default(), progress.note)
            });
            let by = format!("on {}{}", running.worker, note.unwrap_or_default());
            (running.since, by)
        }
        State::Done { at, result, .. } => {
            let text = String::from_utf8_lossy(&result.to_bytes()).into_owned();
            (*at, text.lines().next().unwrap_or("").to_owned())
        }
        State::Dead { at, why } => (*at, why.lines().next().unwrap_or("").to_owned()),
        State::Cancelled { at } => (*at, String::new()),
    };
    vec![
        task.id.to_string(),
        task.is().to_string(),
        format!("{}/{}", task.attempts, task.retry.attempts),
        age(now, since),
        cut(&what, WHAT),
    ]
}

/// How long ago something was, or how long it is until then, in the greatest unit that fits.
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
    fn ages_are_told_in_the_greatest_unit_that_fits() {
        let at = StoreTime::from_millis(1_000_000_000_000);
        for (seconds, wanted) in [(5, "5s"), (180, "3m"), (10_800, "3h"), (300_000, "3d")] {
            let later = at.plus(std::time::Duration::from_secs(seconds));
            assert_eq!(age(later, at), wanted);
            assert_eq!(age(at, later), format!("in {wanted}"));
        }
    }
}
