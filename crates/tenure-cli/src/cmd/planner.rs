//! `tenure planner`: a candidate for leader that owns no shards.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure::{MetricsServer, Node};

use super::exec::{Signals, Waited, not_started};
use crate::cli::Global;
use crate::config::Config;
use crate::config::flags::LeaderFlags;
use crate::config::settings_table::SettingDefinition;
use crate::connect;
use crate::exit::Exit;

/// Limit for resigning leadership, whatever the store does.
const STOP_LIMIT: Duration = Duration::from_millis(4500);

/// Run a planner: a process that owns no shards and plans their assignment while it is the leader
#[derive(Debug, Args)]
#[command(
    after_help = "Every node is a candidate for leader; a planner is needed only to run planning in a separate process. Run\n\
    several: one leads, the others are standby and take over when the leader stops or its lease expires. On\n\
    SIGTERM the planner resigns leadership and exits within 5 seconds, even if the store does not respond.\n\n\
    Examples:\n  tenure planner --node planner-1 --log info"
)]
pub(crate) struct PlannerCommand {
    #[command(flatten)]
    flags: LeaderFlags,
}

impl PlannerCommand {
    pub(crate) fn config(&self, global: &Global) -> Result<Config, Exit> {
        global.load(self.flags.0.clone(), SettingDefinition::is_leaders)
    }

    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let mut signals = Signals::new()?;
        if let Waited::Signal = connect::ask_for_ttl(config, &mut signals).await {
            return Ok(ExitCode::SUCCESS);
        }
        let url = connect::store_url(config)?;
        let cluster = connect::named_cluster(config)?;
        config
            .timing()
            .map_err(|problems| Exit::usage(problems.join("\n")))?;
        let mut builder = Node::builder(url, cluster.as_str())
            .planner_only()
            .settings(config.settings());
        if let Some(name) = config.text("node") {
            builder = builder.name(name);
        }
        if let Some(path) = config.text("data_dir") {
            builder = builder.data_dir(path);
        }
        if let Some(path) = config.text("trace") {
            builder = builder.trace(path);
        }
        let started = signals.or(builder.start()).await;
        let node = match started {
            Waited::Signal => return Ok(ExitCode::SUCCESS),
            Waited::Done(node) => node.map_err(|e| not_started(&e))?,
        };
        let _metrics = match config.text("admin_addr") {
            Some(address) => Some(
                MetricsServer::bind(address, node.metrics().clone())
                    .await
                    .map_err(|e| Exit::usage(e.to_string()))?,
            ),
            None => None,
        };
        tracing::info!(node = %node.name(), "tenure planner started");
        match signals.or(node.ended()).await {
            Waited::Done(ended) => ended.map_err(|e| Exit::failed(e.to_string()))?,
            Waited::Signal => stop(&node).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn stop(node: &Node) -> Result<(), Exit> {
    match tokio::time::timeout(STOP_LIMIT, node.stop()).await {
        Ok(ended) => ended.map_err(|e| Exit::failed(e.to_string())),
        Err(_) => Err(Exit::failed(
            "store unreachable: exiting without resigning leadership; a standby takes over after the ttl",
        )),
    }
}
