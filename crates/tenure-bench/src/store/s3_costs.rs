//! Cost of idle nodes on a bucket, where every request is paid for.
//!
//! Real nodes run with a short ttl, each with its own store connection. The benchmark counts their requests and reports the number per
//! minute at the default ttl: all requests at rest, and the polls of the bucket, scale with the ttl. The baseline is a design with one
//! lease per shard, each renewed on its own.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tenure::{Hashed, Node};
use tenure_core::ids::ClusterName;
use tenure_core::keys::prefix;
use tenure_store::s3::{RequestCounts, S3Store};
use tenure_store::{PutIf, Store};
use tokio::task::JoinSet;

use super::Bed;
use super::calls::won;
use super::idle_requests::settled;
use crate::exit::Exit;
use crate::store_access::within;
use crate::worker::{KEYSPACE, NoopHandler};

/// US dollars per million requests: S3 Standard, us-east-1, by the price list.
const WRITES_AND_LISTS: f64 = 5.0;
const READS: f64 = 0.4;
const MINUTES_PER_MONTH: f64 = 30.0 * 24.0 * 60.0;
/// Renewals per ttl, by the defaults.
const RENEWALS: f64 = 6.0;
/// How many ttls pass from one slow look at everything to the next, by the defaults.
const TICK: u32 = 4;
/// What a list gives at a time.
const PAGE: f64 = 1000.0;

/// Nodes and shards; those that are too many for one machine are worked out instead.
const CASES: [(u32, u32, bool); 4] = [
    (1, 16, true),
    (16, 256, true),
    (17, 256, true),
    (50, 4096, false),
];

/// The costs of one store.
#[derive(Debug, Serialize)]
pub(crate) struct Costs {
    /// The ttl that the figures are told at.
    ttl_ms: u64,
    /// How often nodes look at the bucket then.
    poll_ms: u64,
    cases: Vec<Case>,
    /// One lease per shard, as it was measured with 16 shards: writes per minute.
    lease_per_shard_measured: f64,
}

#[derive(Debug, Serialize)]
struct Case {
    nodes: u32,
    shards: u32,
    /// Whether nodes ran, or it was worked out.
    measured: bool,
    per_minute: PerMinute,
    /// The same, worked out.
    expected: PerMinute,
    dollars_per_month: f64,
    /// One lease per shard: writes per minute, worked out.
    lease_per_shard: f64,
    lease_per_shard_dollars: f64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct PerMinute {
    puts: f64,
    lists: f64,
    gets: f64,
}

impl PerMinute {
    fn of(requests: RequestCounts, minutes: f64) -> Self {
        Self {
            puts: requests.puts as f64 / minutes,
            lists: requests.lists as f64 / minutes,
            gets: requests.gets as f64 / minutes,
        }
    }

    fn dollars_per_month(self) -> f64 {
        let each = (self.puts + self.lists) * WRITES_AND_LISTS + self.gets * READS;
        each * MINUTES_PER_MONTH / 1e6
    }

