//! What PostgreSQL's errors mean to the caller of a store.

use std::error::Error as _;
use std::fmt::Write as _;

use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::error::StoreError;

/// Where the rights are written down that a user needs.
const RIGHTS: &str = "docs/stores/postgres.md lists the rights that a user needs";

/// What was being done when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallStage {
    /// Nothing that changes anything.
    Read,
    /// A statement that is a transaction of its own, and that may have reached the server.
    Write,
}

/// What a failed call means. `place` is the store without secrets; `key` is what damage is reported under.
pub(super) fn explain(
    place: &str,
    key: &str,
    stage: CallStage,
    e: &tokio_postgres::Error,
) -> StoreError {
    let Some(db) = e.as_db_error() else {
        return lost(place, stage, &whole(e));
    };
    // The server ended the connection, and whether it did so before or after the commit cannot be seen from here.
    let fatal = matches!(
        db.parsed_severity(),
        Some(Severity::Fatal | Severity::Panic)
    );
    if fatal && stage == CallStage::Write {
        return lost(place, stage, &told(db));
    }
    refused(place, key, db)
}

/// No answer came, or the connection ended.
pub(super) fn lost(place: &str, stage: CallStage, reason: &str) -> StoreError {
    let reason = format!("{place}: {reason}");
    match stage {
        CallStage::Read => StoreError::unavailable(reason),
        CallStage::Write => StoreError::unknown(reason),
    }
}

/// What an answer of the server means. Whatever it was asked to do, it has not done it.
pub(super) fn refused(place: &str, key: &str, db: &DbError) -> StoreError {
    let said = told(db);
    let code = db.code();
    let denied = |way_out: &str| StoreError::denied(format!("{place}: {said}; {way_out}"));
    let busy = |way_out: &str| StoreError::unavailable(format!("{place}: {said}; {way_out}"));
    match code {
        c if *c == SqlState::INSUFFICIENT_PRIVILEGE => {
            denied(&format!("grant it to this user; {RIGHTS}"))
        }
        c if *c == SqlState::READ_ONLY_SQL_TRANSACTION => denied(
            "the user or the server is set to read-only (default_transaction_read_only): name a user and a server that \
             may write",
        ),
        c if *c == SqlState::INVALID_PASSWORD
            || *c == SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
        {
            denied(
                "check the user, the password (in the URL, PGPASSWORD or ~/.pgpass) and the server's pg_hba.conf",
            )
        }
        c if *c == SqlState::INVALID_CATALOG_NAME => {
            denied("create the database first, or name another one in the URL")
        }
        c if *c == SqlState::UNDEFINED_TABLE
            || *c == SqlState::UNDEFINED_FUNCTION
            || *c == SqlState::INVALID_SCHEMA_NAME =>
        {
            denied(
                "the store's tables are missing or incomplete; open the store again to create them, or restore them",
            )
        }
        c if *c == SqlState::INVALID_SQL_STATEMENT_NAME || *c == SqlState::DUPLICATE_PSTATEMENT => {
            denied(super::pooler_check::WAY_OUT)
        }
        c if *c == SqlState::TOO_MANY_CONNECTIONS
            || *c == SqlState::CONFIGURATION_LIMIT_EXCEEDED =>
        {
            busy(
                "raise max_connections (or the limit of the role or database), or run fewer nodes: each uses up to three connections",
            )
        }
        c if *c == SqlState::DISK_FULL => busy("free some space on the server's disk"),
        c if *c == SqlState::LOCK_NOT_AVAILABLE => busy(
            "another transaction holds this row: check pg_stat_activity for sessions that are `idle in transaction`",
        ),
        c if *c == SqlState::DATA_CORRUPTED || *c == SqlState::INDEX_CORRUPTED => {
            if key.is_empty() {
                denied(
                    "restore the database from a backup, then raise the generation (tenure keyspace bump-generation --all)",
                )
            } else {
                StoreError::corrupt(key, format!("{place}: {said}"))
            }
        }
        c if *c == SqlState::PROGRAM_LIMIT_EXCEEDED
            || *c == SqlState::CHARACTER_NOT_IN_REPERTOIRE
            || *c == SqlState::UNTRANSLATABLE_CHARACTER =>
        {
            denied(&format!("the server rejects key {key:?} or its value"))
        }
        // Rolled back, all of them: deadlocks, timeouts, shortages, a server that starts up or shuts down.
        _ => StoreError::unavailable(format!("{place}: {said}")),
    }
}

/// What the server said, with its code.
fn told(db: &DbError) -> String {
    let mut text = format!("{} ({})", db.message(), db.code().code());
    if let Some(detail) = db.detail() {
        let _ = write!(text, ", {detail}");
    }
    text
}

/// An error with all its causes.
pub(super) fn whole(e: &tokio_postgres::Error) -> String {
    let mut text = e.to_string();
    let mut cause = e.source();
    while let Some(e) = cause {
        let _ = write!(text, ": {e}");
        cause = e.source();
    }
    text
}
