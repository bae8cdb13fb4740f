//! `tenure queue`: task queues of a cluster.
//!
//! | file | content |
//! |---|---|
//! | `create.rs` | create, update |
//! | `list.rs` | list, show |
//! | `stats.rs` | stats |
//! | `operator_actions.rs` | pause, resume, purge, repair-index |
//! | `delete.rs` | delete |
//! | `pipe/` | JSON lines for client libraries |
//!
//! Commands for tasks are in `cmd/task`, schedules in `cmd/schedule.rs`, workers in `cmd/worker`. They share the helpers of
//! this file.

mod create;
mod delete;
mod list;
mod operator_actions;
mod pipe;
mod stats;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use tenure_queue::{Queue, TaskId};
use tenure_store::machine_identity::MachineIdentity;

use super::exec::{Signals, Waited};
use crate::cli::Global;
use crate::config::Config;
use crate::config::settings_table::SettingDefinition;
use crate::connect;
use crate::exit::Exit;

/// Manage task queues: create, list, update, pause, delete
#[derive(Debug, Args)]
#[command(
    after_help = "Tasks are managed by `tenure task`, recurring tasks by `tenure schedule`, and executed by `tenure worker`.\n\n\
    Examples:\n  \
    tenure queue create mails\n  \
    tenure queue stats mails\n  \
    tenure queue update mails --max-attempts 10"
)]
pub(crate) struct QueueCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(list::List),
    Show(list::Show),
    Create(create::Create),
    Update(create::Update),
    Delete(delete::Delete),
    Stats(stats::StatsCommand),
    Pause(operator_actions::Pause),
    Resume(operator_actions::Resume),
    Purge(operator_actions::PurgeCommand),
    RepairIndex(operator_actions::RepairIndex),
    Pipe(pipe::PipeCommand),
}

impl QueueCommand {
    pub(crate) fn config(&self, global: &Global) -> Result<Config, Exit> {
        match &self.action {
            Action::Pipe(pipe) => global.load(pipe.flags.0.clone(), SettingDefinition::is_workers),
            _ => global.load(Default::default(), |_| false),
        }
    }

    pub(crate) async fn run(self, config: &Config) -> Result<ExitCode, Exit> {
        match self.action {
            Action::List(action) => action.run(config).await,
            Action::Show(action) => action.run(config).await,
            Action::Create(action) => action.run(config).await,
            Action::Update(action) => action.run(config).await,
            Action::Delete(action) => action.run(config).await,
            Action::Stats(action) => action.run(config).await,
            Action::Pause(action) => action.run(config).await,
            Action::Resume(action) => action.run(config).await,
            Action::Purge(action) => action.run(config).await,
            Action::RepairIndex(action) => action.run(config).await,
            Action::Pipe(action) => action.run(config).await,
        }
    }
}

/// Opens an existing queue.
pub(super) async fn open(config: &Config, name: &str) -> Result<Queue, Exit> {
    let cluster = connect::named_cluster(config)?;
    let store = connect::open_store(config).await?;
    Ok(Queue::open(store, cluster.as_str(), name).await?)
}

/// Name of the caller, as recorded in the history of a task.
pub(super) fn caller() -> String {
    let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
    let host = MachineIdentity::this().name;
    format!("{}@{host}", user.as_deref().unwrap_or("unknown"))
}

/// Waits for `work`, or until Ctrl-C or SIGTERM: then fails with the state that `left` reports.
pub(super) async fn or_interrupted<T>(
    work: impl Future<Output = Result<T, Exit>>,
    left: impl FnOnce() -> String,
) -> Result<T, Exit> {
    let mut signals = Signals::new()?;
    match signals.or(work).await {
        Waited::Done(done) => done,
        Waited::Signal => Err(Exit::failed(format!("interrupted: {}", left()))),
    }
}

pub(super) fn task_id(text: &str) -> Result<TaskId, String> {
    TaskId::new(text).map_err(|e| e.to_string())
}

/// Parses `NAME=VALUE`.
pub(super) fn metadata(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not metadata; write NAME=VALUE")),
    }
}
