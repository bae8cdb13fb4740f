//! Creation of keyspaces: a generation is reserved, then the shards are written, then the keyspace.
//!
//! A keyspace that exists is therefore complete. An interrupted creation is finished by the next one.

use std::sync::Arc;

use tenure_core::ids::{KeyspaceName, ShardId};
use tenure_core::keys::Key;
use tenure_core::node::plan_without_effect;
use tenure_core::ownership::restored;
use tenure_core::record::{
    AssignedBy, KeyspaceKind, KeyspaceRecord, PlanningSettings, Record, Unknown,
};
use tenure_core::rules::Rules;
use tenure_core::view::KeyState;
use tenure_store::{Expect, PutIf};

use super::client::{CAS_ATTEMPTS, Change};
use super::generations::{Reserve, unreadable};
use super::{AdminClient, AdminError, Snapshot, keyspaces};

/// Number of records per batch of writes.
const BATCH: usize = 2000;

/// A keyspace to create.
#[derive(Clone, Debug, PartialEq)]
pub struct NewKeyspace {
    /// Name of the keyspace.
    pub name: KeyspaceName,
    /// Kind of the keyspace, with the number of shards if it is hashed.
    pub kind: KeyspaceKind,
    /// Method of assigning shards to nodes.
    pub assigned_by: AssignedBy,
    /// Planning settings.
    pub planning: PlanningSettings,
}

/// Result of [`AdminClient::create_keyspace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyspaceCreation {
    /// The keyspace was created.
    Created,
    /// An equal keyspace exists.
    Existing,
}

/// Progress of [`AdminClient::create_keyspace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreationProgress {
    /// Another process has begun to create the keyspace. The operation waits for it, at most for the longest ttl.
    WaitingForCreator,
    /// A batch of shards was written.
    ShardsWritten {
        /// Number of shards written so far.
        written: usize,
        /// Number of shards to write.
        total: usize,
    },
}

/// A generation that this creation has reserved.
#[derive(Clone, Copy)]
struct Reserved {
    generation: u32,
    /// Zero for a keyspace that never existed; else all epochs are of this generation at least.
    min_generation: u32,
}

/// Next step of a creation.
enum Step {
    Exists,
    Reserve,
    WriteShards(Vec<PutIf>),
    Created,
}

impl NewKeyspace {
    /// A keyspace that the leader assigns, with the default planning settings.
    pub fn new(name: KeyspaceName, kind: KeyspaceKind) -> Self {
        Self {
            name,
            kind,
            assigned_by: AssignedBy::default(),
            planning: PlanningSettings::default(),
        }
    }

    /// Checks the settings without a store.
    pub fn check(&self) -> Result<(), AdminError> {
        if self.kind == KeyspaceKind::Hashed(0) {
            return Err(AdminError::Invalid(format!(
                "keyspace {} has no shards; a hashed keyspace needs at least one",
                self.name
            )));
        }
        if let Some(problem) = plan_without_effect(self.assigned_by, &self.planning) {
            return Err(AdminError::Invalid(problem));
        }
        keyspaces::check(&self.name, &self.planning)
    }
}

impl AdminClient {
    /// Creates a keyspace with all its shards. Changes nothing if an equal keyspace exists.
    ///
    /// Nodes create their keyspaces themselves; this is for a keyspace that must exist before the first node starts.
    pub async fn create_keyspace(
        &self,
        new: &NewKeyspace,
        mut progress: impl FnMut(CreationProgress),
    ) -> Result<KeyspaceCreation, AdminError> {
        new.check()?;
        let mut reserved = None;
        for _ in 0..CAS_ATTEMPTS {
            match self.next_step(new, reserved).await? {
                Step::Exists => return Ok(KeyspaceCreation::Existing),
                Step::Created => return Ok(KeyspaceCreation::Created),
                Step::Reserve => {
                    reserved = self.reserve_for_new(&new.name, &mut progress).await?;
                }
                Step::WriteShards(puts) => self.write_shards(puts, &mut progress).await?,
            }
        }
        Err(AdminError::Raced(format!(
            "keyspace {} keeps changing concurrently",
            new.name
        )))
    }

