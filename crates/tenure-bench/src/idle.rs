//! Cost of an idle node: requests to the store per renewal, processor time and memory.

use std::sync::Arc;
use std::time::Duration;

use tenure::{Hashed, Node};
use tenure_store::observed_store::ObservedStore;

use super::failover::open;
use super::measure::ReportRow;
use super::worker::{CLUSTER, KEYSPACE, NoopHandler, Scratch, Worker};
use crate::exit::Exit;

const TTL: Duration = Duration::from_millis(1200);
/// Nodes renew every sixth of the ttl.
const RENEWALS: u32 = 20;
const MANY: u32 = 10_000;

pub(crate) async fn measure(repeat: u32) -> Result<Vec<ReportRow>, Exit> {
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..repeat {
        let (w, r) = requests().await?;
        writes.push(w);
        reads.push(r);
    }
    let mut rows = vec![
        ReportRow::plain(
            "idle node (SQLite)",
            "writes per renewal, 64 shards",
            "",
            writes,
        )
        .aiming_at("1"),
        ReportRow::plain(
            "idle node (SQLite)",
            "reads per renewal, 64 shards",
            "",
            reads,
        ),
    ];
    let (mut cpu, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..repeat.min(3) {
        let (c, m) = many_shards().await?;
        cpu.push(c);
        memory.push(m);
    }
    rows.push(ReportRow::plain(
        "idle node (SQLite)",
        "processor, 10,000 shards, ttl 2.5 s",
        "% of a core",
        cpu,
    ));
    rows.push(ReportRow::plain(
        "idle node (SQLite)",
        "resident memory, 10,000 shards",
        "MiB",
        memory,
    ));
    Ok(rows)
}

/// Requests per renewal of one node in this process, counted at the store.
async fn requests() -> Result<(f64, f64), Exit> {
    let scratch = Scratch::new()?;
    let (store, observer) = ObservedStore::new(open(&scratch.database()).await?);
    let node = Node::builder("", CLUSTER)
        .store(Arc::new(store))
        .name("a")
        .ttl(TTL)
        .keyspace(KEYSPACE, Hashed(64), NoopHandler)
        .start()
        .await
        .map_err(|e| Exit::failed(e.to_string()))?;
    // The last `serving` marks are written after the start.
    tokio::time::sleep(TTL).await;
    let renewed = || node.metrics().render();
    let count = |text: String| {
        let line = text
            .lines()
            .find(|l| l.starts_with("tenure_lease_renewals_total "))
            .map(str::to_owned);
        line.and_then(|l| l.rsplit_once(' ').and_then(|(_, n)| n.parse::<f64>().ok()))
            .unwrap_or(0.0)
    };
    let (before, renewals_before) = (observer.snapshot(), count(renewed()));
    tokio::time::sleep(TTL / 6 * RENEWALS).await;
    let (delta, renewals) = (
        observer.snapshot().since(&before),
        count(renewed()) - renewals_before,
    );
    let result = (
        delta.writes() as f64 / renewals,
        delta.reads() as f64 / renewals,
    );
    node.stop().await.map_err(|e| Exit::failed(e.to_string()))?;
    Ok(result)
}

/// Processor and memory of a node process that has everything and does nothing.
async fn many_shards() -> Result<(f64, f64), Exit> {
    const WATCHED: Duration = Duration::from_secs(10);
    let scratch = Scratch::new()?;
    let worker = Worker::start(&scratch.database(), "a", MANY, Duration::from_millis(2500))?;
    let store = open(&scratch.database()).await?;
    // Started once nothing is written any more but renewals.
    let mut last = 0;
    for _ in 0..120 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = store.revision().await?.0;
        if now > u64::from(MANY) * 3 && now - last <= 4 {
            break;
        }
        last = now;
    }
    let begun = worker.cpu();
    tokio::time::sleep(WATCHED).await;
    let used = worker.cpu() - begun;
    Ok((
        used.as_secs_f64() / WATCHED.as_secs_f64() * 100.0,
        worker.resident_mib(),
    ))
}
