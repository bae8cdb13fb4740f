//! A resource that keeps the greatest epoch it has seen of each shard and refuses older ones (P2).

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior, params};

/// How long to wait for another process's transaction.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Counters in SQLite, each change under the epoch of its shard.
pub(crate) struct FencedCounters {
    database: Connection,
}

/// One change of one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CounterChange {
    /// The shard that the key belongs to.
    pub(crate) shard: String,
    /// The epoch that the change was admitted under.
    pub(crate) epoch: u64,
    /// The counter.
    pub(crate) key: String,
    /// Who changes it.
    pub(crate) node: String,
}

/// What came of some changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangeResult {
    /// How many were made.
    pub(crate) made: u64,
    /// Those that were refused, with the epoch that the resource has seen.
    pub(crate) refused: Vec<(CounterChange, u64)>,
}

impl FencedCounters {
    /// Opens the file, and makes it if need be.
    pub(crate) fn open(path: &Path) -> rusqlite::Result<Self> {
        let database = Connection::open(path)?;
        database.busy_timeout(TIMEOUT)?;
        database.pragma_update(None, "journal_mode", "wal")?;
        database.pragma_update(None, "synchronous", "normal")?;
        database.execute_batch(
            "CREATE TABLE IF NOT EXISTS fence (shard TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID;
             CREATE TABLE IF NOT EXISTS counter (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
             CREATE TABLE IF NOT EXISTS journal (shard TEXT NOT NULL, epoch INTEGER NOT NULL, key TEXT NOT NULL,
                                                 value INTEGER NOT NULL, node TEXT NOT NULL);",
        )?;
        Ok(Self { database })
    }

    /// Shows the resource a new epoch, before anything is read from it. Whether it is not older than what it has seen.
    pub(crate) fn fence(&mut self, shard: &str, epoch: u64) -> rusqlite::Result<bool> {
        let transaction = self.begin()?;
        let fits = admit(&transaction, shard, epoch)?;
        transaction.commit()?;
        Ok(fits)
    }

    /// Makes those changes whose epoch is not older than what was seen of their shard, all in one transaction.
    pub(crate) fn apply(&mut self, changes: Vec<CounterChange>) -> rusqlite::Result<ChangeResult> {
        let transaction = self.begin()?;
        let mut applied = ChangeResult::default();
        for change in changes {
            if !admit(&transaction, &change.shard, change.epoch)? {
                let seen = seen(&transaction, &change.shard)?;
                applied.refused.push((change, seen));
                continue;
            }
            let value: i64 = transaction
                .prepare_cached(
                    "INSERT INTO counter VALUES (?1, 1) ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value",
                )?
                .query_row([&change.key], |row| row.get(0))?;
            transaction
                .prepare_cached("INSERT INTO journal VALUES (?1, ?2, ?3, ?4, ?5)")?
                .execute(params![
                    change.shard,
                    as_sql(change.epoch),
                    change.key,
                    value,
                    change.node
                ])?;
            applied.made += 1;
        }
        transaction.commit()?;
        Ok(applied)
    }

    fn begin(&mut self) -> rusqlite::Result<Transaction<'_>> {
        self.database
            .transaction_with_behavior(TransactionBehavior::Immediate)
    }
}

/// The whole of fencing: one conditional statement, in the transaction of the change.
fn admit(transaction: &Transaction<'_>, shard: &str, epoch: u64) -> rusqlite::Result<bool> {
    let rows = transaction
        .prepare_cached(
            "INSERT INTO fence VALUES (?1, ?2)
             ON CONFLICT (shard) DO UPDATE SET epoch = excluded.epoch WHERE excluded.epoch >= fence.epoch",
        )?
        .execute(params![shard, as_sql(epoch)])?;
    Ok(rows == 1)
}

fn seen(transaction: &Transaction<'_>, shard: &str) -> rusqlite::Result<u64> {
    transaction
        .prepare_cached("SELECT epoch FROM fence WHERE shard = ?1")?
        .query_row([shard], |row| row.get::<_, i64>(0))
        .map(|epoch| epoch.cast_unsigned())
}

/// Epochs are below 2^63 for the first two thousand million generations.
fn as_sql(epoch: u64) -> i64 {
    epoch.cast_signed()
}

/// What the journal of all changes says afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalAudit {
    /// How many changes it holds.
    pub(crate) changes: u64,
    /// How many came after one of a newer epoch of their shard.
    pub(crate) stale: u64,
    /// How many counters are not what the changes make them.
    pub(crate) wrong: u64,
}

impl JournalAudit {
    /// Whether nothing is wrong.
    pub(crate) fn is_clean(&self) -> bool {
        self.stale == 0 && self.wrong == 0
    }
}

impl std::fmt::Display for JournalAudit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "journal: {} changes, {} of them after a newer epoch, {} counters that differ from the journal",
            self.changes, self.stale, self.wrong
        )
    }
}

/// Reads the journal back and compares.
pub(crate) fn audit(path: &Path) -> rusqlite::Result<JournalAudit> {
    let database = Connection::open(path)?;
    let count = |sql| database.query_row(sql, [], |row| row.get::<_, i64>(0));
    Ok(JournalAudit {
        changes: count("SELECT count(*) FROM journal")?.cast_unsigned(),
        stale: count(
            "SELECT count(*) FROM (SELECT epoch, max(epoch) OVER (PARTITION BY shard ORDER BY rowid) AS newest FROM journal)
             WHERE epoch < newest",
        )?
        .cast_unsigned(),
        wrong: count(
            "SELECT count(*) FROM counter LEFT JOIN (SELECT key, count(*) AS made FROM journal GROUP BY key) USING (key)
             WHERE value IS NOT made",
        )?
        .cast_unsigned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(epoch: u64) -> CounterChange {
        CounterChange {
            shard: "0".to_owned(),
            epoch,
            key: "apples".to_owned(),
            node: format!("n{epoch}"),
        }
    }

    #[test]
    fn a_change_under_an_older_epoch_is_refused_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut fenced = FencedCounters::open(&dir.path().join("work.db")).unwrap();
        assert_eq!(fenced.apply(vec![change(1), change(1)]).unwrap().made, 2);
        assert!(fenced.fence("0", 2).unwrap());
        let applied = fenced.apply(vec![change(1), change(2)]).unwrap();
        assert_eq!(applied.made, 1);
        assert_eq!(applied.refused, [(change(1), 2)]);
        assert!(!fenced.fence("0", 1).unwrap());
        let count = "SELECT value FROM counter";
        let value: i64 = fenced
            .database
            .query_row(count, [], |row| row.get(0))
            .unwrap();
        assert_eq!(value, 3);
    }
}