    /// Decides the next step of a creation. Writes the record of the keyspace if nothing else is left to do.
    async fn next_step(
        &self,
        new: &NewKeyspace,
        reserved: Option<Reserved>,
    ) -> Result<Step, AdminError> {
        let change = |snapshot: &Snapshot| {
            if exists(snapshot, new)? {
                return Ok(Change::Keep(Step::Exists));
            }
            // A generation that concurrent writers have passed is useless.
            let highest = snapshot.highest_generation(&new.name);
            let Some(reserved) = reserved.filter(|reserved| reserved.generation >= highest) else {
                return Ok(Change::Keep(Step::Reserve));
            };
            let missing = self.missing_shards(snapshot, new, reserved);
            if !missing.is_empty() {
                return Ok(Change::Keep(Step::WriteShards(missing)));
            }
            let (expect, record) = self.new_record(snapshot, new, reserved);
            let record = Record::Keyspace(Arc::new(record));
            Ok(Change::Write(expect, record, Step::Created))
        };
        let what = format!("keyspace {}", new.name);
        let key = Key::Keyspace(new.name.clone());
        Ok(self.update(&key, &what, change).await?.answer)
    }

    /// Reserves the generation that the past of the keyspace requires. Returns `None` if that has changed meanwhile.
    async fn reserve_for_new(
        &self,
        name: &KeyspaceName,
        progress: &mut impl FnMut(CreationProgress),
    ) -> Result<Option<Reserved>, AdminError> {
        let snapshot = self.snapshot().await?;
        let was_deleted = snapshot.view.keyspaces.seen(name).is_some();
        if !was_deleted && snapshot.highest_generation(name) == 0 {
            let first = self.reserve_as(name, Reserve::First).await?;
            return Ok(first.map(|generation| Reserved {
                generation,
                min_generation: 0,
            }));
        }
        if !was_deleted {
            progress(CreationProgress::WaitingForCreator);
            if self.comes_back(&Key::Keyspace(name.clone())).await? {
                return Ok(None);
            }
            // Every lease has expired meanwhile: the keyspace was lost, or its creator died.
            if !self.snapshot().await?.witnesses().is_empty() {
                return Err(AdminError::Refused(format!(
                    "the record of keyspace {name} is missing while nodes may own its shards; start a node that \
                     serves the keyspace, or run the command again when all sessions have ended"
                )));
            }
        }
        let generation = self.reserve(name, 0).await?;
        Ok(Some(Reserved {
            generation,
            min_generation: generation,
        }))
    }

    /// Records for the shards that have none. Where some may have been lost, all sessions that may own them are witnesses.
    fn missing_shards(
        &self,
        snapshot: &Snapshot,
        new: &NewKeyspace,
        reserved: Reserved,
    ) -> Vec<PutIf> {
        let KeyspaceKind::Hashed(_) = new.kind else {
            return Vec::new();
        };
        let witnesses = match reserved.min_generation {
            0 => Vec::new(),
            _ => snapshot.witnesses(),
        };
        let all = snapshot.shards(&new.name, new.kind);
        all.filter(|(_, cell)| cell.is_none())
            .map(|(shard, _)| {
                let key = Key::Shard(ShardId::new(new.name.clone(), shard));
                let head = self.fresh_head(snapshot, &key);
                let witnesses = witnesses.clone();
                let record = restored(head, reserved.generation, witnesses, Rules::sound());
                self.write(&key, Expect::Absent, &Record::Shard(Arc::new(record)))
            })
            .collect()
    }

    /// Writes missing shards. A shard that another process has written meanwhile is as good.
    async fn write_shards(
        &self,
        mut puts: Vec<PutIf>,
        progress: &mut impl FnMut(CreationProgress),
    ) -> Result<(), AdminError> {
        let total = puts.len();
        let mut written = 0;
        while !puts.is_empty() {
            let batch: Vec<PutIf> = puts.drain(..puts.len().min(BATCH)).collect();
            written += batch.len();
            self.put_batch(batch).await?;
            progress(CreationProgress::ShardsWritten { written, total });
        }
        Ok(())
    }

