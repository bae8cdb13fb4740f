//! `tenure keyspace bump-generation`: epochs above all that were ever used, for a restored store (P2).

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde_json::json;
use tenure_core::ids::KeyspaceName;
use tenure_core::keys::Key;
use tenure_core::record::{ClusterRecord, KeyspaceRecord, Record};
use tenure_core::view::KeyState;
use tenure_store::{Expect, Version};

use super::generation;
use crate::cluster_client::{CasResult, ClusterClient};
use crate::cmd::confirm::confirm;
use crate::config::Config;
use crate::exit::Exit;
use crate::snapshot::Snapshot;
use crate::stdout;

/// Attempts of a conditional write against concurrent writers.
const CAS_ATTEMPTS: usize = 20;

/// Raise the epochs of keyspaces above all old ones, after a store was restored from a backup
#[derive(Debug, Args)]
#[command(
    after_help = "Use it after a store was restored from a backup, copied or replaced. Such a store may have lost epochs that were\n\
    in use, and resources that check epochs would reject new owners or confuse them with old ones. Nodes detect\n\
    the restored store, stop serving and wait for this command. It raises the upper half of all future epochs;\n\
    shards are served again when nodes have claimed them.\n\
    With --all the command then records this store as the store of the cluster, so that nodes accept it.\n\
    If a generation was raised after the backup was taken, pass it with --above: the part before the dot of the\n\
    highest epoch in logs or in protected resources.\n\n\
    Examples:\n  tenure keyspace bump-generation --all --yes\n  \
    tenure keyspace bump-generation orders --above 3 --yes"
)]
pub(crate) struct BumpGeneration {
    /// Keyspace name
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    name: Option<KeyspaceName>,
    /// Raise all keyspaces, including deleted ones, and accept this store for the cluster
    #[arg(long)]
    all: bool,
    /// Raise the generation to a value greater than this one
    #[arg(long, value_name = "GENERATION", default_value_t = 0)]
    above: u32,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BumpGeneration {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let mut place = ClusterClient::open(config).await?;
        let snapshot = place.existing().await?;
        let names: Vec<KeyspaceName> = match &self.name {
            Some(name) => {
                snapshot.keyspace(name)?;
                vec![name.clone()]
            }
            None => all(&snapshot),
        };
        confirm(
            self.yes,
            &format!(
                "the generation of {} keyspace(s) will be raised, and their shards will be claimed again",
                names.len()
            ),
        )?;
        let mut raised = BTreeMap::new();
        for name in &names {
            let generation = self.raise(&mut place, config, name).await?;
            if !self.json {
                stdout::line(format!("{name} {generation}"));
            }
            raised.insert(name, generation);
        }
        let accepted = snapshot.other_store().is_some() && self.all;
        if snapshot.other_store().is_some() {
            if self.all {
                accept_store(&mut place, &names).await?;
            } else {
                eprintln!(
                    "warning: this store was restored or replaced, and nodes reject it until `tenure keyspace \
                     bump-generation --all`"
                );
            }
        }
        if self.json {
            stdout::json(&json!({ "generations": raised, "store_accepted": accepted }));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Reserves a generation, then writes it to the keyspace record. Retries with a higher one if others were faster.
    async fn raise(
        &self,
        place: &mut ClusterClient,
        config: &Config,
        name: &KeyspaceName,
    ) -> Result<u32, Exit> {
        let key = Key::Keyspace(name.clone());
        let there = read(place, &key, name).await?.is_some();
        let mut generation = generation::draw(place, config, name, self.above).await?;
        if !there && self.all {
            eprintln!(
                "keyspace {name} has no record: it was lost and will be restored above this generation"
            );
            return Ok(generation);
        }
        for _ in 0..CAS_ATTEMPTS {
            let Some((version, old)) = read(place, &key, name).await? else {
                return Err(Exit::failed(format!(
                    "the record of keyspace {name} is missing; see `tenure status`"
                )));
            };
            if old.generation >= generation {
                generation = generation::draw(place, config, name, self.above).await?;
            }
            let new = KeyspaceRecord {
                head: old.head.next(place.nonce()),
                generation,
                min_generation: generation,
                ..(*old).clone()
            };
            let record = Record::Keyspace(Arc::new(new));
            if place.put(&key, Expect::Version(version), &record).await? == CasResult::Done {
                return Ok(generation);
            }
        }
        Err(Exit::failed(format!(
            "keyspace {name} keeps changing concurrently; run the command again"
        )))
    }
}

/// All present and past keyspaces, including those without a record.
fn all(snapshot: &Snapshot) -> Vec<KeyspaceName> {
    let recorded = snapshot.view.keyspaces.cells().map(|(name, _)| name);
    let cluster = snapshot.view.cluster.get(&());
    let listed = cluster.into_iter().flat_map(|c| c.keyspaces.keys());
    let names: BTreeSet<KeyspaceName> = recorded.chain(listed).cloned().collect();
    names.into_iter().collect()
}

/// A keyspace's record, if it has one; it must be readable.
async fn read(
    place: &ClusterClient,
    key: &Key,
    name: &KeyspaceName,
) -> Result<Option<(Version, Arc<KeyspaceRecord>)>, Exit> {
    let Some(entry) = place.get(key).await? else {
        return Ok(None);
    };
    match Record::decode(key, &entry.value) {
        Ok(Record::Keyspace(record)) => Ok(Some((entry.version, record))),
        Ok(_) => Err(Exit::failed(format!(
            "keyspace {name}: the record has the wrong type"
        ))),
        Err(damage) => Err(Exit::failed(format!(
            "keyspace {name}: {damage}; see `tenure status`"
        ))),
    }
}

/// Accepts this store for the cluster. This is the last step: nodes claim shards afterwards.
async fn accept_store(place: &mut ClusterClient, raised: &[KeyspaceName]) -> Result<(), Exit> {
    for _ in 0..CAS_ATTEMPTS {
        let snapshot = place.snapshot().await?;
        if let Some(name) = newcomer(&snapshot, raised) {
            return Err(Exit::failed(format!(
                "keyspace {name} was created concurrently; run the command again"
            )));
        }
        let Some(seen) = snapshot.view.cluster.seen(&()) else {
            return Err(Exit::failed(
                "the cluster record is missing; see `tenure status`",
            ));
        };
        let new = ClusterRecord {
            head: seen.record.head.next(place.nonce()),
            store: snapshot.identity.clone(),
            ..(*seen.record).clone()
        };
        let expect = Expect::Version(seen.version.clone());
        let record = Record::Cluster(Arc::new(new));
        if place.put(&Key::Cluster, expect, &record).await? == CasResult::Done {
            eprintln!("recorded this store as the store of the cluster");
            return Ok(());
        }
    }
    Err(Exit::failed(
        "the cluster record keeps changing concurrently; run the command again",
    ))
}

fn newcomer<'a>(snapshot: &'a Snapshot, raised: &[KeyspaceName]) -> Option<&'a KeyspaceName> {
    let there = snapshot.view.keyspaces.cells();
    there
        .filter(|(_, cell)| !matches!(cell, KeyState::Missing { .. }))
        .map(|(name, _)| name)
        .find(|name| !raised.contains(name))
}
