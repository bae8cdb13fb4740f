//! A store in a PostgreSQL database.
//!
//! One table, and triggers that keep its books (`schema.sql`). Every write is one statement and a transaction of its own, so
//! that a client that stops in the middle holds nothing up. Reads and writes share one connection, on which nobody waits for
//! anybody's answer; a dedicated store has another, and the watches of a store share one more. Each is made again for ever when it
//! is lost. How watches miss nothing although commits come in any order is told in `docs/decisions/19-postgres-history.md`.

mod batches;
mod client;
mod connection;
mod errors;
mod keys;
mod pgpass;
mod pooler_check;
mod reconnect;
mod revisions;
mod schema;
mod socket;
mod sql;
mod store_check;
mod tables;
mod tls;
mod url;
mod watcher;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tenure_core::ids::{Revision, Version};
use tokio::runtime::Handle;

use batches::{BATCH_KEYS, distinct, entry};
use client::{MissingTables, StatementSession};
use connection::ConnectionFactory;
use reconnect::ReconnectingClient;
use revisions::RevisionPositions;
use url::ConnectionTarget;
use watcher::WatcherHandle;

use crate::error::StoreError;
use crate::store::{
    ClockScope, Delete, DeleteIf, Entry, Expect, KeyPage, Listing, Put, PutIf, Store, StoreInfo,
};
use crate::store_check::Finding;
use crate::watch::{TOMBSTONES_KEPT, Watch};

/// How many deletions by one store pass between two purges.
const PURGE_EVERY: usize = 1000;

/// A store in a PostgreSQL database.
#[derive(Debug)]
pub struct PostgresStore {
    info: StoreInfo,
    dialer: ConnectionFactory,
    runtime: Handle,
    link: ReconnectingClient,
    shared: Arc<Shared>,
}

/// What a store shares with its dedicated ones.
#[derive(Debug, Default)]
struct Shared {
    positions: Arc<RevisionPositions>,
    hub: Mutex<Option<WatcherHandle>>,
    deleted: AtomicUsize,
}

impl PostgresStore {
    /// Opens the store that a URL names, making its tables if there are none.
    ///
    /// Its connections are kept by tasks in the runtime that this is called in.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::open_with(url, MissingTables::Make).await
    }

    /// Opens the store that a URL names if its tables are there.
    pub async fn open_existing(url: &str) -> Result<Self, StoreError> {
        Self::open_with(url, MissingTables::Expect).await
    }

    async fn open_with(url: &str, tables: MissingTables) -> Result<Self, StoreError> {
        let target = ConnectionTarget::parse(url)?;
        let (info, runtime) = (info(&target), Handle::current());
        let dialer = ConnectionFactory::new(target)?;
        let first = StatementSession::first(&dialer, tables, reconnect::FIRST_SILENCE).await?;
        Ok(Self {
            info,
            link: ReconnectingClient::keep(&runtime, dialer.clone(), first),
            dialer,
            runtime,
            shared: Arc::default(),
        })
    }

    /// Forgets all but the newest `keep` deletions. A watch from before a forgotten one ends with a gap.
    pub async fn purge(&self, keep: usize) -> Result<(), StoreError> {
        let session = self.link.session().await?;
        let keep = keep as i64;
        session
            .read("", &session.statements.purge, &[&keep])
            .await
            .map(drop)
    }

    /// Notes where the store is at a revision.
    fn noted(&self, session: &StatementSession, revision: i64, position: &str) -> Revision {
        let revision = Revision(revision.cast_unsigned());
        let positions = &self.shared.positions;
        positions.note(&session.identity, revision, position);
        revision
    }

    async fn purge_now_and_then(&self, deleted: usize) {
        let before = self.shared.deleted.fetch_add(deleted, Ordering::Relaxed);
        if before + deleted >= PURGE_EVERY {
            self.shared.deleted.store(0, Ordering::Relaxed);
            // That it fails now and then does no harm: the next time will do.
            if let Err(e) = self.purge(TOMBSTONES_KEPT).await {
                tracing::debug!(error = %e, "purging old tombstones failed");
            }
        }
    }
}

/// What the store that a URL names says of itself.
pub(crate) fn describe(url: &str) -> Result<StoreInfo, StoreError> {
    ConnectionTarget::parse(url).map(|target| info(&target))
}

