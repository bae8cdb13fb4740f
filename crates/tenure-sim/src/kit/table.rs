//! A resource for scenarios: a small table in memory that remembers by which epoch each row was written.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure::{Epoch, GrantExpired, ShardId};

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// It is in the table.
    Done,
    /// A later owner has been here: the table refused it, as a resource that fences does.
    Fenced,
}

#[derive(Debug, Default)]
struct Inner<V> {
    rows: BTreeMap<String, V>,
    fences: BTreeMap<ShardId, Epoch>,
    stale: Option<String>,
}

/// A table that all processes of a run share. Clones are the same table.
///
/// A *fencing* table refuses writes of epochs below the highest it has seen of their shard, which is what a resource should
/// do. One that does *not fence* lets them in, and [`Table::stale`] tells of the first: for finding out whether a handler
/// still writes when it is no longer the owner.
#[derive(Debug)]
pub struct Table<V> {
    inner: Arc<Mutex<Inner<V>>>,
    fencing: bool,
}

impl<V> Clone for Table<V> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            fencing: self.fencing,
        }
    }
}

impl<V: Clone> Table<V> {
    /// A table that refuses former owners.
    pub fn fencing() -> Self {
        Self::new(true)
    }

    /// A table that takes everything, and remembers who should not have written.
    pub fn not_fencing() -> Self {
        Self::new(false)
    }

    fn new(fencing: bool) -> Self {
        let inner = Inner {
            rows: BTreeMap::new(),
            fences: BTreeMap::new(),
            stale: None,
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            fencing,
        }
    }

    /// Shuts out all epochs of a shard below this one: the first thing that a `load` does.
    pub fn fence(&self, shard: &ShardId, epoch: Epoch) -> Result<(), GrantExpired> {
        let mut inner = self.lock();
        let fence = inner.fences.entry(shard.clone()).or_default();
        if epoch < *fence && self.fencing {
            let shard = shard.clone();
            return Err(GrantExpired { shard, epoch });
        }
        *fence = epoch.max(*fence);
        Ok(())
    }

    /// A row.
    pub fn read(&self, row: &str) -> Option<V> {
        self.lock().rows.get(row).cloned()
    }

    /// All rows.
    pub fn rows(&self) -> Vec<(String, V)> {
        let inner = self.lock();
        inner
            .rows
            .iter()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }

    /// Writes a row as the owner of a shard at an epoch.
    pub fn write(
        &self,
        shard: &ShardId,
        epoch: Epoch,
        row: impl Into<String>,
        value: V,
    ) -> WriteResult {
        let mut inner = self.lock();
        let fence = inner.fences.get(shard).copied().unwrap_or_default();
        let row = row.into();
        if epoch < fence {
            if self.fencing {
                return WriteResult::Fenced;
            }
            let told = format!(
                "{row:?} was written by the owner of shard {shard} at epoch {epoch}, after epoch {fence} had begun"
            );
            inner.stale.get_or_insert(told);
        }
        inner.fences.insert(shard.clone(), epoch.max(fence));
        inner.rows.insert(row, value);
        WriteResult::Done
    }

    /// The first write of a former owner that was let in: an error, for [`Scenario::check`](super::Scenario::check).
    pub fn stale(&self) -> Result<(), String> {
        self.lock().stale.clone().map_or(Ok(()), Err)
    }

    fn lock(&self) -> MutexGuard<'_, Inner<V>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
