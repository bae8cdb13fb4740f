//! Named shards: list, creation and deletion, one or ten thousand at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{KeyspaceName, ShardId, ShardName};
use tenure_core::keys::Key;
use tenure_core::ownership::Transition;
use tenure_core::record::{KeyspaceKind, KeyspaceRecord, Ownership, Record, ShardRecord};
use tenure_core::view::KeyState;
use tenure_store::Expect;

use super::client::CAS_ATTEMPTS;
use super::waits::POLL_INTERVAL;
use super::{AdminClient, AdminError, Snapshot};

/// Maximum size of the metadata of a shard, in bytes.
pub const MAX_META: usize = 4096;
/// Number of records per batch of writes.
const BATCH: usize = 500;

/// A shard to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewShard {
    /// Name of the shard.
    pub name: ShardName,
    /// Opaque metadata for the handler that loads the shard; at most [`MAX_META`] bytes.
    pub meta: Option<String>,
}

/// Progress and result of the creation or deletion of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardWork {
    /// Number of requested shards.
    pub asked: usize,
    /// Number of shards that were created or deleted.
    pub done: usize,
    /// Number of shards that needed no change.
    pub same: usize,
    /// Number of shards whose owner still finishes its work.
    pub closing: usize,
}

impl ShardWork {
    fn is_complete(&self) -> bool {
        self.done + self.same == self.asked
    }
}

/// Next step for one shard.
enum Step {
    Done,
    Wait,
    Write(Expect, Box<ShardRecord>),
}

impl AdminClient {
    /// Returns the existing shards of a keyspace with their records.
    pub async fn shards(
        &self,
        name: &KeyspaceName,
    ) -> Result<Vec<(ShardName, Arc<ShardRecord>)>, AdminError> {
        let snapshot = self.snapshot().await?;
        snapshot.keyspace(name)?;
        let all = snapshot.view.shards.iter();
        let there = all.filter(|(id, seen)| {
            id.keyspace == *name && seen.record.ownership != Ownership::Deleted
        });
        Ok(there
            .map(|(id, seen)| (id.shard.clone(), seen.record.clone()))
            .collect())
    }

    /// Creates shards of a named keyspace, which nodes then claim. Existing shards do not change.
    ///
    /// A shard that was deleted before continues above its old epochs.
    pub async fn create_shards(
        &self,
        name: &KeyspaceName,
        shards: Vec<NewShard>,
        mut progress: impl FnMut(&ShardWork),
    ) -> Result<ShardWork, AdminError> {
        let mut wanted = BTreeMap::new();
        for NewShard { name: shard, meta } in shards {
            if let Some(long) = meta.as_ref().filter(|m| m.len() > MAX_META) {
                return Err(AdminError::Refused(format!(
                    "the metadata of {name}/{shard} has {} bytes; the limit is {MAX_META}",
                    long.len()
                )));
            }
            wanted.insert(ShardId::new(name.clone(), shard), meta);
        }
        let mut work = ShardWork {
            asked: wanted.len(),
            ..ShardWork::default()
        };
        self.work_off(
            name,
            wanted,
            &mut work,
            &mut progress,
            |snapshot, record, id, meta| self.creation(snapshot, record, id, meta),
        )
        .await?;
        Ok(work)
    }

    fn creation(
        &self,
        snapshot: &Snapshot,
        keyspace: &KeyspaceRecord,
        id: &ShardId,
        meta: &Option<String>,
    ) -> Result<Step, AdminError> {
        let key = Key::Shard(id.clone());
        match snapshot.view.shards.cell(id) {
            Some(KeyState::Damaged { damage, .. }) => Err(AdminError::Refused(format!(
                "shard {id}: {damage}; run `tenure shard repair {id}` first"
            ))),
            Some(KeyState::Present(seen)) if seen.record.ownership == Ownership::Deleted => {
                let meta = meta.clone();
                let change = Transition::Recreate { meta };
                let again = self.transition(snapshot, &seen.record, change);
                let expect = Expect::Version(seen.version.clone());
                Ok(match again {
                    Ok(record) => Step::Write(expect, Box::new(record)),
                    Err(_) => Step::Wait,
                })
            }
            Some(KeyState::Present(seen)) if seen.record.deleting => Ok(Step::Wait),
            Some(KeyState::Present(seen)) if meta.is_some() && seen.record.meta != *meta => {
                Err(AdminError::Refused(format!(
                    "shard {id} exists already with different metadata; delete it first"
                )))
            }
            Some(KeyState::Present(_)) => Ok(Step::Done),
            Some(KeyState::Missing { .. }) | None => {
                let head = self.fresh_head(snapshot, &key);
                let generation = keyspace.generation.max(keyspace.min_generation);
                let mut record = ShardRecord::new(head, generation);
                record.meta = meta.clone();
                Ok(Step::Write(Expect::Absent, Box::new(record)))
            }
        }
    }

