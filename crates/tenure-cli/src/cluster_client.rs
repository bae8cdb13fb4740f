//! A cluster in a store: what commands read from and write to.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{ClusterName, Nonce, SessionId};
use tenure_core::keys::{self, Key};
use tenure_core::record::Record;
use tenure_store::{Delete, DeleteIf, Entry, Expect, Put, PutIf, Store, StoreError, Version};

use crate::cmd::exec::{Signals, Waited};
use crate::config::Config;
use crate::exit::Exit;
use crate::snapshot::Snapshot;

/// How long a store may take to answer a person.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// A cluster in an open store.
pub(crate) struct ClusterClient {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) cluster: ClusterName,
    nonces: Nonces,
}

/// Pause between two tries to reach the store.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Asks the store for its default ttl, if that is needed and does not follow from its URL: NATS buckets with several copies have
/// another one. Waits for a store that cannot be reached. A bucket that does not exist is left to the start of the node, which
/// creates it with as many copies as the URL says.
pub(crate) async fn ask_for_ttl(config: &Config, signals: &mut Signals) -> Waited<()> {
    if !config.must_ask_for_ttl() {
        return Waited::Done(());
    }
    let Ok(url) = store_url(config) else {
        return Waited::Done(());
    };
    let mut told = false;
    let asking = async {
        loop {
            match tenure_store::open_existing(url).await {
                Ok(store) => return config.take_store_info(store.info().clone()),
                Err(error @ (StoreError::Unavailable { .. } | StoreError::Unknown { .. })) => {
                    if !told {
                        tracing::warn!(%error, "store unreachable, retrying");
                    }
                    told = true;
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                // The start of the node reports it.
                Err(_) => return,
            }
        }
    };
    signals.or(asking).await
}

/// How a conditional write ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CasResult {
    /// It stands.
    Done,
    /// Somebody else was there first.
    Lost,
}

impl ClusterClient {
    /// The cluster that the configuration names, in a store that must be there.
    pub(crate) async fn open(config: &Config) -> Result<Self, Exit> {
        let store = open_store(config).await?;
        let cluster = named_cluster(config)?;
        Ok(Self::new(store, cluster))
    }

    /// The cluster of this name, in a store that must be there.
    pub(crate) async fn open_named(config: &Config, cluster: ClusterName) -> Result<Self, Exit> {
        Ok(Self::new(open_store(config).await?, cluster))
    }

    /// As [`ClusterClient::open`], but the store is made if it is not there.
    pub(crate) async fn open_or_make(config: &Config) -> Result<Self, Exit> {
        let cluster = named_cluster(config)?;
        let url = store_url(config)?;
        let opened = within("opening the store", tenure_store::open(url)).await?;
        Ok(Self::new(opened.map_err(bad_store)?, cluster))
    }

    /// For those who only look: if no cluster is named and the store holds only one, that one.
    pub(crate) async fn look(config: &Config) -> Result<Self, Exit> {
        let store = open_store(config).await?;
        if config.text("cluster").is_some() {
            let cluster = named_cluster(config)?;
            return Ok(Self::new(store, cluster));
        }
        let mut clusters = clusters(&*store).await?;
        match (clusters.pop(), clusters.is_empty()) {
            (Some(only), true) => Ok(Self::new(store, only)),
            (None, _) => Err(Exit::failed(format!(
                "store {} holds no cluster yet; start a node or create a keyspace",
                store.info().url
            ))),
            (Some(last), false) => {
                clusters.push(last);
                let names: Vec<_> = clusters.iter().map(|c| c.as_str()).collect();
                Err(Exit::usage(format!(
                    "store {} holds several clusters; pass --cluster with one of: {}",
                    store.info().url,
                    names.join(", ")
                )))
            }
        }
    }

    fn new(store: Arc<dyn Store>, cluster: ClusterName) -> Self {
        Self {
            store,
            cluster,
            nonces: Nonces::new(),
        }
    }

    /// Everything that the store holds of the cluster, at one instant.
    pub(crate) async fn snapshot(&self) -> Result<Snapshot, Exit> {
        let prefix = keys::prefix(&self.cluster);
        let listing = within("listing records", self.store.list(&prefix)).await??;
        let identity = within("reading its identity", self.store.identity()).await??;
        Ok(Snapshot::new(&self.cluster, &listing, identity))
    }

    /// Everything that the store holds of a cluster that must exist.
    pub(crate) async fn existing(&self) -> Result<Snapshot, Exit> {
        let snapshot = self.snapshot().await?;
        if !snapshot.is_empty() {
            return Ok(snapshot);
        }
        let there = clusters(&*self.store).await?;
        let names: Vec<_> = there.iter().map(|c| c.as_str()).collect();
        let others = match names.as_slice() {
            [] => "the store is empty".to_owned(),
            names => format!("existing clusters: {}", names.join(", ")),
        };
        Err(Exit::failed(format!(
            "store {} holds no cluster {:?}; {others}",
            self.store.info().url,
            self.cluster.as_str()
        )))
    }

    /// A mark for one write of this process.
    pub(crate) fn nonce(&mut self) -> Nonce {
        self.nonces.next()
    }

    /// Who this process is in records that name their writer.
    pub(crate) fn writer(&self) -> SessionId {
        self.nonces.writer
    }

