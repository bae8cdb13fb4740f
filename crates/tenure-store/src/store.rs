//! The store trait and the values that pass through it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tenure_core::ids::{LeaseId, Revision, Version};
pub use tenure_core::machine::LeaseState;

use crate::error::StoreError;
use crate::store_check::Finding;
use crate::watch::Watch;

/// One key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Arc<[u8]>,
    /// The version of this value: what a conditional write expects.
    pub version: Version,
}

/// All keys under a prefix, at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The keys in ascending order of their bytes.
    pub entries: Vec<Entry>,
    /// The instant: a watch from here on misses nothing that is not in `entries`.
    pub revision: Revision,
}

/// A page of keys under a prefix, without their values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys in ascending order of their bytes.
    pub keys: Vec<String>,
    /// Whether there may be more after the last of them: ask again with it.
    pub more: bool,
}

impl KeyPage {
    /// The first `limit` of keys that are in order.
    pub(crate) fn page(keys: impl Iterator<Item = String>, limit: usize) -> Self {
        let mut keys: Vec<String> = keys.take(limit.saturating_add(1)).collect();
        let more = keys.len() > limit;
        keys.truncate(limit);
        Self { keys, more }
    }
}

/// What a write expects to find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// That the key does not exist.
    Absent,
    /// That the key has exactly this version.
    Version(Version),
}

/// A conditional write of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutIf {
    /// The key.
    pub key: String,
    /// The new value.
    pub value: Arc<[u8]>,
    /// The condition.
    pub expect: Expect,
    /// The lease that the key goes with; without one the key stays. Only stores with [`Leases`] know any.
    pub lease: Option<LeaseId>,
}

impl PutIf {
    /// Writes `key` if it does not exist.
    pub fn create(key: impl Into<String>, value: impl Into<Arc<[u8]>>) -> Self {
        Self {
            key: key.into(),
            value: value.into(),
            expect: Expect::Absent,
            lease: None,
        }
    }

    /// Overwrites `key` if it still has `version`.
    pub fn update(key: impl Into<String>, value: impl Into<Arc<[u8]>>, version: Version) -> Self {
        Self {
            key: key.into(),
            value: value.into(),
            expect: Expect::Version(version),
            lease: None,
        }
    }

    /// The same write, with the key attached to a lease.
    #[must_use]
    pub fn under(mut self, lease: Option<LeaseId>) -> Self {
        self.lease = lease;
        self
    }
}

/// A conditional removal of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteIf {
    /// The key.
    pub key: String,
    /// The version that it must still have.
    pub version: Version,
}

impl DeleteIf {
    /// Removes `key` if it still has `version`.
    pub fn new(key: impl Into<String>, version: Version) -> Self {
        Self {
            key: key.into(),
            version,
        }
    }
}

/// How a conditional write ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// Written and durable; the key now has this version.
    Won(Version),
    /// The condition did not hold. Nothing was written by this call.
    ///
    /// Where the caller repeats writes whose outcome was unknown, the key may hold its own earlier write: read back.
    Lost,
}

/// How a conditional removal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delete {
    /// Removed.
    Won,
    /// The condition did not hold. Nothing was removed by this call.
    Lost,
}

/// Whether the clocks of those who use a store can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClockScope {
    /// All users are on one machine: their boot-time clocks are the same clock wherever [`boot_id`](crate::machine_identity::boot_id) agrees.
    OneMachine,
    /// Users are anywhere: a time that another participant wrote proves nothing.
    Anywhere,
}

/// What a store says of itself without being asked over any wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreInfo {
    /// The backend: `memory`, `sqlite`, …
    pub kind: &'static str,
    /// The URL that it was opened by, without secrets.
    pub url: String,
    /// The shortest lease that makes sense here.
    pub min_ttl: Duration,
    /// The lease that fits this store unless the user says otherwise.
    pub default_ttl: Duration,
    /// Whether boot-time clocks may be compared.
    pub clock: ClockScope,
}

