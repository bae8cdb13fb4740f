//! A store in one SQLite file: several processes of one machine, no server.
//!
//! Each opened store has one thread that reads and one that writes, each with a connection of its own, so that a dropped call
//! leaves nothing half done; and one thread that watches, started when the first watch is. Every write is durable when it is
//! answered (`synchronous=FULL`). Files on network file systems and files that another machine uses are refused: SQLite's
//! locks do not hold there.

mod change_signal;
mod connect;
mod connection_thread;
mod errors;
mod path_checks;
mod sql;
mod store_check;
mod watcher;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tenure_core::ids::Revision;

use connect::Database;
pub use connect::HostCheck;
use connection_thread::ConnectionHandle;
use watcher::WatcherHandle;

use crate::error::StoreError;
use crate::store::{
    ClockScope, Delete, DeleteIf, Entry, KeyPage, Listing, Put, PutIf, Store, StoreInfo,
};
use crate::store_check::Finding;
use crate::watch::{TOMBSTONES_KEPT, Watch};

/// How many keys a transaction of a batch takes at most: a compromise between one fsync per key and making others wait.
const BATCH_KEYS: usize = 500;

/// A store in a SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    info: StoreInfo,
    database: Arc<Database>,
    reader: ConnectionHandle,
    writer: ConnectionHandle,
    hub: Arc<Mutex<Option<WatcherHandle>>>,
}

impl SqliteStore {
    /// Opens the file at `path`, making it if it does not exist.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, HostCheck::Refuse).await
    }

    /// Opens the file at `path`, with a say on what happens if another machine has used it.
    pub async fn open_with(path: impl AsRef<Path>, check: HostCheck) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        let opening = tokio::task::spawn_blocking(move || Self::open_blocking(&path, check));
        match opening.await {
            Ok(opened) => opened,
            Err(e) => Err(StoreError::unavailable(format!(
                "opening the database failed, because its background thread panicked: {e}"
            ))),
        }
    }

    fn open_blocking(path: &Path, check: HostCheck) -> Result<Self, StoreError> {
        let database = Arc::new(Database::prepare(path, check)?);
        Self::connected(info(path), database, Arc::default())
    }

    fn connected(
        info: StoreInfo,
        database: Arc<Database>,
        hub: Arc<Mutex<Option<WatcherHandle>>>,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            info,
            reader: ConnectionHandle::start("tenure-sqlite-read", &database)?,
            writer: ConnectionHandle::start("tenure-sqlite-write", &database)?,
            database,
            hub,
        })
    }

    /// Forgets all but the newest `keep` deletions. A watch from before a forgotten one ends with a gap.
    pub async fn purge(&self, keep: usize) -> Result<(), StoreError> {
        let purged = self.writer.write(move |session| sql::purge(session, keep));
        purged.await
    }
}

