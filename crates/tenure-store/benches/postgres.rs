//! What the PostgreSQL store costs beside bare prepared statements on the same server, in the same run.
//!
//! `TMPDIR=/tmp cargo bench -p tenure-store --bench postgres`. Starts a server of its own there, with `fsync` on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_store::servers::postgres::Postgres;
use tenure_store::{Change, Put, PutIf, Store, Version, open};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls};

const ROUNDS: usize = 400;
const BATCH: usize = 1000;

const BARE: &str = "
    CREATE TABLE bare (key text COLLATE \"C\" PRIMARY KEY, value bytea NOT NULL, version bigint NOT NULL);
    CREATE SEQUENCE bare_versions;
    INSERT INTO bare VALUES ('k', 'v', nextval('bare_versions'))";

#[tokio::main]
async fn main() {
    // In memory there would be no disk to wait for.
    if std::env::var_os("TMPDIR").is_none() {
        eprintln!("set TMPDIR to a directory on a disk, such as /tmp");
        std::process::exit(2);
    }
    let postgres = Postgres::start_with(&["fsync=on"]);
    let store = open(&postgres.url()).await.expect("the store opens");
    let (bare, connection) = tokio_postgres::connect(&postgres.url(), NoTls)
        .await
        .expect("the server answers");
    tokio::spawn(connection);
    bare.batch_execute(BARE).await.expect("a table can be made");

    println!("{:<34} {:>10} {:>10}", "p50", "bare", "store");
    let (get_bare, get_store) = gets(&bare, &*store).await;
    show("get", get_bare, get_store);
    let (cas_bare, cas_store) = updates(&bare, &*store).await;
    show("compare-and-swap", cas_bare, cas_store);
    let (batch_bare, batch_store) = batches(&bare, &*store).await;
    show("1,000 keys written in one call", batch_bare, batch_store);
    let seen = watched(&store).await.as_micros();
    println!(
        "{:<34} {:>10} {seen:>7} µs",
        "from a write to the watch's news", ""
    );
}

fn show(what: &str, bare: Duration, store: Duration) {
    let (bare, store) = (bare.as_micros(), store.as_micros());
    let ratio = store as f64 / bare as f64;
    println!("{what:<34} {bare:>7} µs {store:>7} µs  {ratio:.2}×");
}

/// The middle of several times.
fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The two kinds take turns, so that both meet the same disk and the same neighbours.
async fn gets(bare: &Client, store: &dyn Store) -> (Duration, Duration) {
    let get = bare.prepare("SELECT value, version FROM bare WHERE key = $1");
    let get = get.await.expect("it can be prepared");
    let put = store.put_if(PutIf::create("bench/k", *b"v")).await;
    put.expect("a key can be written");
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        bare.query(&get, &[&"k"]).await.expect("it is read");
        a.push(begun.elapsed());
        let begun = Instant::now();
        store.get("bench/k").await.expect("it is read");
        b.push(begun.elapsed());
    }
    (middle(a), middle(b))
}

async fn updates(bare: &Client, store: &dyn Store) -> (Duration, Duration) {
    let update = "UPDATE bare SET value = $2, version = nextval('bare_versions')
                  WHERE key = $1 AND version = $3 RETURNING version";
    let update = bare.prepare(update).await.expect("it can be prepared");
    let mut bare_version: i64 = 1;
    let mut version = version_of(store, "bench/k").await;
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let params: &[&(dyn ToSql + Sync)] = &[&"k", &&b"v"[..], &bare_version];
        let row = bare.query_one(&update, params).await;
        a.push(begun.elapsed());
        bare_version = row.expect("it is written").get(0);
        let begun = Instant::now();
        let put = store.put_if(PutIf::update("bench/k", *b"v", version)).await;
        b.push(begun.elapsed());
        let Ok(Put::Won(newer)) = put else {
            panic!("nobody else writes: {put:?}");
        };
        version = newer;
    }
    (middle(a), middle(b))
}

async fn batches(bare: &Client, store: &dyn Store) -> (Duration, Duration) {
    let insert = "INSERT INTO bare SELECT key, value, nextval('bare_versions')
                  FROM unnest($1::text[], $2::bytea[]) AS asked (key, value)
                  ON CONFLICT DO NOTHING RETURNING key, version";
    let insert = bare.prepare(insert).await.expect("it can be prepared");
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for round in 0..15 {
        let keys: Vec<String> = (0..BATCH).map(|n| format!("bench/{round}/{n}")).collect();
        let values = vec![&b"v"[..]; BATCH];
        let begun = Instant::now();
        let written = bare.query(&insert, &[&keys, &values]).await;
        a.push(begun.elapsed());
        written.expect("they are written");
        let puts = keys.iter().map(|key| PutIf::create(key, *b"v")).collect();
        let begun = Instant::now();
        let answers = store.put_many(puts).await;
        b.push(begun.elapsed());
        assert!(answers.iter().all(|a| matches!(a, Ok(Put::Won(_)))));
    }
    (middle(a), middle(b))
}

/// At a pace at which no announcement is held back.
async fn watched(store: &Arc<dyn Store>) -> Duration {
    let writer = store.dedicated().expect("another connection");
    let from = store.revision().await.expect("it answers");
    let watch = store.watch("bench/", from).await;
    let mut watch = watch.expect("it can be watched");
    let mut version = version_of(&*writer, "bench/k").await;
    let mut times = Vec::new();
    for _ in 0..ROUNDS / 4 {
        tokio::time::sleep(Duration::from_millis(40)).await;
        let begun = Instant::now();
        let put = writer.put_if(PutIf::update("bench/k", *b"v", version));
        let Ok(Put::Won(newer)) = put.await else {
            panic!("nobody else writes");
        };
        version = newer;
        loop {
            let batch = watch.next().await.expect("the watch goes on");
            let it = |c: &Change| matches!(c, Change::Put(e) if e.version == version);
            if batch.changes.iter().any(it) {
                break;
            }
        }
        times.push(begun.elapsed());
    }
    middle(times)
}

async fn version_of(store: &dyn Store, key: &str) -> Version {
    let entry = store.get(key).await.expect("it answers");
    entry.expect("it is there").version
}
