//! `tenure keyspace raise`: epochs above all that were ever given out, for a store that was restored (P2).

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use tenure_core::ids::KeyspaceName;
use tenure_core::keys::Key;
use tenure_core::record::{ClusterRecord, KeyspaceRecord, Record};
use tenure_core::view::KeyState;
use tenure_store::{Expect, Version};

use super::generation;
use crate::cluster_client::{CasResult, ClusterClient};
use crate::config::Config;
use crate::exit::Exit;
use crate::snapshot::Snapshot;
use crate::stdout;

/// How often a race against other writers is run again.
const ROUNDS: usize = 20;

/// Raise the generation of keyspaces, after a store was restored
#[derive(Debug, Args)]
#[command(
    after_help = "When to use it: the store was restored from a backup, copied, or exchanged. It may then have forgotten\n\
    epochs that it had given out, and resources that check epochs would refuse, or mistake, new owners. Nodes\n\
    notice that the store is another one, close, and wait for this command. It raises the upper half of every\n\
    epoch from now on; shards are served again once their owners have claimed them anew.\n\
    With --all it also accepts this store as the cluster's own, last, once every keyspace is raised.\n\
    If the lost store had been raised since the backup, pass --above with the generation that it had\n\
    (the part before the dot of the highest epoch in logs or in protected resources).\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop keyspace raise --all\n  \
    tenure --store sqlite:shop.db --cluster shop keyspace raise orders --above 3"
)]
pub(crate) struct Raise {
    /// The keyspace's name
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    name: Option<KeyspaceName>,
    /// All keyspaces, removed ones included
    #[arg(long)]
    all: bool,
    /// To a generation above this one
    #[arg(long, value_name = "GENERATION", default_value_t = 0)]
    above: u32,
}

impl Raise {
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
        for name in &names {
            let generation = self.raise(&mut place, config, name).await?;
            stdout::line(format!("{name} {generation}"));
        }
        if snapshot.other_store().is_some() {
            if self.all {
                accept_store(&mut place, &names).await?;
            } else {
                eprintln!(
                    "warning: this store is not the one that the cluster was written to, and stays refused until \
                     `tenure keyspace raise --all`"
                );
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Draws a generation, then makes it the keyspace's own. One that others have overtaken is drawn anew.
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
                "keyspace {name} has no record: it was lost, and comes back above this generation"
            );
            return Ok(generation);
        }
        for _ in 0..ROUNDS {
            let Some((version, old)) = read(place, &key, name).await? else {
                return Err(Exit::failed(format!(
                    "the record of keyspace {name} is gone; see `tenure status`"
                )));
            };
            if old.generation >= generation {
                generation = generation::draw(place, config, name, self.above).await?;
            }
            let new = KeyspaceRecord {
                head: old.head.next(place.nonce()),
                generation,
                floor: generation,
                ..(*old).clone()
            };
            let record = Record::Keyspace(Arc::new(new));
            if place.put(&key, Expect::Version(version), &record).await? == CasResult::Done {
                return Ok(generation);
            }
        }
        Err(Exit::failed(format!(
            "others keep changing keyspace {name}; run the command again"
        )))
    }
}

/// Every keyspace that there is or was, those without a record included.
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
            "keyspace {name}: a record of another kind"
        ))),
        Err(damage) => Err(Exit::failed(format!(
            "keyspace {name}: {damage}; see `tenure status`"
        ))),
    }
}

/// Makes this store the cluster's own. Comes last: from then on nodes claim.
async fn accept_store(place: &mut ClusterClient, raised: &[KeyspaceName]) -> Result<(), Exit> {
    for _ in 0..ROUNDS {
        let snapshot = place.snapshot().await?;
        if let Some(name) = newcomer(&snapshot, raised) {
            return Err(Exit::failed(format!(
                "keyspace {name} appeared meanwhile; run the command again"
            )));
        }
        let Some(seen) = snapshot.view.cluster.seen(&()) else {
            return Err(Exit::failed(
                "the cluster's own record is gone; see `tenure status`",
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
            eprintln!("this store is now the cluster's own");
            return Ok(());
        }
    }
    Err(Exit::failed(
        "others keep changing the cluster's record; run the command again",
    ))
}

fn newcomer<'a>(snapshot: &'a Snapshot, raised: &[KeyspaceName]) -> Option<&'a KeyspaceName> {
    let there = snapshot.view.keyspaces.cells();
    there
        .filter(|(_, cell)| !matches!(cell, KeyState::Missing { .. }))
        .map(|(name, _)| name)
        .find(|name| !raised.contains(name))
}
