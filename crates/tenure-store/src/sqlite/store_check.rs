//! What `tenure store check` wants to know of a SQLite file.

use rusqlite::Connection;

use super::path_checks::DatabasePath;
use crate::store_check::Finding;

/// Looks at everything.
pub(super) fn examine(conn: &Connection, place: &DatabasePath) -> rusqlite::Result<Vec<Finding>> {
    let mode: String = conn.pragma_query_value(None, "journal_mode", |r| r.get(0))?;
    let synchronous: i64 = conn.pragma_query_value(None, "synchronous", |r| r.get(0))?;
    let check: String = conn.query_row("PRAGMA quick_check(1)", [], |r| r.get(0))?;
    Ok(vec![
        Finding::ok("SQLite version", rusqlite::version()),
        journal(&mode),
        durable(synchronous),
        whole(&check),
        file_system(place.file_system()),
    ])
}

fn journal(mode: &str) -> Finding {
    if mode == "wal" {
        return Finding::ok("journal mode", "write-ahead log");
    }
    let advice = "another program changed it: restart the nodes, which restore it";
    Finding::warn("journal mode", mode, advice)
}

fn durable(synchronous: i64) -> Finding {
    const FULL: i64 = 2;
    if synchronous >= FULL {
        return Finding::ok(
            "synchronous",
            "full: confirmed writes survive a power failure",
        );
    }
    let advice =
        "a power failure may lose confirmed writes, including epochs: restart this program";
    Finding::fail("synchronous", synchronous.to_string(), advice)
}

fn whole(check: &str) -> Finding {
    if check == "ok" {
        return Finding::ok("integrity", "no damage found");
    }
    let advice = "restore the file from a backup, then run `tenure keyspace bump-generation --all`";
    Finding::fail("integrity", check, advice)
}

fn file_system(kind: Option<String>) -> Finding {
    const ABOUT: &str = "file system";
    match kind.as_deref() {
        Some(kind @ ("tmpfs" | "ramfs")) => Finding::warn(
            ABOUT,
            kind,
            "lost at the next reboot, including the epochs: put the file on a disk",
        ),
        Some(kind) => Finding::ok(ABOUT, kind),
        None => Finding::ok(ABOUT, "local"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store_check::Level;

    #[test]
    fn what_would_lose_confirmed_writes_is_told() {
        for (finding, level) in [
            (journal("wal"), Level::Ok),
            (journal("delete"), Level::Warn),
            (durable(2), Level::Ok),
            (durable(1), Level::Fail),
            (whole("ok"), Level::Ok),
            (whole("row 3 missing"), Level::Fail),
            (file_system(Some("ext4".to_owned())), Level::Ok),
            (file_system(Some("tmpfs".to_owned())), Level::Warn),
        ] {
            assert_eq!(finding.level, level, "{finding:?}");
            assert_eq!(finding.advice.is_none(), level == Level::Ok, "{finding:?}");
        }
    }
}
