//! `tenure task watch`: events of tasks as they occur.

use std::collections::HashMap;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_queue::{Queue, StoreTime, Task, TaskId};
use tenure_store::Change;

use super::show::event_line;
use crate::cmd::exec::{Signals, Waited};
use crate::cmd::queue::{open, task_id};
use crate::config::Config;
use crate::exit::Exit;
use crate::stdout;

/// Maximum number of unfinished tasks whose number of printed events is remembered.
const REMEMBERED: usize = 100_000;

/// Print the events of the tasks of a queue as they occur
#[derive(Debug, Args)]
#[command(
    after_help = "Runs until Ctrl-C. Events come from the history of each task, so none is missed between two reads. Stores without\n\
    change notifications, such as S3, are polled, which costs requests.\n\n\
    Examples:\n  tenure task watch mails\n  \
    tenure task watch mails --json | jq 'select(.event == \"failed\")'"
)]
pub(super) struct WatchCommand {
    /// Queue name
    queue: String,
    /// Only events of this task
    #[arg(long, value_name = "ID", value_parser = task_id)]
    task: Option<TaskId>,
    /// Print JSON, one event per line
    #[arg(long)]
    json: bool,
}

impl WatchCommand {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let mut signals = Signals::new()?;
        match signals.or(self.follow(&queue)).await {
            Waited::Signal => Ok(ExitCode::SUCCESS),
            Waited::Done(failed) => Err(failed),
        }
    }

    async fn follow(&self, queue: &Queue) -> Exit {
        match self.follow_until_error(queue).await {
            Ok(never) => match never {},
            Err(fail) => fail,
        }
    }

    async fn follow_until_error(&self, queue: &Queue) -> Result<std::convert::Infallible, Exit> {
        let mut shown = Shown {
            since: queue.now().await?,
            events: HashMap::new(),
        };
        let (layout, store) = (queue.layout(), queue.store());
        let prefix = match &self.task {
            Some(id) => layout.task(id),
            None => format!("{}tasks/", layout.root()),
        };
        let mut from = store.revision().await?;
        eprintln!("watching queue {}", queue.name());
        loop {
            let mut watch = store.watch(&prefix, from).await?;
            // A watch may end: the next one continues from the same revision.
            while let Ok(batch) = watch.next().await {
                for change in batch.changes {
                    if let Change::Put(put) = change
                        && let Ok(task) = serde_json::from_slice::<Task>(&put.value)
                    {
                        self.show(&task, &mut shown);
                    }
                }
                from = batch.upto;
            }
        }
    }

    fn show(&self, task: &Task, shown: &mut Shown) {
        for event in shown.fresh(task) {
            let event = &task.history[event];
            match self.json {
                true => {
                    let mut value = serde_json::to_value(event).unwrap_or_default();
                    value["task"] = json!(task.id);
                    value["state"] = json!(task.status());
                    stdout::json_line(&value);
                }
                false => stdout::line(format!("{}  {}", event_line(event), task.id)),
            }
        }
    }
}

/// Events already printed.
struct Shown {
    /// Start of the watch: earlier events are not printed.
    since: StoreTime,
    /// Number of events of a task when it was printed last.
    events: HashMap<TaskId, u64>,
}

impl Shown {
    /// Returns the events of a task that are not printed yet, by their position in its history.
    fn fresh(&mut self, task: &Task) -> Vec<usize> {
        let all = task.history.len() as u64 + task.dropped_events;
        let known = self.events.get(&task.id).copied();
        let fresh = match known {
            Some(known) => {
                let count = all.saturating_sub(known).min(task.history.len() as u64);
                (task.history.len() - count as usize..task.history.len()).collect()
            }
            None => {
                let recent = |n: &usize| task.history[*n].at >= self.since;
                (0..task.history.len()).filter(recent).collect()
            }
        };
        match task.status().is_final() && known.is_some() {
            // A finished task changes at most once more; `since` then excludes most of its history.
            true if self.events.len() > REMEMBERED => drop(self.events.remove(&task.id)),
            _ => drop(self.events.insert(task.id.clone(), all)),
        }
        fresh
    }
}
