//! `tenure shard pin` and `unpin`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure::admin::PinUpdate;
use tenure_core::ids::{NodeName, ShardId};

use crate::config::Config;
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Pin a shard to a node
#[derive(Debug, Args)]
#[command(
    after_help = "The leader moves the shard to the node and keeps it there. While the node is away or gets no shards, another\n\
    node serves it; it moves back when the node returns. Repeating the command changes nothing.\n\n\
    Examples:\n  tenure shard pin orders/17 --to n1"
)]
pub(crate) struct Pin {
    /// Keyspace and shard, such as orders/17
    #[arg(value_name = "KEYSPACE/SHARD")]
    shard: ShardId,
    /// Node that the shard is pinned to; need not exist yet
    #[arg(long, value_name = "NODE")]
    to: NodeName,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Remove the pin of a shard
#[derive(Debug, Args)]
#[command(
    after_help = "The shard stays where it is until the leader moves it for balance.\n\n\
    Examples:\n  tenure shard unpin orders/17"
)]
pub(crate) struct Unpin {
    /// Keyspace and shard, such as orders/17
    #[arg(value_name = "KEYSPACE/SHARD")]
    shard: ShardId,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Pin {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        set(config, &self.shard, Some(&self.to), self.json).await
    }
}

impl Unpin {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        set(config, &self.shard, None, self.json).await
    }
}

async fn set(
    config: &Config,
    id: &ShardId,
    to: Option<&NodeName>,
    json: bool,
) -> Result<ExitCode, Exit> {
    let admin = connect::open_existing(config).await?;
    let PinUpdate {
        previous,
        changed,
        target_exists,
    } = match to {
        Some(to) => admin.pin_shard(id, to).await?,
        None => admin.unpin_shard(id).await?,
    };
    if let Some(to) = to.filter(|_| !target_exists) {
        eprintln!(
            "warning: node {to} does not exist yet ({}); the shard stays where it is until that node starts",
            admin.snapshot().await?.existing_nodes()
        );
    }
    match (to, previous) {
        (Some(to), _) if changed => eprintln!("pinned shard {id} to {to}"),
        (Some(to), _) => eprintln!("shard {id} is already pinned to {to}"),
        (None, Some(was)) => eprintln!("unpinned shard {id} from {was}"),
        (None, None) => eprintln!("shard {id} is not pinned"),
    }
    if json {
        stdout::json(&json!({ "shard": id.to_string(), "pin": to, "changed": changed }));
    }
    Ok(ExitCode::SUCCESS)
}
