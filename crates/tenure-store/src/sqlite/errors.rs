//! What SQLite's error codes mean to the caller of a store.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::error::StoreError;

/// How far a write had come when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteStage {
    /// Nothing but a read, or a write whose transaction was not yet committed.
    BeforeCommit,
    /// The commit itself may have failed halfway.
    Commit,
}

/// Whether somebody else held the lock: nothing has happened, and trying again soon may help.
pub(super) fn is_busy(e: &rusqlite::Error) -> bool {
    matches!(
        e.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::FileLockingProtocolFailed)
    )
}

/// The error as the caller of a store sees it. `key` is what was asked for, if it was one thing.
pub(super) fn explain(
    path: &Path,
    key: &str,
    stage: WriteStage,
    e: &rusqlite::Error,
) -> StoreError {
    let path = path.display();
    match e.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::FileLockingProtocolFailed) => {
            StoreError::unavailable(format!(
                "database {path} is locked by another writer; retry, or end the process that holds the lock"
            ))
        }
        // A full disk rolls the transaction back; the commit mark was not written.
        Some(ErrorCode::DiskFull) => StoreError::unavailable(format!(
            "no space left for database {path}; free some on its disk"
        )),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreError::denied(format!(
            "database {path} cannot be written; check the owner and mode of the file and of its directory"
        )),
        Some(ErrorCode::CannotOpen) => StoreError::denied(format!(
            "database {path} cannot be opened ({e}); check that its directory exists and is writable"
        )),
        Some(ErrorCode::NotADatabase) => StoreError::denied(format!(
            "{path} is not a SQLite database; name another file, or move this one away"
        )),
        Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig) => StoreError::denied(format!(
            "database {path} rejects the value of key {key:?}: {e}"
        )),
        Some(ErrorCode::DatabaseCorrupt)
            if !key.is_empty() && stage == WriteStage::BeforeCommit =>
        {
            StoreError::corrupt(key, format!("database {path} is damaged at this key ({e})"))
        }
        Some(ErrorCode::DatabaseCorrupt) => StoreError::denied(format!(
            "database {path} is damaged ({e}); restore it from a backup, then run `tenure keyspace bump-generation --all`"
        )),
        _ if stage == WriteStage::Commit => {
            StoreError::unknown(format!("writing to database {path} failed: {e}"))
        }
        _ => StoreError::unavailable(format!("the request to database {path} failed: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    fn explained(code: i32, stage: WriteStage) -> StoreError {
        let e = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        explain(Path::new("/data/shop.db"), "k", stage, &e)
    }

    #[test]
    fn a_lock_held_elsewhere_means_nothing_was_written() {
        let e = explained(ffi::SQLITE_BUSY_SNAPSHOT, WriteStage::Commit);
        assert!(matches!(e, StoreError::Unavailable { .. }), "{e}");
    }

    #[test]
    fn an_io_error_is_unknown_at_commit_and_harmless_before() {
        let at = explained(ffi::SQLITE_IOERR_FSYNC, WriteStage::Commit);
        assert!(matches!(at, StoreError::Unknown { .. }), "{at}");
        let before = explained(ffi::SQLITE_IOERR_READ, WriteStage::BeforeCommit);
        assert!(matches!(before, StoreError::Unavailable { .. }), "{before}");
    }

    #[test]
    fn what_will_not_go_away_by_itself_is_denied_and_names_the_path() {
        for code in [
            ffi::SQLITE_READONLY,
            ffi::SQLITE_CANTOPEN,
            ffi::SQLITE_NOTADB,
        ] {
            let e = explained(code, WriteStage::Commit);
            assert!(matches!(e, StoreError::Denied { .. }), "{e}");
            assert!(e.to_string().contains("/data/shop.db"), "{e}");
        }
    }

    #[test]
    fn a_full_disk_is_told_as_such() {
        let e = explained(ffi::SQLITE_FULL, WriteStage::Commit);
        assert!(matches!(e, StoreError::Unavailable { .. }), "{e}");
        assert!(e.to_string().contains("no space left"), "{e}");
    }

    #[test]
    fn damage_names_the_key_that_was_asked_for() {
        let e = explained(ffi::SQLITE_CORRUPT, WriteStage::BeforeCommit);
        assert!(matches!(e, StoreError::Corrupt { ref key, .. } if key == "k"));
    }
}
