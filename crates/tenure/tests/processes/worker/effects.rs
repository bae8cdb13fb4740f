//! A resource that checks epochs: it keeps the greatest epoch of each shard and refuses smaller ones (P2).

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior, params};

use super::{now, until_unlocked};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS fence (shard TEXT PRIMARY KEY, epoch INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS effect (
        number INTEGER PRIMARY KEY, shard TEXT NOT NULL, epoch INTEGER NOT NULL, count INTEGER NOT NULL, pid INTEGER NOT NULL
    ) STRICT;";

/// A connection to the resource.
#[derive(Debug)]
pub(crate) struct Effects(Connection);

/// What became of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It was made, and was under way at this time.
    Made(u64),
    /// A greater epoch was there first.
    Refused,
    /// The grant was over when its turn came.
    Late,
}

impl Effects {
    /// Opens the resource of a site.
    pub(crate) fn open(site: &Path) -> rusqlite::Result<Self> {
        until_unlocked(|| Self::try_open(site))
    }

    fn try_open(site: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(site.join("effects.db"))?;
        connection.busy_timeout(Duration::from_millis(200))?;
        // What survives a crash of the machine is no part of these tests.
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "off")?;
        connection.execute_batch(TABLES)?;
        Ok(Self(connection))
    }

    /// Refuses everything below this epoch from now on.
    pub(crate) fn fence(&self, shard: &str, epoch: u64) -> rusqlite::Result<()> {
        let raise = "INSERT INTO fence VALUES (?1, ?2) ON CONFLICT DO UPDATE SET epoch = max(epoch, excluded.epoch)";
        self.0.execute(raise, params![shard, epoch.cast_signed()])?;
        Ok(())
    }

    /// Makes an effect, if the resource takes it and `granted` still holds inside the transaction.
    pub(crate) fn make(
        &mut self,
        shard: &str,
        epoch: u64,
        count: u64,
        granted: impl Fn() -> bool,
    ) -> rusqlite::Result<Effect> {
        let change = self
            .0
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Before the grant is asked, and before the commit: if the effect is taken, then before any higher epoch can
        // have been fenced.
        let at = now();
        if !granted() {
            return Ok(Effect::Late);
        }
        let insert = "INSERT INTO effect (shard, epoch, count, pid) SELECT ?1, ?2, ?3, ?4
            WHERE NOT EXISTS (SELECT 1 FROM fence WHERE shard = ?1 AND epoch > ?2)";
        let row = params![
            shard,
            epoch.cast_signed(),
            count.cast_signed(),
            std::process::id()
        ];
        let made = change.execute(insert, row)?;
        change.commit()?;
        Ok(if made == 1 {
            Effect::Made(at)
        } else {
            Effect::Refused
        })
    }

    /// Shard, epoch and process of each effect, in the order in which the resource took them.
    pub(crate) fn all(&self) -> rusqlite::Result<Vec<(String, i64, i64)>> {
        let mut query = self
            .0
            .prepare("SELECT shard, epoch, pid FROM effect ORDER BY number")?;
        let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        rows.collect()
    }
}
