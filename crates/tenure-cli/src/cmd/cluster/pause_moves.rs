//! `tenure freeze` and `unfreeze`: whether anything that is served moves.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::wait::admin;
use crate::config::Config;
use crate::exit::Exit;
use crate::stdout;

/// Let nothing that is served move, in the whole cluster
#[derive(Debug, Args)]
#[command(
    after_help = "No moves for balance, pins, drains or by wish. What is lost is served elsewhere all the same, and a node\n\
    that stops gives away what it has; moves that are under way are finished. It stays so until\n\
    `tenure unfreeze`, and `tenure status` says why. Doing it twice changes nothing but the reason.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop freeze --reason 'incident 42'\n  \
    tenure --store sqlite:shop.db --cluster shop unfreeze"
)]
pub(crate) struct Freeze {
    /// Why; shown to everybody who wonders
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    reason: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Let shards move again
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tenure --store sqlite:shop.db --cluster shop unfreeze")]
pub(crate) struct Unfreeze {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Freeze {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let changed = admin(config).await?.freeze(&self.reason).await?;
        match changed {
            true => eprintln!("nothing that is served moves until `tenure unfreeze`"),
            false => eprintln!("the cluster is frozen already, for this reason"),
        }
        if self.json {
            stdout::json(&json!({ "frozen": self.reason, "changed": changed }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Unfreeze {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let changed = admin(config).await?.unfreeze().await?;
        match changed {
            true => eprintln!("shards may move again"),
            false => eprintln!("the cluster is not frozen"),
        }
        if self.json {
            stdout::json(&json!({ "frozen": null, "changed": changed }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
