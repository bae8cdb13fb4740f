//! The journal of acknowledged writes: outlives every process, and refuses what carries an old epoch (P2, P3).

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior, params};

use super::until_unlocked;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS fence (shard TEXT PRIMARY KEY, epoch INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS journal (
        number INTEGER PRIMARY KEY, shard TEXT NOT NULL, epoch INTEGER NOT NULL, key TEXT NOT NULL, n INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX IF NOT EXISTS by_shard ON journal (shard);";

const RAISE: &str = "INSERT INTO fence VALUES (?1, ?2) ON CONFLICT DO UPDATE SET epoch = max(epoch, excluded.epoch)";

/// A connection to the journal.
#[derive(Debug)]
pub(crate) struct Journal(Connection);

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) shard: String,
    pub(crate) epoch: i64,
    pub(crate) key: String,
    pub(crate) n: u64,
}

impl Journal {
    /// Opens the journal of a site.
    pub(crate) fn open(site: &Path) -> rusqlite::Result<Self> {
        until_unlocked(|| Self::try_open(site))
    }

    fn try_open(site: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(site.join("journal.db"))?;
        connection.busy_timeout(Duration::from_secs(20))?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        // What survives a crash of the machine is no part of these tests.
        connection.pragma_update(None, "synchronous", "off")?;
        connection.execute_batch(TABLES)?;
        Ok(Self(connection))
    }

    /// Refuses everything below this epoch from now on.
    pub(crate) fn fence(&self, shard: &str, epoch: u64) -> rusqlite::Result<()> {
        self.0.execute(RAISE, params![shard, epoch.cast_signed()])?;
        Ok(())
    }

    /// How many writes of a shard there are.
    pub(crate) fn len(&self, shard: &str) -> rusqlite::Result<u64> {
        let count = "SELECT count(*) FROM journal WHERE shard = ?1";
        let count: i64 = self.0.query_row(count, [shard], |row| row.get(0))?;
        Ok(count.cast_unsigned())
    }

    /// Returns the number of the last write of a key, 0 without any.
    pub(crate) fn last(&self, key: &str) -> rusqlite::Result<u64> {
        let last = "SELECT coalesce(max(n), 0) FROM journal WHERE key = ?1";
        let last: i64 = self.0.query_row(last, [key], |row| row.get(0))?;
        Ok(last.cast_unsigned())
    }

    /// Adds a write, unless a greater epoch was there first; how many the shard then has.
    pub(crate) fn add(&mut self, w: &Written) -> rusqlite::Result<Option<u64>> {
        let change = self
            .0
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let added = change.execute(
            "INSERT INTO journal (shard, epoch, key, n) SELECT ?1, ?2, ?3, ?4
             WHERE NOT EXISTS (SELECT 1 FROM fence WHERE shard = ?1 AND epoch > ?2)",
            params![w.shard, w.epoch, w.key, w.n.cast_signed()],
        )?;
        change.execute(RAISE, params![w.shard, w.epoch])?;
        let count = "SELECT count(*) FROM journal WHERE shard = ?1";
        let count: i64 = change.query_row(count, [&w.shard], |row| row.get(0))?;
        change.commit()?;
        Ok((added == 1).then_some(count.cast_unsigned()))
    }

    /// Whether nobody is in the middle of a write.
    pub(crate) fn is_free(&mut self) -> bool {
        let patience = self.0.busy_timeout(Duration::from_millis(50));
        let free = self
            .0
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .is_ok();
        patience.is_ok() && free
    }

    /// Everything, in the order in which it was written.
    pub(crate) fn all(&self) -> rusqlite::Result<Vec<Written>> {
        let mut query = self
            .0
            .prepare("SELECT shard, epoch, key, n FROM journal ORDER BY number")?;
        let rows = query.query_map([], |row| {
            Ok(Written {
                shard: row.get(0)?,
                epoch: row.get(1)?,
                key: row.get(2)?,
                n: row.get::<_, i64>(3)?.cast_unsigned(),
            })
        })?;
        rows.collect()
    }
}
