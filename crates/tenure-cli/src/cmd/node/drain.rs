//! `tenure node drain` and `resume`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure::NodeMode;
use tenure::admin::{NodeStatus, ResumedNode};
use tenure_core::ids::NodeName;

use crate::cmd::wait::{at_once, or_interrupted};
use crate::config::{Config, duration};
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Move all shards off a node and assign none until it is resumed
#[derive(Debug, Args)]
#[command(
    after_help = "Shards move without dropped requests, as many at a time as the budgets of the keyspace allow. The process of\n\
    the node keeps running. The node stays drained across restarts until `tenure node resume`. Ctrl-C, or the end\n\
    of --wait-timeout, ends only the waiting. Repeating the command changes nothing.\n\n\
    Examples:\n  tenure node drain n1\n  tenure node drain n1 --wait-timeout 0s --json"
)]
pub(crate) struct Drain {
    /// Node name
    #[arg(value_name = "NODE")]
    name: NodeName,
    /// Time to wait until the node owns no shard; 0s: do not wait
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    wait_timeout: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Assign shards to a drained node again
#[derive(Debug, Args)]
#[command(
    after_help = "Also resumes a node that restarted as drained(stale_restart), drained(registration_expired) or\n\
    drained(joined). A node that is not running starts as active. Repeating the command changes nothing.\n\n\
    Examples:\n  tenure node resume n1\n  tenure node resume n1 --json"
)]
pub(crate) struct Resume {
    /// Node name
    #[arg(value_name = "NODE")]
    name: NodeName,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Drain {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let name = &self.name;
        let admin = connect::open_existing(config).await?;
        let changed = admin.drain(name).await?;
        match changed {
            true => eprintln!("node {name} is draining"),
            false => eprintln!("node {name} is already draining or drained"),
        }
        let standing = match at_once(self.wait_timeout) {
            true => NodeStatus::of(&admin.snapshot().await?, name)?,
            false => {
                let left = format!(
                    "node {name} continues draining; `tenure node resume {name}` cancels the drain"
                );
                let told = |s: &NodeStatus| eprintln!("node {name}: {}", shown(s));
                or_interrupted(
                    admin.wait_until_drained(name, self.wait_timeout, told),
                    &left,
                )
                .await?
            }
        };
        if self.json {
            stdout::json(&json!({
                "node": name, "mode": standing.mode.to_string(), "shards": standing.shards,
                "moving": standing.moving, "changed": changed,
            }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn shown(standing: &NodeStatus) -> String {
    let NodeStatus {
        mode,
        shards,
        moving,
        is_over,
        ..
    } = standing;
    let gone = if *is_over { ", not running" } else { "" };
    format!("{mode}{gone}, {shards} shards left, {moving} moving")
}

impl Resume {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let name = &self.name;
        let admin = connect::open_existing(config).await?;
        let ResumedNode {
            previous: was,
            changed,
        } = admin.resume(name).await?;
        match &was {
            NodeMode::Active if changed => {
                eprintln!("node {name} is active and restarts as active");
            }
            NodeMode::Active => eprintln!("node {name} is already active"),
            was => eprintln!("node {name} was {was} and is active again"),
        }
        let view = admin.snapshot().await?.view;
        if view.nodes.get(name).is_some_and(|n| n.cordoned) {
            eprintln!(
                "warning: node {name} is cordoned and gets no shards until `tenure node uncordon {name}`"
            );
        }
        if self.json {
            stdout::json(&json!({
                "node": name, "mode": "active", "was": was.to_string(), "changed": changed,
            }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
