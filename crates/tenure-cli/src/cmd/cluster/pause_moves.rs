//! `tenure cluster pause-moves` and `resume-moves`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::cmd::wait::admin;
use crate::config::Config;
use crate::exit::Exit;
use crate::stdout;

/// Pause all planned moves in the cluster
#[derive(Debug, Args)]
#[command(
    after_help = "Stops moves for balance, pins, drains and requested moves. Failover continues, a node that stops still\n\
    hands over its shards, and moves in progress finish. The pause lasts until `tenure cluster resume-moves`;\n\
    `tenure status` shows it with its reason. Repeating the command only replaces the reason.\n\n\
    Examples:\n  tenure cluster pause-moves --reason 'incident 42'\n  tenure cluster resume-moves"
)]
pub(crate) struct PauseMoves {
    /// Reason, shown by `tenure status`
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    reason: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Resume planned moves in the cluster
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tenure cluster resume-moves")]
pub(crate) struct ResumeMoves {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl PauseMoves {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let changed = admin(config).await?.freeze(&self.reason).await?;
        match changed {
            true => eprintln!("paused all planned moves until `tenure cluster resume-moves`"),
            false => eprintln!("moves are already paused, for this reason"),
        }
        if self.json {
            stdout::json(&json!({ "moves_paused": self.reason, "changed": changed }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl ResumeMoves {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let changed = admin(config).await?.unfreeze().await?;
        match changed {
            true => eprintln!("resumed planned moves"),
            false => eprintln!("moves are not paused"),
        }
        if self.json {
            stdout::json(&json!({ "moves_paused": null, "changed": changed }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
