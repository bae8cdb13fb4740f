//! What a watch and a revision promise, however commits, hands and purges come in between.

use std::time::Duration;

use tenure_store::postgres::PostgresStore;
use tenure_store::servers::postgres::Postgres;
use tenure_store::{
    Change, ChangeBatch, Delete, DeleteIf, Put, PutIf, Store, Watch, WatchEnd, open,
};
use tokio::time::timeout;

use super::{TIMEOUT, by_hand, create};

async fn next(watch: &mut Watch) -> ChangeBatch {
    let next = timeout(TIMEOUT, watch.next()).await;
    next.expect("something is shown")
        .expect("the watch goes on")
}

/// Follows a watch until it has shown `key`.
async fn shows(watch: &mut Watch, key: &str) -> ChangeBatch {
    loop {
        let batch = next(watch).await;
        if batch.changes.iter().any(|change| change.key() == key) {
            return batch;
        }
    }
}

/// The trap: A draws its number first and commits last. Nobody who looked in between may miss it.
#[tokio::test]
async fn a_writer_that_began_first_and_commits_last_is_not_missed() {
    let postgres = Postgres::start();
    let store = open(&postgres.url()).await.unwrap();
    let version = create(&*store, "trap/a").await;
    let start = store.revision().await.unwrap();
    let mut early = store.watch("trap/", start).await.unwrap();

    // As one of our own would write, so that it takes the same path.
    let slow = by_hand(&postgres).await;
    slow.batch_execute(
        "SELECT set_config('tenure.session', 'slow', false); BEGIN; UPDATE tenure.kv SET value = 'late' WHERE key = 'trap/a'",
    )
    .await
    .unwrap();

    let begun = std::time::Instant::now();
    create(&*store, "trap/b").await;
    assert!(
        begun.elapsed() < Duration::from_millis(700),
        "nobody waits for another's commit"
    );
    let after_b = shows(&mut early, "trap/b").await.upto;
    let listing = store.list("trap/").await.unwrap();
    assert_eq!(
        listing.entries[0].version, version,
        "A is not to be seen yet"
    );
    let between = store.revision().await.unwrap();
    assert_eq!((listing.revision, after_b), (between, between));

    slow.batch_execute("COMMIT").await.unwrap();
    assert!(
        store.revision().await.unwrap() > between,
        "the list is no longer true"
    );
    shows(&mut early, "trap/a").await;
    for from in [start, between] {
        let mut late = store.watch("trap/", from).await.unwrap();
        shows(&mut late, "trap/a").await;
    }
}

/// A server that crashes gives out again the numbers of transactions that left nothing durable behind, though others have seen
/// them as over. A write that gets such a number is news all the same.
#[tokio::test]
async fn a_crash_that_takes_transaction_numbers_back_hides_nothing() {
    // Nothing gets to the disk but what somebody waits for.
    let mut postgres = Postgres::start_with(&["wal_writer_delay=10000", "bgwriter_delay=10000"]);
    let store = open(&postgres.url()).await.unwrap();
    create(&*store, "crash/before").await;
    let hand = by_hand(&postgres).await;
    let number = "SELECT pg_current_xact_id()::text";
    let mut burnt = 0u64;
    for _ in 0..200 {
        hand.batch_execute("BEGIN").await.unwrap();
        let row = hand.query_one(number, &[]).await.unwrap();
        burnt = row.get::<_, String>(0).parse().unwrap();
        hand.batch_execute("ROLLBACK").await.unwrap();
    }
    let from = store.list("crash/").await.unwrap().revision;
    let mut early = store.watch("crash/", from).await.unwrap();
    postgres.kill();
    postgres.restart();
    super::until_back(&store).await;
    create(&*store, "crash/after").await;
    let given = postgres.sql("SELECT xid FROM tenure.kv WHERE key = 'crash/after'");
    assert!(
        given.parse::<u64>().unwrap() < burnt,
        "this is about numbers that come again"
    );
    shows(&mut early, "crash/after").await;
    let mut late = store.watch("crash/", from).await.unwrap();
    shows(&mut late, "crash/after").await;
}

#[tokio::test]
async fn changes_by_hand_are_seen_like_all_others() {
    let postgres = Postgres::start();
    let store = open(&postgres.url()).await.unwrap();
    for key in ["hand/a", "hand/b", "hand/c"] {
        create(&*store, key).await;
    }
    let mut last = store.revision().await.unwrap();
    let mut watch = store.watch("hand/", last).await.unwrap();
    for (sql, wanted) in [
        (
            "UPDATE tenure.kv SET value = 'x' WHERE key = 'hand/a'",
            &["hand/a"][..],
        ),
        ("DELETE FROM tenure.kv WHERE key = 'hand/b'", &["hand/b"]),
        ("INSERT INTO tenure.kv VALUES ('hand/d', 'x')", &["hand/d"]),
        (
            "UPDATE tenure.kv SET key = 'hand/e' WHERE key = 'hand/c'",
            &["hand/c", "hand/e"],
        ),
    ] {
        postgres.sql(sql);
        let batch = next(&mut watch).await;
        let keys: Vec<&str> = batch.changes.iter().map(Change::key).collect();
        assert_eq!(keys, wanted, "{sql}");
        let now = store.revision().await.unwrap();
        assert!(now > last, "{sql}");
        last = now;
    }
    // No row is seen going, but that something went is.
    postgres.sql("TRUNCATE tenure.kv");
    let end = timeout(TIMEOUT, watch.next()).await.unwrap();
    assert_eq!(end, Err(WatchEnd::Gap));
    let listing = store.list("").await.unwrap();
    assert!(listing.entries.is_empty() && listing.revision > last);
    let mut again = store.watch("hand/", listing.revision).await.unwrap();
    create(&*store, "hand/f").await;
    shows(&mut again, "hand/f").await;
}

