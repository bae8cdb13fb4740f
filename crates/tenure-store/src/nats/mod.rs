//! A NATS JetStream key-value bucket as a store: versions and revisions are the sequences of its stream.
//!
//! - A sequence counts the messages of the whole bucket and never repeats.
//! - Reads are answered by the leader of the bucket, never by a replica, and only while it is in touch with a majority.
//! - Keys are subjects of an ordinary bucket, which the `nats` command reads.
//! - No write is repeated by us, except where the server has said that the one before stored nothing.

mod batch;
mod bucket;
mod call;
mod connect;
mod connection;
mod errors;
mod jetstream;
mod key_pages;
mod kv;
mod list;
mod purge_tombstones;
mod settings;
mod store_check;
mod stream_reader;
mod subjects;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tenure_core::ids::Revision;

use connect::{Client, Cluster};
use settings::ParsedUrl;
use subjects::SubjectNames;

use crate::error::StoreError;
use crate::store::{
    self, ClockScope, Delete, DeleteIf, Entry, Listing, Put, PutIf, Store, StoreInfo,
};
use crate::store_check::Finding;
use crate::url::redacted;
use crate::watch::Watch;

/// A store in a JetStream bucket, on NATS 2.10 or later.
#[derive(Clone)]
pub struct NatsStore {
    info: StoreInfo,
    client: Arc<Client>,
    keys: SubjectNames,
    shared: Arc<Shared>,
}

/// What all connections to one store know.
#[derive(Debug, Default)]
struct Shared {
    /// How many copies of the bucket there are.
    replicas: AtomicUsize,
    /// Whether old deletions are being forgotten.
    collecting: AtomicBool,
}

impl fmt::Debug for NatsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NatsStore").field(&self.info.url).finish()
    }
}

impl NatsStore {
    /// Opens the store that a `nats://` or `tls://` URL names, and makes its bucket if there is none; credentials and
    /// certificates may also come from the variables of the `nats` command.
    ///
    /// Fails if no server can be reached now. Once it is open, connections are made again with every call, without end.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::opened(url, true).await
    }

    /// The same for those who only look: makes no bucket.
    pub async fn open_existing(url: &str) -> Result<Self, StoreError> {
        Self::opened(url, false).await
    }

    async fn opened(url: &str, make: bool) -> Result<Self, StoreError> {
        let settings = ParsedUrl::new(url)?.resolve(|name| std::env::var(name).ok())?;
        let replicas = settings.replicas;
        let keys = SubjectNames::of(&settings.bucket);
        let client = Client::new(Arc::new(Cluster::new(settings)));
        client.first_link().await?;
        let mut store = Self {
            info: info_of(url, replicas),
            client,
            keys,
            shared: Arc::default(),
        };
        store.ready(make).await?;
        store.info = info_of(url, store.shared.replicas.load(Ordering::Relaxed));
        Ok(store)
    }

    fn note_replicas(&self, count: usize) {
        self.shared.replicas.store(count, Ordering::Relaxed);
    }

    fn is_replicated(&self) -> bool {
        self.shared.replicas.load(Ordering::Relaxed) > 1
    }
}

/// What the store that `url` names says of itself.
pub(crate) fn info(url: &str) -> Result<StoreInfo, StoreError> {
    Ok(info_of(url, ParsedUrl::new(url)?.replicas_to_make()))
}

/// Failover within three seconds, at 1.2 times the ttl.
const SINGLE_TTL: Duration = Duration::from_millis(2500);
/// The election of a leader takes up to six seconds, and nobody can renew meanwhile. Nodes keep their shards through 0.53 of a
/// ttl without the store: eight seconds.
const REPLICATED_TTL: Duration = Duration::from_secs(15);

fn info_of(url: &str, replicas: usize) -> StoreInfo {
    StoreInfo {
        kind: "nats",
        url: redacted(url),
        // Below this, one slow moment of a busy server costs leases.
        min_ttl: Duration::from_secs(1),
        default_ttl: if replicas > 1 {
            REPLICATED_TTL
        } else {
            SINGLE_TTL
        },
        clock: ClockScope::Anywhere,
    }
}

#[async_trait]
impl Store for NatsStore {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        store_check::examine(self).await
    }

    async fn identity(&self) -> Result<String, StoreError> {
        let info = self.stream_info().await?;
        Ok(format!("{}@{}", self.keys.bucket, info.created))
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(Revision(self.stream_info().await?.state.last_seq))
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.read_one(key).await
    }

    async fn get_many(&self, keys: Vec<String>) -> Vec<Result<Option<Entry>, StoreError>> {
        self.read_many(keys).await
    }

    async fn put_if(&self, put: PutIf) -> Result<Put, StoreError> {
        self.write_one(put).await
    }

    async fn put_many(&self, puts: Vec<PutIf>) -> Vec<Result<Put, StoreError>> {
        self.write_many(puts).await
    }

    async fn delete_if(&self, delete: DeleteIf) -> Result<Delete, StoreError> {
        self.remove_one(delete).await
    }

    async fn delete_many(&self, deletes: Vec<DeleteIf>) -> Vec<Result<Delete, StoreError>> {
        self.remove_many(deletes).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        self.list_all(prefix).await
    }

    async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<store::KeyPage, StoreError> {
        self.read_keys(prefix, after, limit).await
    }

    async fn discard(&self, keys: Vec<String>) -> Vec<Result<(), StoreError>> {
        self.discard_many(keys).await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        self.watch_from(prefix, from).await
    }

    async fn now(&self) -> Result<Option<SystemTime>, StoreError> {
        let info = self.stream_info().await?;
        Ok(info.ts.as_deref().and_then(crate::timestamps::parse))
    }

    fn dedicated(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(Self {
            client: Client::new(self.client.cluster.clone()),
            ..self.clone()
        }))
    }
}
