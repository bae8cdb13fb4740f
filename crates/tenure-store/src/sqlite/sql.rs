//! The statements: what each call of the store is in SQL.

use std::sync::Arc;

use rusqlite::types::ValueRef;
use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Row, params};
use tenure_core::ids::{Revision, Version};

use super::connection_thread::WriteSession;
use super::errors::WriteStage;
use crate::error::StoreError;
use crate::store::{Delete, DeleteIf, Entry, Expect, KeyPage, Listing, Put, PutIf};
use crate::watch::{Change, ChangeBatch};

const CREATE: &str = "
    INSERT INTO kv (key, value, version) VALUES (?1, ?2, (SELECT revision + 1 FROM counter))
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version
    WHERE kv.value IS NULL
    RETURNING version";
const UPDATE: &str = "
    UPDATE kv SET value = ?2, version = (SELECT revision + 1 FROM counter)
    WHERE key = ?1 AND version = ?3 AND value IS NOT NULL
    RETURNING version";
const DELETE: &str = "
    UPDATE kv SET value = NULL, version = (SELECT revision + 1 FROM counter)
    WHERE key = ?1 AND version = ?2 AND value IS NOT NULL
    RETURNING version";
const DISCARD: &str = "
    UPDATE kv SET value = NULL, version = (SELECT revision + 1 FROM counter)
    WHERE key = ?1 AND value IS NOT NULL
    RETURNING version";
const GET: &str = "SELECT key, value, version FROM kv WHERE key = ?1 AND value IS NOT NULL";
const LIST: &str = "
    SELECT key, value, version FROM kv WHERE key >= ?1 AND value IS NOT NULL ORDER BY key";
const KEYS: &str = "
    SELECT key FROM kv WHERE key >= ?1 AND key > ?2 AND value IS NOT NULL ORDER BY key";
const FIRST_KEYS: &str = "SELECT key FROM kv WHERE key >= ?1 AND value IS NOT NULL ORDER BY key";
const CHANGES: &str = "
    SELECT key, value, version FROM kv WHERE version > ?1 ORDER BY version LIMIT ?2";
const PURGE: &str = "
    DELETE FROM kv WHERE value IS NULL AND version <= (
        SELECT version FROM kv WHERE value IS NULL ORDER BY version DESC LIMIT 1 OFFSET ?1)";

/// How many deletions by one thread pass between two purges.
const PURGE_EVERY: usize = 1000;

pub(super) fn identity(conn: &Connection) -> rusqlite::Result<String> {
    let mut read = conn.prepare_cached("SELECT value FROM meta WHERE name = 'identity'")?;
    read.query_row([], |r| r.get(0))
}

pub(super) fn revision(conn: &Connection) -> rusqlite::Result<Revision> {
    counter(conn).map(|counter| counter.revision)
}

/// Where the store's history stands, and from where on it can be replayed.
pub(super) struct HistoryPosition {
    pub(super) revision: Revision,
    pub(super) gap: Revision,
}

pub(super) fn counter(conn: &Connection) -> rusqlite::Result<HistoryPosition> {
    let mut read = conn.prepare_cached("SELECT revision, gap FROM counter")?;
    read.query_row([], |r| {
        Ok(HistoryPosition {
            revision: Revision(r.get::<_, i64>(0)?.cast_unsigned()),
            gap: Revision(r.get::<_, i64>(1)?.cast_unsigned()),
        })
    })
}

pub(super) fn get(conn: &Connection, key: &str) -> rusqlite::Result<Option<Entry>> {
    let mut read = conn.prepare_cached(GET)?;
    let found = read.query_row([key], change).optional()?;
    Ok(match found.flatten() {
        Some(Change::Put(entry)) => Some(entry),
        _ => None,
    })
}

pub(super) fn get_many(conn: &Connection, keys: &[String]) -> rusqlite::Result<Vec<Option<Entry>>> {
    let _snapshot = conn.unchecked_transaction()?;
    keys.iter().map(|key| get(conn, key)).collect()
}