#[tokio::test]
async fn a_watch_from_before_a_forgotten_deletion_ends_with_a_gap() {
    let postgres = Postgres::start();
    let store = PostgresStore::open(&postgres.url()).await.unwrap();
    let mut revisions = Vec::new();
    for n in 0..6 {
        revisions.push(store.revision().await.unwrap());
        let version = create(&store, "gap/k").await;
        let deleted = store.delete_if(DeleteIf::new("gap/k", version)).await;
        assert_eq!(deleted, Ok(Delete::Won), "{n}");
    }
    // A foreign transaction that goes on for long must not make gaps of everything.
    let slow = by_hand(&postgres).await;
    slow.batch_execute("BEGIN; CREATE TABLE elsewhere ()")
        .await
        .unwrap();
    store.purge(2).await.unwrap();
    for (n, from) in revisions.iter().enumerate() {
        let mut watch = store.watch("gap/", *from).await.unwrap();
        let first = timeout(TIMEOUT, watch.next()).await.unwrap();
        if n < 4 {
            assert_eq!(first, Err(WatchEnd::Gap), "{n}");
        }
    }
    let now = store.list("gap/").await.unwrap().revision;
    let mut watch = store.watch("gap/", now).await.unwrap();
    create(&store, "gap/k").await;
    shows(&mut watch, "gap/k").await;
    assert_eq!(postgres.sql("SELECT count(*) FROM tenure.kv_deleted"), "2");
}

#[tokio::test]
async fn a_revision_of_elsewhere_begins_with_a_gap() {
    let postgres = Postgres::start();
    let (a, b) = (
        open(&postgres.url()).await.unwrap(),
        open(&postgres.url()).await.unwrap(),
    );
    create(&*a, "k").await;
    let from = a.revision().await.unwrap();
    create(&*a, "l").await;
    let mut watch = b.watch("", from).await.unwrap();
    assert_eq!(watch.next().await, Err(WatchEnd::Gap));
}

#[tokio::test]
async fn a_long_burst_of_writes_is_shown_to_the_end() {
    let postgres = Postgres::start();
    let (writer, reader) = (
        open(&postgres.url()).await.unwrap(),
        open(&postgres.url()).await.unwrap(),
    );
    let from = reader.revision().await.unwrap();
    let mut watch = reader.watch("burst/", from).await.unwrap();
    let puts = (0..2500)
        .map(|n| PutIf::create(format!("burst/{n}"), *b"v"))
        .collect();
    let answers = writer.put_many(puts).await;
    assert!(answers.iter().all(|a| matches!(a, Ok(Put::Won(_)))));
    let mut seen = 0;
    let mut upto = from;
    while seen < 2500 {
        let batch = next(&mut watch).await;
        assert!(batch.changes.len() <= 1000 && batch.upto >= upto);
        upto = batch.upto;
        seen += batch.changes.len();
    }
    assert_eq!(upto, reader.revision().await.unwrap());
}

#[tokio::test]
async fn a_batch_that_names_a_key_twice_applies_them_in_order() {
    let postgres = Postgres::start();
    let store = open(&postgres.url()).await.unwrap();
    let answers = store
        .put_many(vec![
            PutIf::create("k", *b"1"),
            PutIf::create("l", *b"1"),
            PutIf::create("k", *b"2"),
        ])
        .await;
    let won: Vec<bool> = answers
        .iter()
        .map(|a| matches!(a, Ok(Put::Won(_))))
        .collect();
    assert_eq!(won, [true, true, false]);
    assert_eq!(&*store.get("k").await.unwrap().unwrap().value, b"1");
}

/// Batches that lock the same rows in opposite orders must not wait in a circle: the server would take a second to notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_in_opposite_orders_do_not_wait_for_each_other_in_a_circle() {
    let postgres = Postgres::start();
    let keys: Vec<String> = (0..50).map(|n| format!("circle/{n}")).collect();
    let mut racing = tokio::task::JoinSet::new();
    for turned in [false, true, false, true] {
        let store = open(&postgres.url()).await.unwrap();
        let mut keys = keys.clone();
        if turned {
            keys.reverse();
        }
        racing.spawn(async move {
            for _ in 0..20 {
                let got = store.get_many(keys.clone()).await;
                let puts = keys.iter().zip(got).map(|(key, got)| match got.unwrap() {
                    None => PutIf::create(key, *b"v"),
                    Some(entry) => PutIf::update(key, *b"w", entry.version),
                });
                for answer in store.put_many(puts.collect()).await {
                    answer.expect("lost or won, but answered");
                }
            }
        });
    }
    racing.join_all().await;
    let log = postgres.server().log();
    assert!(!log.contains("deadlock detected"), "{log}");
}
