//! Time without answers of a shard while it moves: from the record that freezes it to the first answer of its new owner, as
//! a client behind a router sees it.
//!
//! A node joins and leaves, again and again; clients keep asking for every shard. The freezing record is taken to be there
//! when a watch brings it, as it does to the router: the client of that shard then asks at once, is held, and is answered
//! when the move is over. Bare conditional writes of the same store are measured in turn with the moves.

mod scenario;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tenure::{AssignedBy, Handler, Seal, Settings, Shard};
use tenure_core::ids::ClusterName;
use tenure_core::keys::prefix;
use tenure_store::{DeleteIf, Put, PutIf};

use super::{MovesBench, Steal, millis, shown};
use crate::duration;
use crate::exit::Exit;
use crate::store_access::{bad_store, random_id, within};
use crate::table::{Table, WIDTH};
use scenario::{Pause, ScenarioSetup, UnavailabilityScenario};

/// Rounds of loads that take longer than this are not repeated.
const LONG: Duration = Duration::from_secs(1);
/// Bare writes that are measured with each round.
const PUTS: usize = 20;

/// An application that takes its time to load, and can load while another node serves.
pub(crate) struct Loads(pub(super) Duration);

impl Handler for Loads {
    type State = ();
    const CATCHES_UP: bool = true;

    async fn load(&self, _: &Shard) -> tenure::Result<()> {
        tokio::time::sleep(self.0).await;
        Ok(())
    }

    async fn seal(&self, _: &Shard, _: &mut ()) -> tenure::Result<Seal> {
        Ok(Seal::default())
    }
}

/// One store's figures.
#[derive(Debug, Serialize)]
pub(crate) struct Store {
    kind: &'static str,
    url: String,
    blackouts: Vec<Blackout>,
}

#[derive(Debug, Serialize)]
struct Blackout {
    assigned_by: AssignedBy,
    shards: u32,
    load_ms: f64,
    moves: usize,
    requests: u64,
    failed: u64,
    p50_ms: f64,
    p99_ms: f64,
    longest_ms: f64,
    put_p50_ms: f64,
    put_p99_ms: f64,
    /// The p50 as a multiple of that of a bare write, and the same of the p99.
    ratio_p50: f64,
    ratio_p99: f64,
    /// Where the pause went, in the middle: the router's word and the seal; the take; the answer.
    sealing_ms: f64,
    taking_ms: f64,
    answering_ms: f64,
    /// Time that the host gave to others meanwhile.
    steal_percent: f64,
}

pub(crate) async fn measure(url: String, bench: &MovesBench) -> Result<Store, Exit> {
    let shared = !url.starts_with("memory:");
    let opened = within("opening the store", tenure_store::open(&url)).await?;
    let store = opened.map_err(bad_store)?;
    let info = store.info();
    let mut measured = Store {
        kind: info.kind,
        url: info.url.clone(),
        blackouts: Vec::new(),
    };
    let modes = bench.assigned_by.iter();
    for (&mode, &load) in modes.flat_map(|mode| bench.load.iter().map(move |load| (mode, load))) {
        let name = info.url.as_str();
        eprintln!(
            "moving shards on {name}, assigned by {mode}, loads of {} …",
            duration::show(load)
        );
        let cluster = ClusterName::new(format!("bench-{:08x}", random_id() as u32))?;
        let figures = tokio::select! {
            figures = one(&store, &url, &cluster, mode, load, bench) => figures,
            _ = tokio::signal::ctrl_c() => Err(Exit::failed("benchmark interrupted; it deletes the keys that it wrote in the store")),
        };
        let cleaned = match shared {
            true => clean(&store, &cluster).await,
            false => Ok(()),
        };
        measured.blackouts.push(figures?);
        cleaned?;
    }
    Ok(measured)
}

