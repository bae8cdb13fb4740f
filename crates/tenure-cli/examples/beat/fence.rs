//! A resource that keeps the greatest epoch it has seen of each shard and rejects older ones (P2).

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior, params};

/// Longest wait for the transaction of another process.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Greatest epoch of each shard, in an SQLite file.
pub(crate) struct Fence(Connection);

impl Fence {
    /// Opens the file, and creates it if it does not exist.
    pub(crate) fn open(path: &Path) -> rusqlite::Result<Self> {
        let database = Connection::open(path)?;
        database.busy_timeout(TIMEOUT)?;
        database.pragma_update(None, "journal_mode", "wal")?;
        database.pragma_update(None, "synchronous", "normal")?;
        database.execute_batch(
            "CREATE TABLE IF NOT EXISTS fence (shard TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID;",
        )?;
        Ok(Self(database))
    }

    /// Runs `act` within the transaction that checks the epoch, unless the fence has seen a newer epoch.
    pub(crate) fn under<T>(
        &mut self,
        shard: &str,
        epoch: u64,
        act: impl FnOnce() -> T,
    ) -> rusqlite::Result<Option<T>> {
        let transaction = self
            .0
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let rows = transaction.execute(
            "INSERT INTO fence VALUES (?1, ?2)
             ON CONFLICT (shard) DO UPDATE SET epoch = excluded.epoch WHERE excluded.epoch >= fence.epoch",
            params![shard, epoch.cast_signed()],
        )?;
        let done = (rows == 1).then(act);
        transaction.commit()?;
        Ok(done)
    }
}
