//! `tenure rebalance`: evens a keyspace out now.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure_core::ids::KeyspaceName;
use tenure_core::record::KeyspaceMode;

use super::plan;
use super::wait::{admin, at_once, or_interrupted};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;

/// Even a keyspace out now, without the waits that usually keep a leader calm
#[derive(Debug, Args)]
#[command(
    after_help = "The leader does it, as many moves at a time as the keyspace's budgets allow, and goes back to its usual calm\n\
    when nothing is left to move. In keyspaces of other modes nodes even out by themselves. Doing it twice\n\
    changes nothing.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop rebalance --dry-run\n  \
    tenure --store sqlite:shop.db --cluster shop rebalance orders --timeout 30s"
)]
pub(crate) struct Rebalance {
    /// The keyspace; all that a leader plans for, if it is left out
    keyspace: Option<KeyspaceName>,
    /// Show what would move, and why, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// How long to wait until it is even; 0s: not at all
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    timeout: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Rebalance {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        if self.dry_run {
            return plan::Plan::of(self.keyspace.clone(), self.json)
                .run(config)
                .await;
        }
        let admin = admin(config).await?;
        let names = match &self.keyspace {
            Some(name) => vec![name.clone()],
            None => {
                let view = admin.snapshot().await?;
                let led = view.keyspaces.iter().filter(|(_, seen)| {
                    seen.record.mode == KeyspaceMode::Coordinated && !seen.record.removed
                });
                led.map(|(name, _)| name.clone()).collect()
            }
        };
        if names.is_empty() {
            return Err(Exit::failed(
                "the cluster has no keyspace that a leader plans for: nodes even out by themselves",
            ));
        }
        let mut done = Vec::new();
        for name in names {
            let changed = admin.rebalance(&name).await?;
            match changed {
                true => eprintln!("asked the leader to even keyspace {name} out"),
                false => eprintln!("keyspace {name} is being evened out already"),
            }
            done.push(json!({ "keyspace": name, "changed": changed }));
            if !at_once(self.timeout) {
                let left = format!("the leader goes on evening keyspace {name} out");
                let told =
                    |moving: usize| eprintln!("keyspace {name}: {moving} shards on their way");
                let even = admin.wait_until_balanced(&name, self.timeout, told);
                or_interrupted::<()>(even, &left).await?;
                eprintln!("keyspace {name} is even");
            }
        }
        if self.json {
            stdout::json(&json!({ "keyspaces": done }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
