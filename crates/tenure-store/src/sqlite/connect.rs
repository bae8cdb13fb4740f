//! Opening a database: version, place, host, schema, and the settings of every connection.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::connection_thread::patiently;
use super::errors::{self, WriteStage};
use super::path_checks::DatabasePath;
use crate::error::StoreError;
use crate::machine_identity::{MachineIdentity, random_uuid};
use crate::rng::SplitMix;

/// The first SQLite without the bug that could corrupt a database when the write-ahead log was reset.
const SQLITE_MIN: i32 = 3_051_003;

/// Marks our files among those of other applications: the letters `TNUR`.
const APPLICATION_ID: i32 = i32::from_be_bytes(*b"TNUR");

/// The layout of the tables below.
const SCHEMA_VERSION: i32 = 1;

/// The tables of a store.
///
/// A version is the revision at which it was written, so versions never repeat, not even across keys. A deleted key stays as a
/// row without value until it is purged; `gap` is the highest revision that a purge made unreplayable. A row that somebody
/// removes by hand while it has a value counts as a gap too: nobody could replay it.
const SCHEMA: &str = "
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE counter (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    revision INTEGER NOT NULL,
    gap INTEGER NOT NULL
) STRICT;
INSERT INTO counter VALUES (1, 0, 0);
CREATE TABLE kv (key TEXT PRIMARY KEY, value BLOB, version INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX kv_version ON kv (version);
CREATE INDEX kv_deleted ON kv (version) WHERE value IS NULL;
CREATE TRIGGER kv_insert AFTER INSERT ON kv BEGIN
    UPDATE counter SET revision = NEW.version;
END;
CREATE TRIGGER kv_update AFTER UPDATE ON kv BEGIN
    UPDATE counter SET revision = NEW.version;
END;
CREATE TRIGGER kv_purge AFTER DELETE ON kv WHEN OLD.value IS NULL BEGIN
    UPDATE counter SET gap = max(gap, OLD.version);
END;
CREATE TRIGGER kv_remove AFTER DELETE ON kv WHEN OLD.value IS NOT NULL BEGIN
    UPDATE counter SET revision = revision + 1, gap = revision + 1;
END;
";

/// What to do with a database that another machine has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCheck {
    /// Refuse it: the other machine may still be using it.
    Refuse,
    /// Take it over. Right only if the file was moved here for good. In a URL: `sqlite:PATH?host=adopt`.
    Adopt,
}

/// A database that was found fit for use.
#[derive(Debug)]
pub(super) struct Database {
    pub(super) place: DatabasePath,
}

impl Database {
    /// Checks the place and makes the tables if there are none.
    pub(super) fn prepare(path: &Path, check: HostCheck) -> Result<Self, StoreError> {
        check_version(rusqlite::version_number(), rusqlite::version())?;
        let database = Self {
            place: DatabasePath::prepare(path)?,
        };
        let conn = database.connect()?;
        database.settle(&conn, &MachineIdentity::this(), check)?;
        Ok(database)
    }

    /// A new connection with the settings that every connection needs.
    pub(super) fn connect(&self) -> Result<Connection, StoreError> {
        // Without CREATE: a database that is gone must not be replaced by an empty one.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(&self.place.path, flags);
        let conn = opened.map_err(|e| self.explain(&e))?;
        // Before anything is set: a file that is not ours stays as it is.
        let found = self.patiently(|| Found::read(&conn))?;
        if found.tables > 0 && found.application != APPLICATION_ID {
            return Err(StoreError::denied(format!(
                "database {} belongs to another application; name another file",
                self.place.path.display()
            )));
        }
        self.patiently(|| {
            // Waiting for locks is done in `patiently`, which adds jitter and ends when the caller gives up.
            conn.busy_timeout(Duration::ZERO)?;
            conn.pragma_update(None, "synchronous", "FULL")?;
            conn.set_prepared_statement_cache_capacity(32);
            let mode: String = conn.pragma_query_value(None, "journal_mode", |r| r.get(0))?;
            if mode != "wal" {
                conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
            }
            Ok(())
        })?;
        let mode = self.patiently(|| {
            conn.pragma_query_value(None, "journal_mode", |r| r.get::<_, String>(0))
        })?;
        if mode != "wal" {
            return Err(StoreError::denied(format!(
                "database {} cannot use a write-ahead log (journal mode {mode:?}); put it on another file system",
                self.place.path.display()
            )));
        }
        self.place.check_unmoved()?;
        Ok(conn)
    }