    /// Deletes shards of a named keyspace after their owners have finished. Shards that do not exist are skipped.
    pub async fn delete_shards(
        &self,
        name: &KeyspaceName,
        shards: Vec<ShardName>,
        limit: Duration,
        mut progress: impl FnMut(&ShardWork),
    ) -> Result<ShardWork, AdminError> {
        let ids = shards.into_iter();
        let wanted: BTreeMap<ShardId, ()> = ids
            .map(|shard| (ShardId::new(name.clone(), shard), ()))
            .collect();
        let mut work = ShardWork {
            asked: wanted.len(),
            ..ShardWork::default()
        };
        let deleting = self.work_off(
            name,
            wanted,
            &mut work,
            &mut progress,
            |snapshot, _, id, ()| self.deletion(snapshot, id),
        );
        match tokio::time::timeout(limit, deleting).await {
            Ok(done) => done.map(|()| work),
            Err(_) => Err(AdminError::TimedOut(format!(
                "{} shards are still being drained by their owners; each is deleted when its owner has finished",
                work.closing
            ))),
        }
    }

    fn deletion(&self, snapshot: &Snapshot, id: &ShardId) -> Result<Step, AdminError> {
        let seen = match snapshot.view.shards.cell(id) {
            Some(KeyState::Damaged { damage, .. }) => {
                return Err(AdminError::Refused(format!(
                    "shard {id}: {damage}; run `tenure shard repair {id}` first"
                )));
            }
            Some(KeyState::Present(seen)) if seen.record.ownership != Ownership::Deleted => seen,
            _ => return Ok(Step::Done),
        };
        let change = |change| self.transition(snapshot, &seen.record, change).ok();
        let marked = || match seen.record.deleting {
            true => None,
            false => change(Transition::MarkForDeletion),
        };
        let expect = Expect::Version(seen.version.clone());
        Ok(match change(Transition::Delete).or_else(marked) {
            Some(record) => Step::Write(expect, Box::new(record)),
            None => Step::Wait,
        })
    }

    /// Takes the next step of each shard until all are done. A step is decided again after every read.
    async fn work_off<T>(
        &self,
        name: &KeyspaceName,
        mut wanted: BTreeMap<ShardId, T>,
        work: &mut ShardWork,
        progress: &mut impl FnMut(&ShardWork),
        step: impl Fn(&Snapshot, &KeyspaceRecord, &ShardId, &T) -> Result<Step, AdminError>,
    ) -> Result<(), AdminError> {
        let mut touched: BTreeMap<ShardId, usize> = BTreeMap::new();
        loop {
            let snapshot = self.snapshot().await?;
            let record = named(&snapshot, name)?;
            let mut writes = Vec::new();
            work.closing = 0;
            let mut settled = Vec::new();
            for (id, value) in &wanted {
                match step(&snapshot, record, id, value)? {
                    Step::Done => settled.push(id.clone()),
                    Step::Wait => work.closing += 1,
                    Step::Write(expect, record) => {
                        let tries = touched.entry(id.clone()).or_default();
                        *tries += 1;
                        if *tries > CAS_ATTEMPTS {
                            return Err(AdminError::Raced(format!(
                                "shard {id} keeps changing concurrently"
                            )));
                        }
                        let record = Record::Shard(Arc::new(*record));
                        writes.push(self.write(&Key::Shard(id.clone()), expect, &record));
                    }
                }
            }
            for id in settled {
                wanted.remove(&id);
                match touched.contains_key(&id) {
                    true => work.done += 1,
                    false => work.same += 1,
                }
            }
            progress(work);
            if work.is_complete() {
                return Ok(());
            }
            if writes.is_empty() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            let mut writes = writes.into_iter().peekable();
            while writes.peek().is_some() {
                self.put_batch(writes.by_ref().take(BATCH).collect())
                    .await?;
            }
        }
    }
}

fn named<'a>(
    snapshot: &'a Snapshot,
    name: &KeyspaceName,
) -> Result<&'a KeyspaceRecord, AdminError> {
    let record = snapshot.keyspace(name)?;
    match record.kind {
        KeyspaceKind::Named => Ok(record),
        KeyspaceKind::Hashed(n) => Err(AdminError::Refused(format!(
            "keyspace {name} has a fixed number of {n} shards; only shards of a named keyspace can be created and deleted"
        ))),
    }
}