    fn new_record(
        &self,
        snapshot: &Snapshot,
        new: &NewKeyspace,
        reserved: Reserved,
    ) -> (Expect, KeyspaceRecord) {
        let old = snapshot.view.keyspaces.seen(&new.name);
        let head = match old {
            Some(old) => old.record.head.next(self.nonce()),
            None => self.fresh_head(snapshot, &Key::Keyspace(new.name.clone())),
        };
        let record = KeyspaceRecord {
            head,
            kind: new.kind,
            assigned_by: new.assigned_by,
            planning: new.planning.clone(),
            generation: reserved.generation,
            min_generation: reserved.min_generation,
            deleted: false,
            rebalance: false,
            unknown: old.map_or_else(Unknown::new, |old| old.record.unknown.clone()),
        };
        let expect = old.map_or(Expect::Absent, |old| Expect::Version(old.version.clone()));
        (expect, record)
    }
}

/// Returns `true` if an equal keyspace exists. Fails if another keyspace has the name, or if it must not be created now.
fn exists(snapshot: &Snapshot, new: &NewKeyspace) -> Result<bool, AdminError> {
    let NewKeyspace {
        name,
        kind,
        assigned_by,
        planning,
    } = new;
    let refused = |text| Err(AdminError::Refused(text));
    if let Some(KeyState::Damaged { damage, .. }) = snapshot.view.cluster.cell(&()) {
        return Err(unreadable(damage));
    }
    if snapshot.other_store().is_some() {
        return refused(
            "this store was restored or replaced since the cluster was written; run \
             `tenure keyspace bump-generation --all` first"
                .to_owned(),
        );
    }
    match snapshot.view.keyspaces.cell(name) {
        Some(KeyState::Damaged { damage, .. }) => {
            refused(format!("keyspace {name}: {damage}; see `tenure status`"))
        }
        Some(KeyState::Present(seen)) if !seen.record.deleted => {
            let there = &seen.record;
            if there.kind != *kind || there.assigned_by != *assigned_by {
                return refused(format!(
                    "keyspace {name} exists as {} with assigned_by = {}, not as {kind} with assigned_by = {assigned_by}; use it as it is, \
                     choose another name, or delete it first (`tenure keyspace delete {name}`)",
                    there.kind, there.assigned_by
                ));
            }
            if *planning != PlanningSettings::default() && *planning != there.planning {
                return refused(format!(
                    "keyspace {name} exists with other planning settings; `tenure keyspace show {name}` shows them, \
                     `tenure keyspace update {name}` changes them"
                ));
            }
            Ok(true)
        }
        deleted => {
            let was = match deleted {
                Some(KeyState::Present(seen)) => Some(seen.record.kind),
                _ => None,
            };
            check_leftovers(snapshot, new, was).map(|()| false)
        }
    }
}

/// Rejects a creation that the shard records of an earlier keyspace of this name do not allow.
fn check_leftovers(
    snapshot: &Snapshot,
    new: &NewKeyspace,
    was: Option<KeyspaceKind>,
) -> Result<(), AdminError> {
    let name = &new.name;
    let owned = snapshot.owned(name);
    let refused = |text| Err(AdminError::Refused(text));
    match was {
        None if owned > 0 => refused(format!(
            "the record of keyspace {name} is missing while {owned} of its shards are owned; nodes that serve the \
             keyspace write the record again after a ttl"
        )),
        Some(_) if owned > 0 => refused(format!(
            "keyspace {name} was deleted, but {owned} of its shards are still owned; wait until their nodes have \
             released them (`tenure status`)"
        )),
        Some(KeyspaceKind::Hashed(_)) if new.kind == KeyspaceKind::Named => refused(format!(
            "keyspace {name} was hashed before it was deleted, and its shard records are kept for their epochs; \
             choose another name for a named keyspace"
        )),
        _ => Ok(()),
    }
}
