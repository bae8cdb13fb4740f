//! Time of shards without an owner: after a kill, as a multiple of the ttl, and after a clean exit.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::ids::ClusterName;
use tenure_core::keys::{Key, prefix};
use tenure_core::record::{Ownership, Record};
use tenure_store::Store;

use super::measure::ReportRow;
use super::worker::{CLUSTER, Scratch, Worker};
use crate::exit::Exit;

const SHARDS: u32 = 16;
const TTL: Duration = Duration::from_millis(1500);
/// Far beyond any failover: whoever needs longer is broken.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn measure(repeat: u32) -> Result<Vec<ReportRow>, Exit> {
    let (mut killed, mut left) = (Vec::new(), Vec::new());
    for _ in 0..repeat {
        killed.push(once(|victim| victim.kill()).await?.as_secs_f64() / TTL.as_secs_f64());
        left.push(once(|victim| victim.terminate()).await?.as_secs_f64() * 1000.0);
    }
    Ok(vec![
        ReportRow::plain(
            "failover (SQLite, two processes, 16 shards)",
            "SIGKILL → all shards served by the other",
            "ttl",
            killed,
        )
        .aiming_at("≤ 1.2"),
        ReportRow::plain(
            "failover (SQLite, two processes, 16 shards)",
            "clean exit → all shards served by the other",
            "ms",
            left,
        )
        .aiming_at("≤ 100"),
    ])
}

/// Starts two nodes, ends one, and says how long it took until the other served everything.
async fn once(end: impl FnOnce(&mut Worker)) -> Result<Duration, Exit> {
    let scratch = Scratch::new()?;
    let database = scratch.database();
    let mut victim = Worker::start(&database, "a", SHARDS, TTL)?;
    let _other = Worker::start(&database, "b", SHARDS, TTL)?;
    let store = open(&database).await?;
    wait_until(&*store, |by| {
        by.iter().flatten().count() == SHARDS as usize
            && by.iter().flatten().any(|n| n == "a")
            && by.iter().flatten().any(|n| n == "b")
    })
    .await?;
    // Balance is reached when nothing changes any more; a kill in the middle of a rebalance measures something else.
    tokio::time::sleep(TTL).await;
    let begun = Instant::now();
    end(&mut victim);
    wait_until(&*store, |by| by.iter().all(|n| n.as_deref() == Some("b"))).await?;
    Ok(begun.elapsed())
}

pub(crate) async fn open(database: &Path) -> Result<Arc<dyn Store>, Exit> {
    Ok(tenure_store::open(&format!("sqlite:{}", database.display())).await?)
}

/// Follows the store until `done` holds of the nodes that serve each shard.
async fn wait_until(
    store: &dyn Store,
    done: impl Fn(&[Option<String>]) -> bool,
) -> Result<(), Exit> {
    let cluster = ClusterName::new(CLUSTER).map_err(|e| Exit::failed(e.to_string()))?;
    let limit = Instant::now() + TIMEOUT;
    loop {
        let listing = store.list(&prefix(&cluster)).await?;
        let serving: Vec<Option<String>> = listing
            .entries
            .iter()
            .filter_map(|entry| {
                let key = Key::parse(&cluster, &entry.key)?;
                match Record::decode(&key, &entry.value) {
                    Ok(Record::Shard(record)) => Some(match &record.ownership {
                        Ownership::Owned { by, serving: true } => Some(by.node.to_string()),
                        _ => None,
                    }),
                    _ => None,
                }
            })
            .collect();
        if !serving.is_empty() && done(&serving) {
            return Ok(());
        }
        if Instant::now() > limit {
            return Err(Exit::failed(format!(
                "shards were not served within {TIMEOUT:?}: {serving:?}"
            )));
        }
        let mut watch = store.watch(&prefix(&cluster), listing.revision).await?;
        let _ = tokio::time::timeout(Duration::from_millis(200), watch.next()).await;
    }
}
