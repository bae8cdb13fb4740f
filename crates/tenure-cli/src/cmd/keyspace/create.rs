//! `tenure keyspace create`.
//!
//! The command reserves a generation in the cluster record, then writes the shard records, then the keyspace record. A
//! keyspace that exists is therefore complete.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use tenure_core::ids::{KeyspaceName, ShardId};
use tenure_core::keys::Key;
use tenure_core::node::plan_without_effect;
use tenure_core::ownership::restored;
use tenure_core::record::{
    AssignedBy, Head, KeyspaceKind, KeyspaceRecord, PlanningSettings, Record, Unknown,
};
use tenure_core::rules::Rules;
use tenure_core::view::KeyState;
use tenure_store::{Expect, PutIf};

use super::generation;
use crate::cluster_client::{CasResult, ClusterClient, within};
use crate::config::flags::PlanFlags;
use crate::config::{Config, planning};
use crate::exit::Exit;
use crate::snapshot::Snapshot;

/// Number of records per batch of writes.
const BATCH: usize = 2000;
/// Maximum number of shards; a larger number is taken for a typing error.
const MOST_SHARDS: i64 = 1_000_000;
/// Attempts against concurrent creators.
const CAS_ATTEMPTS: usize = 10;

/// Create a keyspace with all its shards
#[derive(Debug, Args)]
#[command(
    after_help = "Does nothing if an equal keyspace exists. Nodes create their keyspaces themselves; use this command to create\n\
    one before the first node starts.\n\n\
    Examples:\n  tenure keyspace create orders --shards 64\n  \
    tenure keyspace create topics --named --assigned-by fair-share\n  \
    tenure keyspace create orders --shards 64 --zones spread:40 --cool-down 5m"
)]
pub(crate) struct Create {
    /// Keyspace name
    name: KeyspaceName,
    /// Number of shards; a key selects one by its hash
    #[arg(long, value_name = "N", conflicts_with = "named", required_unless_present = "named",
          value_parser = clap::value_parser!(u32).range(1..=MOST_SHARDS))]
    shards: Option<u32>,
    /// Create an empty keyspace of named shards; see `tenure shard create`
    #[arg(long)]
    named: bool,
    /// Method of assigning shards to nodes: leader (an elected node plans), rendezvous (by hash) or fair-share (each node claims up to its share)
    #[arg(long, value_name = "MODE", default_value = "leader")]
    assigned_by: AssignedBy,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) flags: PlanFlags,
}

/// A generation that this command has drawn.
struct Drawn {
    generation: u32,
    /// Zero for a keyspace that never was; else all epochs are of this generation at least.
    floor: u32,
}

