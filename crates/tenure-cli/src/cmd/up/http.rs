//! `tenure up --http`: routers, sidecars and an application under constant load, to look at and to break.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Up;
use crate::cmd::exec::Signals;
use crate::config::Config;
use crate::fail::Fail;
use crate::fleet::load::Load;
use crate::fleet::{Journal, Proc, Site};
use crate::out::line as say;

const ROUTERS: u32 = 2;
const KEYS: usize = 100;
/// A request for each key so often: 400 a second in all.
const PACE: Duration = Duration::from_millis(250);
const TICK: Duration = Duration::from_secs(1);
/// How long a node that has ended stays away.
const AWAY: Duration = Duration::from_secs(3);

/// A place for a node, and since when it is empty.
struct Seat {
    name: String,
    node: Option<Proc>,
    left: Instant,
}

impl Up {
    pub(super) async fn run_http(
        self,
        config: &Config,
        dir: PathBuf,
        signals: &mut Signals,
    ) -> Result<ExitCode, Fail> {
        if self.trace.is_some() {
            return Err(Fail::bad(
                "--trace is for nodes that work themselves; leave out --http",
            ));
        }
        let store = config.text("store").map(ToOwned::to_owned);
        let site = Site {
            store: store.unwrap_or_else(|| format!("sqlite:{}", dir.join("tenure.db").display())),
            cluster: config.text("cluster").unwrap_or("demo").to_owned(),
            dir,
            shards: self.shards,
            warm: true,
            load_time: Duration::from_millis(50),
            hold: 10_000,
            ttl: self.ttl,
        };
        let mut seats = Vec::new();
        for n in 1..=self.nodes {
            let name = format!("n{n}");
            let node = Some(site.node(&name)?);
            let left = Instant::now();
            seats.push(Seat { name, node, left });
        }
        let routers: Result<Vec<Proc>, Fail> = (1..=ROUTERS)
            .map(|n| site.router(&format!("r{n}")))
            .collect();
        let mut routers = routers?;
        say(welcome(&site, &seats, &routers));
        let at: Vec<_> = routers.iter().map(|r| r.address).collect();
        let load = Load::begin(&at, KEYS, PACE, u64::MAX >> 1);
        let until = tokio::time::sleep(self.time.unwrap_or(Duration::MAX / 4));
        tokio::pin!(until);
        let mut ticks = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                biased;
                () = signals.any() => break,
                () = &mut until => break,
                _ = ticks.tick() => {
                    look_after(&site, &mut seats)?;
                    say(picture(&load, &seats));
                }
            }
        }
        let tally = load.end(true).await;
        for proc in seats
            .iter_mut()
            .filter_map(|s| s.node.as_mut())
            .chain(&mut routers)
        {
            proc.signal(Signal::TERM);
        }
        for proc in seats
            .iter_mut()
            .filter_map(|s| s.node.as_mut())
            .chain(&mut routers)
        {
            proc.ended().await;
        }
        let journal = Journal::read(&site.journals());
        let journal = journal.map_err(|e| Fail::no(format!("the journals cannot be read: {e}")))?;
        let names: Vec<String> = (0..KEYS).map(|k| format!("k{k}")).collect();
        let good = tally.good.iter().map(|(key, n)| (names[*key].as_str(), *n));
        let (lost, wrong) = (journal.lost(good), journal.out_of_order());
        say(format!(
            "{} requests, {} failed, {lost} answered and lost, {wrong} out of order",
            tally.answered, tally.failed
        ));
        if tally.failed > 0 {
            say(format!("the last that failed: {}", tally.last_failure));
        }
        Ok(match lost + wrong {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}

/// Sees who has gone, and starts them again after a while.
fn look_after(site: &Site, seats: &mut [Seat]) -> Result<(), Fail> {
    for seat in seats {
        if seat.node.as_mut().is_some_and(Proc::is_over) {
            say(format!(
                "{} has ended; it comes back in {AWAY:?}",
                seat.name
            ));
            (seat.node, seat.left) = (None, Instant::now());
        } else if seat.node.is_none() && seat.left.elapsed() >= AWAY {
            let node = seat.node.insert(site.node(&seat.name)?);
            say(format!("{} is back: {}", seat.name, node.pid()));
        }
    }
    Ok(())
}

fn picture(load: &Load, seats: &[Seat]) -> String {
    let mut tally = load.tally();
    // What the last second brought; the totals stay.
    let [p50, p99] = tally.percentiles([500, 990]);
    let second = tally.micros.len();
    tally.micros.clear();
    let by_node = std::mem::take(&mut tally.by_node);
    let nodes = seats.iter().map(|seat| {
        let count = by_node.get(&seat.name).copied().unwrap_or_default();
        format!("{} {count}", seat.name)
    });
    format!(
        "failed {}   {second}/s   p50 {:.1} ms   p99 {:.1} ms   answered by: {}",
        tally.failed,
        p50.as_secs_f64() * 1e3,
        p99.as_secs_f64() * 1e3,
        nodes.collect::<Vec<_>>().join("  ")
    )
}

fn welcome(site: &Site, seats: &[Seat], routers: &[Proc]) -> String {
    let pids = seats.iter().filter_map(|s| s.node.as_ref());
    let pids: Vec<String> = pids.map(|n| format!("{} {}", n.name, n.pid())).collect();
    let first = seats
        .iter()
        .find_map(|s| s.node.as_ref())
        .map_or(0, Proc::pid);
    let at = routers
        .first()
        .map(|r| r.address.to_string())
        .unwrap_or_default();
    let me = std::env::current_exe().map_or("tenure".to_owned(), |path| path.display().to_string());
    format!(
        "{} shards, processes: {}\n\
         try, in another terminal:\n  \
         kill -- -{first}                 a node stops in good order: no request fails; it comes back after a while\n  \
         kill -9 -- -{first}              a node dies: what it had under way fails, the rest waits for the next owner\n  \
         curl -i -H 'X-Key: k1' http://{at}/count\n  \
         {me} status --store {}\n\
         Ctrl-C ends it\n",
        site.shards,
        pids.join(", "),
        site.store,
    )
}
