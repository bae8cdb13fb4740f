//! A store in the memory of this process: for tests, simulations and single-process use.
//!
//! Never blocks and never fails, and its clock follows tokio's, so that it also runs in paused time. With
//! [`MemoryStore::with_leases`] it keeps the time of leases too, as etcd does.

mod lease;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tenure_core::ids::{LeaseId, Revision, Version};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::StoreError;
use crate::machine_identity::random_uuid;
use crate::store::{
    ClockScope, Delete, DeleteIf, Entry, Expect, KeyPage, Leases, Listing, Put, PutIf, Store,
    StoreInfo,
};
use crate::watch::{Change, ChangeBatch, TOMBSTONES_KEPT, Watch, WatchEnd, WatchSource};

static NAMED: LazyLock<Mutex<HashMap<String, MemoryStore>>> = LazyLock::new(Mutex::default);

/// A store in memory. Clones share their contents.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    info: StoreInfo,
    shared: Arc<Shared>,
    /// Whether it offers leases.
    leases: bool,
}

impl MemoryStore {
    /// A new, empty store that nobody else can reach.
    pub fn new() -> Self {
        Self::with_url("memory:".to_owned())
    }

    /// A new, empty store that keeps the time of leases itself, by tokio's clock.
    pub fn with_leases() -> Self {
        let mut store = Self::new();
        store.leases = true;
        store
    }

    /// The store of this name in this process, made at first use and kept until the process ends.
    pub fn named(name: &str) -> Self {
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        named
            .entry(name.to_owned())
            .or_insert_with(|| Self::with_url(format!("memory:{name}")))
            .clone()
    }

    /// Forgets which keys were deleted. A watch from before the last of these deletions ends with a gap.
    pub fn purge(&self) {
        self.shared.lock().purge(0);
        self.shared.moved.send_modify(|_| ());
    }

    fn with_url(url: String) -> Self {
        Self {
            info: info_at(url),
            shared: Arc::new(Shared {
                state: Mutex::default(),
                moved: watch::Sender::new(()),
                identity: random_uuid(),
                opened: (SystemTime::now(), Instant::now()),
            }),
            leases: false,
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    moved: watch::Sender<()>,
    identity: String,
    opened: (SystemTime, Instant),
}

impl Shared {
    /// The state as it is now: leases that have run out are gone, with their keys.
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.expire(Instant::now()) {
            self.moved.send_modify(|_| ());
        }
        state
    }

    fn write<T>(&self, write: impl FnOnce(&mut State) -> T) -> T {
        let (before, answer, after) = {
            let mut state = self.lock();
            let before = state.revision;
            let answer = write(&mut state);
            (before, answer, state.revision)
        };
        if after != before {
            self.moved.send_modify(|_| ());
        }
        answer
    }
}

/// A key that exists, or the mark that it once did.
#[derive(Debug)]
struct Slot {
    value: Option<Arc<[u8]>>,
    version: u64,
    lease: Option<LeaseId>,
}

impl Slot {
    fn entry(&self, key: &str) -> Option<Entry> {
        Some(Entry {
            key: key.to_owned(),
            value: self.value.clone()?,
            version: Version::Number(self.version),
        })
    }
}

#[derive(Debug, Default)]
struct State {
    slots: BTreeMap<String, Slot>,
    /// Which key was last changed at which revision.
    changed: BTreeMap<u64, String>,
    /// The revisions of `changed` that are deletions.
    tombstones: BTreeSet<u64>,
    revision: u64,
    /// Watches from before this revision may have missed a deletion.
    gap: u64,
    leases: BTreeMap<LeaseId, lease::MemoryLease>,
}

impl State {
    fn get(&self, key: &str) -> Option<Entry> {
        self.slots.get(key)?.entry(key)
    }

    fn live_version(&self, key: &str) -> Option<u64> {
        let slot = self.slots.get(key)?;
        slot.value.as_ref().map(|_| slot.version)
    }

    fn set(&mut self, key: String, value: Option<Arc<[u8]>>, lease: Option<LeaseId>) -> Version {
        self.revision += 1;
        let version = self.revision;
        if value.is_none() {
            self.tombstones.insert(version);
        }
        self.changed.insert(version, key.clone());
        self.attach(&key, lease);
        let slot = Slot {
            value,
            version,
            lease,
        };
        if let Some(old) = self.slots.insert(key, slot) {
            self.changed.remove(&old.version);
            self.tombstones.remove(&old.version);
        }
        Version::Number(version)
    }

    fn put_if(&mut self, put: PutIf) -> Result<Put, StoreError> {
        let expected = match &put.expect {
            Expect::Absent => None,
            Expect::Version(Version::Number(n)) => Some(*n),
            Expect::Version(Version::Text(_)) => return Ok(Put::Lost),
        };
        if self.live_version(&put.key) != expected {
            return Ok(Put::Lost);
        }
        if let Some(id) = put.lease
            && !self.leases.contains_key(&id)
        {
            return Err(lease::unknown(id, &put.key));
        }
        Ok(Put::Won(self.set(put.key, Some(put.value), put.lease)))
    }

    fn delete_if(&mut self, delete: DeleteIf) -> Delete {
        let live = self.live_version(&delete.key).map(Version::Number);
        if live != Some(delete.version) {
            return Delete::Lost;
        }
        self.remove(delete.key);
        Delete::Won
    }

