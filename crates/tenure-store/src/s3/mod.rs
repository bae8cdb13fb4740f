//! A prefix of an S3 bucket as a store: versions are ETags, and changes are found by listing.
//!
//! - Every write is a PUT with a condition, `If-None-Match: *` or `If-Match`. A service that does not keep to them is refused at the start.
//! - Every object is readable JSON, with a number that makes its ETag one that was never there before.
//! - A deletion is a write, too; what it leaves is removed later.
//! - The revision is counted by who looks: it belongs to the opened store.
//! - No request is repeated once it may have been applied.

mod aws_profile;
mod bucket_state;
mod bucket_sync;
mod capabilities;
mod capability_probe;
mod credentials;
mod errors;
mod http;
mod identity;
mod key_pages;
mod kv;
mod object_format;
mod object_names;
mod outage_probe;
mod purge_tombstones;
mod request_counts;
mod requests;
mod service_clock;
mod settings;
mod sigv4;
mod store_check;
mod tls;
mod watch;
mod xml;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tenure_core::ids::Revision;

pub use request_counts::RequestCounts;

use bucket_state::SharedBucket;
use http::{BucketEndpoint, HttpClient};
use object_format::NonceSource;
use object_names::ObjectNames;
use settings::ParsedUrl;

use crate::error::StoreError;
use crate::store::{
    ClockScope, Delete, DeleteIf, Entry, KeyPage, Listing, Put, PutIf, Store, StoreInfo,
};
use crate::store_check::Finding;
use crate::url::redacted;
use crate::watch::Watch;

/// How old the last word on the store's time may be.
const TIME_IS_FRESH: Duration = Duration::from_secs(5);

/// A store in a bucket.
#[derive(Clone)]
pub struct S3Store {
    info: StoreInfo,
    client: Arc<HttpClient>,
    names: ObjectNames,
    nonces: Arc<NonceSource>,
    hub: Arc<SharedBucket>,
}

impl fmt::Debug for S3Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("S3Store").field(&self.info.url).finish()
    }
}

impl S3Store {
    /// Opens the store that an `s3://` URL names, in a bucket that exists; keys and regions come from the variables and files
    /// of the `aws` command.
    ///
    /// Races writers first, and refuses a service that does not keep to conditions.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::opened(url, true).await
    }

    /// The same for those who only look: makes no store, and races nobody.
    pub async fn open_existing(url: &str) -> Result<Self, StoreError> {
        Self::opened(url, false).await
    }

    async fn opened(url: &str, make: bool) -> Result<Self, StoreError> {
        let parsed = ParsedUrl::new(url)?;
        let info = info_of(url, &parsed);
        let settings = parsed.resolve(|name| std::env::var(name).ok())?;
        let names = ObjectNames::under(&settings.root);
        let site = Arc::new(BucketEndpoint::new(settings)?);
        let store = Self {
            info,
            client: Arc::new(HttpClient::new(site)?),
            names,
            nonces: Arc::new(NonceSource::new()),
            hub: Arc::new(SharedBucket::new()),
        };
        store.ready(make).await?;
        Ok(store)
    }

    /// How many requests were sent through this store and all that is dedicated from it.
    pub fn requests(&self) -> RequestCounts {
        self.client.site.counter.read()
    }

    /// How often those who watch look at the bucket.
    pub fn poll_interval(&self) -> Duration {
        self.client.site.settings.poll
    }
}

/// What the store that `url` names says of itself.
pub(crate) fn info(url: &str) -> Result<StoreInfo, StoreError> {
    Ok(info_of(url, &ParsedUrl::new(url)?))
}

fn info_of(url: &str, parsed: &ParsedUrl) -> StoreInfo {
    // A request may take a twelfth of the ttl, and a bucket is slow at times; three looks must fit in.
    let least = Duration::from_secs(3).max(parsed.poll * 3);
    StoreInfo {
        kind: "s3",
        url: redacted(url),
        min_ttl: least,
        // Each renewal is paid for. Thirty seconds let a write take two and a half, and cost twelve writes a minute and node.
        default_ttl: Duration::from_secs(30).max(least),
        clock: ClockScope::Anywhere,
    }
}

#[async_trait]
impl Store for S3Store {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        store_check::examine(self).await
    }

    async fn identity(&self) -> Result<String, StoreError> {
        self.ask_identity().await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.compare().await
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
    ) -> Result<KeyPage, StoreError> {
        self.page_of_keys(prefix, after, limit).await
    }

    async fn discard(&self, keys: Vec<String>) -> Vec<Result<(), StoreError>> {
        self.discard_all(keys).await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        self.watch_from(prefix, from).await
    }

    async fn now(&self) -> Result<Option<SystemTime>, StoreError> {
        let clock = &self.client.site.clock;
        if let Some(now) = clock.now(TIME_IS_FRESH) {
            return Ok(Some(now));
        }
        // Any answer tells the time.
        self.ask_identity().await?;
        Ok(clock.now(TIME_IS_FRESH))
    }

    fn dedicated(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(Self {
            client: Arc::new(HttpClient::new(self.client.site.clone())?),
            ..self.clone()
        }))
    }
}
