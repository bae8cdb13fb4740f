//! `tenure queue tail`: what happens to tasks, as it happens.

use std::collections::HashMap;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_queue::{Queue, StoreTime, Task, TaskId};
use tenure_store::Change;

use super::show::event_line;
use super::{open, task_id};
use crate::cmd::exec::{Signals, Waited};
use crate::config::Config;
use crate::exit::Exit;
use crate::stdout;

/// How many tasks that have not ended are remembered, so that no event is shown twice.
const REMEMBERED: usize = 100_000;

/// Follow what happens to the tasks of a queue
#[derive(Debug, Args)]
#[command(
    after_help = "Ends with Ctrl-C. A task carries its history: what happened between two looks is shown too. Where the store\n\
    has no changes to follow, as in a bucket, it is looked through again and again: that is paid for.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop queue tail mails\n  \
    tenure --store sqlite:shop.db --cluster shop queue tail mails --json | jq 'select(.event == \"failed\")'"
)]
pub(super) struct Tail {
    /// The queue
    queue: String,
    /// Only this task
    #[arg(long, value_name = "ID", value_parser = task_id)]
    task: Option<TaskId>,
    /// Print JSON, one event on each line
    #[arg(long)]
    json: bool,
}

impl Tail {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let mut signals = Signals::new()?;
        match signals.or(self.follow(&queue)).await {
            Waited::Signal => Ok(ExitCode::SUCCESS),
            Waited::Done(failed) => Err(failed),
        }
    }

    async fn follow(&self, queue: &Queue) -> Exit {
        match self.follow_until_it_fails(queue).await {
            Ok(never) => match never {},
            Err(fail) => fail,
        }
    }

    async fn follow_until_it_fails(&self, queue: &Queue) -> Result<std::convert::Infallible, Exit> {
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
        eprintln!("following queue {}", queue.name());
        loop {
            let mut watch = store.watch(&prefix, from).await?;
            // A watch may end: the next one goes on where it stood.
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
                    value["state"] = json!(task.is());
                    stdout::json_line(&value);
                }
                false => stdout::line(format!("{}  {}", event_line(event), task.id)),
            }
        }
    }
}

/// What was shown already.
struct Shown {
    /// Events before this were not asked for.
    since: StoreTime,
    /// How many events of a task were there when it was shown last.
    events: HashMap<TaskId, u64>,
}

impl Shown {
    /// The events of a task that were not shown, by their place in its history.
    fn fresh(&mut self, task: &Task) -> Vec<usize> {
        let all = task.history.len() as u64 + task.forgotten;
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
        match task.is().is_final() && known.is_some() {
            // It comes back at most once more, and then as a whole: `since` keeps most of it away.
            true if self.events.len() > REMEMBERED => drop(self.events.remove(&task.id)),
            _ => drop(self.events.insert(task.id.clone(), all)),
        }
        fresh
    }
}
