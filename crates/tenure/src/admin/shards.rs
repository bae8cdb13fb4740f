//! Named shards: created and deleted one by one, or ten thousand at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{KeyspaceName, ShardId, ShardName};
use tenure_core::keys::Key;
use tenure_core::ownership::Transition;
use tenure_core::record::{Head, KeyspaceKind, KeyspaceRecord, Ownership, Record, ShardRecord};
use tenure_core::view::{KeyState, View};
use tenure_store::{Expect, Put, PutIf, StoreError};

use super::{AdminClient, AdminError, CAS_ATTEMPTS, keyspace, within};

/// The most bytes that can be attached to a shard.
pub const MAX_META: usize = 4096;
/// How many records are written at once.
const BATCH: usize = 500;

/// A shard that is to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewShard {
    /// Its name.
    pub name: ShardName,
    /// Opaque metadata for the handler that loads the shard; at most [`MAX_META`] bytes.
    pub meta: Option<String>,
}

/// How far creating or deleting shards has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardWork {
    /// How many were asked for.
    pub asked: usize,
    /// How many are as they should be and were not before.
    pub done: usize,
    /// How many were so already.
    pub same: usize,
    /// How many still have an owner that finishes its work.
    pub closing: usize,
}

impl ShardWork {
    fn is_complete(&self) -> bool {
        self.done + self.same == self.asked
    }
}

/// What to write for one shard.
enum Step {
    Done,
    Wait,
    Write(Expect, Box<ShardRecord>),
}

impl AdminClient {
    /// The shards of a named keyspace that are there, with what is known of them.
    pub async fn shards(
        &self,
        name: &KeyspaceName,
    ) -> Result<Vec<(ShardName, Arc<ShardRecord>)>, AdminError> {
        let view = self.snapshot().await?;
        keyspace(&view, name)?;
        let all = view.shards.iter();
        let there = all.filter(|(id, seen)| {
            id.keyspace == *name && seen.record.ownership != Ownership::Deleted
        });
        Ok(there
            .map(|(id, seen)| (id.shard.clone(), seen.record.clone()))
            .collect())
    }

