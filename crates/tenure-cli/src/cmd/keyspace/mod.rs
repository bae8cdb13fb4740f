//! `tenure keyspace`: sets of shards, their planning and their generations.

mod bump_generation;
mod create;
mod delete;
mod list;
mod plan;
mod rebalance;
mod update;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::cli::Global;
use crate::config::Config;
use crate::config::settings_table::SettingDefinition;
use crate::exit::Exit;

/// Create, plan, update and delete keyspaces
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tenure keyspace create orders --shards 64\n  tenure keyspace list\n  \
    tenure keyspace plan orders --what-if 'remove n3'\n  tenure keyspace delete orders --yes")]
pub(crate) struct KeyspaceCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(list::List),
    Show(list::Show),
    Create(create::Create),
    Update(update::Update),
    Delete(delete::Delete),
    Plan(plan::PlanCommand),
    Rebalance(rebalance::Rebalance),
    BumpGeneration(bump_generation::BumpGeneration),
}

impl KeyspaceCommand {
    pub(crate) fn config(&self, global: &Global) -> Result<Config, Exit> {
        match &self.action {
            Action::Create(action) => {
                global.load(action.flags.0.clone(), SettingDefinition::is_plan)
            }
            Action::Update(action) => {
                global.load(action.flags.0.clone(), SettingDefinition::is_plan)
            }
            _ => global.load(Default::default(), SettingDefinition::is_operators),
        }
    }

    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        match &self.action {
            Action::List(action) => action.run(config).await,
            Action::Show(action) => action.run(config).await,
            Action::Create(action) => action.run(config).await,
            Action::Update(action) => action.run(config).await,
            Action::Delete(action) => action.run(config).await,
            Action::Plan(action) => action.run(config).await,
            Action::Rebalance(action) => action.run(config).await,
            Action::BumpGeneration(action) => action.run(config).await,
        }
    }
}
