//! A store in the memory of this process: for tests, simulations and single-process use.
//!
//! Never blocks and never fails, and its clock follows tokio's, so that it also runs in paused time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tenure_core::ids::{Revision, Version};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::StoreError;
use crate::host::random_uuid;
use crate::store::{
    ClockScope, Delete, DeleteIf, Entry, Expect, Listing, Put, PutIf, Store, StoreInfo,
};
use crate::watch::{Batch, Change, TOMBSTONES_KEPT, Watch, WatchEnd, WatchSource};

static NAMED: LazyLock<Mutex<HashMap<String, MemoryStore>>> = LazyLock::new(Mutex::default);

/// A store in memory. Clones share their contents.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    info: StoreInfo,
    shared: Arc<Shared>,
}

impl MemoryStore {
    /// A new, empty store that nobody else can reach.
    pub fn new() -> Self {
        Self::with_url("memory:".to_owned())
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
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
}

impl State {
    fn get(&self, key: &str) -> Option<Entry> {
        self.slots.get(key)?.entry(key)
    }

    fn live_version(&self, key: &str) -> Option<u64> {
        let slot = self.slots.get(key)?;
        slot.value.as_ref().map(|_| slot.version)
    }

    fn set(&mut self, key: String, value: Option<Arc<[u8]>>) -> Version {
        self.revision += 1;
        let version = self.revision;
        if value.is_none() {
            self.tombstones.insert(version);
        }
        self.changed.insert(version, key.clone());
        if let Some(old) = self.slots.insert(key, Slot { value, version }) {
            self.changed.remove(&old.version);
            self.tombstones.remove(&old.version);
        }
        Version::Number(version)
    }

    fn put_if(&mut self, put: PutIf) -> Put {
        let expected = match &put.expect {
            Expect::Absent => None,
            Expect::Version(Version::Number(n)) => Some(*n),
            Expect::Version(Version::Text(_)) => return Put::Lost,
        };
        if self.live_version(&put.key) != expected {
            return Put::Lost;
        }
        Put::Won(self.set(put.key, Some(put.value)))
    }

    fn delete_if(&mut self, delete: DeleteIf) -> Delete {
        let live = self.live_version(&delete.key).map(Version::Number);
        if live != Some(delete.version) {
            return Delete::Lost;
        }
        self.set(delete.key, None);
        if self.tombstones.len() > 2 * TOMBSTONES_KEPT {
            self.purge(TOMBSTONES_KEPT);
        }
        Delete::Won
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

    fn changes(&self, prefix: &str, after: Revision) -> Result<Option<Batch>, WatchEnd> {
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
        Ok((!changes.is_empty()).then_some(Batch {
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
        Ok(self.shared.write(|state| state.put_if(put)))
    }

    async fn put_many(&self, puts: Vec<PutIf>) -> Vec<Result<Put, StoreError>> {
        self.shared
            .write(|state| puts.into_iter().map(|p| Ok(state.put_if(p))).collect())
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
    async fn next(&mut self) -> Result<Batch, WatchEnd> {
        loop {
            self.moved.mark_unchanged();
            let changes = self.shared.lock().changes(&self.prefix, self.upto)?;
            if let Some(batch) = changes {
                self.upto = batch.upto;
                return Ok(batch);
            }
            if self.moved.changed().await.is_err() {
                return Err(WatchEnd::Closed {
                    why: "the store in memory is gone".to_owned(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stores_of_one_name_are_one_store_and_nameless_ones_are_not() {
        let put = PutIf::create("k", *b"v");
        let a = MemoryStore::named("stores_of_one_name");
        a.put_if(put.clone()).await.unwrap();
        let b = MemoryStore::named("stores_of_one_name");
        assert!(b.get("k").await.unwrap().is_some());
        assert_eq!(a.identity().await, b.identity().await);

        MemoryStore::new().put_if(put).await.unwrap();
        assert!(MemoryStore::new().get("k").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_watch_from_before_a_purged_deletion_ends_with_a_gap() {
        let store = MemoryStore::new();
        let before = store.revision().await.unwrap();
        let Put::Won(version) = store.put_if(PutIf::create("k", *b"v")).await.unwrap() else {
            panic!("nobody else writes");
        };
        store.delete_if(DeleteIf::new("k", version)).await.unwrap();
        store.purge();
        let after = store.revision().await.unwrap();

        let mut behind = store.watch("", before).await.unwrap();
        assert_eq!(behind.next().await, Err(WatchEnd::Gap));
        assert_eq!(behind.next().await, Err(WatchEnd::Gap));

        let mut current = store.watch("", after).await.unwrap();
        store.put_if(PutIf::create("k", *b"w")).await.unwrap();
        let shown = tokio::time::timeout(Duration::from_secs(5), current.next()).await;
        assert_eq!(shown.unwrap().unwrap().changes.len(), 1);
    }

    #[tokio::test]
    async fn deletions_are_remembered_up_to_a_limit() {
        let store = MemoryStore::new();
        for n in 0..=2 * TOMBSTONES_KEPT {
            let key = format!("k/{n}");
            let put = store.put_if(PutIf::create(&key, *b"")).await.unwrap();
            let Put::Won(version) = put else {
                panic!("nobody else writes");
            };
            store.delete_if(DeleteIf::new(&key, version)).await.unwrap();
        }
        assert_eq!(store.shared.lock().tombstones.len(), TOMBSTONES_KEPT);
        assert_eq!(store.shared.lock().slots.len(), TOMBSTONES_KEPT);
        let mut behind = store.watch("", Revision(0)).await.unwrap();
        assert_eq!(behind.next().await, Err(WatchEnd::Gap));
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_follows_virtual_time() {
        let store = MemoryStore::new();
        let before = store.now().await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let after = store.now().await.unwrap().unwrap();
        assert!(after.duration_since(before).unwrap() >= Duration::from_secs(3600));
    }
}
