//! `tenure keyspace`: making, showing, setting, removing and raising sets of shards.

mod create;
pub(crate) mod generation;
mod list;
mod raise;
mod rm;
mod set;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::cli::Global;
use crate::config::Config;
use crate::exit::Exit;

/// Create, list, show, set, remove or raise keyspaces
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tenure --store sqlite:shop.db --cluster shop keyspace create orders --shards 64\n  \
    tenure --store sqlite:shop.db keyspace ls\n  \
    tenure --store sqlite:shop.db --cluster shop keyspace rm orders --yes")]
pub(crate) struct Keyspace {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(create::Create),
    Ls(list::Ls),
    Show(list::Show),
    Set(set::Set),
    Rm(rm::Rm),
    Raise(raise::Raise),
}

impl Keyspace {
    pub(crate) fn config(&self, global: &Global) -> Result<Config, Exit> {
        global.load(match &self.action {
            Action::Create(action) => action.flags.0.clone(),
            Action::Set(action) => action.flags.0.clone(),
            _ => Default::default(),
        })
    }

    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        match &self.action {
            Action::Create(action) => action.run(config).await,
            Action::Ls(action) => action.run(config).await,
            Action::Show(action) => action.run(config).await,
            Action::Set(action) => action.run(config).await,
            Action::Rm(action) => action.run(config).await,
            Action::Raise(action) => action.run(config).await,
        }
    }
}
