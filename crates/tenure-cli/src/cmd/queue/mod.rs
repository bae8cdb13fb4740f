//! `tenure queue`: tasks that are submitted, worked on and looked at, on any store.
//!
//! | file | what |
//! |---|---|
//! | `create.rs` | queues: create, set, and their list |
//! | `task_json.rs` | a task to be submitted, as a line of JSON has it |
//! | `submit.rs` | tasks from arguments, a file, or many lines |
//! | `ls.rs`, `show.rs`, `stats.rs`, `tail.rs` | looking |
//! | `operate.rs` | cancel, retry, pause, resume, purge, rebuild-index |
//! | `schedule.rs` | recurring tasks |
//! | `work/` | a program per task |
//! | `pipe/` | clients of other languages |

mod create;
mod ls;
mod operate;
mod pipe;
mod schedule;
mod show;
mod stats;
mod submit;
mod tail;
mod task_json;
mod work;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use tenure_queue::{Queue, QueueError, TaskId};
use tenure_store::StoreError;
use tenure_store::host::Host;

use super::exec::{Signals, Waited};
use crate::cli::Global;
use crate::cluster_client;
use crate::config::Config;
use crate::exit::Exit;

/// Submit tasks, work on them and look after them: a queue that needs nothing but a store
#[derive(Debug, Args)]
#[command(
    after_help = "A task is handled at least once and finished exactly once. docs/queue-cli.md tells the rest.\n\n\
    Examples:\n  \
    tenure --store sqlite:shop.db --cluster shop queue create mails\n  \
    tenure --store sqlite:shop.db --cluster shop queue submit mails 'hello' --wait 30s\n  \
    tenure --store sqlite:shop.db --cluster shop queue work mails --concurrency 4 --exec ./send-mail\n  \
    tenure --store sqlite:shop.db --cluster shop queue ls mails --state dead"
)]
pub(crate) struct QueueCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(create::Create),
    Set(create::Set),
    Submit(submit::SubmitCommand),
    Work(work::Work),
    Ls(ls::Ls),
    Show(show::Show),
    Cancel(operate::Cancel),
    Retry(operate::RetryCommand),
    Stats(stats::StatsCommand),
    Tail(tail::Tail),
    Schedule(schedule::ScheduleCommand),
    Purge(operate::PurgeCommand),
    RebuildIndex(operate::RebuildIndex),
    Pause(operate::Pause),
    Resume(operate::Resume),
    Pipe(pipe::Pipe),
}

impl QueueCommand {
    pub(crate) fn config(&self, global: &Global) -> Result<Config, Exit> {
        global.load(
            match &self.action {
                Action::Work(work) => work.flags.0.clone(),
                Action::Pipe(pipe) => pipe.flags.0.clone(),
                _ => Default::default(),
            },
            crate::config::settings_table::Knob::is_workers,
        )
    }

    pub(crate) async fn run(self, config: &Config) -> Result<ExitCode, Exit> {
        match self.action {
            Action::Create(action) => action.run(config).await,
            Action::Set(action) => action.run(config).await,
            Action::Submit(action) => action.run(config).await,
            Action::Work(action) => action.run(config).await,
            Action::Ls(action) => action.run(config).await,
            Action::Show(action) => action.run(config).await,
            Action::Cancel(action) => action.run(config).await,
            Action::Retry(action) => action.run(config).await,
            Action::Stats(action) => action.run(config).await,
            Action::Tail(action) => action.run(config).await,
            Action::Schedule(action) => action.run(config).await,
            Action::Purge(action) => action.run(config).await,
            Action::RebuildIndex(action) => action.run(config).await,
            Action::Pause(action) => action.run(config).await,
            Action::Resume(action) => action.run(config).await,
            Action::Pipe(action) => action.run(config).await,
        }
    }
}

/// The queue of this name, which must be there.
async fn open(config: &Config, name: &str) -> Result<Queue, Exit> {
    let cluster = cluster_client::named_cluster(config)?;
    let store = cluster_client::open_store(config).await?;
    Ok(Queue::open(store, cluster.as_str(), name).await?)
}

/// Who asks for something, as the history of a task has it.
fn asker() -> String {
    let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
    let host = Host::this().name;
    format!("{}@{host}", user.as_deref().unwrap_or("somebody"))
}

/// Waits for `work`, or until Ctrl-C or SIGTERM: then says what stands as it is.
async fn or_interrupted<T>(
    work: impl Future<Output = Result<T, Exit>>,
    left: impl FnOnce() -> String,
) -> Result<T, Exit> {
    let mut signals = Signals::new()?;
    match signals.or(work).await {
        Waited::Done(done) => done,
        Waited::Signal => Err(Exit::failed(format!("interrupted: {}", left()))),
    }
}

fn task_id(text: &str) -> Result<TaskId, String> {
    TaskId::new(text).map_err(|e| e.to_string())
}

/// Reads `NAME=VALUE`.
fn meta(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is no metadata; write NAME=VALUE")),
    }
}

impl From<QueueError> for Exit {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Invalid(problems) => Self::usage(problems.join("\n")),
            QueueError::Store(StoreError::Denied { why }) => Self::usage(why),
            QueueError::NoQueue { ref queue, .. } => {
                Self::failed(format!("{error}: `tenure queue create {queue}`"))
            }
            QueueError::Corrupt { key, why } => Self::failed(format!(
                "key {key:?} is corrupt: {why}; `tenure queue rebuild-index` reports all such keys, and removing the \
                 key is safe"
            )),
            other => Self::failed(other.to_string()),
        }
    }
}
