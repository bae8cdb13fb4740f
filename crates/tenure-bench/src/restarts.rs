//! `tenure-bench restarts`: requests under a rolling restart, beside the same load without one, and with parts of the protocol off.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::Signal;
use serde::Serialize;

use super::program::TenureProgram;
use super::{Machine, put_out};
use crate::exit::Exit;
use tenure_fleet::load::Load;
use tenure_fleet::{FleetProcess, FleetSettings, Journal};

const KEYS: u32 = 100;

/// Measure rolling restarts of sidecars under constant load through two routers
#[derive(Debug, Args)]
#[command(
    after_help = "Variants, run one after the other, each in a new cluster:\n  \
    none          no restart (baseline)\n  \
    kill          kill and restart every node\n  \
    drain         stop every node cleanly; routers hold almost no requests\n  \
    drain+hold    routers hold requests; the target loads a shard after it owns it\n  \
    drain+hold+load  the target loads a shard before it owns it\n\n\
    Examples:\n  tenure-bench restarts\n  tenure-bench restarts --requests 1000000 --rate 2000 --variant none --variant drain+hold+load"
)]
pub(crate) struct RestartsBench {
    /// Number of requests of each variant
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..))]
    requests: u64,
    /// Requests per second
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Number of nodes
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=20))]
    nodes: u32,
    /// Simulated time to load a shard, in milliseconds
    #[arg(long, default_value_t = 200, value_name = "MS")]
    load_ms: u64,
    /// Restart variant to measure; repeatable; default: all
    #[arg(long, value_name = "VARIANT", value_parser = RestartVariant::parse)]
    variant: Vec<RestartVariant>,
    #[command(flatten)]
    program: TenureProgram,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum RestartVariant {
    #[serde(rename = "none")]
    None,
    #[serde(rename = "kill")]
    Kill,
    #[serde(rename = "drain")]
    Drain,
    #[serde(rename = "drain+hold")]
    DrainHold,
    #[serde(rename = "drain+hold+load")]
    DrainHoldLoad,
}

impl RestartVariant {
    const ALL: [(&'static str, Self); 5] = [
        ("none", Self::None),
        ("kill", Self::Kill),
        ("drain", Self::Drain),
        ("drain+hold", Self::DrainHold),
        ("drain+hold+load", Self::DrainHoldLoad),
    ];

    fn parse(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        let names = Self::ALL.map(|(name, _)| name).join(", ");
        found
            .map(|f| f.1)
            .ok_or(format!("unknown variant {text:?}; use one of: {names}"))
    }

    fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, variant)| *variant == self)
            .map_or("", |f| f.0)
    }
}

/// Result of one variant.
#[derive(Debug, Serialize)]
struct Outcome {
    variant: RestartVariant,
    requests: u64,
    failed: u64,
    lost: u64,
    out_of_order: u64,
    restarts: u32,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    longest_ms: f64,
    /// The longest time for which a key got no good answer.
    longest_gap_ms: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    rate: u32,
    nodes: u32,
    load_ms: u64,
    variants: Vec<Outcome>,
}

impl RestartsBench {
    pub(crate) async fn run(self) -> Result<ExitCode, Exit> {
        let machine = Machine::this();
        machine.warn();
        let variants = match self.variant.is_empty() {
            true => RestartVariant::ALL.map(|(_, variant)| variant).to_vec(),
            false => self.variant.clone(),
        };
        let mut outcomes = Vec::new();
        for variant in variants {
            eprintln!("measuring {} …", variant.name());
            outcomes.push(self.measure(variant).await?);
        }
        let report = Report {
            machine,
            rate: self.rate,
            nodes: self.nodes,
            load_ms: self.load_ms,
            variants: outcomes,
        };
        put_out(self.json, &report, |out| report.print(out))
    }

