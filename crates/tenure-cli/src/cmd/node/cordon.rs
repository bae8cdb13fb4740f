//! `tenure node cordon` and `uncordon`.

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

/// Attempts of a conditional write against concurrent writers.
const CAS_ATTEMPTS: usize = 20;

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
        let mut place = ClusterClient::open(config).await?;
        let key = Key::Node(name.clone());
        for _ in 0..CAS_ATTEMPTS {
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
                (true, true) => eprintln!("cordoned node {name}: it gets no new shards"),
                (true, false) => eprintln!("node {name} is already cordoned"),
                (false, true) => eprintln!("uncordoned node {name}: it may get new shards"),
                (false, false) => eprintln!("node {name} is not cordoned"),
            }
            if self.json {
                stdout::json(&json!({ "node": name, "cordoned": cordoned, "changed": changed }));
            }
            return Ok(ExitCode::SUCCESS);
        }
        Err(Exit::failed(format!(
            "the record of node {name} keeps changing concurrently; run the command again"
        )))
    }
}
