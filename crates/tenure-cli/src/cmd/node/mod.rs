//! `tenure node`: nodes of a cluster.

mod cordon;
mod drain;
mod list;
mod stop;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::config::Config;
use crate::exit::Exit;

/// List, drain, cordon and stop nodes
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tenure node list\n  tenure node drain n1\n  tenure node resume n1\n  tenure node stop n1 --yes")]
pub(crate) struct NodeCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(list::List),
    Show(list::Show),
    Drain(drain::Drain),
    Resume(drain::Resume),
    Cordon(cordon::Cordon),
    Uncordon(cordon::Uncordon),
    Stop(stop::Stop),
}

impl NodeCommand {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        match &self.action {
            Action::List(action) => action.run(config).await,
            Action::Show(action) => action.run(config).await,
            Action::Drain(action) => action.run(config).await,
            Action::Resume(action) => action.run(config).await,
            Action::Cordon(action) => action.run(config).await,
            Action::Uncordon(action) => action.run(config).await,
            Action::Stop(action) => action.run(config).await,
        }
    }
}