/// Where ownership is written down: compare-and-swap on single keys, and little more.
///
/// Keys are UTF-8 text, separated by `/` and already escaped; values are bytes. What every implementation promises, and the
/// conformance suite checks:
///
/// - **Versions of a key never repeat**, not even when it is deleted and created again.
/// - **`get` and `list` are linearizable**: they show every write that was confirmed before they were called.
/// - **A confirmed write is durable** as far as the backend can say so.
/// - **A lost race is a value**; errors say what the caller may do next ([`StoreError`]).
/// - **Any call may be dropped** at any await, for instance by a timeout. Its outcome is then unknown, as if it had answered
///   [`StoreError::Unknown`]; the store stays usable.
/// - **Revisions are compared within one opened store** and what is dedicated from it: some stores count them as they look.
/// - **A watch may be late, may repeat, and may end.** It shows at least the last state of each changed key, not every state
///   in between. Whoever needs certainty lists.
/// - **Batches promise nothing beyond each key**: no order among keys, no atomicity, no common instant. Answers come in the
///   order of the questions. A batch that names a key twice applies them in the order given.
///
/// No implementation retries a write by itself once it may have been applied: a lost race could then be one's own write.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug + 'static {
    /// What the store says of itself.
    fn info(&self) -> &StoreInfo;

    /// What this store is, for as long as its contents are the same: another identity means other contents.
    async fn identity(&self) -> Result<String, StoreError>;

    /// The present point in the store's history. Cheap; if it has not moved since a list, that list is still true.
    async fn revision(&self) -> Result<Revision, StoreError>;

    /// Reads one key.
    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError>;

    /// Reads several keys.
    async fn get_many(&self, keys: Vec<String>) -> Vec<Result<Option<Entry>, StoreError>>;

    /// Writes one key under a condition.
    async fn put_if(&self, put: PutIf) -> Result<Put, StoreError>;

    /// Writes several keys, each under its own condition.
    async fn put_many(&self, puts: Vec<PutIf>) -> Vec<Result<Put, StoreError>>;

    /// Removes one key under a condition.
    async fn delete_if(&self, delete: DeleteIf) -> Result<Delete, StoreError>;

    /// Removes several keys, each under its own condition.
    async fn delete_many(&self, deletes: Vec<DeleteIf>) -> Vec<Result<Delete, StoreError>>;

    /// Reads every key that starts with `prefix`, byte for byte; the empty prefix means all.
    async fn list(&self, prefix: &str) -> Result<Listing, StoreError>;

    /// Reads one page of the keys that start with `prefix`: the first `limit` of those after `after`, without their values.
    ///
    /// Each page is as fresh as a `get`; several pages have no instant in common.
    async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<KeyPage, StoreError> {
        keys_by_list(self, prefix, after, limit).await
    }

    /// Removes keys whatever their versions; one that is absent is fine. An index may be tidied up with this, and nothing that
    /// anybody decides by: there is no condition, and a watch need not show it.
    async fn discard(&self, keys: Vec<String>) -> Vec<Result<(), StoreError>> {
        discard_by_version(self, keys).await
    }

    /// Follows the changes made after `from` to keys that start with `prefix`.
    ///
    /// Changes before the call are replayed as far as the store still knows them, else the watch ends with a gap.
    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError>;

    /// The time by the store's own clock, if it has one. A wall clock: it dates things and proves nothing.
    async fn now(&self) -> Result<Option<SystemTime>, StoreError>;

    /// The same store over a connection of its own, so that lease renewals never queue behind other calls.
    fn dedicated(&self) -> Result<Arc<dyn Store>, StoreError>;

    /// Looks at what this kind of store depends on: versions, durability, limits. Changes nothing.
    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(Vec::new())
    }

    /// The leases that this store itself keeps the time of, if it has such.
    fn leases(&self) -> Option<&dyn Leases> {
        None
    }
}