    /// Makes the tables where there are none and checks whose they are where there are.
    fn settle(
        &self,
        conn: &Connection,
        host: &MachineIdentity,
        check: HostCheck,
    ) -> Result<(), StoreError> {
        if self.patiently(|| is_settled(conn, host))? {
            return Ok(());
        }
        self.patiently(|| conn.execute_batch("BEGIN IMMEDIATE"))?;
        let settled = self.settle_locked(conn, host, check);
        let ended = match &settled {
            Ok(()) => conn.execute_batch("COMMIT"),
            Err(_) => conn.execute_batch("ROLLBACK"),
        };
        settled?;
        ended.map_err(|e| self.explain(&e))
    }

    fn settle_locked(
        &self,
        conn: &Connection,
        host: &MachineIdentity,
        check: HostCheck,
    ) -> Result<(), StoreError> {
        let path = self.place.path.display();
        let sql = |e: rusqlite::Error| self.explain(&e);
        let found = Found::read(conn).map_err(sql)?;
        match found {
            Found { tables: 0, .. } => create(conn).map_err(sql)?,
            Found { schema, .. } if schema != SCHEMA_VERSION => {
                return Err(StoreError::denied(format!(
                    "database {path} has layout {schema}, but this version of tenure reads layout {SCHEMA_VERSION}; use a newer version"
                )));
            }
            Found { .. } => {}
        }
        let recorded = read_host(conn).map_err(sql)?;
        match recorded {
            Some(other) if check == HostCheck::Refuse && !other.is_same_machine(host) => {
                Err(StoreError::denied(format!(
                    "database {path} is in use by another machine, {:?}; SQLite works within one machine only. \
                     If the file was moved here permanently, open it once as sqlite:{path}?host=adopt",
                    other.name
                )))
            }
            _ => write_host(conn, host).map_err(sql),
        }
    }

    fn patiently<T>(&self, attempt: impl FnMut() -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let mut rng = SplitMix::new(u64::from(std::process::id()));
        patiently(&mut rng, &|| false, attempt).map_err(|e| self.explain(&e))
    }

    fn explain(&self, e: &rusqlite::Error) -> StoreError {
        errors::explain(&self.place.path, "", WriteStage::BeforeCommit, e)
    }
}

fn check_version(number: i32, text: &str) -> Result<(), StoreError> {
    if number >= SQLITE_MIN {
        return Ok(());
    }
    Err(StoreError::denied(format!(
        "SQLite {text} may corrupt databases that several processes write; build with SQLite 3.51.3 or newer"
    )))
}

/// What kind of database was found.
struct Found {
    tables: i64,
    application: i32,
    schema: i32,
}

impl Found {
    fn read(conn: &Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            tables: conn.query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get(0))?,
            application: conn.pragma_query_value(None, "application_id", |r| r.get(0))?,
            schema: conn.pragma_query_value(None, "user_version", |r| r.get(0))?,
        })
    }
}

/// Whether there is nothing to do, which most opens find without taking the write lock.
fn is_settled(conn: &Connection, host: &MachineIdentity) -> rusqlite::Result<bool> {
    let found = Found::read(conn)?;
    let ours = found.application == APPLICATION_ID && found.schema == SCHEMA_VERSION;
    Ok(ours && read_host(conn)?.as_ref() == Some(host))
}

fn create(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(SCHEMA)?;
    conn.pragma_update(None, "application_id", APPLICATION_ID)?;
    conn.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    set_meta(conn, "identity", Some(&random_uuid()))
}

