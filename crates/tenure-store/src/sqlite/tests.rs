use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Instant;

use rusqlite::Connection;
use tempfile::TempDir;
use tenure_core::ids::Version;

use super::change_signal::{ChangeListener, WaitEnd};
use super::*;
use crate::watch::{Change, WatchEnd};

struct Fixture {
    dir: TempDir,
    store: SqliteStore,
}

impl Fixture {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path().join("shop.db")).await.unwrap();
        Self { dir, store }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("shop.db")
    }

    /// A connection as any other tool would open it.
    fn foreign(&self) -> Connection {
        let conn = Connection::open(self.path()).unwrap();
        conn.busy_timeout(Duration::from_secs(5)).unwrap();
        conn
    }

    async fn create(&self, key: &str) -> Version {
        match self.store.put_if(PutIf::create(key, *b"v")).await.unwrap() {
            Put::Won(version) => version,
            Put::Lost => panic!("nobody else writes"),
        }
    }

    async fn delete(&self, key: &str, version: Version) {
        let deleted = self.store.delete_if(DeleteIf::new(key, version)).await;
        assert_eq!(deleted, Ok(Delete::Won));
    }
}

async fn next(watch: &mut Watch) -> Result<Vec<String>, WatchEnd> {
    let next = tokio::time::timeout(Duration::from_secs(2), watch.next()).await;
    let batch = next.expect("a watch tells within two seconds")?;
    Ok(batch.changes.iter().map(|c| c.key().to_owned()).collect())
}

async fn refusal(path: impl AsRef<Path>) -> String {
    match SqliteStore::open(path).await {
        Err(StoreError::Denied { reason }) => reason,
        other => panic!("should be refused, but: {other:?}"),
    }
}

#[tokio::test]
async fn a_path_that_cannot_be_used_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let reason = refusal(dir.path()).await;
    assert!(reason.contains("is a directory"), "{reason}");

    let missing = dir.path().join("no/such/dir/shop.db");
    let reason = refusal(&missing).await;
    assert!(reason.contains("does not exist"), "{reason}");
    assert!(reason.contains(&*missing.to_string_lossy()), "{reason}");

    let text = dir.path().join("notes.txt");
    std::fs::write(
        &text,
        "not a database, but long enough to be read as one".repeat(20),
    )
    .unwrap();
    let reason = refusal(&text).await;
    assert!(reason.contains("is not a SQLite database"), "{reason}");
    assert!(reason.contains("notes.txt"), "{reason}");

    let under_a_file = text.join("shop.db");
    let reason = refusal(&under_a_file).await;
    assert!(reason.contains("notes.txt/shop.db"), "{reason}");
}

