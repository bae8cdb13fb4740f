//! `tenure cordon` and `uncordon`: whether a node is given shards.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde_json::json;
use tenure_core::ids::NodeName;
use tenure_core::keys::Key;
use tenure_core::record::{NodeRecord, Record};
use tenure_store::Expect;

use crate::cluster_client::{CasResult, ClusterClient};
use crate::config::Config;
use crate::exit::Exit;
use crate::stdout;

/// How often a race against other writers is run again.
const ROUNDS: usize = 20;

/// Give a node no more shards
#[derive(Debug, Args)]
#[command(
    after_help = "The node keeps what it has and gets nothing more, in every mode of a keyspace, queue workers included. It stays so\n\
    over restarts, until `tenure uncordon`. Shards that nobody else can have stay free: `tenure status` names them.\n\
    Doing it twice changes nothing.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop cordon n1"
)]
pub(crate) struct Cordon {
    #[command(flatten)]
    node: Which,
}

/// Let a node have shards again
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tenure --store sqlite:shop.db --cluster shop uncordon n1")]
pub(crate) struct Uncordon {
    #[command(flatten)]
    node: Which,
}

#[derive(Debug, Args)]
struct Which {
    /// The node's name
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
        let mut place = ClusterClient::open(config).await?;
        let key = Key::Node(name.clone());
        for _ in 0..ROUNDS {
            let snapshot = place.existing().await?;
            let seen = snapshot.node(name)?;
            let changed = seen.record.cordoned != cordoned;
            if changed {
                let record = NodeRecord {
                    head: seen.record.head.next(place.nonce()),
                    cordoned,
                    ..(*seen.record).clone()
                };
                let expect = Expect::Version(seen.version.clone());
                let record = Record::Node(Arc::new(record));
                if place.put(&key, expect, &record).await? == CasResult::Lost {
                    continue;
                }
            }
            match (cordoned, changed) {
                (true, true) => eprintln!("node {name} is given no more shards"),
                (true, false) => eprintln!("node {name} is cordoned already"),
                (false, true) => eprintln!("node {name} may have shards again"),
                (false, false) => eprintln!("node {name} is not cordoned"),
            }
            if self.json {
                stdout::json(&json!({ "node": name, "cordoned": cordoned, "changed": changed }));
            }
            return Ok(ExitCode::SUCCESS);
        }
        Err(Exit::failed(format!(
            "others keep changing node {name}; run the command again"
        )))
    }
}
