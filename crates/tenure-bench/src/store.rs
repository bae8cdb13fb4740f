//! `tenure-bench store`: calls of a store, and operations of nodes on it, in one run.
//!
//! Everything is written to clusters of random names, which are removed again, also when the run is interrupted.

mod calls;
mod idle_requests;
mod node_overhead;
mod s3_costs;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tenure_core::ids::ClusterName;
use tenure_core::keys::prefix;
use tenure_store::{DeleteIf, Store};

use super::measure::ReportRow;
use super::worker::Scratch;
use super::{Machine, print_rows};
use crate::exit::Exit;
use crate::store_access::{bad_store, random_id, within};

/// With less, a busy machine is measured and not the store.
const SHORTEST_TTL: Duration = Duration::from_secs(2);

/// Measure stores: direct calls, operations of a node, and requests of idle nodes
///
/// Writes only to clusters with random names and deletes them at the end. Uses the store of the configuration only if
/// --store names it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tenure-bench store                                  a temporary SQLite file\n  \
    tenure-bench store --store sqlite:/var/lib/shop/bench.db\n  \
    tenure-bench store --store etcd://127.0.0.1:2379/bench --nodes 5 --json\n  \
    tenure-bench store --store postgres://bench@127.0.0.1:5432/bench --store sqlite:bench.db\n  \
    tenure-bench store --store 's3://bucket/bench?region=eu-west-1'      prints requests and costs")]
pub(crate) struct StoreBench {
    /// Store to measure, created if it does not exist; repeatable; default: a temporary SQLite file
    #[arg(long, value_name = "URL")]
    store: Vec<String>,
    /// Number of measurements of each call
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Number of idle nodes
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=50))]
    nodes: u32,
    /// Number of shards of the idle nodes
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    shards: u32,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    repeat: u32,
    stores: Vec<Measured>,
}

/// One store's figures.
#[derive(Debug, Serialize)]
struct Measured {
    kind: &'static str,
    url: String,
    /// The ttl of the nodes that were measured.
    ttl_ms: u64,
    rows: Vec<ReportRow>,
    rest: idle_requests::IdleReport,
    /// What is paid for, on a bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<s3_costs::Costs>,
}

/// A store under measurement and the clusters that the run writes to.
struct Bed {
    url: String,
    store: Arc<dyn Store>,
    ttl: Duration,
    /// Keys of no meaning.
    bare: ClusterName,
    /// A node that claims and renews.
    busy: ClusterName,
    /// Nodes at rest.
    calm: ClusterName,
    /// Nodes at rest whose requests are counted.
    paid: Vec<ClusterName>,
}

impl StoreBench {
    pub(crate) async fn run(self) -> Result<ExitCode, Exit> {
        let scratch = Scratch::new()?;
        let urls = match self.store.as_slice() {
            [] => vec![format!("sqlite:{}", scratch.database().display())],
            urls => urls.to_vec(),
        };
        let machine = Machine::this();
        machine.warn();
        let mut stores = Vec::new();
        for url in urls {
            stores.push(self.one(url).await?);
        }
        let report = Report {
            machine,
            repeat: self.repeat,
            stores,
        };
        super::put_out(self.json, &report, |out| report.print(out))
    }

    /// Measures one store and cleans up, whatever comes of it.
    async fn one(&self, url: String) -> Result<Measured, Exit> {
        let bed = Bed::open(url).await?;
        eprintln!("measuring {} …", bed.store.info().url);
        let measured = tokio::select! {
            measured = self.measure(&bed) => measured,
            _ = tokio::signal::ctrl_c() => Err(Exit::failed("benchmark interrupted; it deletes the keys that it wrote in the store")),
        };
        let cleaned = bed.clean().await;
        let measured = measured?;
        cleaned.map(|()| measured)
    }

    async fn measure(&self, bed: &Bed) -> Result<Measured, Exit> {
        let mut rows = calls::measure(bed, self.repeat).await?;
        rows.extend(node_overhead::measure(bed, self.repeat).await?);
        let (calm, rest) =
            idle_requests::measure(bed, self.nodes, self.shards, self.repeat).await?;
        rows.extend(calm);
        let requests = s3_costs::measure(bed).await?;
        let info = bed.store.info();
        Ok(Measured {
            kind: info.kind,
            url: info.url.clone(),
            ttl_ms: bed.ttl.as_millis() as u64,
            rows,
            rest,
            requests,
        })
    }
}

impl Bed {
    async fn open(url: String) -> Result<Self, Exit> {
        if url.starts_with("memory:") {
            return Err(Exit::usage(format!(
                "store {url:?} exists only within one process; use a store that processes share, such \
                 as sqlite:PATH"
            )));
        }
        let opened = within("opening the store", tenure_store::open(&url)).await?;
        let store = opened.map_err(bad_store)?;
        let name = format!("bench-{:08x}", random_id() as u32);
        Ok(Self {
            url,
            ttl: store.info().min_ttl.max(SHORTEST_TTL),
            store,
            bare: ClusterName::new(format!("{name}-calls"))?,
            busy: ClusterName::new(format!("{name}-busy"))?,
            calm: ClusterName::new(format!("{name}-calm"))?,
            paid: s3_costs::clusters(&name)?,
        })
    }

    /// Removes all that the run wrote. Nodes that were interrupted may still write: looked at until nothing is there.
    async fn clean(&self) -> Result<(), Exit> {
        for cluster in [&self.bare, &self.busy, &self.calm]
            .into_iter()
            .chain(&self.paid)
        {
            let mut left = true;
            for _ in 0..5 {
                let listing =
                    within("listing records", self.store.list(&prefix(cluster))).await??;
                left = !listing.entries.is_empty();
                if !left {
                    break;
                }
                let entries = listing.entries.into_iter();
                let deletes = entries.map(|e| DeleteIf::new(e.key, e.version)).collect();
                for answer in within("deleting records", self.store.delete_many(deletes)).await? {
                    answer?;
                }
            }
            if left {
                return Err(Exit::failed(format!(
                    "keys of this run may be left in store {}; delete them with: tenure cluster delete {cluster} --yes",
                    self.store.info().url
                )));
            }
        }
        Ok(())
    }
}

impl Report {
    fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        self.machine.print(out)?;
        writeln!(out, "median of {} (lowest – highest)", self.repeat)?;
        for store in &self.stores {
            writeln!(
                out,
                "\n{} (nodes with a ttl of {} ms)\n",
                store.url, store.ttl_ms
            )?;
            print_rows(&store.rows, out)?;
            store.rest.print(out)?;
            if let Some(requests) = &store.requests {
                requests.print(out)?;
            }
        }
        Ok(())
    }
}