#[tokio::test]
async fn a_new_database_is_for_its_owner_alone() {
    let fixture = Fixture::new().await;
    for file in ["shop.db", "shop.db-wal", "shop.db-shm"] {
        let metadata = std::fs::metadata(fixture.dir.path().join(file)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{file}");
    }
}

#[tokio::test]
async fn a_database_that_was_replaced_while_open_is_not_written_any_more() {
    let fixture = Fixture::new().await;
    let version = fixture.create("k").await;
    let mut watch = fixture.store.watch("", Revision(1)).await.unwrap();
    let aside = fixture.dir.path().join("aside.db");
    std::fs::rename(fixture.path(), &aside).unwrap();

    let put = PutIf::update("k", *b"w", version);
    for answer in [
        fixture.store.put_if(put.clone()).await.map(|_| ()),
        fixture.store.get("k").await.map(|_| ()),
        fixture.store.dedicated().map(|_| ()),
    ] {
        let e = answer.unwrap_err();
        assert!(matches!(e, StoreError::Denied { .. }), "{e}");
    }
    let end = next(&mut watch).await.unwrap_err();
    assert!(matches!(end, WatchEnd::Closed { .. }), "{end}");

    std::fs::rename(&aside, fixture.path()).unwrap();
    let answer = fixture.store.put_if(put).await;
    assert!(matches!(answer, Ok(Put::Won(_))), "{answer:?}");
}

#[tokio::test]
async fn a_watch_from_before_a_purged_deletion_ends_with_a_gap() {
    let fixture = Fixture::new().await;
    let before = fixture.store.revision().await.unwrap();
    let version = fixture.create("a").await;
    fixture.delete("a", version).await;
    let after = fixture.store.revision().await.unwrap();
    let mut current = fixture.store.watch("", after).await.unwrap();
    fixture.store.purge(0).await.unwrap();

    let mut behind = fixture.store.watch("", before).await.unwrap();
    assert_eq!(next(&mut behind).await, Err(WatchEnd::Gap));
    let again = fixture.create("a").await;
    assert_eq!(next(&mut current).await, Ok(vec!["a".to_owned()]));
    assert!(again > version_of(after), "{again:?}");
}

fn version_of(revision: Revision) -> Version {
    Version::Number(revision.0)
}

#[tokio::test]
async fn a_purge_keeps_the_newest_deletions() {
    let fixture = Fixture::new().await;
    for key in ["a", "b", "c"] {
        let version = fixture.create(key).await;
        fixture.delete(key, version).await;
    }
    fixture.store.purge(2).await.unwrap();
    let count = |sql: &str| -> i64 {
        let conn = fixture.foreign();
        conn.query_row(sql, [], |r| r.get(0)).unwrap()
    };
    assert_eq!(count("SELECT count(*) FROM kv"), 2);
    assert_eq!(count("SELECT gap FROM counter"), 2);
    fixture.store.purge(2).await.unwrap();
    assert_eq!(count("SELECT count(*) FROM kv"), 2);
}

#[tokio::test]
async fn many_deletions_purge_old_ones_by_themselves() {
    let fixture = Fixture::new().await;
    let puts = (0..11_500).map(|n| PutIf::create(format!("k/{n:05}"), *b"v"));
    let answers = fixture.store.put_many(puts.collect()).await;
    let deletes = answers.into_iter().enumerate().map(|(n, answer)| {
        let Ok(Put::Won(version)) = answer else {
            panic!("nobody else writes");
        };
        DeleteIf::new(format!("k/{n:05}"), version)
    });
    fixture.store.delete_many(deletes.collect()).await;
    let conn = fixture.foreign();
    let left: i64 = conn
        .query_row("SELECT count(*) FROM kv", [], |r| r.get(0))
        .unwrap();
    assert_eq!(left, TOMBSTONES_KEPT as i64);
}

#[tokio::test]
async fn a_row_removed_by_hand_is_a_gap_and_its_version_is_not_given_again() {
    let fixture = Fixture::new().await;
    let version = fixture.create("k").await;
    let from = fixture.store.revision().await.unwrap();
    let mut watch = fixture.store.watch("", from).await.unwrap();
    fixture.foreign().execute("DELETE FROM kv", []).unwrap();
    assert_eq!(next(&mut watch).await, Err(WatchEnd::Gap));
    assert!(fixture.store.revision().await.unwrap() > from);
    assert!(fixture.create("k").await > version);
}

#[tokio::test]
async fn a_store_that_went_back_in_time_is_a_gap() {
    let fixture = Fixture::new().await;
    let mut watch = fixture.store.watch("", Revision(17)).await.unwrap();
    assert_eq!(next(&mut watch).await, Err(WatchEnd::Gap));
}

#[tokio::test]
async fn a_writer_that_does_not_announce_its_commits_is_noticed_all_the_same() {
    let fixture = Fixture::new().await;
    let mut watch = fixture.store.watch("", Revision(0)).await.unwrap();
    let foreign = fixture.foreign();
    for n in 1..=20 {
        let insert = "INSERT INTO kv VALUES ('by hand ' || ?1, x'00', ?1)";
        foreign.execute(insert, [n]).unwrap();
        let seen = next(&mut watch).await.unwrap();
        assert_eq!(seen, [format!("by hand {n}")]);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn every_commit_is_announced_once_it_can_be_seen() {
    let fixture = Fixture::new().await;
    let version = fixture.create("k").await;
    let (mut ear, _waker) = ChangeListener::open(&fixture.store.database.place.wal()).unwrap();
    let patience = Duration::from_secs(5);
    let announced = |ear: &mut ChangeListener| ear.wait(patience) == WaitEnd::Committed;

    fixture.create("single").await;
    assert!(announced(&mut ear), "a put");
    let batch = vec![PutIf::create("batch", *b"v")];
    fixture.store.put_many(batch).await;
    assert!(announced(&mut ear), "a batch");
    fixture.delete("k", version).await;
    assert!(announced(&mut ear), "a delete");
    fixture.store.get("single").await.unwrap();
    assert_eq!(ear.wait(Duration::ZERO), WaitEnd::Silence, "a read");
}

#[tokio::test]
async fn without_notification_changes_are_found_by_looking() {
    let fixture = Fixture::new().await;
    let database = &fixture.store.database;
    let conn = database.connect().unwrap();
    let deaf = WatcherHandle::start_with(database, conn, |_| ChangeListener::deaf()).unwrap();
    let mut watch = deaf.subscribe("", Revision(0)).await.unwrap();
    let mut worst = Duration::ZERO;
    for n in 0..10 {
        let key = format!("k/{n}");
        fixture.create(&key).await;
        let written = Instant::now();
        assert_eq!(next(&mut watch).await, Ok(vec![key]));
        worst = worst.max(written.elapsed());
    }
    // Far from the safety look of a second, which is not what this is about.
    assert!(worst < Duration::from_millis(500), "{worst:?}");
}

#[tokio::test]
async fn a_watch_that_nobody_reads_ends_with_a_gap_and_holds_up_nobody() {
    let fixture = Fixture::new().await;
    let mut lazy = fixture.store.watch("", Revision(0)).await.unwrap();
    let mut eager = fixture.store.watch("", Revision(0)).await.unwrap();
    let mut version = fixture.create("k").await;
    for _ in 0..400 {
        assert_eq!(next(&mut eager).await, Ok(vec!["k".to_owned()]));
        let put = PutIf::update("k", *b"v", version);
        version = match fixture.store.put_if(put).await.unwrap() {
            Put::Won(version) => version,
            Put::Lost => panic!("nobody else writes"),
        };
    }
    let end = loop {
        match next(&mut lazy).await {
            Ok(_) => {}
            Err(end) => break end,
        }
    };
    assert_eq!(end, WatchEnd::Gap);
}

#[tokio::test]
async fn a_lock_held_elsewhere_is_told_in_time_and_writing_goes_on_after_it() {
    let fixture = Fixture::new().await;
    let foreign = fixture.foreign();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begun = Instant::now();
    let put = fixture.store.put_if(PutIf::create("k", *b"v")).await;
    assert!(
        matches!(put, Err(StoreError::Unavailable { .. })),
        "{put:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(2));
    let batch = vec![PutIf::create("k", *b"v")];
    let batch = fixture.store.put_many(batch).await;
    assert!(batch[0].as_ref().is_err_and(StoreError::wrote_nothing));
    // Readers are not in the way of writers, nor the other way round.
    assert_eq!(fixture.store.get("k").await, Ok(None));
    foreign.execute_batch("ROLLBACK").unwrap();
    fixture.create("k").await;
}

#[tokio::test]
async fn a_write_given_up_before_it_began_is_skipped() {
    let fixture = Fixture::new().await;
    let foreign = fixture.foreign();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    let waiting = fixture.store.put_if(PutIf::create("waits", *b"v"));
    tokio::pin!(waiting);
    let patience = Duration::from_millis(20);
    let nothing = tokio::time::timeout(patience, &mut waiting).await;
    nothing.unwrap_err();
    let behind = fixture.store.put_if(PutIf::create("given up", *b"v"));
    let nothing = tokio::time::timeout(patience, behind).await;
    nothing.unwrap_err();
    foreign.execute_batch("ROLLBACK").unwrap();
    assert!(matches!(waiting.await, Ok(Put::Won(_))));
    fixture.create("after").await;
    assert_eq!(fixture.store.get("given up").await, Ok(None));
}

#[tokio::test]
async fn a_single_write_moves_the_revision_by_one() {
    let fixture = Fixture::new().await;
    for n in 1..=3 {
        let version = fixture.create(&format!("k/{n}")).await;
        assert_eq!(version, Version::Number(n));
        assert_eq!(fixture.store.revision().await, Ok(Revision(n)));
    }
}

#[tokio::test]
async fn a_symbolic_link_leads_to_the_same_store() {
    let fixture = Fixture::new().await;
    let link = fixture.dir.path().join("link.db");
    std::os::unix::fs::symlink(fixture.path(), &link).unwrap();
    let linked = SqliteStore::open(&link).await.unwrap();
    let mut watch = linked.watch("", Revision(0)).await.unwrap();
    fixture.create("k").await;
    assert_eq!(next(&mut watch).await, Ok(vec!["k".to_owned()]));
}

#[tokio::test]
async fn a_key_that_is_not_text_of_ours_does_not_hide_the_others() {
    let fixture = Fixture::new().await;
    fixture.create("a").await;
    let insert = "INSERT INTO kv VALUES (CAST(x'61ff' AS TEXT), x'00', 2)";
    fixture.foreign().execute(insert, []).unwrap();
    fixture.create("b").await;
    let listed = fixture.store.list("").await.unwrap().entries;
    let keys: Vec<String> = listed.into_iter().map(|e| e.key).collect();
    assert_eq!(keys, ["a", "b"]);
    let mut watch = fixture.store.watch("", Revision(0)).await.unwrap();
    let batch = watch.next().await.unwrap();
    let keys: Vec<&str> = batch.changes.iter().map(Change::key).collect();
    assert_eq!((keys, batch.upto), (vec!["a", "b"], Revision(3)));
}