fn read_host(conn: &Connection) -> rusqlite::Result<Option<MachineIdentity>> {
    let Some(name) = get_meta(conn, "host_name")? else {
        return Ok(None);
    };
    Ok(Some(MachineIdentity {
        machine_id: get_meta(conn, "host_machine_id")?,
        kernel_boot_id: get_meta(conn, "host_boot_id")?,
        name,
    }))
}

fn write_host(conn: &Connection, host: &MachineIdentity) -> rusqlite::Result<()> {
    set_meta(conn, "host_name", Some(&host.name))?;
    set_meta(conn, "host_machine_id", host.machine_id.as_deref())?;
    set_meta(conn, "host_boot_id", host.kernel_boot_id.as_deref())
}

fn get_meta(conn: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    let mut read = conn.prepare_cached("SELECT value FROM meta WHERE name = ?1")?;
    read.query_row([name], |r| r.get(0)).optional()
}

fn set_meta(conn: &Connection, name: &str, value: Option<&str>) -> rusqlite::Result<()> {
    match value {
        Some(value) => conn.execute(
            "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            [name, value],
        )?,
        None => conn.execute("DELETE FROM meta WHERE name = ?1", [name])?,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elsewhere() -> MachineIdentity {
        MachineIdentity {
            machine_id: Some("0123".to_owned()),
            kernel_boot_id: Some("4567".to_owned()),
            name: "far-away".to_owned(),
        }
    }

    #[test]
    fn a_sqlite_with_the_log_reset_bug_is_refused() {
        let e = check_version(3_051_002, "3.51.2").unwrap_err();
        assert!(e.to_string().contains("3.51.2"), "{e}");
        check_version(3_051_003, "3.51.3").unwrap();
        check_version(rusqlite::version_number(), rusqlite::version()).unwrap();
    }

    #[test]
    fn a_database_of_another_machine_is_refused_until_adopted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.db");
        let database = Database::prepare(&path, HostCheck::Refuse).unwrap();
        let conn = database.connect().unwrap();
        write_host(&conn, &elsewhere()).unwrap();

        let e = Database::prepare(&path, HostCheck::Refuse).unwrap_err();
        assert!(e.to_string().contains("far-away"), "{e}");
        assert!(e.to_string().contains("?host=adopt"), "{e}");
        Database::prepare(&path, HostCheck::Adopt).unwrap();
        Database::prepare(&path, HostCheck::Refuse).unwrap();
    }

    #[test]
    fn every_connection_is_durable_and_logs_ahead() {
        let dir = tempfile::tempdir().unwrap();
        let database = Database::prepare(&dir.path().join("a.db"), HostCheck::Refuse).unwrap();
        let conn = database.connect().unwrap();
        let synchronous: i64 = conn
            .pragma_query_value(None, "synchronous", |r| r.get(0))
            .unwrap();
        let mode: String = conn
            .pragma_query_value(None, "journal_mode", |r| r.get(0))
            .unwrap();
        assert_eq!((synchronous, mode.as_str()), (2, "wal"));
    }

    #[test]
    fn a_database_of_another_application_and_one_of_a_newer_layout_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("theirs.db");
        let conn = Connection::open(&theirs).unwrap();
        conn.execute_batch("CREATE TABLE notes (text TEXT)")
            .unwrap();
        drop(conn);
        let e = Database::prepare(&theirs, HostCheck::Refuse).unwrap_err();
        assert!(e.to_string().contains("another application"), "{e}");

        let newer = dir.path().join("newer.db");
        let database = Database::prepare(&newer, HostCheck::Refuse).unwrap();
        let conn = database.connect().unwrap();
        conn.pragma_update(None, "user_version", 2).unwrap();
        let e = Database::prepare(&newer, HostCheck::Refuse).unwrap_err();
        assert!(e.to_string().contains("layout 2"), "{e}");
    }
}
