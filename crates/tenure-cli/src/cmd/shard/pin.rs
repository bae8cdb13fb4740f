//! `tenure pin` and `unpin`: where an operator wants a shard always to be.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde_json::json;
use tenure_core::ids::{NodeName, ShardId};
use tenure_core::keys::Key;
use tenure_core::ownership::{self, Facts, Transition, Writer};
use tenure_core::record::{KeyspaceMode, Owner, Record, ShardRecord};
use tenure_core::rules::Rules;
use tenure_store::Expect;

use crate::cluster_client::{CasResult, ClusterClient};
use crate::config::Config;
use crate::exit::Exit;
use crate::snapshot::Snapshot;
use crate::stdout;

/// How often a race against other writers is run again.
const ROUNDS: usize = 20;

/// Pin a shard to a node
#[derive(Debug, Args)]
#[command(
    after_help = "The leader moves the shard there and leaves it there. While the node is away or takes no shards, the shard\n\
    is served elsewhere; it goes back when the node is there again. Doing it twice changes nothing.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop pin orders/17 --to n1"
)]
pub(crate) struct Pin {
    /// The shard
    #[arg(value_name = "KEYSPACE/SHARD")]
    shard: ShardId,
    /// The node; may be one that has never been there
    #[arg(long, value_name = "NODE")]
    to: NodeName,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Take a shard's pin away
#[derive(Debug, Args)]
#[command(
    after_help = "The shard may be anywhere from now on; it moves only if balance asks for it.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop unpin orders/17"
)]
pub(crate) struct Unpin {
    /// The shard
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
    for _ in 0..ROUNDS {
        let snapshot = place.existing().await?;
        let seen = snapshot.shard(id)?;
        let mode = snapshot.view.keyspaces.get(&id.keyspace).map(|k| k.mode);
        if let Some(mode) = mode.filter(|mode| to.is_some() && *mode != KeyspaceMode::Coordinated) {
            return Err(Exit::failed(format!(
                "keyspace {} is in mode {mode}, in which no leader plans: a pin would have no effect",
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
            (Some(to), _) => eprintln!("shard {id} is pinned to {to} already"),
            (None, Some(was)) => eprintln!("shard {id} is no longer pinned to {was}"),
            (None, None) => eprintln!("shard {id} is not pinned"),
        }
        if json {
            stdout::json(&json!({ "shard": id.to_string(), "pin": to, "changed": changed }));
        }
        return Ok(ExitCode::SUCCESS);
    }
    Err(Exit::failed(format!(
        "others keep changing shard {id}; run the command again"
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
            node: NodeName::new("tenure pin")?,
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
        .map_err(|why| Exit::failed(format!("shard {id} cannot be pinned: {why:?}")))
}

/// What may keep a pin from having the effect that was meant.
fn warn(snapshot: &Snapshot, to: Option<&NodeName>) {
    let Some(to) = to else { return };
    if snapshot.view.nodes.cell(to).is_none() {
        eprintln!(
            "warning: there is no node {to} yet ({}); the shard stays where it is until one of that name is there",
            snapshot.nodes_there_are()
        );
    }
}