pub(super) fn list(conn: &Connection, prefix: &str) -> rusqlite::Result<Listing> {
    let _snapshot = conn.unchecked_transaction()?;
    let revision = revision(conn)?;
    let mut read = conn.prepare_cached(LIST)?;
    let mut rows = read.query([prefix])?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        match change(row)? {
            Some(Change::Put(entry)) if entry.key.starts_with(prefix) => entries.push(entry),
            // In byte order, so nothing with the prefix follows.
            Some(_) => break,
            None => {}
        }
    }
    Ok(Listing { entries, revision })
}

/// A page of the keys with a prefix.
pub(super) fn keys(
    conn: &Connection,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> rusqlite::Result<KeyPage> {
    let mut read = conn.prepare_cached(if after.is_some() { KEYS } else { FIRST_KEYS })?;
    let mut rows = match after {
        Some(after) => read.query(params![prefix, after])?,
        None => read.query([prefix])?,
    };
    let mut page = KeyPage::default();
    while let Some(row) = rows.next()? {
        let ValueRef::Text(bytes) = row.get_ref(0)? else {
            continue;
        };
        // What is not UTF-8 is not ours; where it stands in the order it can only be skipped.
        let Ok(key) = std::str::from_utf8(bytes) else {
            continue;
        };
        if !key.starts_with(prefix) {
            break;
        }
        if page.keys.len() == limit {
            page.more = true;
            break;
        }
        page.keys.push(key.to_owned());
    }
    Ok(page)
}

/// Up to `limit` changes after `after`, of whatever key, oldest first; call it within one snapshot until it gives none.
pub(super) fn changes(
    conn: &Connection,
    after: Revision,
    limit: usize,
) -> rusqlite::Result<Option<ChangeBatch>> {
    let mut read = conn.prepare_cached(CHANGES)?;
    let mut rows = read.query(params![after.0.cast_signed(), limit as i64])?;
    let mut batch = ChangeBatch {
        changes: Vec::new(),
        upto: after,
    };
    while let Some(row) = rows.next()? {
        batch.upto = Revision(row.get::<_, i64>(2)?.cast_unsigned());
        batch.changes.extend(change(row)?);
    }
    Ok((batch.upto > after).then_some(batch))
}

/// A row of `key, value, version`. `None` if the key is not text: then it is not ours, and must not hide those that are.
fn change(row: &Row<'_>) -> rusqlite::Result<Option<Change>> {
    let key = match row.get_ref(0)? {
        ValueRef::Text(bytes) => String::from_utf8(bytes.to_vec()),
        other => {
            return Err(rusqlite::Error::InvalidColumnType(
                0,
                "key".into(),
                other.data_type(),
            ));
        }
    };
    let Ok(key) = key else {
        tracing::warn!("row skipped: its key is not UTF-8");
        return Ok(None);
    };
    let Some(value) = row.get_ref(1)?.as_blob_or_null()? else {
        return Ok(Some(Change::Deleted { key }));
    };
    Ok(Some(Change::Put(Entry {
        key,
        value: Arc::from(value),
        version: Version::Number(row.get::<_, i64>(2)?.cast_unsigned()),
    })))
}

/// One statement, one transaction, one fsync.
pub(super) fn put_if(session: &mut WriteSession<'_>, put: &PutIf) -> Result<Put, StoreError> {
    let conn = session.conn;
    let answer = session.patiently(WriteStage::Commit, &put.key, || put_one(conn, put))?;
    if matches!(answer, Put::Won(_)) {
        session.announce();
    }
    Ok(answer)
}

pub(super) fn delete_if(
    session: &mut WriteSession<'_>,
    delete: &DeleteIf,
) -> Result<Delete, StoreError> {
    let conn = session.conn;
    let answer = session.patiently(WriteStage::Commit, &delete.key, || delete_one(conn, delete))?;
    if answer == Delete::Won {
        session.announce();
    }
    Ok(answer)
}

pub(super) fn put_one(conn: &Connection, put: &PutIf) -> rusqlite::Result<Put> {
    let written = match &put.expect {
        Expect::Absent => {
            let create = conn.prepare_cached(CREATE)?;
            returned(create, params![put.key, &*put.value])?
        }
        Expect::Version(Version::Number(n)) => {
            let update = conn.prepare_cached(UPDATE)?;
            returned(update, params![put.key, &*put.value, n.cast_signed()])?
        }
        Expect::Version(Version::Text(_)) => None,
    };
    Ok(match written {
        Some(version) => Put::Won(Version::Number(version)),
        None => Put::Lost,
    })
}

pub(super) fn delete_one(conn: &Connection, delete: &DeleteIf) -> rusqlite::Result<Delete> {
    let Version::Number(n) = delete.version else {
        return Ok(Delete::Lost);
    };
    let statement = conn.prepare_cached(DELETE)?;
    let deleted = returned(statement, params![delete.key, n.cast_signed()])?;
    Ok(match deleted {
        Some(_) => Delete::Won,
        None => Delete::Lost,
    })
}

pub(super) fn discard_one(conn: &Connection, key: &String) -> rusqlite::Result<()> {
    returned(conn.prepare_cached(DISCARD)?, [key]).map(drop)
}

/// Runs a statement to its end, for only there is it committed, and gives what it returned.
fn returned(
    mut statement: CachedStatement<'_>,
    params: impl Params,
) -> rusqlite::Result<Option<u64>> {
    let mut rows = statement.query(params)?;
    let mut version = None;
    while let Some(row) = rows.next()? {
        version = Some(row.get::<_, i64>(0)?.cast_unsigned());
    }
    Ok(version)
}

/// Several writes in one transaction. Either all were tried and committed, or none was.
pub(super) fn transaction<Q, A>(
    session: &mut WriteSession<'_>,
    questions: &[Q],
    one: fn(&Connection, &Q) -> rusqlite::Result<A>,
) -> Result<Vec<A>, StoreError> {
    let conn = session.conn;
    session.patiently(WriteStage::BeforeCommit, "", || {
        conn.execute_batch("BEGIN IMMEDIATE")
    })?;
    let answers: rusqlite::Result<Vec<A>> = questions.iter().map(|q| one(conn, q)).collect();
    let (stage, result) = match answers {
        Err(e) => (WriteStage::BeforeCommit, Err(e)),
        Ok(answers) => {
            let committed = conn.execute_batch("COMMIT");
            (WriteStage::Commit, committed.map(|()| answers))
        }
    };
    match result {
        Ok(answers) => {
            session.announce();
            Ok(answers)
        }
        Err(e) => {
            if !conn.is_autocommit()
                && let Err(stuck) = conn.execute_batch("ROLLBACK")
            {
                tracing::warn!(error = %stuck, "rolling back a failed transaction failed");
            }
            Err(session.explain(stage, "", &e))
        }
    }
}

/// Forgets all but the newest `keep` deletions.
pub(super) fn purge(session: &mut WriteSession<'_>, keep: usize) -> Result<(), StoreError> {
    let conn = session.conn;
    session.patiently(WriteStage::Commit, "", || {
        conn.prepare_cached(PURGE)?.execute([keep as i64])
    })?;
    *session.deleted = 0;
    session.announce();
    Ok(())
}

/// Counts deletions and purges after many. That it fails now and then does no harm: the next time will do.
pub(super) fn purge_now_and_then(session: &mut WriteSession<'_>, deleted: usize, keep: usize) {
    *session.deleted += deleted;
    if *session.deleted >= PURGE_EVERY
        && let Err(e) = purge(session, keep)
    {
        tracing::debug!(error = %e, "purging old tombstones failed");
    }
}