impl Create {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let plan = config
            .plan()
            .map_err(|problems| Exit::usage(problems.join("\n")))?;
        if let Some(problem) = plan_without_effect(self.assigned_by, &plan) {
            return Err(Exit::usage(problem));
        }
        let mut place = ClusterClient::open_or_make(config).await?;
        let wanted = self
            .shards
            .map_or(KeyspaceKind::Named, KeyspaceKind::Hashed);
        let mut drawn = None;
        for _ in 0..CAS_ATTEMPTS {
            let snapshot = place.snapshot().await?;
            if self.is_there(&snapshot, wanted, &plan)? {
                return Ok(ExitCode::SUCCESS);
            }
            // One that others have overtaken is of no use any more.
            let highest = snapshot.highest_generation(&self.name);
            drawn = drawn.filter(|drawn: &Drawn| drawn.generation >= highest);
            let Some(use_now) = &drawn else {
                drawn = self.draw(&mut place, config, &snapshot).await?;
                continue;
            };
            let missing = self.missing(&mut place, &snapshot, wanted, use_now);
            if !missing.is_empty() {
                write_all(&place, missing).await?;
                continue;
            }
            let (expect, mut record) = self.record(&mut place, &snapshot, wanted, use_now);
            record.planning = plan.clone();
            let key = Key::Keyspace(self.name.clone());
            let record = Record::Keyspace(Arc::new(record));
            if place.put(&key, expect, &record).await? == CasResult::Done {
                eprintln!(
                    "created keyspace {} ({wanted}, {})",
                    self.name, self.assigned_by
                );
                planning::warn_of_load(&plan);
                return Ok(ExitCode::SUCCESS);
            }
        }
        Err(Exit::failed(format!(
            "keyspace {} keeps changing concurrently; run the command again",
            self.name
        )))
    }

    /// A generation for the keyspace, drawn as its past demands; `None` if that has changed meanwhile.
    async fn draw(
        &self,
        place: &mut ClusterClient,
        config: &Config,
        snapshot: &Snapshot,
    ) -> Result<Option<Drawn>, Exit> {
        let name = &self.name;
        let removed = snapshot.view.keyspaces.seen(name).is_some();
        if !removed && snapshot.highest_generation(name) == 0 {
            let first = generation::draw_first(place, config, name).await?;
            return Ok(first.map(|generation| Drawn {
                generation,
                floor: 0,
            }));
        }
        if !removed {
            eprintln!("another process is creating keyspace {name}; waiting for its record");
            let key = Key::Keyspace(name.clone());
            if generation::comes_back(place, config, snapshot, &key).await? {
                return Ok(None);
            }
            // Nobody has made it for as long as any lease lasts: it was lost, or its creator died.
            if !place.snapshot().await?.witnesses().is_empty() {
                return Err(Exit::failed(format!(
                    "the record of keyspace {name} is missing while nodes may own its shards; start a node that \
                     serves the keyspace, or run the command again when all sessions have ended"
                )));
            }
        }
        let generation = generation::draw(place, config, name, 0).await?;
        Ok(Some(Drawn {
            generation,
            floor: generation,
        }))
    }

    /// Whether an equal keyspace exists. One that differs, or that must not be touched, is refused.
    fn is_there(
        &self,
        snapshot: &Snapshot,
        wanted: KeyspaceKind,
        plan: &PlanningSettings,
    ) -> Result<bool, Exit> {
        let name = &self.name;
        if let Some(KeyState::Damaged { damage, .. }) = snapshot.view.cluster.cell(&()) {
            return Err(generation::unreadable(damage));
        }
        if snapshot.other_store().is_some() {
            return Err(Exit::failed(
                "this store was restored or replaced since the cluster was written; run \
                 `tenure keyspace bump-generation --all` first",
            ));
        }
        match snapshot.view.keyspaces.cell(name) {
            Some(KeyState::Damaged { damage, .. }) => Err(Exit::failed(format!(
                "keyspace {name}: {damage}; see `tenure status`"
            ))),
            Some(KeyState::Present(seen)) if !seen.record.deleted => {
                let there = &seen.record;
                if there.kind != wanted || there.assigned_by != self.assigned_by {
                    return Err(Exit::failed(format!(
                        "keyspace {name} exists as {} with assigned_by = {}, not as {wanted} with assigned_by = {}; \
                         choose another name, or run `tenure keyspace delete {name}` first",
                        there.kind, there.assigned_by, self.assigned_by
                    )));
                }
                if *plan != PlanningSettings::default() && *plan != there.planning {
                    return Err(Exit::failed(format!(
                        "keyspace {name} exists with other planning settings; `tenure keyspace show {name}` shows them, \
                         `tenure keyspace update {name}` changes them"
                    )));
                }
                eprintln!(
                    "keyspace {name} already exists ({wanted}, {})",
                    self.assigned_by
                );
                Ok(true)
            }
            removed => {
                let was = match removed {
                    Some(KeyState::Present(seen)) => Some(seen.record.kind),
                    _ => None,
                };
                self.check_leftovers(snapshot, was, wanted).map(|()| false)
            }
        }
    }

    /// Shard records outlive their keyspace. What they say must not be in the way of the new one.
    fn check_leftovers(
        &self,
        snapshot: &Snapshot,
        was: Option<KeyspaceKind>,
        wanted: KeyspaceKind,
    ) -> Result<(), Exit> {
        let name = &self.name;
        let owned = snapshot.owned(name);
        match was {
            None if owned > 0 => Err(Exit::failed(format!(
                "the record of keyspace {name} is missing while {owned} of its shards are owned; nodes that serve the \
                 keyspace write the record again after a ttl"
            ))),
            Some(_) if owned > 0 => Err(Exit::failed(format!(
                "keyspace {name} was deleted, but {owned} of its shards are still owned; wait until their nodes have \
                 released them (`tenure status`)"
            ))),
            Some(KeyspaceKind::Hashed(_)) if wanted == KeyspaceKind::Named => {
                Err(Exit::failed(format!(
                    "keyspace {name} was hashed before it was deleted, and its shard records are kept for their epochs; \
                 choose another name for a named keyspace"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Records for the shards that have none. Where some may have been lost, everyone who may own them has to deny it first.
    fn missing(
        &self,
        place: &mut ClusterClient,
        snapshot: &Snapshot,
        wanted: KeyspaceKind,
        drawn: &Drawn,
    ) -> Vec<PutIf> {
        let KeyspaceKind::Hashed(_) = wanted else {
            return Vec::new();
        };
        let witnesses = match drawn.floor {
            0 => Vec::new(),
            _ => snapshot.witnesses(),
        };
        let absent = snapshot
            .shards(&self.name, wanted)
            .filter(|(_, cell)| cell.is_none());
        absent
            .map(|(shard, _)| {
                let key = Key::Shard(ShardId::new(self.name.clone(), shard));
                let head = fresh_head(place, snapshot, &key);
                let record = restored(head, drawn.generation, witnesses.clone(), Rules::sound());
                let record = Record::Shard(Arc::new(record));
                PutIf::create(key.path(&place.cluster), record.encode())
            })
            .collect()
    }

    /// The keyspace's own record.
    fn record(
        &self,
        place: &mut ClusterClient,
        snapshot: &Snapshot,
        kind: KeyspaceKind,
        drawn: &Drawn,
    ) -> (Expect, KeyspaceRecord) {
        let old = snapshot.view.keyspaces.seen(&self.name);
        let head = match old {
            Some(old) => old.record.head.next(place.nonce()),
            None => fresh_head(place, snapshot, &Key::Keyspace(self.name.clone())),
        };
        let record = KeyspaceRecord {
            head,
            kind,
            assigned_by: self.assigned_by,
            planning: PlanningSettings::default(),
            generation: drawn.generation,
            min_generation: drawn.floor,
            deleted: false,
            rebalance: false,
            unknown: old.map_or_else(Unknown::new, |old| old.record.unknown.clone()),
        };
        let expect = old.map_or(Expect::Absent, |old| Expect::Version(old.version.clone()));
        (expect, record)
    }
}

/// The head of a value for a key that has none now but may have had one.
fn fresh_head(place: &mut ClusterClient, snapshot: &Snapshot, key: &Key) -> Head {
    Head {
        rev: snapshot.view.fresh_rev(key),
        ..Head::first(place.nonce())
    }
}

/// Writes records that do not exist yet. Those that somebody else has written meanwhile are as good.
async fn write_all(place: &ClusterClient, mut puts: Vec<PutIf>) -> Result<(), Exit> {
    let total = puts.len();
    let mut done = 0;
    while !puts.is_empty() {
        let batch: Vec<PutIf> = puts.drain(..puts.len().min(BATCH)).collect();
        done += batch.len();
        for written in within("writing shards", place.store.put_many(batch)).await? {
            written?;
        }
        if total > BATCH {
            eprintln!("{done} of {total} shards written");
        }
    }
    Ok(())
}
