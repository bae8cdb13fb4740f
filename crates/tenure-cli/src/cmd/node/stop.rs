//! `tenure evict`: asks a node's process to stop.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure_core::ids::NodeName;

use super::wait::{admin, at_once, or_interrupted};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;

/// Ask a node to give away what it has and to stop; wait until it is gone
#[derive(Debug, Args)]
#[command(
    after_help = "A node that does not answer is never hurried: its shards are taken once its ttl has proved it gone, and\n\
    another node is there to prove it. Only the process that runs now is asked; a supervisor may start the next,\n\
    which takes part again (`tenure drain` first, to keep it out). Doing it twice changes nothing.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop evict n1\n  \
    tenure --store sqlite:shop.db --cluster shop evict n1 --timeout 30s --json"
)]
pub(crate) struct Evict {
    /// The node's name
    #[arg(value_name = "NODE")]
    name: NodeName,
    /// How long to wait until it is gone; 0s: not at all
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration::parse)]
    timeout: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Evict {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        evict(config, &self.name, self.timeout, self.json).await
    }
}

/// Asks a node to stop, and waits until its session is over.
pub(super) async fn evict(
    config: &Config,
    name: &NodeName,
    timeout: Duration,
    as_json: bool,
) -> Result<ExitCode, Exit> {
    let admin = admin(config).await?;
    let asked = admin.evict(name).await?;
    match asked {
        Some((session, true)) => eprintln!("node {name} is asked to stop (session {session})"),
        Some((session, false)) => {
            eprintln!("node {name} was asked to stop already (session {session})");
        }
        None => eprintln!("node {name} is not there"),
    }
    if let Some((session, _)) = asked
        && !at_once(timeout)
    {
        let left = format!("node {name} stops all the same, now or at the end of its ttl");
        let told = |shards: usize| eprintln!("node {name}: {shards} shards left");
        or_interrupted(
            admin.wait_until_stopped(name, session, timeout, told),
            &left,
        )
        .await?;
        eprintln!("node {name} has stopped");
    }
    if as_json {
        let session = asked.map(|(session, _)| session);
        let changed = asked.is_some_and(|(_, changed)| changed);
        stdout::json(&json!({ "node": name, "session": session, "changed": changed }));
    }
    Ok(ExitCode::SUCCESS)
}
