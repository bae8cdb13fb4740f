//! `tenure cluster pause-moves` and `resume-moves`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::config::{Config, duration};
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Pause all planned moves in the cluster
#[derive(Debug, Args)]
#[command(
    after_help = "Stops moves for balance, pins, drains and requested moves. Failover continues, stopping nodes hand over\n\
    their shards, and moves in progress finish. The pause lasts until `tenure cluster resume-moves`, or\n\
    for the duration of --for: each node counts it from the time it sees the pause. `tenure status` shows the\n\
    pause with its reason. Repeating the command replaces reason and duration.\n\n\
    Examples:\n  tenure cluster pause-moves --reason 'incident 42' --for 2h\n  tenure cluster resume-moves"
)]
pub(crate) struct PauseMoves {
    /// Reason, shown by `tenure status`
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    reason: String,
    /// Duration of the pause, such as 2h; default: until `tenure cluster resume-moves`
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
    lasts: Option<Duration>,
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
        let changed = connect::open_existing(config)
            .await?
            .pause_moves(&self.reason, self.lasts)
            .await?;
        match (changed, self.lasts) {
            (true, None) => {
                eprintln!("paused all planned moves until `tenure cluster resume-moves`")
            }
            (true, Some(lasts)) => eprintln!(
                "paused all planned moves for {}, or until `tenure cluster resume-moves`",
                duration::show(lasts)
            ),
            (false, _) => eprintln!("moves are already paused for this reason"),
        }
        if self.json {
            stdout::json(&json!({
                "moves_paused": { "reason": self.reason, "for_ms": self.lasts.map(|d| d.as_millis()) },
                "changed": changed,
            }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl ResumeMoves {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let changed = connect::open_existing(config).await?.resume_moves().await?;
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
