//! `tenure drain` and `activate`: whether a node takes part.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure::NodeMode;
use tenure::admin::NodeStatus;
use tenure_core::ids::NodeName;

use super::evict;
use super::wait::{admin, at_once, or_interrupted};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;

/// Let a node give away everything it has, and take nothing, until it is activated
#[derive(Debug, Args)]
#[command(
    after_help = "Shards move away without a dropped request, as many at a time as the keyspace's budgets allow. The node's\n\
    process goes on running. It stays drained over restarts, until `tenure activate`. Ctrl-C, or the end of the\n\
    timeout, ends only the waiting. Doing it twice changes nothing.\n\n\
    With --self the node is that of --node or TENURE_NODE; it gives away what it has and stops, and its next start\n\
    is not concerned: this is for a preStop hook, where SIGTERM alone does not leave the time.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop drain n1\n  \
    tenure --store sqlite:shop.db --cluster shop drain n1 --timeout 0s --json\n  \
    TENURE_NODE=$HOSTNAME tenure drain --self --timeout 50s"
)]
pub(crate) struct Drain {
    /// The node's name
    #[arg(
        value_name = "NODE",
        required_unless_present = "this",
        conflicts_with = "this"
    )]
    name: Option<NodeName>,
    /// The node that runs here: let it give away what it has, and stop
    #[arg(long = "self")]
    this: bool,
    /// How long to wait until it has nothing; 0s: not at all
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    timeout: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Let a node take shards again, whatever it was drained for
#[derive(Debug, Args)]
#[command(
    after_help = "Also for a node that came back as drained(stale_restart), drained(registration_expired) or drained(joined).\n\
    One that is not there just now comes back active. Doing it twice changes nothing.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop activate n1\n  \
    tenure --store sqlite:shop.db --cluster shop activate n1 --json"
)]
pub(crate) struct Activate {
    /// The node's name
    #[arg(value_name = "NODE")]
    name: NodeName,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Drain {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let Some(name) = &self.name else {
            let this = config.text("node").ok_or_else(|| {
                Exit::usage("which node runs here is not said; set TENURE_NODE to its name")
            })?;
            let name = NodeName::new(this)?;
            return evict::evict(config, &name, self.timeout, self.json).await;
        };
        let admin = admin(config).await?;
        let changed = admin.drain(name).await?;
        match changed {
            true => eprintln!("node {name} gives away what it has"),
            false => eprintln!("node {name} is drained, or draining, already"),
        }
        let standing = match at_once(self.timeout) {
            true => NodeStatus::of(&admin.snapshot().await?, name)?,
            false => {
                let left = format!(
                    "node {name} goes on giving away what it has; `tenure activate {name}` takes that back"
                );
                let told = |s: &NodeStatus| eprintln!("node {name}: {}", shown(s));
                or_interrupted(admin.wait_until_drained(name, self.timeout, told), &left).await?
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
    let gone = if *is_over { ", not there" } else { "" };
    format!("{mode}{gone}, {shards} shards left, {moving} on their way")
}

impl Activate {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let name = &self.name;
        let admin = admin(config).await?;
        let (was, changed) = admin.activate(name).await?;
        match &was {
            NodeMode::Active if changed => {
                eprintln!("node {name} is active, and comes back active however long it is away");
            }
            NodeMode::Active => eprintln!("node {name} is active already"),
            was => eprintln!("node {name} was {was}, and takes shards again"),
        }
        let view = admin.snapshot().await?;
        if view.nodes.get(name).is_some_and(|n| n.cordoned) {
            eprintln!(
                "warning: node {name} is cordoned, and is given no shards before `tenure uncordon {name}`"
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