/// What the store in this file says of itself.
pub(crate) fn info(path: &Path) -> StoreInfo {
    StoreInfo {
        kind: "sqlite",
        url: format!("sqlite:{}", path.display()),
        min_ttl: Duration::from_millis(200),
        default_ttl: Duration::from_millis(2500),
        clock: ClockScope::OneMachine,
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn identity(&self) -> Result<String, StoreError> {
        self.reader.read("", sql::identity).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.reader.read("", sql::revision).await
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let asked = key.to_owned();
        let got = self.reader.read(key, move |conn| sql::get(conn, &asked));
        got.await
    }

    async fn get_many(&self, keys: Vec<String>) -> Vec<Result<Option<Entry>, StoreError>> {
        let asked = keys.clone();
        let got = self
            .reader
            .read("", move |conn| sql::get_many(conn, &asked));
        match got.await {
            Ok(entries) => entries.into_iter().map(Ok).collect(),
            Err(StoreError::Corrupt { .. }) => {
                // One damaged page must not hide the other keys.
                let mut answers = Vec::with_capacity(keys.len());
                for key in &keys {
                    answers.push(self.get(key).await);
                }
                answers
            }
            Err(e) => keys.iter().map(|_| Err(e.clone())).collect(),
        }
    }

    async fn put_if(&self, put: PutIf) -> Result<Put, StoreError> {
        let won = self.writer.write(move |session| sql::put_if(session, &put));
        won.await
    }

    async fn put_many(&self, puts: Vec<PutIf>) -> Vec<Result<Put, StoreError>> {
        self.batch(puts, sql::put_one).await
    }

    async fn delete_if(&self, delete: DeleteIf) -> Result<Delete, StoreError> {
        let answer = self.writer.write(move |session| {
            let answer = sql::delete_if(session, &delete)?;
            sql::purge_now_and_then(session, 1, TOMBSTONES_KEPT);
            Ok(answer)
        });
        answer.await
    }

    async fn delete_many(&self, deletes: Vec<DeleteIf>) -> Vec<Result<Delete, StoreError>> {
        let count = deletes.len();
        let answers = self.batch(deletes, sql::delete_one).await;
        self.tidy(count).await;
        answers
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        let asked = prefix.to_owned();
        let listed = self
            .reader
            .read(prefix, move |conn| sql::list(conn, &asked));
        listed.await
    }

    async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<KeyPage, StoreError> {
        let (asked, after) = (prefix.to_owned(), after.map(ToOwned::to_owned));
        let read = self.reader.read(prefix, move |conn| {
            sql::keys(conn, &asked, after.as_deref(), limit)
        });
        read.await
    }

    async fn discard(&self, keys: Vec<String>) -> Vec<Result<(), StoreError>> {
        let count = keys.len();
        let answers = self.batch(keys, sql::discard_one).await;
        self.tidy(count).await;
        answers
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        let (hub, database) = (self.hub.clone(), self.database.clone());
        let prefix = prefix.to_owned();
        // The first watch opens a connection, which may block.
        let subscribed = tokio::task::spawn_blocking(move || {
            let mut hub = hub.lock().unwrap_or_else(PoisonError::into_inner);
            let hub = match &mut *hub {
                Some(hub) => hub,
                none => none.insert(WatcherHandle::start(&database)?),
            };
            Ok(hub.subscribe(&prefix, from))
        });
        match subscribed.await {
            Ok(subscribed) => subscribed?.await,
            Err(e) => Err(StoreError::unavailable(format!(
                "starting the watch of the database failed, because its background thread panicked: {e}"
            ))),
        }
    }

    async fn now(&self) -> Result<Option<SystemTime>, StoreError> {
        // All users of the file share this machine's clock.
        Ok(Some(SystemTime::now()))
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        let place = self.database.place.clone();
        let looked = self
            .reader
            .read("", move |conn| store_check::examine(conn, &place));
        looked.await
    }

    fn dedicated(&self) -> Result<Arc<dyn Store>, StoreError> {
        let (info, database) = (self.info.clone(), self.database.clone());
        let store = Self::connected(info, database, self.hub.clone())?;
        Ok(Arc::new(store))
    }
}

impl SqliteStore {
    /// Forgets old deletions now and then. What was answered stands whether or not there was time for it.
    async fn tidy(&self, deleted: usize) {
        let tidied = self.writer.write(move |session| {
            sql::purge_now_and_then(session, deleted, TOMBSTONES_KEPT);
            Ok(())
        });
        let _ = tidied.await;
    }

    /// Writes in transactions of a few hundred keys, so that a long batch does not lock others out.
    async fn batch<Q: Send + 'static, A: Send + 'static>(
        &self,
        questions: Vec<Q>,
        one: fn(&rusqlite::Connection, &Q) -> rusqlite::Result<A>,
    ) -> Vec<Result<A, StoreError>> {
        let mut answers = Vec::with_capacity(questions.len());
        let mut rest = questions.into_iter().peekable();
        while rest.peek().is_some() {
            let chunk: Vec<Q> = rest.by_ref().take(BATCH_KEYS).collect();
            let count = chunk.len();
            let written = self
                .writer
                .write(move |session| sql::transaction(session, &chunk, one));
            match written.await {
                Ok(chunk) => answers.extend(chunk.into_iter().map(Ok)),
                Err(e) => answers.extend((0..count).map(|_| Err(e.clone()))),
            }
        }
        answers
    }
}

#[cfg(test)]
mod tests;
