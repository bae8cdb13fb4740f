//! Load that does not wait for those who are slow, and what is to be said of it afterwards.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::client::{Client, about};
use crate::test_cluster::TestCluster;

/// What became of one request.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) key: String,
    pub(crate) number: u64,
    /// When it was answered, or given up.
    pub(crate) at: Instant,
    /// Since it was due, not since it was sent.
    pub(crate) took: Duration,
    pub(crate) failed: Option<String>,
}

/// Requests under way.
pub(crate) struct Load {
    tasks: Vec<JoinHandle<Vec<Outcome>>>,
    stop: Arc<AtomicBool>,
    pub(crate) answered: Arc<AtomicU64>,
}

impl Load {
    /// So many keys, each with a request every `pace`, numbered from 1; those of one key go through one router, and one after
    /// the other. `most` requests in all.
    pub(crate) fn begin(routers: &[SocketAddr], keys: usize, pace: Duration, most: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicU64::new(0));
        let start = Instant::now() + Duration::from_millis(20);
        let each = most / keys as u64;
        let tasks = (0..keys).map(|k| {
            let (stop, answered) = (stop.clone(), answered.clone());
            let at = routers[k % routers.len()];
            let start = start + pace * k as u32 / keys as u32;
            tokio::spawn(async move {
                let mut client = Client::new(at);
                let key = format!("k{k}");
                let mut outcomes = Vec::new();
                for number in 1..=each {
                    let due = start + pace * (number - 1) as u32;
                    tokio::time::sleep_until(due.into()).await;
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let request = about("POST", "/count", &key, &number.to_string());
                    let failed = match client.send(request).await {
                        Ok(got) if got.status == 200 => None,
                        Ok(got) => Some(format!("{}: {}", got.status, got.text())),
                        Err(reason) => Some(reason),
                    };
                    answered.fetch_add(1, Ordering::Relaxed);
                    outcomes.push(Outcome {
                        key: key.clone(),
                        number,
                        at: Instant::now(),
                        took: due.elapsed(),
                        failed,
                    });
                }
                outcomes
            })
        });
        Self {
            tasks: tasks.collect(),
            stop,
            answered,
        }
    }

    /// Ends it before it is through.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for the last answer.
    pub(crate) async fn outcomes(self) -> Vec<Outcome> {
        let mut all = Vec::new();
        for task in self.tasks {
            all.extend(task.await.unwrap());
        }
        all
    }
}

/// Says how long answers took.
pub(crate) fn latencies(outcomes: &[Outcome]) -> String {
    let mut took: Vec<Duration> = outcomes.iter().map(|o| o.took).collect();
    took.sort();
    let at = |permille: usize| took[(took.len() - 1) * permille / 1000];
    format!(
        "{} requests: p50 {:?}, p99 {:?}, p99.9 {:?}, longest {:?}",
        took.len(),
        at(500),
        at(990),
        at(999),
        at(1000)
    )
}

/// What was answered with success is in the journals once, in the order of each key; what failed is there at most once.
pub(crate) fn check_journal(site: &TestCluster, outcomes: &[Outcome]) {
    let mut written: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut epochs: BTreeMap<String, u64> = BTreeMap::new();
    for (shard, epoch, key, number) in site.journal() {
        let newest = epochs.entry(shard.clone()).or_default();
        assert!(epoch >= *newest, "{shard}: epoch {epoch} after {newest}");
        *newest = epoch;
        written
            .entry(key)
            .or_default()
            .push(number.parse().unwrap());
    }
    for (key, numbers) in &written {
        let in_order = numbers.windows(2).all(|w| w[0] < w[1]);
        assert!(in_order, "{key} is out of order or doubled: {numbers:?}");
    }
    for outcome in outcomes.iter().filter(|o| o.failed.is_none()) {
        let numbers = written.get(&outcome.key);
        let there = numbers.is_some_and(|n| n.binary_search(&outcome.number).is_ok());
        assert!(there, "answered and lost: {outcome:?}");
    }
}