    fn remove(&mut self, key: String) {
        self.set(key, None, None);
        if self.tombstones.len() > 2 * TOMBSTONES_KEPT {
            self.purge(TOMBSTONES_KEPT);
        }
    }

    fn discard(&mut self, key: String) {
        if self.live_version(&key).is_some() {
            self.remove(key);
        }
    }

    fn purge(&mut self, keep: usize) {
        while self.tombstones.len() > keep {
            let Some(oldest) = self.tombstones.pop_first() else {
                return;
            };
            if let Some(key) = self.changed.remove(&oldest) {
                self.slots.remove(&key);
            }
            self.gap = oldest;
        }
    }

    fn list(&self, prefix: &str) -> Listing {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let entries = self
            .slots
            .range::<str, _>(from)
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter_map(|(key, slot)| slot.entry(key))
            .collect();
        Listing {
            entries,
            revision: Revision(self.revision),
        }
    }

    fn keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> KeyPage {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let keys = self
            .slots
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter(|(_, slot)| slot.value.is_some())
            .map(|(key, _)| key.clone());
        KeyPage::page(keys, limit)
    }

    fn changes(&self, prefix: &str, after: Revision) -> Result<Option<ChangeBatch>, WatchEnd> {
        if after.0 < self.gap || after.0 > self.revision {
            return Err(WatchEnd::Gap);
        }
        let changes: Vec<Change> = self
            .changed
            .range((Bound::Excluded(after.0), Bound::Unbounded))
            .filter(|(_, key)| key.starts_with(prefix))
            .map(|(_, key)| match self.get(key) {
                Some(entry) => Change::Put(entry),
                None => Change::Deleted { key: key.clone() },
            })
            .collect();
        Ok((!changes.is_empty()).then_some(ChangeBatch {
            changes,
            upto: Revision(self.revision),
        }))
    }
}

/// What the store of this name says of itself.
pub(crate) fn info(name: &str) -> StoreInfo {
    info_at(format!("memory:{name}"))
}

fn info_at(url: String) -> StoreInfo {
    StoreInfo {
        kind: "memory",
        url,
        min_ttl: Duration::from_millis(200),
        default_ttl: Duration::from_millis(2500),
        clock: ClockScope::OneMachine,
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn identity(&self) -> Result<String, StoreError> {
        Ok(self.shared.identity.clone())
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(Revision(self.shared.lock().revision))
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        Ok(self.shared.lock().get(key))
    }

    async fn get_many(&self, keys: Vec<String>) -> Vec<Result<Option<Entry>, StoreError>> {
        let state = self.shared.lock();
        keys.iter().map(|key| Ok(state.get(key))).collect()
    }

    async fn put_if(&self, put: PutIf) -> Result<Put, StoreError> {
        self.shared.write(|state| state.put_if(put))
    }

    async fn put_many(&self, puts: Vec<PutIf>) -> Vec<Result<Put, StoreError>> {
        self.shared
            .write(|state| puts.into_iter().map(|p| state.put_if(p)).collect())
    }

    async fn delete_if(&self, delete: DeleteIf) -> Result<Delete, StoreError> {
        Ok(self.shared.write(|state| state.delete_if(delete)))
    }

    async fn delete_many(&self, deletes: Vec<DeleteIf>) -> Vec<Result<Delete, StoreError>> {
        self.shared.write(|state| {
            let each = deletes.into_iter();
            each.map(|d| Ok(state.delete_if(d))).collect()
        })
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        Ok(self.shared.lock().list(prefix))
    }

    async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<KeyPage, StoreError> {
        Ok(self.shared.lock().keys(prefix, after, limit))
    }

    async fn discard(&self, keys: Vec<String>) -> Vec<Result<(), StoreError>> {
        self.shared.write(|state| {
            let each = keys.into_iter();
            each.map(|key| {
                state.discard(key);
                Ok(())
            })
            .collect()
        })
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        Ok(Watch::new(MemoryWatch {
            moved: self.shared.moved.subscribe(),
            shared: self.shared.clone(),
            prefix: prefix.to_owned(),
            upto: from,
        }))
    }

    async fn now(&self) -> Result<Option<SystemTime>, StoreError> {
        let (wall, since) = self.shared.opened;
        Ok(Some(wall + since.elapsed()))
    }

    fn dedicated(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(self.clone()))
    }

    fn leases(&self) -> Option<&dyn Leases> {
        self.leases.then_some(self)
    }
}

/// Reads the changes when asked, so that a slow reader costs nothing.
#[derive(Debug)]
struct MemoryWatch {
    moved: watch::Receiver<()>,
    shared: Arc<Shared>,
    prefix: String,
    upto: Revision,
}

#[async_trait]
impl WatchSource for MemoryWatch {
    async fn next(&mut self) -> Result<ChangeBatch, WatchEnd> {
        loop {
            self.moved.mark_unchanged();
            let (changes, expiry) = {
                let state = self.shared.lock();
                let changes = state.changes(&self.prefix, self.upto)?;
                (changes, state.next_expiry())
            };
            if let Some(batch) = changes {
                self.upto = batch.upto;
                return Ok(batch);
            }
            // Nobody else need be there to see a lease run out.
            tokio::select! {
                moved = self.moved.changed() => if moved.is_err() {
                    return Err(WatchEnd::Closed {
                        reason: "the memory store was dropped".to_owned(),
                    });
                },
                () = lease::ran_out(expiry) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
