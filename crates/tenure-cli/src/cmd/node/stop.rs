//! `tenure node stop`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure::admin::StopRequest;
use tenure_core::ids::NodeName;

use crate::cmd::confirm::confirm;
use crate::cmd::wait::{at_once, or_interrupted};
use crate::config::{Config, duration};
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Stop the process of a node after it has handed over its shards
#[derive(Debug, Args)]
#[command(
    after_help = "A node that does not respond is not forced: other nodes claim its shards when its ttl has expired. The command\n\
    stops only the process that runs now; a supervisor may start the next one, which owns shards again (run\n\
    `tenure node drain` first to prevent that). Repeating the command changes nothing.\n\
    With --self, stops the node named by TENURE_NODE or the setting `node`, as in a preStop hook before SIGTERM.\n\n\
    Examples:\n  tenure node stop n1 --yes\n  \
    tenure node stop n1 --yes --wait-timeout 30s --json\n  \
    TENURE_NODE=$HOSTNAME tenure node stop --self --wait-timeout 50s"
)]
pub(crate) struct Stop {
    /// Node name
    #[arg(
        value_name = "NODE",
        required_unless_present = "this",
        conflicts_with = "this"
    )]
    name: Option<NodeName>,
    /// Stop the local node, named by TENURE_NODE, without confirmation
    #[arg(long = "self")]
    this: bool,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    /// Time to wait until the node has stopped; 0s: do not wait
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration::parse)]
    wait_timeout: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Stop {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let name = match &self.name {
            Some(name) => {
                confirm(self.yes, &format!("the process of node {name} will stop"))?;
                name.clone()
            }
            None => {
                let this = config.text("node").ok_or_else(|| {
                    Exit::usage("--self: the local node is unknown; set TENURE_NODE to its name")
                })?;
                NodeName::new(this)?
            }
        };
        stop(config, &name, self.wait_timeout, self.json).await
    }
}

/// Requests the stop of a node and waits until its session has ended.
async fn stop(
    config: &Config,
    name: &NodeName,
    timeout: Duration,
    as_json: bool,
) -> Result<ExitCode, Exit> {
    let admin = connect::open_existing(config).await?;
    let (session, changed) = match admin.stop_node(name).await? {
        StopRequest::Requested(session) => {
            eprintln!("requested the stop of node {name} (session {session})");
            (Some(session), true)
        }
        StopRequest::AlreadyRequested(session) => {
            eprintln!("the stop of node {name} was already requested (session {session})");
            (Some(session), false)
        }
        StopRequest::NotRunning => {
            eprintln!("node {name} is not running");
            (None, false)
        }
    };
    if let Some(session) = session
        && !at_once(timeout)
    {
        let left = format!("node {name} still stops, immediately or when its ttl expires");
        let told = |shards: usize| eprintln!("node {name}: {shards} shards left");
        or_interrupted(
            admin.wait_until_stopped(name, session, timeout, told),
            &left,
        )
        .await?;
        eprintln!("node {name} has stopped");
    }
    if as_json {
        stdout::json(&json!({ "node": name, "session": session, "changed": changed }));
    }
    Ok(ExitCode::SUCCESS)
}
