//! Store requests of idle nodes.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tenure::{Hashed, Node};
use tenure_store::Op;
use tenure_store::observed_store::{ObservedStore, OpCounts};
use tokio::task::JoinSet;

use super::Bed;
use crate::exit::Exit;
use crate::measure::ReportRow;
use crate::store_access::within;
use crate::worker::{KEYSPACE, NoopHandler};

const AREA: &str = "idle nodes";
/// How often they are looked at, at most: each look takes six renewals.
const LOOKS: u32 = 3;
/// How much longer the ttl is for every shard, so that a busy machine comes to rest with many.
const PER_SHARD: Duration = Duration::from_millis(1);
/// Far beyond any start: whoever needs more half ttls does not come to rest.
const TIMEOUT: u32 = 60;

/// What was at rest, and whether the store was too.
#[derive(Debug, Serialize)]
pub(crate) struct IdleReport {
    nodes: u32,
    shards: u32,
    /// The ttl of these nodes.
    ttl_ms: u64,
    /// Renewals that were counted, of all nodes together.
    renewals: u64,
    /// By how much the store's revision moved meanwhile, also by others who use it.
    revision_moved: u64,
}

pub(crate) async fn measure(
    bed: &Bed,
    count: u32,
    shards: u32,
    repeat: u32,
) -> Result<(Vec<ReportRow>, IdleReport), Exit> {
    let (observed, observer) = ObservedStore::new(bed.store.clone());
    // What is counted is per renewal, so that a longer ttl changes nothing but how soon so many come to rest.
    let ttl = bed.ttl.max(PER_SHARD * shards);
    // All at once: one after the other, each would take its share from those before it.
    let mut starting = JoinSet::new();
    for n in 1..=count {
        let builder = Node::builder("", bed.calm.as_str())
            .store(Arc::new(observed.clone()))
            .name(format!("n{n}"))
            .ttl(ttl)
            .keyspace(KEYSPACE, Hashed(shards), NoopHandler);
        starting.spawn(builder.start());
    }
    let mut nodes = Vec::new();
    while let Some(started) = starting.join_next().await {
        let started = started.map_err(|e| Exit::failed(e.to_string()))?;
        nodes.push(started.map_err(|e| Exit::failed(e.to_string()))?);
    }
    settled(&nodes, shards, ttl, || observer.snapshot().writes()).await?;
    let mut rest = IdleReport {
        nodes: count,
        shards,
        ttl_ms: ttl.as_millis() as u64,
        renewals: 0,
        revision_moved: 0,
    };
    let mut looks = Vec::new();
    let revision = || async {
        Ok::<_, Exit>(
            within("reading the revision of the store", bed.store.revision())
                .await??
                .0,
        )
    };
    let first = revision().await?;
    for _ in 0..repeat.min(LOOKS) {
        let (before, renewals) = (observer.snapshot(), renewed(&nodes));
        tokio::time::sleep(ttl).await;
        let (asked, renewals) = (
            observer.snapshot().since(&before),
            renewed(&nodes) - renewals,
        );
        if renewals < 1.0 {
            return Err(Exit::failed(
                "no node renewed its lease within a ttl; run `tenure store check`",
            ));
        }
        rest.renewals += renewals as u64;
        looks.push((asked, renewals));
    }
    rest.revision_moved = revision().await?.saturating_sub(first);
    // The whole cluster is removed next: nobody has to hand anything over.
    drop(nodes);
    Ok((rows(&looks), rest))
}

/// Requests per node and renewal, by kind. Writes are always told, others only where there were any.
fn rows(looks: &[(OpCounts, f64)]) -> Vec<ReportRow> {
    let kinds = Op::ALL
        .into_iter()
        .filter(|op| *op == Op::Put || looks.iter().any(|(asked, _)| asked.of(*op).calls > 0));
    kinds
        .map(|op| {
            let each = looks
                .iter()
                .map(|(asked, renewals)| asked.of(op).calls as f64 / renewals);
            ReportRow::plain(AREA, name(op), "per node and renewal", each.collect())
        })
        .collect()
}

/// Waits until every shard is served, none changes hands and nothing is written but renewals.
pub(crate) async fn settled(
    nodes: &[Node],
    shards: u32,
    ttl: Duration,
    written: impl Fn() -> u64,
) -> Result<(), Exit> {
    let owned = || nodes.iter().map(|n| n.owned()).collect::<Vec<_>>();
    for _ in 0..TIMEOUT {
        let (before, had, renewals) = (written(), owned(), renewed(nodes));
        tokio::time::sleep(ttl / 2).await;
        let served: usize = had.iter().map(Vec::len).sum();
        let spare = nodes.len() as f64;
        let writes = (written() - before) as f64;
        if served == shards as usize
            && had == owned()
            && writes <= renewed(nodes) - renewals + spare
        {
            return Ok(());
        }
    }
    Err(Exit::failed(format!(
        "{} nodes did not become idle within {:?}; run `tenure store check`",
        nodes.len(),
        ttl / 2 * TIMEOUT
    )))
}

/// Renewals of all nodes so far.
fn renewed(nodes: &[Node]) -> f64 {
    let of = |node: &Node| {
        let metrics = node.metrics();
        metrics.value("tenure_lease_renewals_total", "")
    };
    nodes.iter().map(of).sum()
}

fn name(op: Op) -> &'static str {
    match op {
        Op::Identity => "identity",
        Op::Revision => "revision",
        Op::Get => "get",
        Op::Put => "put",
        Op::Delete => "delete",
        Op::Discard => "discard",
        Op::List => "list",
        Op::Keys => "keys",
        Op::Watch => "watch",
        Op::Now => "now",
        Op::Grant => "lease: grant",
        Op::KeepAlive => "lease: keep_alive",
        Op::AskLease => "lease: is_alive",
    }
}

impl IdleReport {
    pub(crate) fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        writeln!(
            out,
            "  {} nodes with a ttl of {} ms, {} shards, {} renewals; the store revision advanced by {}",
            self.nodes, self.ttl_ms, self.shards, self.renewals, self.revision_moved
        )
    }
}
