//! etcd as a store: versions are etcd's revisions, leases are etcd's own.
//!
//! - A version is the `mod_revision` of its key: one counter for the whole cluster, which never repeats.
//! - Every read is linearizable; a list of any length is read at one revision.
//! - The keys stand on the server under the prefix that the URL names, and nothing outside it is touched.
//! - No write is repeated by us, except where the server refused our token before it looked at the write.

mod batch;
mod call;
mod connect;
mod errors;
mod kv;
mod lease;
mod proto;
mod settings;
mod single_use_connector;
mod store_check;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tenure_core::ids::Revision;

use connect::{Client, Cluster};
use settings::ParsedUrl;

use crate::error::StoreError;
use crate::store::{
    self, ClockScope, Delete, DeleteIf, Entry, Leases, Listing, Put, PutIf, Store, StoreInfo,
};
use crate::store_check::Finding;
use crate::url::redacted;
use crate::watch::Watch;

/// A store in an etcd cluster, 3.4 or later.
pub struct EtcdStore {
    info: StoreInfo,
    client: Arc<Client>,
    keys: Keys,
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EtcdStore").field(&self.info.url).finish()
    }
}

impl EtcdStore {
    /// Opens the store that an `etcd://` or `etcds://` URL names; user, password and certificates may also come from
    /// etcdctl's variables.
    ///
    /// Fails if no member can be reached now. Once it is open, connections are made again with every call, without end.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let settings = ParsedUrl::new(url)?.resolve(|name| std::env::var(name).ok())?;
        let keys = Keys::under(&settings.prefix);
        let client = Client::new(Arc::new(Cluster::new(settings)));
        client.first_link().await?;
        Ok(Self {
            info: info_of(url),
            client,
            keys,
        })
    }
}

/// What the store that `url` names says of itself.
pub(crate) fn info(url: &str) -> Result<StoreInfo, StoreError> {
    ParsedUrl::new(url)?;
    Ok(info_of(url))
}

/// etcd grants no lease shorter than one and a half election timeouts, rounded up to whole seconds: 2 s as it comes.
/// It looks for leases that ran out every half second.
fn info_of(url: &str) -> StoreInfo {
    StoreInfo {
        kind: "etcd",
        url: redacted(url),
        min_ttl: Duration::from_secs(2),
        default_ttl: Duration::from_secs(2),
        clock: ClockScope::Anywhere,
    }
}

/// How our keys stand on the server: below a prefix and a slash.
#[derive(Clone, Debug)]
struct Keys {
    root: String,
}

impl Keys {
    fn under(prefix: &str) -> Self {
        Self {
            root: format!("{prefix}/"),
        }
    }

    /// The key on the server.
    fn outer(&self, key: &str) -> String {
        format!("{}{key}", self.root)
    }

    /// Our key, unless it is not ours: keys that are not text were written by somebody else.
    fn inner(&self, key: Vec<u8>) -> Option<String> {
        let mut key = String::from_utf8(key).ok()?;
        key.starts_with(&self.root).then(|| {
            key.drain(..self.root.len());
            key
        })
    }

    /// The first key after all those that start with `prefix`, which is not empty.
    fn end_of(prefix: &str) -> Vec<u8> {
        let mut end = prefix.as_bytes().to_vec();
        // No byte of UTF-8 is 0xff: one more always fits.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        end
    }
}

#[async_trait]
impl Store for EtcdStore {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        store_check::examine(self).await
    }

    async fn identity(&self) -> Result<String, StoreError> {
        let header = self.read_header().await?;
        Ok(format!("{:016x}", header.cluster_id))
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        let header = self.read_header().await?;
        Ok(Revision(kv::unsigned(header.revision)))
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
        Ok(None)
    }

    fn dedicated(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(Self {
            info: self.info.clone(),
            client: Client::new(self.client.cluster.clone()),
            keys: self.keys.clone(),
        }))
    }

    fn leases(&self) -> Option<&dyn Leases> {
        Some(self)
    }
}

#[cfg(test)]
mod stale_leader_tests;
