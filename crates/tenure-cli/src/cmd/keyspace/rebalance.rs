//! `tenure keyspace rebalance`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure_core::ids::KeyspaceName;
use tenure_core::record::AssignedBy;

use super::plan;
use crate::cmd::wait::{at_once, or_interrupted};
use crate::config::{Config, duration};
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Balance a keyspace now instead of after its settle time and cool-down
#[derive(Debug, Args)]
#[command(
    after_help = "The leader moves shards within the budgets of the keyspace until it is balanced. Nodes of keyspaces without a\n\
    leader balance themselves. Repeating the command changes nothing.\n\n\
    Examples:\n  tenure keyspace rebalance --dry-run\n  \
    tenure keyspace rebalance orders --wait-timeout 30s"
)]
pub(crate) struct Rebalance {
    /// Keyspace; default: all with assigned_by = leader
    keyspace: Option<KeyspaceName>,
    /// Show the moves with their reasons without changing anything
    #[arg(long)]
    dry_run: bool,
    /// Maximum time to wait until the keyspace is balanced; 0s: do not wait
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    wait_timeout: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Rebalance {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        if self.dry_run {
            return plan::PlanCommand::of(self.keyspace.clone(), self.json)
                .run(config)
                .await;
        }
        let admin = connect::open_existing(config).await?;
        let names = match &self.keyspace {
            Some(name) => vec![name.clone()],
            None => {
                let view = admin.snapshot().await?.view;
                let led = view.keyspaces.iter().filter(|(_, seen)| {
                    seen.record.assigned_by == AssignedBy::Leader && !seen.record.deleted
                });
                led.map(|(name, _)| name.clone()).collect()
            }
        };
        if names.is_empty() {
            return Err(Exit::failed(
                "no keyspace of the cluster has assigned_by = leader; nodes balance the other keyspaces themselves",
            ));
        }
        let mut done = Vec::new();
        for name in names {
            let changed = admin.rebalance(&name).await?;
            match changed {
                true => eprintln!("requested a rebalance of keyspace {name}"),
                false => eprintln!("a rebalance of keyspace {name} is already requested"),
            }
            done.push(json!({ "keyspace": name, "changed": changed }));
            if !at_once(self.wait_timeout) {
                let left = format!("the leader continues to rebalance keyspace {name}");
                let told = |moving: usize| eprintln!("keyspace {name}: {moving} shards moving");
                let even = admin.wait_until_balanced(&name, self.wait_timeout, told);
                or_interrupted::<()>(even, &left).await?;
                eprintln!("keyspace {name} is balanced");
            }
        }
        if self.json {
            stdout::json(&json!({ "keyspaces": done }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