    /// Writes a record under a condition. An outcome that the store does not know is settled by reading back.
    pub(crate) async fn put(
        &self,
        key: &Key,
        expect: Expect,
        record: &Record,
    ) -> Result<CasResult, Exit> {
        let path = key.path(&self.cluster);
        let value: Arc<[u8]> = record.encode().into();
        let put = PutIf {
            key: path.clone(),
            value: value.clone(),
            expect,
            lease: record.lease(key),
        };
        match within("writing a record", self.store.put_if(put)).await? {
            Ok(Put::Won(_)) => Ok(CasResult::Done),
            Ok(Put::Lost) => Ok(CasResult::Lost),
            Err(StoreError::Unknown { reason }) => {
                let found = within("verifying a write", self.store.get(&path)).await??;
                if found.is_some_and(|entry| entry.value == value) {
                    return Ok(CasResult::Done);
                }
                Err(Exit::failed(format!(
                    "whether {key} was written is unknown ({reason}); run the command again, it is safe to repeat"
                )))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Deletes exactly this version of a key's value. An outcome that the store does not know is settled by reading back.
    pub(crate) async fn delete(&self, key: &Key, version: Version) -> Result<CasResult, Exit> {
        let delete = DeleteIf::new(key.path(&self.cluster), version.clone());
        match within("deleting records", self.store.delete_if(delete)).await? {
            Ok(Delete::Won) => Ok(CasResult::Done),
            Ok(Delete::Lost) => Ok(CasResult::Lost),
            Err(StoreError::Unknown { reason }) => match self.version(key).await? {
                // Versions never repeat: whatever is there now, it is not the one that was to go.
                now if now != Some(version) => Ok(CasResult::Done),
                _ => Err(Exit::failed(format!(
                    "whether {key} was deleted is unknown ({reason}); run the command again, it is safe to repeat"
                ))),
            },
            Err(e) => Err(e.into()),
        }
    }

    /// Reads one key.
    pub(crate) async fn get(&self, key: &Key) -> Result<Option<Entry>, Exit> {
        Ok(within("reading a record", self.store.get(&key.path(&self.cluster))).await??)
    }

    /// The version of a key's value, if it has one.
    pub(crate) async fn version(&self, key: &Key) -> Result<Option<Version>, Exit> {
        Ok(self.get(key).await?.map(|entry| entry.version))
    }
}

/// All clusters of a store, by name.
pub(crate) async fn clusters(store: &dyn Store) -> Result<Vec<ClusterName>, Exit> {
    let listing = within("listing records", store.list("")).await??;
    let mut names: Vec<ClusterName> = listing
        .entries
        .iter()
        .filter_map(|entry| keys::cluster_of(&entry.key))
        .collect();
    names.dedup();
    Ok(names)
}

/// The store that the configuration names; it must be there.
pub(crate) async fn open_store(config: &Config) -> Result<Arc<dyn Store>, Exit> {
    let url = store_url(config)?;
    let opened = within("opening the store", tenure_store::open_existing(url)).await?;
    opened.map_err(bad_store)
}

/// Runs a call to a store, for as long as a person would wait.
pub(crate) async fn within<T>(doing: &str, call: impl Future<Output = T>) -> Result<T, Exit> {
    tokio::time::timeout(CALL_TIMEOUT, call).await.map_err(|_| {
        Exit::failed(format!(
            "the store did not respond within {}s while {doing}; check that the store is running",
            CALL_TIMEOUT.as_secs()
        ))
    })
}

pub(crate) fn store_url(config: &Config) -> Result<&str, Exit> {
    let url = config.text("store").ok_or_else(|| {
        Exit::usage(
            "no store is given; pass --store URL (such as sqlite:shop.db), set TENURE_STORE, or set `store` in the \
             configuration file",
        )
    })?;
    if url.starts_with("memory:") {
        return Err(Exit::usage(format!(
            "store {url:?} exists only within one process; use a store that processes share, such as \
             sqlite:PATH"
        )));
    }
    Ok(url)
}

pub(crate) fn named_cluster(config: &Config) -> Result<ClusterName, Exit> {
    let name = config.text("cluster").ok_or_else(|| {
        Exit::usage(
            "no cluster is given; pass --cluster NAME, set TENURE_CLUSTER, or set `cluster` in the configuration file",
        )
    })?;
    Ok(ClusterName::new(name)?)
}

/// A store that cannot be opened was named wrongly, unless it is only away for a while.
pub(crate) fn bad_store(error: StoreError) -> Exit {
    match error {
        StoreError::Denied { reason } => Exit::usage(reason),
        other => other.into(),
    }
}

/// Marks for the writes of one process.
struct Nonces {
    writer: SessionId,
    used: u64,
}

/// A number that nobody else has.
pub(crate) fn random_id() -> u128 {
    use rustix::rand::{GetRandomFlags, getrandom};
    let mut bytes = [0u8; 16];
    // Sixteen bytes come whole, or not at all where the system has no randomness to give.
    let got = getrandom(&mut bytes, GetRandomFlags::empty());
    assert_eq!(got, Ok(16), "the system returned no random bytes");
    u128::from_ne_bytes(bytes)
}

impl Nonces {
    fn new() -> Self {
        Self {
            writer: SessionId(random_id()),
            used: 0,
        }
    }

    fn next(&mut self) -> Nonce {
        self.used += 1;
        Nonce {
            writer: self.writer,
            n: self.used,
        }
    }
}
