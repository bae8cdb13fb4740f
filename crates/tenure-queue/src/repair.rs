//! Putting indexes right, and removing what nobody wants any more.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_store::{Delete, DeleteIf};

use crate::error::QueueError;
use crate::ids::TaskId;
use crate::keys::{IndexEntry, IndexKind};
use crate::queue::Queue;
use crate::queue_record::QueueSettings;
use crate::schedule::RememberedTicks;
use crate::store_time::StoreTime;
use crate::task_store::{TaskStore, in_time};

/// How many keys are read at once.
const PAGE: usize = 500;

/// What rebuilding an index found.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RebuildResult {
    /// Tasks that were read.
    pub tasks: u64,
    /// Entries that were missing and were written.
    pub added: u64,
    /// Entries that led nowhere and were removed.
    pub removed: u64,
    /// Tasks that cannot be read, by key, and why. They are left alone: look at them, then remove them.
    pub corrupt: Vec<(String, String)>,
    /// Keys among the tasks that are none of ours. They are left alone.
    pub foreign: Vec<String>,
}

/// Which tasks are to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purge {
    /// Those that are done or cancelled for longer than this; none: not those.
    pub done: Option<Duration>,
    /// Dead letters older than this; none: not those.
    pub dead: Option<Duration>,
}

impl Purge {
    /// What the queue's own settings say.
    pub fn by(settings: &QueueSettings) -> Self {
        Self {
            done: Some(settings.retain_done),
            dead: Some(settings.retain_dead),
        }
    }
}

impl Queue {
    /// Reads every task and makes the indexes what they should be. Safe at any time, beside workers and producers.
    pub async fn rebuild_index(&self) -> Result<RebuildResult, QueueError> {
        let mut rebuilt = RebuildResult::default();
        for shard in 0..self.layout().shards() {
            self.shelf().rebuild_shard(shard, &mut rebuilt).await?;
        }
        Ok(rebuilt)
    }

    /// Removes tasks that ended long enough ago. Gives how many.
    pub async fn purge(&self, purge: &Purge) -> Result<u64, QueueError> {
        let mut count = 0;
        for shard in 0..self.layout().shards() {
            count += self.shelf().purge_shard(shard, purge).await?;
        }
        Ok(count)
    }
}

impl TaskStore {
    async fn rebuild_shard(
        &self,
        shard: u32,
        rebuilt: &mut RebuildResult,
    ) -> Result<(), QueueError> {
        // What is there is read first: entries that are written meanwhile are not among those that may go.
        let mut there: BTreeSet<String> = BTreeSet::new();
        for index in IndexKind::ALL {
            there.extend(self.all_keys(&self.prefix(index, shard)).await?);
        }
        let prefix = self.layout.tasks(shard);
        let mut after = None::<String>;
        loop {
            let keys = self.keys(&prefix, after.as_deref(), PAGE).await?;
            let mut ids = Vec::new();
            for key in &keys.keys {
                match self.layout.task_of(key) {
                    Some(id) => ids.push(id),
                    None => rebuilt.foreign.push(key.clone()),
                }
            }
            self.rebuild_tasks(&ids, &mut there, rebuilt).await?;
            after = keys.keys.last().cloned();
            if !keys.more {
                break;
            }
        }
        let gone = self.strays(there).await?;
        rebuilt.removed += gone.len() as u64;
        self.discard(gone).await;
        Ok(())
    }

    async fn rebuild_tasks(
        &self,
        ids: &[TaskId],
        there: &mut BTreeSet<String>,
        rebuilt: &mut RebuildResult,
    ) -> Result<(), QueueError> {
        let mut missing = Vec::new();
        for (id, held) in ids.iter().zip(self.read_many(ids).await) {
            match held {
                Ok(Some(held)) => {
                    rebuilt.tasks += 1;
                    let right = IndexEntry::of(&held.task);
                    if !there.remove(&self.layout.entry(&right)) {
                        missing.push(right);
                    }
                }
                Ok(None) => {}
                Err(e) if e.is_unreadable() => {
                    rebuilt.corrupt.push((self.layout.task(id), e.to_string()));
                }
                Err(e) => return Err(e),
            }
        }
        rebuilt.added += missing.len() as u64;
        match self.put_entries(missing).await {
            true => Ok(()),
            false => Err(tenure_store::StoreError::unavailable(
                "some index entries could not be written; rebuild the index again",
            )
            .into()),
        }
    }