    /// Each node renews its lease, looks, and reads the renewals of the others; a slow look at everything comes on top.
    fn expected(nodes: u32, shards: u32, ttl: Duration, poll: Duration) -> Self {
        let (nodes, minute) = (f64::from(nodes), 60.0);
        let renewals = minute / ttl.as_secs_f64() * RENEWALS;
        // A shard each, a session and a name for each node, and three for all.
        let pages = ((f64::from(shards) + 2.0 * nodes + 3.0) / PAGE).ceil();
        let ticks = minute / (ttl * TICK).as_secs_f64();
        Self {
            puts: nodes * renewals,
            lists: nodes * pages * (minute / poll.as_secs_f64() + ticks),
            gets: nodes * ((nodes - 1.0) * renewals + ticks * 3.0),
        }
    }
}

/// Measures a bucket; nothing for other stores.
pub(crate) async fn measure(bed: &Bed) -> Result<Option<Costs>, Exit> {
    if bed.store.info().kind != "s3" {
        return Ok(None);
    }
    let ttl = bed.store.info().default_ttl;
    let poll = within("opening the store", S3Store::open_existing(&bed.url))
        .await??
        .poll_interval();
    let mut costs = Costs {
        ttl_ms: ttl.as_millis() as u64,
        poll_ms: poll.as_millis() as u64,
        cases: Vec::new(),
        lease_per_shard_measured: 0.0,
    };
    for ((nodes, shards, run), cluster) in CASES.into_iter().zip(&bed.paid) {
        let expected = PerMinute::expected(nodes, shards, ttl, poll);
        let per_minute = match run {
            true => run_nodes(bed, cluster, nodes, shards, (ttl, poll)).await?,
            false => expected,
        };
        let lease_per_shard = f64::from(shards) * 60.0 / ttl.as_secs_f64() * RENEWALS;
        costs.cases.push(Case {
            nodes,
            shards,
            measured: run,
            per_minute,
            expected,
            dollars_per_month: per_minute.dollars_per_month(),
            lease_per_shard,
            lease_per_shard_dollars: PerMinute {
                puts: lease_per_shard,
                ..PerMinute::default()
            }
            .dollars_per_month(),
        });
    }
    costs.lease_per_shard_measured = lease_per_shard(bed, ttl).await?;
    Ok(Some(costs))
}

/// The clusters that the nodes are in.
pub(crate) fn clusters(name: &str) -> Result<Vec<ClusterName>, Exit> {
    let named = |(nodes, shards, _): (u32, u32, bool)| {
        ClusterName::new(format!("{name}-{nodes}x{shards}")).map_err(Exit::from)
    };
    CASES.into_iter().map(named).collect()
}

async fn run_nodes(
    bed: &Bed,
    cluster: &ClusterName,
    count: u32,
    shards: u32,
    (told_ttl, told_poll): (Duration, Duration),
) -> Result<PerMinute, Exit> {
    // As short as one machine can take with so many nodes, each of which hears of all others.
    let ttl = Duration::from_secs(3) + Duration::from_millis(500) * count;
    let scale = ttl.div_duration_f64(told_ttl);
    let poll = told_poll.mul_f64(scale);
    let sign = if bed.url.contains('?') { '&' } else { '?' };
    let url = format!("{}{sign}poll={}ms", bed.url, poll.as_millis());
    eprintln!("counting the requests of {count} × {shards} …");
    let (mut stores, mut starting) = (Vec::new(), JoinSet::new());
    for n in 1..=count {
        let store = Arc::new(within("opening the store", S3Store::open(&url)).await??);
        stores.push(store.clone());
        let builder = Node::builder("", cluster.as_str())
            .store(store)
            .name(format!("n{n}"))
            .ttl(ttl)
            .keyspace(KEYSPACE, Hashed(shards), NoopHandler);
        starting.spawn(builder.start());
    }
    let mut nodes: Vec<Node> = Vec::new();
    while let Some(started) = starting.join_next().await {
        let started = started.map_err(|e| Exit::failed(e.to_string()))?;
        nodes.push(started.map_err(|e| Exit::failed(e.to_string()))?);
    }
    let asked = || {
        let each = stores.iter().map(|store| store.requests());
        each.fold(RequestCounts::default(), RequestCounts::and)
    };
    settled(&nodes, shards, ttl, || asked().puts).await?;
    let before = asked();
    tokio::time::sleep(ttl * TICK).await;
    let requests = asked().since(before);
    let minutes = (told_ttl * TICK).as_secs_f64() / 60.0;
    Ok(PerMinute::of(requests, minutes))
}

/// What others do: each shard has a lease of its own, and every lease is renewed. Writes per minute at this ttl.
async fn lease_per_shard(bed: &Bed, told_ttl: Duration) -> Result<f64, Exit> {
    let store = within("opening the store", S3Store::open_existing(&bed.url)).await??;
    let ttl = Duration::from_secs(3);
    let key = |n: u32| format!("{}leases/{n}", prefix(&bed.bare));
    let mut versions = Vec::new();
    for n in 0..CASES[0].1 {
        versions.push(won(store.put_if(PutIf::create(key(n), *b"{}")).await?)?);
    }
    let before = store.requests();
    for _ in 0..RENEWALS as u32 {
        tokio::time::sleep(ttl.div_f64(RENEWALS)).await;
        for (n, version) in (0..).zip(&mut versions) {
            let put = PutIf::update(key(n), *b"{}", version.clone());
            *version = won(store.put_if(put).await?)?;
        }
    }
    let puts = store.requests().since(before).puts;
    Ok(puts as f64 / told_ttl.as_secs_f64() * 60.0)
}

impl Costs {
    pub(crate) fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(
            out,
            "\n  requests per minute of all idle nodes, with a ttl of {} s and a poll every {} ms; ${WRITES_AND_LISTS} per \
             million PUT and LIST, ${READS} per million GET\n",
            self.ttl_ms / 1000,
            self.poll_ms
        )?;
        writeln!(
            out,
            "  {:>14}  {:>8} {:>8} {:>8}  {:>11}  {:>14} {:>11}",
            "nodes × shards", "PUT", "LIST", "GET", "$ per month", "lease per shard", "$ per month"
        )?;
        for case in &self.cases {
            let PerMinute { puts, lists, gets } = case.per_minute;
            writeln!(
                out,
                "  {:>14}  {puts:>8.0} {lists:>8.0} {gets:>8.0}  {:>11.2}  {:>14.0} {:>11.2}  {}",
                format!("{} × {}", case.nodes, case.shards),
                case.dollars_per_month,
                case.lease_per_shard,
                case.lease_per_shard_dollars,
                if case.measured {
                    "measured"
                } else {
                    "computed"
                },
            )?;
        }
        writeln!(
            out,
            "  the costs of a lease per shard are computed: one PUT per shard and renewal; with {} shards {:.0} were measured",
            CASES[0].1, self.lease_per_shard_measured
        )
    }
}
