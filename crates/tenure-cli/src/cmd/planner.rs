//! `tenure leader`: a candidate that plans for the nodes and owns nothing.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure::{MetricsServer, Node};

use super::exec::{Signals, Waited, not_started};
use crate::cli::Global;
use crate::cluster_client;
use crate::config::Config;
use crate::config::flags::LeaderFlags;
use crate::exit::Exit;

/// How long giving up the office may take, whatever the store does.
const STOP_LIMIT: Duration = Duration::from_millis(4500);

/// Plan for the nodes of a cluster, and own nothing
#[derive(Debug, Args)]
#[command(
    after_help = "Every node is a candidate for leader, so this is needed only by those who want planning in a process of its\n\
    own. Run several: one leads, the others stand by, and take over at once when it is stopped, or when its\n\
    lease has run out. At SIGTERM it gives up the office and deletes nothing; it is gone within 5 seconds even\n\
    if the store does not answer.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop leader --node planner-1 --log info"
)]
pub(crate) struct Leader {
    #[command(flatten)]
    flags: LeaderFlags,
}

impl Leader {
    pub(crate) fn config(&self, global: &Global) -> Result<Config, Exit> {
        global.load(self.flags.0.clone())
    }

    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let mut signals = Signals::new()?;
        if let Waited::Signal = cluster_client::ask_for_ttl(config, &mut signals).await {
            return Ok(ExitCode::SUCCESS);
        }
        let url = cluster_client::store_url(config)?;
        let cluster = cluster_client::named_cluster(config)?;
        config
            .timing()
            .map_err(|problems| Exit::usage(problems.join("\n")))?;
        let mut builder = Node::builder(url, cluster.as_str())
            .lead_only()
            .settings(config.settings());
        if let Some(name) = config.text("node") {
            builder = builder.name(name);
        }
        if let Some(path) = config.text("data") {
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
        let _metrics = match config.text("metrics") {
            Some(address) => Some(
                MetricsServer::bind(address, node.metrics().clone())
                    .await
                    .map_err(|e| Exit::usage(e.to_string()))?,
            ),
            None => None,
        };
        tracing::info!(node = %node.name(), "stands for leader");
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
            "stopped without giving up the office, because the store does not answer; another leads when the ttl is over",
        )),
    }
}
