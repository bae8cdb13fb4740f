//! `tenure queue delete`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_queue::{Queue, QueueError};

use super::or_interrupted;
use crate::cmd::confirm::confirm;
use crate::config::Config;
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Delete a queue with all its tasks and schedules
#[derive(Debug, Args)]
#[command(
    after_help = "Submissions are rejected from the start, workers of the queue stop, and running attempts are cancelled when they\n\
    extend their claim. Takes at least five seconds, so that submissions in progress are deleted too. After an\n\
    interruption, run the command again to finish.\n\n\
    The keyspace queue.NAME, by which workers share the shards, is deleted from the cluster too.\n\n\
    Examples:\n  tenure queue delete mails\n  \
    tenure queue delete mails --yes --json"
)]
pub(super) struct Delete {
    /// Queue name
    queue: String,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Delete {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let cluster = connect::named_cluster(config)?;
        let store = connect::open_store(config).await?;
        let name = &self.queue;
        let question = match Queue::open(store.clone(), cluster.as_str(), name).await {
            Ok(queue) => {
                let stats = queue.stats().await?;
                let tasks = stats.ready + stats.delayed + stats.running + stats.done + stats.dead;
                Some(format!(
                    "queue {name} with {tasks} tasks ({} not finished) will be deleted",
                    stats.ready + stats.delayed + stats.running
                ))
            }
            // What is left of a queue that was deleted before needs no second confirmation.
            Err(QueueError::Deleted(_) | QueueError::NoQueue { .. }) => None,
            Err(QueueError::Corrupt { .. }) => Some(format!(
                "queue {name}, whose record cannot be read, will be deleted with all its tasks"
            )),
            Err(e) => return Err(e.into()),
        };
        if let Some(question) = question {
            confirm(self.yes, &question)?;
        }
        let work = async {
            match tenure_queue::delete(store, cluster.as_str(), name).await {
                Err(QueueError::NoQueue { queue, cluster, .. }) => Err(Exit::failed(format!(
                    "there is no queue {queue:?} in cluster {cluster:?}"
                ))),
                deleted => Ok(deleted?),
            }
        };
        let left = || format!("queue {name} is partly deleted; run the command again to finish");
        let deleted = or_interrupted(work, left).await?;
        eprintln!(
            "queue {name} deleted: {} tasks, {} schedules",
            deleted.tasks, deleted.schedules
        );
        if self.json {
            stdout::json(&json!({
                "queue": name, "tasks": deleted.tasks, "schedules": deleted.schedules,
            }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
