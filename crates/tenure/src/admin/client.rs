//! The client: consistent reads, conditional writes with read-back, and the one loop that changes a record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::ids::{ClusterName, Nonce, SessionId, Version};
use tenure_core::keys::{self, Key};
use tenure_core::ownership::{self, Transition, TransitionError};
use tenure_core::record::{Head, Record, ShardRecord};
use tenure_core::settings::Settings;
use tenure_store::{Delete, DeleteIf, Entry, Expect, Put, PutIf, Store, StoreError};

use super::{AdminError, CALL_TIMEOUT, Snapshot, clusters};
use crate::clock::Clock;

/// Attempts of a conditional write against concurrent writers.
pub(super) const CAS_ATTEMPTS: usize = 20;

/// Client for administrative operations on one cluster.
///
/// An `AdminClient` is no participant: it has no session and owns nothing. Every write is conditional on the version that it
/// was decided on.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::AdminError> {
/// use tenure::AdminClient;
/// use tenure::admin::{KeyspaceKind, NewKeyspace};
///
/// let store = tenure::store::open("memory:").await?;
/// let admin = AdminClient::new(store, "shop".parse()?);
/// let orders = NewKeyspace::new("orders".parse()?, KeyspaceKind::Hashed(16));
/// admin.create_keyspace(&orders, |_| ()).await?;
/// assert_eq!(admin.bump_generation(&orders.name, 0).await?, 2);
/// let snapshot = admin.snapshot().await?;
/// assert_eq!(snapshot.keyspace(&orders.name)?.min_generation, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AdminClient {
    pub(super) store: Arc<dyn Store>,
    pub(super) cluster: ClusterName,
    pub(super) clock: Clock,
    ttl: Duration,
    drift_permille: u32,
    writer: SessionId,
    writes: AtomicU64,
}

/// Decision about one record, made on a snapshot. `T` is the answer of the operation.
pub(super) enum Change<T> {
    /// The record stays as it is.
    Keep(T),
    /// The record is written under a condition. `T` is the answer once the write is confirmed.
    Write(Expect, Record, T),
}

/// Answer of an operation on one record.
pub(super) struct Updated<T> {
    pub(super) answer: T,
    /// True if this operation wrote the record.
    pub(super) changed: bool,
}

impl AdminClient {
    /// Opens the cluster named `cluster` in the store at `url`, which must exist.
    pub async fn open(url: &str, cluster: &str) -> Result<Self, AdminError> {
        let store = tenure_store::open_existing(url).await?;
        Ok(Self::new(store, ClusterName::new(cluster)?))
    }

    /// Returns a client for a cluster in an open store.
    pub fn new(store: Arc<dyn Store>, cluster: ClusterName) -> Self {
        Self {
            ttl: store.info().default_ttl,
            drift_permille: Settings::default().clock_drift_max_permille,
            store,
            cluster,
            clock: Clock::boot(),
            writer: SessionId(crate::startup::entropy()),
            writes: AtomicU64::new(0),
        }
    }

    /// Sets the ttl and the clock drift of the cluster's nodes; default: those of the store.
    ///
    /// Operations that wait until every lease has expired wait for the longest ttl that they know of, and at least for this one.
    #[must_use]
    pub fn with_settings(mut self, settings: &Settings) -> Self {
        self.ttl = settings.ttl;
        self.drift_permille = settings.clock_drift_max_permille;
        self
    }

    /// Sets the clock that measures these waits, for tests in virtual time.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The store of the cluster.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The name of the cluster.
    pub fn cluster(&self) -> &ClusterName {
        &self.cluster
    }

    /// Reads all records of the cluster at one instant.
    pub async fn snapshot(&self) -> Result<Snapshot, AdminError> {
        let prefix = keys::prefix(&self.cluster);
        let listing = within("listing records", self.store.list(&prefix)).await?;
        let identity = within("reading its identity", self.store.identity()).await?;
        Ok(Snapshot::new(
            &self.cluster,
            &listing,
            identity,
            &self.clock,
        ))
    }

    /// Reads all records of a cluster that must exist.
    pub async fn existing_snapshot(&self) -> Result<Snapshot, AdminError> {
        let snapshot = self.snapshot().await?;
        if !snapshot.is_empty() {
            return Ok(snapshot);
        }
        let there = clusters::clusters(&*self.store).await?;
        let names: Vec<_> = there.iter().map(|c| c.as_str()).collect();
        let others = match names.as_slice() {
            [] => "the store is empty".to_owned(),
            names => format!("existing clusters: {}", names.join(", ")),
        };
        Err(AdminError::NotFound(format!(
            "store {} holds no cluster {:?}; {others}",
            self.store.info().url,
            self.cluster.as_str()
        )))
    }

    /// Time after which every lease has expired that `snapshot` allows for.
    pub(super) fn proof(&self, snapshot: &Snapshot) -> Duration {
        self.proof_of(snapshot.longest_ttl().max(self.ttl))
    }

    /// Time after which a lease of this ttl has expired on every clock.
    pub(super) fn proof_of(&self, ttl: Duration) -> Duration {
        ttl + ttl * self.drift_permille / 1000
    }

