//! A wrapper that counts what is asked of a store and how long the answers took.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tenure_core::ids::{LeaseId, Revision};
use tokio::time::Instant;

use crate::error::StoreError;
use crate::operation::Op;
use crate::store::{
    Delete, DeleteIf, Entry, KeyPage, LeaseState, Leases, Listing, Put, PutIf, Store, StoreInfo,
    no_leases,
};
use crate::store_check::Finding;
use crate::watch::Watch;

/// What was asked of a store in one kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCount {
    /// Calls begun, a batch being one.
    pub calls: u64,
    /// Keys named by them.
    pub keys: u64,
    /// Keys whose answer was an error.
    pub errors: u64,
    /// Calls that were dropped before they answered.
    pub dropped: u64,
    /// Time until the answer, summed over the calls that answered.
    pub busy: Duration,
    /// The longest wait for an answer so far.
    pub slowest: Duration,
}

/// Everything that was asked of a store up to one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpCounts([OpCount; Op::ALL.len()]);

impl OpCounts {
    /// The counts of one kind of call.
    pub fn of(&self, op: Op) -> &OpCount {
        &self.0[op as usize]
    }

    /// Keys that somebody tried to write or remove.
    pub fn writes(&self) -> u64 {
        self.sum(|op| op.writes())
    }

    /// Keys and prefixes that somebody asked for, and other questions that change nothing.
    pub fn reads(&self) -> u64 {
        self.sum(|op| !op.writes())
    }

    /// What was added since `earlier`. `slowest` is not a sum and stays as it is.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut delta = self.clone();
        for (now, then) in delta.0.iter_mut().zip(&earlier.0) {
            now.calls -= then.calls;
            now.keys -= then.keys;
            now.errors -= then.errors;
            now.dropped -= then.dropped;
            now.busy -= then.busy;
        }
        delta
    }

    fn sum(&self, which: impl Fn(Op) -> bool) -> u64 {
        let ops = Op::ALL.into_iter().filter(|op| which(*op));
        ops.map(|op| self.of(op).keys).sum()
    }
}

/// Reads the counters of an [`ObservedStore`] and of all its dedicated connections.
#[derive(Clone, Debug, Default)]
pub struct CountReader(Arc<Mutex<OpCounts>>);

impl CountReader {
    /// The counts so far.
    pub fn snapshot(&self) -> OpCounts {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, OpCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, op: Op, keys: usize) -> Call {
        let mut counts = self.lock();
        let count = &mut counts.0[op as usize];
        count.calls += 1;
        count.keys += keys as u64;
        Call {
            observer: self.clone(),
            op,
            begun: Instant::now(),
            answered: false,
        }
    }
}

/// A call under way. Counted as dropped unless it ends.
struct Call {
    observer: CountReader,
    op: Op,
    begun: Instant,
    answered: bool,
}

impl Call {
    fn end(mut self, errors: usize) {
        self.answered = true;
        let took = self.begun.elapsed();
        let mut counts = self.observer.lock();
        let count = &mut counts.0[self.op as usize];
        count.errors += errors as u64;
        count.busy += took;
        count.slowest = count.slowest.max(took);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.answered {
            self.observer.lock().0[self.op as usize].dropped += 1;
        }
    }
}

/// A store that counts. Otherwise it is the store that it wraps.
#[derive(Clone)]
pub struct ObservedStore {
    inner: Arc<dyn Store>,
    observer: CountReader,
}

impl fmt::Debug for ObservedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObservedStore").field(&self.inner).finish()
    }
}

impl ObservedStore {
    /// Counts what is asked of `inner`.
    pub fn new(inner: Arc<dyn Store>) -> (Self, CountReader) {
        let observer = CountReader::default();
        let store = Self {
            inner,
            observer: observer.clone(),
        };
        (store, observer)
    }

    async fn one<T>(
        &self,
        op: Op,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let counting = self.observer.begin(op, 1);
        let answer = call.await;
        counting.end(usize::from(answer.is_err()));
        answer
    }

    async fn many<T>(
        &self,
        op: Op,
        keys: usize,
        call: impl Future<Output = Vec<Result<T, StoreError>>>,
    ) -> Vec<Result<T, StoreError>> {
        let counting = self.observer.begin(op, keys);
        let answers = call.await;
        counting.end(answers.iter().filter(|a| a.is_err()).count());
        answers
    }
}

#[async_trait]
impl Store for ObservedStore {
    fn info(&self) -> &StoreInfo {
        self.inner.info()
    }

    async fn identity(&self) -> Result<String, StoreError> {
        self.one(Op::Identity, self.inner.identity()).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.one(Op::Revision, self.inner.revision()).await
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.one(Op::Get, self.inner.get(key)).await
    }

    async fn get_many(&self, keys: Vec<String>) -> Vec<Result<Option<Entry>, StoreError>> {
        self.many(Op::Get, keys.len(), self.inner.get_many(keys))
            .await
    }

    async fn put_if(&self, put: PutIf) -> Result<Put, StoreError> {
        self.one(Op::Put, self.inner.put_if(put)).await
    }