/// Reads a page of keys by a list, for stores that tell no keys without their values.
async fn keys_by_list<S: Store + ?Sized>(
    store: &S,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<KeyPage, StoreError> {
    let listing = store.list(prefix).await?;
    let keys = listing.entries.into_iter().map(|entry| entry.key);
    let rest = keys.filter(|key| after.is_none_or(|after| key.as_str() > after));
    Ok(KeyPage::page(rest, limit))
}

/// How often a key that is written again and again is tried to be removed.
const DISCARD_ATTEMPTS: usize = 8;

/// Removes keys by reading their versions first, for stores that remove nothing without.
async fn discard_by_version<S: Store + ?Sized>(
    store: &S,
    keys: Vec<String>,
) -> Vec<Result<(), StoreError>> {
    let mut answers: Vec<Result<(), StoreError>> = keys
        .iter()
        .map(|key| {
            Err(StoreError::unavailable(format!(
                "key {key:?} keeps being written concurrently; retry"
            )))
        })
        .collect();
    let mut left: Vec<usize> = (0..keys.len()).collect();
    for _ in 0..DISCARD_ATTEMPTS {
        if left.is_empty() {
            break;
        }
        let asked = left.iter().map(|n| keys[*n].clone()).collect();
        let (mut deletes, mut of) = (Vec::new(), Vec::new());
        for (n, got) in left.iter().zip(store.get_many(asked).await) {
            match got {
                Ok(None) => answers[*n] = Ok(()),
                Err(e) => answers[*n] = Err(e),
                Ok(Some(entry)) => {
                    deletes.push(DeleteIf::new(entry.key, entry.version));
                    of.push(*n);
                }
            }
        }
        left.clear();
        for (n, deleted) in of.into_iter().zip(store.delete_many(deletes).await) {
            match deleted {
                Ok(Delete::Won) => answers[n] = Ok(()),
                Ok(Delete::Lost) => left.push(n),
                Err(e) => answers[n] = Err(e),
            }
        }
    }
    answers
}

/// Leases that the store itself keeps the time of: a key that is attached to one goes when the lease does.
///
/// What every implementation promises, beyond what [`Store`] does:
///
/// - **A lease that is gone is gone for ever**, together with every key attached to it, unless that key was written again
///   without it.
/// - **No answer comes from a server that is no longer in charge**, neither that a lease lives nor that it is gone: what
///   one server says of its own accord is checked against the others before it counts.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Creates a lease under an id that was never used and answers for how long it was granted, which may be longer than
    /// asked for. An id that is taken is refused as [`StoreError::Denied`].
    async fn grant(&self, id: LeaseId, ttl: Duration) -> Result<Duration, StoreError>;

    /// Restarts the time of a lease, and finds out whether `key` is still attached to it.
    async fn keep_alive(&self, id: LeaseId, key: &str) -> Result<LeaseState, StoreError>;

    /// Whether a lease is still there, no older than the moment of asking.
    async fn is_alive(&self, id: LeaseId) -> Result<bool, StoreError>;
}

/// What a wrapper says when it is asked for leases that the store within does not have.
pub(crate) fn no_leases() -> StoreError {
    StoreError::denied("this store does not support leases")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryStore;

    #[tokio::test]
    async fn what_stores_do_by_default_is_what_the_others_do() {
        let store = MemoryStore::new();
        for key in ["a/1", "a/2", "a/3", "b"] {
            store.put_if(PutIf::create(key, *b"v")).await.unwrap();
        }
        for after in [None, Some("a/1"), Some("0"), Some("b")] {
            for limit in [0, 1, 2, 5] {
                let page = keys_by_list(&store, "a/", after, limit).await;
                assert_eq!(page, store.keys("a/", after, limit).await, "{after:?}");
            }
        }
        let gone = ["a/1", "absent", "b", "b"].map(str::to_owned).into();
        let answers = discard_by_version(&store, gone).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        let left = store.keys("", None, 9).await.unwrap();
        assert_eq!(left.keys, ["a/2", "a/3"]);
    }
}