    async fn measure(&self, variant: RestartVariant) -> Result<Outcome, Exit> {
        let dir = tempfile::tempdir()
            .map_err(|e| Exit::failed(format!("a temporary directory cannot be created: {e}")))?;
        let site = FleetSettings {
            program: self.program.path()?,
            store: format!("sqlite:{}", dir.path().join("tenure.db").display()),
            cluster: "bench".to_owned(),
            dir: dir.path().to_owned(),
            shards: self.nodes * 8,
            warm: matches!(
                variant,
                RestartVariant::None | RestartVariant::DrainHoldLoad
            ),
            load_time: Duration::from_millis(self.load_ms),
            hold: if matches!(variant, RestartVariant::Kill | RestartVariant::Drain) {
                1
            } else {
                100_000
            },
            // Long: what is measured is restarts, not a machine that is busy.
            ttl: Some(Duration::from_secs(10)),
        };
        let names: Vec<String> = (1..=self.nodes).map(|n| format!("n{n}")).collect();
        let nodes: Result<Vec<FleetProcess>, Exit> = names.iter().map(|n| site.node(n)).collect();
        let mut nodes = nodes?;
        let routers = [site.router("r1")?, site.router("r2")?];
        let at = routers.each_ref().map(|r| r.address);
        self.warm_up(&at).await;
        let pace = Duration::from_secs_f64(f64::from(KEYS) / f64::from(self.rate));
        let most = self.requests / u64::from(KEYS);
        // Not before everybody has what it should have: the moves of the beginning are not what is measured.
        let load = Load::begin(&at, KEYS as usize, pace, most);
        let mut restarts = 0;
        while variant != RestartVariant::None && !load.is_over() {
            let at = restarts as usize % nodes.len();
            let (name, node) = (&names[at], &mut nodes[at]);
            let rest = Instant::now() + Duration::from_secs(2);
            node.signal(if variant == RestartVariant::Kill {
                Signal::KILL
            } else {
                Signal::TERM
            });
            node.ended().await;
            *node = site.node(name)?;
            restarts += 1;
            // Half of the time all are up; the last round is begun only if it can end before the load does.
            tokio::time::sleep_until(rest.into()).await;
            let left = most * u64::from(KEYS) - load.tally().answered;
            if restarts >= self.nodes && left < u64::from(self.rate) * 10 {
                break;
            }
        }
        let tally = load.end(false).await;
        let journal = Journal::read(&site.journals());
        let journal =
            journal.map_err(|e| Exit::failed(format!("the journals cannot be read: {e}")))?;
        let keys: Vec<String> = (0..KEYS).map(|k| format!("k{k}")).collect();
        let good = tally.good.iter().map(|(key, n)| (keys[key].as_str(), n));
        let [p50, p99, p999, longest] = tally.percentiles([500, 990, 999, 1000]).map(ms);
        Ok(Outcome {
            variant,
            requests: tally.answered,
            failed: tally.failed,
            lost: journal.lost(good),
            out_of_order: journal.out_of_order(),
            restarts,
            p50_ms: p50,
            p99_ms: p99,
            p999_ms: p999,
            longest_ms: longest,
            longest_gap_ms: ms(tally.longest_gap),
        })
    }

    /// Waits until answers come from all nodes.
    async fn warm_up(&self, at: &[std::net::SocketAddr]) {
        let load = Load::begin_about(
            "warm",
            at,
            KEYS as usize,
            Duration::from_millis(200),
            u64::MAX >> 1,
        );
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let nodes = std::mem::take(&mut load.tally().by_node);
            if nodes.len() >= self.nodes as usize {
                break;
            }
        }
        load.end(true).await;
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Report {
    fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        self.machine.print(out)?;
        writeln!(
            out,
            "{} nodes, 2 routers, {} requests a second, a load takes {} ms\n",
            self.nodes, self.rate, self.load_ms
        )?;
        writeln!(
            out,
            "{:<16} {:>8} {:>8} {:>8} {:>5} {:>6} {:>9} {:>9} {:>9} {:>9} {:>11}",
            "variant",
            "requests",
            "restarts",
            "failed %",
            "lost",
            "order",
            "p50 ms",
            "p99 ms",
            "p99.9 ms",
            "longest",
            "longest gap"
        )?;
        for o in &self.variants {
            writeln!(
                out,
                "{:<16} {:>8} {:>8} {:>8.3} {:>5} {:>6} {:>9.1} {:>9.1} {:>9.1} {:>9.0} {:>11.0}",
                o.variant.name(),
                o.requests,
                o.restarts,
                o.failed as f64 * 100.0 / o.requests.max(1) as f64,
                o.lost,
                o.out_of_order,
                o.p50_ms,
                o.p99_ms,
                o.p999_ms,
                o.longest_ms,
                o.longest_gap_ms
            )?;
        }
        Ok(())
    }
}
