//! `tenure shard pin` and `unpin`.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde_json::json;
use tenure_core::ids::{NodeName, ShardId};
use tenure_core::keys::Key;
use tenure_core::ownership::{self, Facts, Transition, Writer};
use tenure_core::record::{AssignedBy, Owner, Record, ShardRecord};
use tenure_core::rules::Rules;
use tenure_store::Expect;

use crate::cluster_client::{CasResult, ClusterClient};
use crate::config::Config;
use crate::exit::Exit;
use crate::snapshot::Snapshot;
use crate::stdout;

/// Attempts of a conditional write against concurrent writers.
const CAS_ATTEMPTS: usize = 20;

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
    let mut place = ClusterClient::open(config).await?;
    let key = Key::Shard(id.clone());
    for _ in 0..CAS_ATTEMPTS {
        let snapshot = place.existing().await?;
        let seen = snapshot.shard(id)?;
        let mode = snapshot
            .view
            .keyspaces
            .get(&id.keyspace)
            .map(|k| k.assigned_by);
        if let Some(mode) = mode.filter(|mode| to.is_some() && *mode != AssignedBy::Leader) {
            return Err(Exit::failed(format!(
                "keyspace {} has assigned_by = {mode}; only shards of keyspaces assigned by the leader can be pinned",
                id.keyspace
            )));
        }
        let before = seen.record.pin.clone();
        let changed = before.as_ref() != to;
        if changed {
            let record = changed_record(&mut place, &seen.record, id, to)?;
            let expect = Expect::Version(seen.version.clone());
            let record = Record::Shard(Arc::new(record));
            if place.put(&key, expect, &record).await? == CasResult::Lost {
                continue;
            }
        }
        warn(&snapshot, to);
        match (to, before) {
            (Some(to), _) if changed => eprintln!("pinned shard {id} to {to}"),
            (Some(to), _) => eprintln!("shard {id} is already pinned to {to}"),
            (None, Some(was)) => eprintln!("unpinned shard {id} from {was}"),
            (None, None) => eprintln!("shard {id} is not pinned"),
        }
        if json {
            stdout::json(&json!({ "shard": id.to_string(), "pin": to, "changed": changed }));
        }
        return Ok(ExitCode::SUCCESS);
    }
    Err(Exit::failed(format!(
        "shard {id} keeps changing concurrently; run the command again"
    )))
}

fn changed_record(
    place: &mut ClusterClient,
    record: &ShardRecord,
    id: &ShardId,
    to: Option<&NodeName>,
) -> Result<ShardRecord, Exit> {
    let writer = Writer {
        owner: Owner {
            node: NodeName::new("tenure shard pin")?,
            session: place.writer(),
        },
        nonce: place.nonce(),
    };
    let facts = Facts {
        ended: &|_| false,
        highest_epoch: record.epoch,
        min_generation: 0,
        load: None,
        rules: Rules::sound(),
    };
    let change = Transition::Pin { node: to.cloned() };
    ownership::apply(record, &writer, change, &facts)
        .map_err(|reason| Exit::failed(format!("shard {id} cannot be pinned: {reason}")))
}

/// Warns if the node of a pin does not exist.
fn warn(snapshot: &Snapshot, to: Option<&NodeName>) {
    let Some(to) = to else { return };
    if snapshot.view.nodes.cell(to).is_none() {
        eprintln!(
            "warning: node {to} does not exist yet ({}); the shard stays where it is until that node starts",
            snapshot.nodes_there_are()
        );
    }
}