fn info(target: &ConnectionTarget) -> StoreInfo {
    StoreInfo {
        kind: "postgres",
        url: target.shown.clone(),
        // Below this, one slow commit of a busy server costs leases.
        min_ttl: Duration::from_secs(1),
        // Failover within three seconds, at 1.2 times the ttl.
        default_ttl: Duration::from_millis(2500),
        clock: ClockScope::Anywhere,
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn identity(&self) -> Result<String, StoreError> {
        self.link.session().await?.ask_identity().await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        let session = self.link.session().await?;
        let row = session.one("", &session.statements.now_at, &[]).await?;
        let odd = |e| session.odd(&e);
        let (revision, position) = (row.try_get(0).map_err(odd)?, row.try_get(1).map_err(odd)?);
        Ok(self.noted(&session, revision, position))
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let session = self.link.session().await?;
        let text = keys::escape(key);
        let rows = session.read(key, &session.statements.get, &[&text]).await?;
        let row = rows.first();
        let entry = row.map(|row| entry(&session, key.to_owned(), row, 0));
        entry.transpose()
    }

    async fn get_many(&self, keys: Vec<String>) -> Vec<Result<Option<Entry>, StoreError>> {
        let mut answers = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(BATCH_KEYS) {
            match self.get_chunk(chunk).await {
                Ok(mut found) => {
                    // The same key may be asked for twice.
                    let mut take = |key: &String| found.get_mut(key).cloned();
                    answers.extend(chunk.iter().map(|key| Ok(take(key))));
                }
                Err(StoreError::Corrupt { .. } | StoreError::Denied { .. }) if chunk.len() > 1 => {
                    // One damaged row must not hide the other keys.
                    for key in chunk {
                        answers.push(self.get(key).await);
                    }
                }
                Err(e) => answers.extend(chunk.iter().map(|_| Err(e.clone()))),
            }
        }
        answers
    }

    async fn put_if(&self, put: PutIf) -> Result<Put, StoreError> {
        let session = self.link.session().await?;
        let (text, value) = (keys::escape(&put.key), &*put.value);
        let statements = &session.statements;
        let rows = match &put.expect {
            Expect::Absent => {
                let create = &statements.create;
                session.write(&put.key, create, &[&text, &value]).await?
            }
            Expect::Version(Version::Number(n)) => {
                let expected = n.cast_signed();
                let params: client::Params<'_> = &[&text, &value, &expected];
                session.write(&put.key, &statements.update, params).await?
            }
            Expect::Version(Version::Text(_)) => Vec::new(),
        };
        match rows.first() {
            None => Ok(Put::Lost),
            Some(row) => {
                let version: i64 = row.try_get(0).map_err(|e| session.odd(&e))?;
                Ok(Put::Won(Version::Number(version.cast_unsigned())))
            }
        }
    }

    async fn put_many(&self, puts: Vec<PutIf>) -> Vec<Result<Put, StoreError>> {
        let mut answers = Vec::with_capacity(puts.len());
        for chunk in distinct(&puts, |put| &put.key) {
            match self.put_chunk(chunk).await {
                Ok(chunk) => answers.extend(chunk.into_iter().map(Ok)),
                Err(e) => answers.extend(chunk.iter().map(|_| Err(e.clone()))),
            }
        }
        answers
    }

    async fn delete_if(&self, delete: DeleteIf) -> Result<Delete, StoreError> {
        let Version::Number(n) = delete.version else {
            return Ok(Delete::Lost);
        };
        let session = self.link.session().await?;
        let (text, version) = (keys::escape(&delete.key), n.cast_signed());
        let params: client::Params<'_> = &[&text, &version];
        let rows = session.write(&delete.key, &session.statements.delete, params);
        if rows.await?.is_empty() {
            return Ok(Delete::Lost);
        }
        self.purge_now_and_then(1).await;
        Ok(Delete::Won)
    }

    async fn delete_many(&self, deletes: Vec<DeleteIf>) -> Vec<Result<Delete, StoreError>> {
        let mut answers = Vec::with_capacity(deletes.len());
        for chunk in distinct(&deletes, |delete| &delete.key) {
            match self.delete_chunk(chunk).await {
                Ok(chunk) => answers.extend(chunk.into_iter().map(Ok)),
                Err(e) => answers.extend(chunk.iter().map(|_| Err(e.clone()))),
            }
        }
        self.purge_now_and_then(deletes.len()).await;
        answers
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        let session = self.link.session().await?;
        let statements = &session.statements;
        let from = keys::escape(prefix);
        let rows = match keys::after(&from) {
            None => session.read(prefix, &statements.list, &[&from]).await?,
            Some(to) => {
                let within = &statements.list_within;
                session.read(prefix, within, &[&from, &to]).await?
            }
        };
        self.listing(&session, prefix, &rows)
    }

    async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<KeyPage, StoreError> {
        self.keys_page(prefix, after, limit).await
    }

    async fn discard(&self, keys: Vec<String>) -> Vec<Result<(), StoreError>> {
        let mut answers = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(BATCH_KEYS) {
            let discarded = self.discard_chunk(chunk).await;
            answers.extend(chunk.iter().map(|_| discarded.clone()));
        }
        self.purge_now_and_then(keys.len()).await;
        answers
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        let subscribed = {
            let mut hub = self
                .shared
                .hub
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let hub = hub.get_or_insert_with(|| {
                let (dialer, positions) = (self.dialer.clone(), self.shared.positions.clone());
                WatcherHandle::start(&self.runtime, dialer, positions)
            });
            hub.subscribe(prefix, from)
        };
        subscribed.await
    }

    async fn now(&self) -> Result<Option<SystemTime>, StoreError> {
        let session = self.link.session().await?;
        let row = session.one("", &session.statements.clock, &[]).await?;
        row.try_get(0).map(Some).map_err(|e| session.odd(&e))
    }

    fn dedicated(&self) -> Result<Arc<dyn Store>, StoreError> {
        // Whoever asks for it wants it to run where they do.
        let runtime = Handle::try_current().unwrap_or_else(|_| self.runtime.clone());
        Ok(Arc::new(Self {
            info: self.info.clone(),
            link: ReconnectingClient::open(&runtime, self.dialer.clone()),
            dialer: self.dialer.clone(),
            runtime,
            shared: self.shared.clone(),
        }))
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        let session = self.link.session().await?;
        store_check::examine(&session, &self.dialer.target).await
    }
}
