//! `tenure node cordon` and `uncordon`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_core::ids::NodeName;

use crate::config::Config;
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Stop assigning new shards to a node
#[derive(Debug, Args)]
#[command(
    after_help = "The node keeps the shards it owns and gets no others, in every keyspace, also as a queue worker. The cordon\n\
    survives restarts and ends with `tenure node uncordon`. Shards that no other node can own stay unowned;\n\
    `tenure status` lists them. Repeating the command changes nothing.\n\n\
    Examples:\n  tenure node cordon n1"
)]
pub(crate) struct Cordon {
    #[command(flatten)]
    node: Which,
}

/// Allow new shards on a cordoned node again
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tenure node uncordon n1")]
pub(crate) struct Uncordon {
    #[command(flatten)]
    node: Which,
}

#[derive(Debug, Args)]
struct Which {
    /// Node name
    #[arg(value_name = "NODE")]
    name: NodeName,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Cordon {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        self.node.set(config, true).await
    }
}

impl Uncordon {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        self.node.set(config, false).await
    }
}

impl Which {
    async fn set(&self, config: &Config, cordoned: bool) -> Result<ExitCode, Exit> {
        let name = &self.name;
        let admin = connect::open_existing(config).await?;
        let changed = match cordoned {
            true => admin.cordon(name).await?,
            false => admin.uncordon(name).await?,
        };
        match (cordoned, changed) {
            (true, true) => eprintln!("cordoned node {name}: it gets no new shards"),
            (true, false) => eprintln!("node {name} is already cordoned"),
            (false, true) => eprintln!("uncordoned node {name}: it may get new shards"),
            (false, false) => eprintln!("node {name} is not cordoned"),
        }
        if self.json {
            stdout::json(&json!({ "node": name, "cordoned": cordoned, "changed": changed }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