    async fn put_many(&self, puts: Vec<PutIf>) -> Vec<Result<Put, StoreError>> {
        self.many(Op::Put, puts.len(), self.inner.put_many(puts))
            .await
    }

    async fn delete_if(&self, delete: DeleteIf) -> Result<Delete, StoreError> {
        self.one(Op::Delete, self.inner.delete_if(delete)).await
    }

    async fn delete_many(&self, deletes: Vec<DeleteIf>) -> Vec<Result<Delete, StoreError>> {
        self.many(Op::Delete, deletes.len(), self.inner.delete_many(deletes))
            .await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        self.one(Op::List, self.inner.list(prefix)).await
    }

    async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<KeyPage, StoreError> {
        self.one(Op::Keys, self.inner.keys(prefix, after, limit))
            .await
    }

    async fn discard(&self, keys: Vec<String>) -> Vec<Result<(), StoreError>> {
        self.many(Op::Discard, keys.len(), self.inner.discard(keys))
            .await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        self.one(Op::Watch, self.inner.watch(prefix, from)).await
    }

    async fn now(&self) -> Result<Option<SystemTime>, StoreError> {
        self.one(Op::Now, self.inner.now()).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        self.inner.examine().await
    }

    fn dedicated(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(Self {
            inner: self.inner.dedicated()?,
            observer: self.observer.clone(),
        }))
    }

    fn leases(&self) -> Option<&dyn Leases> {
        self.inner.leases().map(|_| self as &dyn Leases)
    }
}

#[async_trait]
impl Leases for ObservedStore {
    async fn grant(&self, id: LeaseId, ttl: Duration) -> Result<Duration, StoreError> {
        let inner = self.inner.leases().ok_or_else(no_leases)?;
        self.one(Op::Grant, inner.grant(id, ttl)).await
    }

    async fn keep_alive(&self, id: LeaseId, key: &str) -> Result<LeaseState, StoreError> {
        let inner = self.inner.leases().ok_or_else(no_leases)?;
        self.one(Op::KeepAlive, inner.keep_alive(id, key)).await
    }

    async fn is_alive(&self, id: LeaseId) -> Result<bool, StoreError> {
        let inner = self.inner.leases().ok_or_else(no_leases)?;
        self.one(Op::AskLease, inner.is_alive(id)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{FaultConfig, FaultStore};
    use crate::memory::MemoryStore;

    #[tokio::test]
    async fn every_kind_of_call_is_counted_once_also_on_a_dedicated_connection() {
        let (store, observer) = ObservedStore::new(Arc::new(MemoryStore::new()));
        let dedicated = store.dedicated().unwrap();
        dedicated.put_if(PutIf::create("a", *b"1")).await.unwrap();
        let before = observer.snapshot();
        assert_eq!(before.writes(), 1);

        store
            .put_many(vec![PutIf::create("b", *b"1"), PutIf::create("c", *b"1")])
            .await;
        store.list("").await.unwrap();
        store.revision().await.unwrap();
        let delta = observer.snapshot().since(&before);
        assert_eq!((delta.of(Op::Put).calls, delta.of(Op::Put).keys), (1, 2));
        assert_eq!(delta.of(Op::List).calls, 1);
        assert_eq!((delta.writes(), delta.reads()), (2, 2));
    }

    #[tokio::test]
    async fn calls_about_leases_are_counted_and_only_the_grant_is_a_write() {
        let (plain, _) = ObservedStore::new(Arc::new(MemoryStore::new()));
        assert!(plain.leases().is_none());
        let (store, observer) = ObservedStore::new(Arc::new(MemoryStore::with_leases()));
        let leases = store.leases().unwrap();
        let id = LeaseId(7);
        leases.grant(id, Duration::from_secs(1)).await.unwrap();
        leases.keep_alive(id, "k").await.unwrap();
        leases.is_alive(id).await.unwrap();
        let counts = observer.snapshot();
        for op in [Op::Grant, Op::KeepAlive, Op::AskLease] {
            assert_eq!(counts.of(op).calls, 1, "{op:?}");
        }
        assert_eq!((counts.writes(), counts.reads()), (1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn errors_waits_and_dropped_calls_are_told_apart() {
        let (faulty, faults) = FaultStore::new(Arc::new(MemoryStore::new()), FaultConfig::none(1));
        let (store, observer) = ObservedStore::new(Arc::new(faulty));
        faults.slow(Duration::from_millis(30));
        store.get("k").await.unwrap();
        let slow = *observer.snapshot().of(Op::Get);
        assert!(slow.slowest >= Duration::from_millis(30), "{slow:?}");
        assert!(slow.busy >= Duration::from_millis(30), "{slow:?}");

        faults.outage();
        store.get("k").await.unwrap_err();
        faults.hang();
        let patience = Duration::from_millis(5);
        let given_up = tokio::time::timeout(patience, store.get("k")).await;
        given_up.unwrap_err();
        let get = *observer.snapshot().of(Op::Get);
        assert_eq!((get.calls, get.errors, get.dropped), (3, 1, 1));
    }
}