    /// Of the entries that led to no task as it was, those that may be removed: not those whose task is about to come, nor
    /// those of tasks that cannot be read.
    async fn strays(&self, entries: BTreeSet<String>) -> Result<Vec<String>, QueueError> {
        let now = self.now().await?;
        let mut gone = Vec::new();
        for key in entries {
            let Some(entry) = self.layout.entry_of(&key) else {
                gone.push(key);
                continue;
            };
            match self.read(&entry.id).await {
                Ok(Some(held)) if IndexEntry::of(&held.task) == entry => {}
                Ok(held) if self.is_ahead(&entry, held.as_ref().map(|h| &h.task), now) => {}
                Ok(Some(held)) => {
                    let right = IndexEntry::of(&held.task);
                    if self.overtakes(&entry, &held).await && self.put_entries(vec![right]).await {
                        gone.push(key);
                    }
                }
                Ok(None) => gone.push(key),
                Err(e) if e.is_unreadable() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(gone)
    }

    /// Finds tasks that no entry leads to, without reading any other, and writes their entries. Gives how many there were.
    pub(crate) async fn rescan_shard(&self, shard: u32) -> Result<u64, QueueError> {
        let mut missing: BTreeSet<TaskId> = BTreeSet::new();
        // Tasks first: one that moves on while the indexes are read is in the later ones.
        for key in self.all_keys(&self.layout.tasks(shard)).await? {
            missing.extend(self.layout.task_of(&key));
        }
        for index in IndexKind::ALL {
            for key in self.all_keys(&self.prefix(index, shard)).await? {
                match self.layout.entry_of(&key) {
                    Some(entry) => drop(missing.remove(&entry.id)),
                    None => self.note_corrupt(&QueueError::Corrupt {
                        key,
                        reason: "the key is not in the format of index entries".to_owned(),
                    }),
                }
            }
        }
        let ids: Vec<TaskId> = missing.into_iter().collect();
        let mut found = 0;
        for ids in ids.chunks(PAGE) {
            let mut entries = Vec::new();
            for held in self.read_many(ids).await {
                match held {
                    Ok(Some(held)) => entries.push(IndexEntry::of(&held.task)),
                    Ok(None) => {}
                    Err(e) => self.note_corrupt(&e),
                }
            }
            found += entries.len() as u64;
            self.put_entries(entries).await;
        }
        self.metrics.repaired.add(found as usize);
        Ok(found)
    }

    /// Removes what ended long enough ago in one shard.
    pub(crate) async fn purge_shard(&self, shard: u32, purge: &Purge) -> Result<u64, QueueError> {
        let now = self.now().await?;
        let mut count = 0;
        for (index, keep) in [(IndexKind::Done, purge.done), (IndexKind::Dead, purge.dead)] {
            if let Some(keep) = keep {
                let before = now.minus(keep);
                count += self.purge_index(index, shard, before).await?;
            }
        }
        Ok(count)
    }

    async fn purge_index(
        &self,
        index: IndexKind,
        shard: u32,
        before: StoreTime,
    ) -> Result<u64, QueueError> {
        let prefix = self.prefix(index, shard);
        let (mut count, mut after) = (0, None::<String>);
        loop {
            let keys = self.keys(&prefix, after.as_deref(), PAGE).await?;
            let parsed = keys.keys.iter().filter_map(|key| self.layout.entry_of(key));
            let (old, young): (Vec<IndexEntry>, Vec<IndexEntry>) =
                parsed.partition(|entry| entry.at < before);
            count += self.purge_entries(old).await?;
            after = keys.keys.last().cloned();
            if !keys.more || !young.is_empty() {
                return Ok(count);
            }
        }
    }

    /// Removes the tasks first, then the entries that lead to them. A task that has come back to life meanwhile stays, and so
    /// does that of a tick that its schedule does not remember yet: it would be submitted again.
    async fn purge_entries(&self, entries: Vec<IndexEntry>) -> Result<u64, QueueError> {
        let ids: Vec<TaskId> = entries.iter().map(|entry| entry.id.clone()).collect();
        let (mut deletes, mut of, mut over) = (Vec::new(), Vec::new(), Vec::new());
        let mut noted = RememberedTicks::default();
        for (entry, held) in entries.into_iter().zip(self.read_many(&ids).await) {
            match held {
                Ok(Some(held)) if IndexEntry::of(&held.task) == entry => {
                    if !noted.contains(self, &entry.id).await? {
                        continue;
                    }
                    let key = self.layout.task(&held.task.id);
                    deletes.push(DeleteIf::new(key, held.version));
                    of.push(entry);
                }
                Ok(Some(held)) => self.set_straight(&entry, &held).await,
                Ok(None) => over.push(entry),
                Err(e) => self.note_corrupt(&e),
            }
        }
        let deleted = in_time(async { Ok(self.store.delete_many(deletes).await) }).await?;
        let mut count = 0;
        for (entry, deleted) in of.into_iter().zip(deleted) {
            if deleted == Ok(Delete::Won) {
                count += 1;
                over.push(entry);
            }
        }
        self.metrics.purged.add(count);
        self.remove_entries(over).await;
        Ok(count as u64)
    }

    async fn all_keys(&self, prefix: &str) -> Result<Vec<String>, QueueError> {
        let mut all: Vec<String> = Vec::new();
        loop {
            let after = all.last().cloned();
            let page = self.keys(prefix, after.as_deref(), PAGE).await?;
            all.extend(page.keys);
            if !page.more {
                return Ok(all);
            }
        }
    }
}