    /// Creates shards of a named keyspace; nodes take them up by themselves. Those that are there stay as they are.
    ///
    /// A shard that was deleted before goes on above its old epochs.
    pub async fn create_shards(
        &self,
        name: &KeyspaceName,
        shards: Vec<NewShard>,
        mut tell: impl FnMut(&ShardWork),
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
            &mut tell,
            |view, record, id, meta| self.creation(view, record, id, meta),
        )
        .await?;
        Ok(work)
    }

    fn creation(
        &self,
        view: &View,
        keyspace: &KeyspaceRecord,
        id: &ShardId,
        meta: &Option<String>,
    ) -> Result<Step, AdminError> {
        let key = Key::Shard(id.clone());
        match view.shards.cell(id) {
            Some(KeyState::Damaged { damage, .. }) => Err(AdminError::Refused(format!(
                "shard {id}: {damage}; run `tenure shard repair {id}` first"
            ))),
            Some(KeyState::Present(seen)) if seen.record.ownership == Ownership::Deleted => {
                let meta = meta.clone();
                let change = Transition::Recreate { meta };
                let again = self.changed(&seen.record, change, view);
                let expect = Expect::Version(seen.version.clone());
                Ok(again.map_or(Step::Wait, |r| Step::Write(expect, Box::new(r))))
            }
            Some(KeyState::Present(seen)) if seen.record.deleting => Ok(Step::Wait),
            Some(KeyState::Present(seen)) if meta.is_some() && seen.record.meta != *meta => {
                Err(AdminError::Refused(format!(
                    "shard {id} exists already with different metadata; delete it first"
                )))
            }
            Some(KeyState::Present(_)) => Ok(Step::Done),
            Some(KeyState::Missing { .. }) | None => {
                let head = Head {
                    rev: view.fresh_rev(&key),
                    ..Head::first(self.nonce())
                };
                let generation = keyspace.generation.max(keyspace.min_generation);
                let mut record = ShardRecord::new(head, generation);
                record.meta = meta.clone();
                Ok(Step::Write(Expect::Absent, Box::new(record)))
            }
        }
    }

    /// Deletes shards of a named keyspace, and waits for those who own them to finish. Those that are not there stay so.
    pub async fn delete_shards(
        &self,
        name: &KeyspaceName,
        shards: Vec<ShardName>,
        limit: Duration,
        mut tell: impl FnMut(&ShardWork),
    ) -> Result<ShardWork, AdminError> {
        let ids = shards.into_iter();
        let wanted: BTreeMap<ShardId, ()> = ids
            .map(|shard| (ShardId::new(name.clone(), shard), ()))
            .collect();
        let mut work = ShardWork {
            asked: wanted.len(),
            ..ShardWork::default()
        };
        let deleting = self.work_off(name, wanted, &mut work, &mut tell, |view, _, id, ()| {
            self.deletion(view, id)
        });
        match tokio::time::timeout(limit, deleting).await {
            Ok(done) => done.map(|()| work),
            Err(_) => Err(AdminError::TimedOut(format!(
                "{} shards are still being drained by their owners; each is deleted when its owner has finished",
                work.closing
            ))),
        }
    }

    fn deletion(&self, view: &View, id: &ShardId) -> Result<Step, AdminError> {
        let seen = match view.shards.cell(id) {
            Some(KeyState::Damaged { damage, .. }) => {
                return Err(AdminError::Refused(format!(
                    "shard {id}: {damage}; run `tenure shard repair {id}` first"
                )));
            }
            Some(KeyState::Present(seen)) if seen.record.ownership != Ownership::Deleted => seen,
            _ => return Ok(Step::Done),
        };
        let deleted = self.changed(&seen.record, Transition::Delete, view);
        let doomed = || {
            let news = !seen.record.deleting;
            news.then(|| self.changed(&seen.record, Transition::MarkForDeletion, view))
                .flatten()
        };
        let expect = Expect::Version(seen.version.clone());
        Ok(match deleted.or_else(doomed) {
            Some(record) => Step::Write(expect, Box::new(record)),
            None => Step::Wait,
        })
    }

    /// Writes what is to be written for each shard until nothing is left to do.
    async fn work_off<T>(
        &self,
        name: &KeyspaceName,
        mut wanted: BTreeMap<ShardId, T>,
        work: &mut ShardWork,
        tell: &mut impl FnMut(&ShardWork),
        step: impl Fn(&View, &KeyspaceRecord, &ShardId, &T) -> Result<Step, AdminError>,
    ) -> Result<(), AdminError> {
        let mut touched: BTreeMap<ShardId, usize> = BTreeMap::new();
        loop {
            let view = self.snapshot().await?;
            let record = named(&view, name)?;
            let mut writes = Vec::new();
            work.closing = 0;
            let mut settled = Vec::new();
            for (id, value) in &wanted {
                match step(&view, record, id, value)? {
                    Step::Done => settled.push(id.clone()),
                    Step::Wait => work.closing += 1,
                    Step::Write(expect, record) => {
                        let tries = touched.entry(id.clone()).or_default();
                        *tries += 1;
                        if *tries > CAS_ATTEMPTS {
                            return Err(AdminError::Raced(format!("shard {id}")));
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
            tell(work);
            if work.is_complete() {
                return Ok(());
            }
            if writes.is_empty() {
                tokio::time::sleep(super::LOOK).await;
            }
            self.put_all(writes).await?;
        }
    }

    /// Writes many records; what became of each shows when everything is read again.
    async fn put_all(&self, writes: Vec<PutIf>) -> Result<(), AdminError> {
        let mut writes = writes.into_iter().peekable();
        while writes.peek().is_some() {
            let batch: Vec<PutIf> = writes.by_ref().take(BATCH).collect();
            let call = async { Ok(self.store.put_many(batch).await) };
            for answer in within(call).await? {
                match answer {
                    Ok(Put::Won(_) | Put::Lost) | Err(StoreError::Unknown { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}

fn named<'a>(view: &'a View, name: &KeyspaceName) -> Result<&'a KeyspaceRecord, AdminError> {
    let record = keyspace(view, name)?;
    match record.kind {
        KeyspaceKind::Named => Ok(record),
        KeyspaceKind::Hashed(n) => Err(AdminError::Refused(format!(
            "keyspace {name} has a fixed number of {n} shards; only shards of a named keyspace can be created and deleted"
        ))),
    }
}
