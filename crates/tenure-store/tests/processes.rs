//! One SQLite file, several real processes. Each test starts itself again in another role.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tenure_store::{Change, Put, PutIf, Revision, Store, StoreError, open};

/// Says to a process that it is a child, and which database to use.
const CHILD: &str = "TENURE_STORE_TEST_URL";

fn child_url() -> Option<String> {
    std::env::var(CHILD).ok()
}

/// Runs the test of this name again, as a child.
fn spawn(test: &str, url: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn fresh() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("store.db").display());
    (dir, url)
}

async fn insist(store: &dyn Store, put: PutIf) -> Put {
    loop {
        match store.put_if(put.clone()).await {
            Ok(answer) => return answer,
            Err(StoreError::Unavailable { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

async fn raise(store: &dyn Store, times: u32) {
    let mut done = 0;
    while done < times {
        let put = match store.get("counter").await.unwrap() {
            None => PutIf::create("counter", *b"1"),
            Some(entry) => {
                let count: u32 = String::from_utf8_lossy(&entry.value).parse().unwrap();
                let next = (count + 1).to_string().into_bytes();
                PutIf::update("counter", next, entry.version)
            }
        };
        if insist(store, put).await != Put::Lost {
            done += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_raise_one_counter_lose_no_raise() {
    const EACH: u32 = 150;
    if let Some(url) = child_url() {
        return raise(&*open(&url).await.unwrap(), EACH).await;
    }
    // Both children also race to make the file and its tables.
    let (_dir, url) = fresh();
    let test = "processes_that_raise_one_counter_lose_no_raise";
    let mut children = [spawn(test, &url), spawn(test, &url)];
    let store = open(&url).await.unwrap();
    raise(&*store, EACH).await;
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    let entry = store.get("counter").await.unwrap().unwrap();
    assert_eq!(&*entry.value, (3 * EACH).to_string().as_bytes());
}

/// Nanoseconds on the clock that all processes of this machine share.
fn boot_nanos() -> u128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let since = Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32);
    since.as_nanos()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_hears_of_another_process_within_milliseconds() {
    const WRITES: usize = 100;
    if let Some(url) = child_url() {
        let store = open(&url).await.unwrap();
        for n in 0..WRITES {
            // Apart from each other, as renewals are.
            tokio::time::sleep(Duration::from_millis(4)).await;
            let value = boot_nanos().to_string().into_bytes();
            let put = insist(&*store, PutIf::create(format!("k/{n}"), value)).await;
            assert_ne!(put, Put::Lost);
        }
        return;
    }
    let (_dir, url) = fresh();
    let store = open(&url).await.unwrap();
    let mut watch = store.watch("k/", Revision(0)).await.unwrap();
    let mut child = spawn("a_watch_hears_of_another_process_within_milliseconds", &url);
    let mut delays = Vec::new();
    while delays.len() < WRITES {
        let batch = tokio::time::timeout(Duration::from_secs(10), watch.next()).await;
        for change in batch.expect("the child writes").unwrap().changes {
            let Change::Put(entry) = change else {
                panic!("nobody deletes");
            };
            let sent: u128 = String::from_utf8_lossy(&entry.value).parse().unwrap();
            delays.push(boot_nanos() - sent);
        }
    }
    assert!(child.wait().unwrap().success());
    delays.sort_unstable();
    let at = |permille: usize| delays[(delays.len() - 1) * permille / 1000] as f64 / 1e6;
    let (median, p99, worst) = (at(500), at(990), at(1000));
    println!(
        "write to watch across processes: median {median:.2} ms, p99 {p99:.2} ms, worst {worst:.2} ms"
    );
    assert!(median < 500.0, "median {median} ms");
    assert!(worst < 2000.0, "worst {worst} ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_killed_in_full_flight_loses_nothing_it_was_promised() {
    if let Some(url) = child_url() {
        return write_until_killed(&url).await;
    }
    let (_dir, url) = fresh();
    let store = open(&url).await.unwrap();
    let mut watch = store.watch("", Revision(0)).await.unwrap();
    for round in 0..4 {
        let test = "a_writer_killed_in_full_flight_loses_nothing_it_was_promised";
        let mut child = spawn(test, &url);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut promised = Vec::new();
        for line in lines {
            let line = line.unwrap();
            if let Some(key) = line.split("promised ").nth(1) {
                promised.push(key.to_owned());
            }
            if promised.len() == 40 + 17 * round {
                child.kill().unwrap();
            }
        }
        assert!(!child.wait().unwrap().success(), "it was killed");
        assert!(promised.len() >= 40);
        for entry in store.get_many(promised).await {
            assert!(entry.unwrap().is_some());
        }
        // Both who stayed and who comes anew can write at once.
        let newcomer = open(&url).await.unwrap();
        for (who, store) in [("stayed", &store), ("came", &newcomer)] {
            let put = PutIf::create(format!("after/{round}/{who}"), *b"v");
            assert!(matches!(insist(&**store, put).await, Put::Won(_)));
        }
        let last = format!("after/{round}/came");
        loop {
            let batch = tokio::time::timeout(Duration::from_secs(5), watch.next()).await;
            let batch = batch.expect("the watch goes on").unwrap();
            if batch.changes.iter().any(|c| c.key() == last) {
                break;
            }
        }
    }
}

async fn write_until_killed(url: &str) {
    let store: Arc<dyn Store> = open(url).await.unwrap();
    let me = std::process::id();
    for n in 0.. {
        let key = format!("load/{me}/{n}");
        let put = insist(&*store, PutIf::create(&key, vec![n as u8; 600])).await;
        assert_ne!(put, Put::Lost);
        let batch = (0..5).map(|i| PutIf::create(format!("{key}/{i}"), *b"v"));
        store.put_many(batch.collect()).await;
        let mut out = std::io::stdout().lock();
        writeln!(out, "promised {key}").unwrap();
        out.flush().unwrap();
    }
}