    /// Changes one record until it is as `change` wants it. `what` names the record in errors.
    ///
    /// Each attempt reads the cluster again. An attempt whose outcome is unknown is repeated: both writes have the same
    /// condition, so at most one of them is applied.
    pub(super) async fn update<T>(
        &self,
        key: &Key,
        what: &str,
        mut change: impl FnMut(&Snapshot) -> Result<Change<T>, AdminError>,
    ) -> Result<Updated<T>, AdminError> {
        let mut unknown = None;
        for _ in 0..CAS_ATTEMPTS {
            let (expect, record, answer) = match change(&self.snapshot().await?)? {
                Change::Write(expect, record, answer) => (expect, record, answer),
                Change::Keep(answer) => {
                    let changed = false;
                    return Ok(Updated { answer, changed });
                }
            };
            match self.put(key, expect, &record).await {
                Ok(true) => {
                    let changed = true;
                    return Ok(Updated { answer, changed });
                }
                Ok(false) => unknown = None,
                Err(error @ AdminError::OutcomeUnknown { .. }) => unknown = Some(error),
                Err(error) => return Err(error),
            }
        }
        let raced = || AdminError::Raced(format!("{what} keeps changing concurrently"));
        Err(unknown.unwrap_or_else(raced))
    }

    /// Writes one record under a condition. Returns `false` if the condition did not hold.
    pub(super) async fn put(
        &self,
        key: &Key,
        expect: Expect,
        record: &Record,
    ) -> Result<bool, AdminError> {
        let put = self.write(key, expect, record);
        let (path, value) = (put.key.clone(), put.value.clone());
        match within("writing a record", self.store.put_if(put)).await {
            Ok(Put::Won(_)) => Ok(true),
            Ok(Put::Lost) => Ok(false),
            Err(error) => {
                let reason = unknown_outcome(error)?;
                let found = within("verifying a write", self.store.get(&path)).await?;
                match found.is_some_and(|entry| entry.value == value) {
                    true => Ok(true),
                    false => Err(AdminError::OutcomeUnknown {
                        key: key.to_string(),
                        done: "written",
                        reason,
                    }),
                }
            }
        }
    }

    /// Writes many records, each under its own condition. The caller learns from its next read which writes were applied.
    pub(super) async fn put_batch(&self, puts: Vec<PutIf>) -> Result<(), AdminError> {
        let call = async { Ok(self.store.put_many(puts).await) };
        for answer in within("writing shards", call).await? {
            match answer {
                Ok(Put::Won(_) | Put::Lost) | Err(StoreError::Unknown { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Deletes one version of a record. Returns `false` if the record has another version.
    pub(super) async fn delete(&self, key: &Key, version: Version) -> Result<bool, AdminError> {
        let delete = DeleteIf::new(key.path(&self.cluster), version.clone());
        match within("deleting records", self.store.delete_if(delete)).await {
            Ok(Delete::Won) => Ok(true),
            Ok(Delete::Lost) => Ok(false),
            Err(error) => {
                let reason = unknown_outcome(error)?;
                // Versions never repeat: any other version proves that this one is gone.
                match self.version(key).await? == Some(version) {
                    false => Ok(true),
                    true => Err(AdminError::OutcomeUnknown {
                        key: key.to_string(),
                        done: "deleted",
                        reason,
                    }),
                }
            }
        }
    }

    /// Reads one key.
    pub(super) async fn get(&self, key: &Key) -> Result<Option<Entry>, AdminError> {
        within("reading a record", self.store.get(&key.path(&self.cluster))).await
    }

    /// Reads the version of a key's value.
    pub(super) async fn version(&self, key: &Key) -> Result<Option<Version>, AdminError> {
        Ok(self.get(key).await?.map(|entry| entry.version))
    }

    /// The conditional write of a record.
    pub(super) fn write(&self, key: &Key, expect: Expect, record: &Record) -> PutIf {
        PutIf {
            key: key.path(&self.cluster),
            value: record.encode().into(),
            expect,
            lease: record.lease(key),
        }
    }

    /// The record that a transition by an operator makes of a shard's record.
    pub(super) fn transition(
        &self,
        snapshot: &Snapshot,
        record: &ShardRecord,
        change: Transition,
    ) -> Result<ShardRecord, TransitionError> {
        let ended = |session| snapshot.is_over(session);
        ownership::apply_as_operator(record, change, self.nonce(), &ended)
    }

    /// A mark for one write of this client.
    pub(super) fn nonce(&self) -> Nonce {
        Nonce {
            writer: self.writer,
            n: self.writes.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// The head of a record for a key that has none now but may have had one.
    pub(super) fn fresh_head(&self, snapshot: &Snapshot, key: &Key) -> Head {
        Head {
            rev: snapshot.view.fresh_rev(key),
            ..Head::first(self.nonce())
        }
    }
}

/// The reason why the outcome of a write is unknown. Fails with an error that proves that nothing was written.
fn unknown_outcome(error: AdminError) -> Result<String, AdminError> {
    match error {
        AdminError::Store(StoreError::Unknown { reason }) => Ok(reason),
        error @ AdminError::NoResponse { .. } => Ok(error.to_string()),
        error => Err(error),
    }
}

/// Runs a call to the store, at most for [`CALL_TIMEOUT`].
pub(super) async fn within<T>(
    doing: &str,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, AdminError> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(AdminError::NoResponse {
            doing: doing.to_owned(),
        }),
    }
}