async fn one(
    store: &Arc<dyn tenure_store::Store>,
    url: &str,
    cluster: &ClusterName,
    assigned_by: AssignedBy,
    load: Duration,
    bench: &MovesBench,
) -> Result<Blackout, Exit> {
    let rounds = if load >= LONG { 1 } else { bench.repeat };
    let settings = Settings {
        ttl: store.info().min_ttl.max(Duration::from_secs(3)),
        drain_timeout: Duration::from_secs(10) + load * 2,
        load_timeout: Duration::from_secs(60) + load * 2,
        ..Settings::default()
    };
    let cast = ScenarioSetup {
        url: url.to_owned(),
        cluster: cluster.clone(),
        settings,
        load,
        shards: bench.shards,
        assigned_by,
        traces: bench.trace.clone(),
    };
    let steal = Steal::now();
    let mut play = UnavailabilityScenario::begin(store.clone(), cast).await?;
    let (mut pauses, mut puts) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        pauses.extend(play.round().await?);
        puts.extend(bare_puts(&**store, cluster).await?);
    }
    let (requests, failed) = play.end().await?;
    if pauses.is_empty() {
        return Err(Exit::failed("no shard moved; raise --shards or --repeat"));
    }
    let each = |part: fn(&Pause) -> Duration| pauses.iter().map(part).collect::<Vec<_>>();
    let middle = |part| spread(&mut each(part)).0;
    let (b50, b99, longest) = spread(&mut each(|p| p.whole));
    let (p50, p99, _) = spread(&mut puts);
    Ok(Blackout {
        assigned_by,
        shards: bench.shards,
        load_ms: millis(load),
        moves: pauses.len(),
        requests,
        failed,
        p50_ms: b50,
        p99_ms: b99,
        longest_ms: longest,
        put_p50_ms: p50,
        put_p99_ms: p99,
        ratio_p50: b50 / p50,
        ratio_p99: b99 / p99,
        sealing_ms: middle(|p| p.sealing),
        taking_ms: middle(|p| p.taking),
        answering_ms: middle(|p| p.answering),
        steal_percent: steal.percent_since(),
    })
}

/// Milliseconds: the middle, that below which 99 of 100 are, and the longest.
fn spread(all: &mut [Duration]) -> (f64, f64, f64) {
    all.sort();
    let at = |permille: usize| {
        let last = all.len().saturating_sub(1);
        millis(all[(all.len() * permille / 1000).min(last)])
    };
    (at(500), at(990), at(1000))
}

/// How long conditional writes of a small value take, one after the other.
async fn bare_puts(
    store: &dyn tenure_store::Store,
    cluster: &ClusterName,
) -> Result<Vec<Duration>, Exit> {
    let key = format!("{}bare/{:08x}", prefix(cluster), random_id() as u32);
    let mut put = PutIf::create(key.clone(), vec![b'x'; 400]);
    let mut took = Vec::new();
    for _ in 0..=PUTS {
        let begun = Instant::now();
        let Put::Won(version) = store.put_if(put).await? else {
            return Err(Exit::failed(format!(
                "another process writes to key {key} of the benchmark; stop that process, \
                or use another store"
            )));
        };
        took.push(begun.elapsed());
        put = PutIf::update(key.clone(), vec![b'x'; 400], version);
    }
    // The first one creates the key.
    Ok(took.split_off(1))
}

/// Removes all that the run wrote.
pub(crate) async fn clean(
    store: &Arc<dyn tenure_store::Store>,
    cluster: &ClusterName,
) -> Result<(), Exit> {
    for _ in 0..5 {
        let listing = within("listing records", store.list(&prefix(cluster))).await??;
        if listing.entries.is_empty() {
            return Ok(());
        }
        let entries = listing.entries.into_iter();
        let deletes = entries.map(|e| DeleteIf::new(e.key, e.version)).collect();
        for answer in within("deleting records", store.delete_many(deletes)).await? {
            answer?;
        }
    }
    Err(Exit::failed(format!(
        "keys of this run may be left in store {}; delete them with: tenure cluster delete {cluster} --yes",
        store.info().url
    )))
}

impl Store {
    pub(crate) fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        writeln!(
            out,
            "\n{}: time from the freeze to the first response of the new owner, compared with one durable write\n",
            self.url
        )?;
        let mut table = Table::new(&[
            "ASSIGNED BY",
            "#LOAD ms",
            "#MOVES",
            "#p50 ms",
            "#p99 ms",
            "#max ms",
            "#PUT p50",
            "#PUT p99",
            "#×p50",
            "#×p99",
            "#FAILED",
            "#STEAL %",
        ]);
        for b in &self.blackouts {
            table.row(vec![
                b.assigned_by.to_string(),
                shown(b.load_ms),
                b.moves.to_string(),
                shown(b.p50_ms),
                shown(b.p99_ms),
                shown(b.longest_ms),
                shown(b.put_p50_ms),
                shown(b.put_p99_ms),
                shown(b.ratio_p50),
                shown(b.ratio_p99),
                format!("{}/{}", b.failed, b.requests),
                shown(b.steal_percent),
            ]);
        }
        write!(out, "{}", table.render(WIDTH))?;
        for b in &self.blackouts {
            writeln!(
                out,
                "{}, load {} ms, p50 of each step: freezing → sealed {} ms, sealed → taken {} ms, taken → first response {} ms",
                b.assigned_by,
                shown(b.load_ms),
                shown(b.sealing_ms),
                shown(b.taking_ms),
                shown(b.answering_ms)
            )?;
        }
        writeln!(
            out,
            "aim on etcd: ×p99 ≤ 5, the same for every load, none failed"
        )
    }
}
