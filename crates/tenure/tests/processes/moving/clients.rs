//! Clients that write through routers without a pause, and what the journal says of it afterwards.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::test_cluster::{TestCluster, until};
use crate::worker::{Journal, Reply, Written};

/// Between two requests of a client.
const PAUSE: Duration = Duration::from_millis(5);
/// Longer than any request may be held.
const TIMEOUT: Duration = Duration::from_secs(40);

/// What one client has seen.
pub(crate) struct Seen {
    pub(crate) key: String,
    /// The last write that was acknowledged; those before it were, too.
    pub(crate) acknowledged: u64,
    /// What went wrong: the request was sent again.
    pub(crate) failures: Vec<String>,
}

pub(crate) struct Clients {
    over: Arc<AtomicBool>,
    /// How far each has come.
    progress: Vec<Arc<AtomicU64>>,
    threads: Vec<JoinHandle<Seen>>,
}

impl Clients {
    /// Begins clients that are spread over the routers. One whose router fails goes to the next.
    pub(crate) fn begin(site: &TestCluster, routers: &[&str], count: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let progress: Vec<Arc<AtomicU64>> = (0..count).map(|_| Arc::default()).collect();
        let ports: Vec<PathBuf> = routers
            .iter()
            .map(|router| site.path(&format!("{router}.port")))
            .collect();
        for port in &ports {
            until("a router is there", || port.exists());
        }
        let threads = progress.iter().enumerate().map(|(i, done)| {
            let (over, done) = (over.clone(), done.clone());
            let mut ports = ports.clone();
            ports.rotate_left(i % routers.len());
            std::thread::spawn(move || write(format!("client-{i}"), &ports, &over, &done))
        });
        Self {
            threads: threads.collect(),
            over,
            progress,
        }
    }

    /// Waits until every client has been answered so many times more.
    pub(crate) fn go_on(&self, more: u64) {
        let read = || self.progress.iter().map(|n| n.load(Ordering::Relaxed));
        let goals: Vec<u64> = read().map(|n| n + more).collect();
        until("every client is answered", || {
            read().zip(&goals).all(|(n, goal)| n >= *goal)
        });
    }

    pub(crate) fn end(self) -> Vec<Seen> {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.threads.into_iter().map(JoinHandle::join);
        ended.map(|seen| seen.expect("a client")).collect()
    }
}

fn write(key: String, ports: &[PathBuf], over: &AtomicBool, done: &AtomicU64) -> Seen {
    let mut seen = Seen {
        key,
        acknowledged: 0,
        failures: Vec::new(),
    };
    let mut routers = ports.iter().cycle();
    let mut line = None;
    while !over.load(Ordering::Relaxed) {
        let n = seen.acknowledged + 1;
        let open = match line.take() {
            Some(open) => Ok(open),
            None => connect(routers.next().expect("a circle")),
        };
        let answered = open.and_then(|mut open| {
            let reply = ask(&mut open, &format!("{} {n}\n", seen.key))?;
            Ok((open, reply))
        });
        match answered {
            Ok((open, Reply::Done)) => {
                line = Some(open);
                seen.acknowledged = n;
                done.store(n, Ordering::Relaxed);
            }
            Ok((_, reply)) => seen.failures.push(format!("{n}: {reply:?}")),
            Err(error) => seen.failures.push(format!("{n}: {error}")),
        }
        std::thread::sleep(PAUSE);
    }
    seen
}

/// Sends one write of a new key through a router.
pub(crate) fn write_once(site: &TestCluster, router: &str, key: &str) {
    let port = site.path(&format!("{router}.port"));
    until("a router is there", || port.exists());
    let mut line = connect(&port).expect("a router");
    let reply = ask(&mut line, &format!("{key} 1\n")).expect("an answer");
    assert_eq!(reply, Reply::Done, "{key}");
}

fn connect(port: &PathBuf) -> std::io::Result<BufReader<TcpStream>> {
    let port = std::fs::read_to_string(port)?;
    let port: u16 = port.parse().map_err(std::io::Error::other)?;
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(BufReader::new(stream))
}

fn ask(line: &mut BufReader<TcpStream>, request: &str) -> std::io::Result<Reply> {
    line.get_mut().write_all(request.as_bytes())?;
    let mut answer = String::new();
    if line.read_line(&mut answer)? == 0 {
        return Err(std::io::Error::other("hung up"));
    }
    serde_json::from_str(&answer).map_err(std::io::Error::other)
}

/// Nothing that was acknowledged is lost, every key's writes are in the order of its client, and no shard's epoch goes back.
/// What was sent again, because its answer was lost, may be there twice.
pub(crate) fn audit(site: &TestCluster, seen: &[Seen]) {
    let journal = Journal::open(&site.path("")).expect("the journal");
    let all = journal.all().expect("the journal");
    let mut epochs: BTreeMap<&str, i64> = BTreeMap::new();
    let mut keys: BTreeMap<&str, u64> = BTreeMap::new();
    for written @ Written {
        shard,
        epoch,
        key,
        n,
    } in &all
    {
        let highest = epochs.entry(shard).or_insert(*epoch);
        assert!(
            *epoch >= *highest,
            "{written:?} comes after epoch {highest}"
        );
        *highest = *epoch;
        let last = keys.entry(key).or_default();
        assert!(
            *n <= *last + 1,
            "{written:?} comes after {last}: one was lost"
        );
        *last = (*last).max(*n);
    }
    let mut twice = all.len();
    for client in seen {
        let last = keys.get(client.key.as_str()).copied().unwrap_or(0);
        assert!(
            last >= client.acknowledged,
            "{} was told of {} writes, and {last} are there",
            client.key,
            client.acknowledged
        );
        twice -= usize::try_from(last).expect("a count");
    }
    let failed: usize = seen.iter().map(|s| s.failures.len()).sum();
    assert!(
        twice <= failed,
        "{twice} writes are there twice, {failed} were sent again"
    );
    for node in ["a", "b", "c"] {
        let said = site.said(node);
        let lost: Vec<&str> = said.lines().filter(|l| l.starts_with("LOST")).collect();
        assert!(lost.is_empty(), "{node}: {lost:?}");
    }
    println!("{} writes, {failed} sent again", all.len());
}
