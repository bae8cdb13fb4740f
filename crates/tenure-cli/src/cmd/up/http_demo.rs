//! `tenure up`: routers, sidecars and an application under constant load, to look at and to break.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure_fleet::load::Load;
use tenure_fleet::{FleetProcess, FleetSettings, Journal};
use tokio::task::JoinHandle;

use super::UpCommand;
use crate::cmd::exec::Signals;
use crate::config::Config;
use crate::exit::Exit;
use crate::stdout;

const ROUTERS: u32 = 2;
const KEYS: usize = 100;
/// A request for each key so often: 400 a second in all.
const PACE: Duration = Duration::from_millis(250);
const TICK: Duration = Duration::from_secs(1);
/// How long a node that has ended stays away.
const AWAY: Duration = Duration::from_secs(3);

/// A place for a process.
struct Seat {
    name: String,
    /// Where clients look for it, if it is a router.
    address: Option<SocketAddr>,
    state: State,
}

enum State {
    Runs(FleetProcess),
    /// It has ended, then.
    Away(Instant),
    Starts(JoinHandle<Result<FleetProcess, Exit>>),
}

impl Seat {
    /// Starts its process. That waits for what the process says: not on the thread that hears signals.
    fn start(&self, site: &FleetSettings, router: bool) -> JoinHandle<Result<FleetProcess, Exit>> {
        let (site, name, address) = (site.clone(), self.name.clone(), self.address);
        tokio::task::spawn_blocking(move || match (router, address) {
            (true, Some(address)) => site.router_at(&name, address),
            (true, None) => site.router(&name),
            (false, _) => site.node(&name),
        })
    }

    fn proc(&self) -> Option<&FleetProcess> {
        match &self.state {
            State::Runs(proc) => Some(proc),
            State::Away(_) | State::Starts(_) => None,
        }
    }

    /// Sees whether it has gone, and starts it again after a while; says so if something has changed.
    async fn look_after(&mut self, site: &FleetSettings) -> Option<String> {
        match &mut self.state {
            State::Runs(proc) => {
                if !proc.is_over() {
                    return None;
                }
                self.state = State::Away(Instant::now());
                Some(format!("{} exited; restarting in {AWAY:?}", self.name))
            }
            State::Away(since) => {
                if since.elapsed() >= AWAY {
                    self.state = State::Starts(self.start(site, self.address.is_some()));
                }
                None
            }
            State::Starts(start) => {
                if !start.is_finished() {
                    return None;
                }
                match start.await {
                    Ok(Ok(proc)) => {
                        let said = format!("{} restarted as process {}", self.name, proc.pid());
                        self.state = State::Runs(proc);
                        Some(said)
                    }
                    failed => {
                        self.state = State::Away(Instant::now());
                        let reason = failed.map_or_else(
                            |e| e.to_string(),
                            |f| match f {
                                Err(fail) => fail.to_string(),
                                Ok(_) => String::new(),
                            },
                        );
                        Some(format!("{reason}; retrying in {AWAY:?}"))
                    }
                }
            }
        }
    }
}

/// What is on screen: lines that stay, and on a terminal one that is renewed.
struct Screen {
    live: bool,
    standing: bool,
}

impl Screen {
    fn say(&mut self, line: &str) {
        let wipe = if std::mem::take(&mut self.standing) {
            "\x1b[1A\x1b[J"
        } else {
            ""
        };
        stdout::text(&format!("{wipe}{line}\n"));
    }

    fn picture(&mut self, line: &str) {
        self.say(line);
        self.standing = self.live;
    }
}

impl UpCommand {
    pub(super) async fn run_http(
        self,
        config: &Config,
        dir: PathBuf,
        signals: &mut Signals,
    ) -> Result<ExitCode, Exit> {
        let store = config.text("store").map(ToOwned::to_owned);
        let program = std::env::current_exe()
            .map_err(|e| Exit::failed(format!("the path of this program cannot be read: {e}")))?;
        let site = FleetSettings {
            program,
            store: store.unwrap_or_else(|| format!("sqlite:{}", dir.join("tenure.db").display())),
            cluster: config.text("cluster").unwrap_or("demo").to_owned(),
            dir,
            shards: self.shards,
            warm: true,
            load_time: Duration::from_millis(50),
            hold: 10_000,
            ttl: self.ttl,
        };
        let mut screen = Screen {
            live: std::io::stdout().is_terminal(),
            standing: false,
        };
        let Some(mut seats) = self.begin(&site, &mut screen, signals).await? else {
            return Ok(ExitCode::SUCCESS);
        };
        let routers: Vec<_> = seats.iter().filter_map(|seat| seat.address).collect();
        screen.say(&welcome(&site, &seats, &routers));
        let load = Load::begin(&routers, KEYS, PACE, u64::MAX >> 1);
        let until = tokio::time::sleep(self.time.unwrap_or(Duration::MAX / 4));
        tokio::pin!(until);
        let mut ticks = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                biased;
                () = signals.any() => break,
                () = &mut until => break,
                _ = ticks.tick() => {
                    for seat in &mut seats {
                        if let Some(change) = seat.look_after(&site).await {
                            screen.say(&change);
                        }
                    }
                    let line = picture(&load, &seats);
                    screen.picture(&line);
                }
            }
        }
        let tally = load.end(true).await;
        stop(seats).await;
        let journal = Journal::read(&site.journals());
        let journal =
            journal.map_err(|e| Exit::failed(format!("the journals cannot be read: {e}")))?;
        let names: Vec<String> = (0..KEYS).map(|k| format!("k{k}")).collect();
        let good = tally.good.iter().map(|(key, n)| (names[key].as_str(), n));
        let (lost, wrong) = (journal.lost(good), journal.out_of_order());
        screen.say(&format!(
            "{} requests, {} failed, {lost} acknowledged but lost, {wrong} out of order",
            tally.answered, tally.failed
        ));
        if tally.failed > 0 {
            screen.say(&format!("last failure: {}", tally.last_failure));
        }
        Ok(match lost + wrong {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }

    /// Starts everything, one after the other; nothing if somebody interrupts.
    async fn begin(
        &self,
        site: &FleetSettings,
        screen: &mut Screen,
        signals: &mut Signals,
    ) -> Result<Option<Vec<Seat>>, Exit> {
        let nodes = (1..=self.nodes).map(|n| (format!("n{n}"), false));
        let routers = (1..=ROUTERS).map(|n| (format!("r{n}"), true));
        let all = self.nodes + ROUTERS;
        let mut seats = Vec::new();
        for (name, is_router) in nodes.chain(routers) {
            screen.picture(&format!("starting {name}: {} of {all}", seats.len() + 1));
            let state = State::Away(Instant::now());
            let mut seat = Seat {
                name,
                address: None,
                state,
            };
            let proc = tokio::select! {
                biased;
                () = signals.any() => return Ok(None),
                started = seat.start(site, is_router) => {
                    started.map_err(|e| Exit::failed(format!("starting {} failed: {e}", seat.name)))??
                }
            };
            seat.address = is_router.then_some(proc.address);
            seat.state = State::Runs(proc);
            seats.push(seat);
        }
        Ok(Some(seats))
    }
}

/// Asks all to stop, and waits until they have.
async fn stop(mut seats: Vec<Seat>) {
    for proc in seats.iter().filter_map(Seat::proc) {
        proc.signal(Signal::TERM);
    }
    for seat in &mut seats {
        if let State::Runs(proc) = &mut seat.state {
            proc.ended().await;
        }
    }
}

fn picture(load: &Load, seats: &[Seat]) -> String {
    let mut tally = load.tally();
    // What the last second brought; the totals stay.
    let [p50, p99] = tally.percentiles([500, 990]);
    let second = tally.micros.len();
    tally.micros.clear();
    let by_node = std::mem::take(&mut tally.by_node);
    let nodes = seats
        .iter()
        .filter(|seat| seat.address.is_none())
        .map(|seat| {
            let count = by_node.get(&seat.name).copied().unwrap_or_default();
            format!("{} {count}", seat.name)
        });
    format!(
        "failed {}   {second}/s   p50 {:.1} ms   p99 {:.1} ms   responses by node: {}",
        tally.failed,
        p50.as_secs_f64() * 1e3,
        p99.as_secs_f64() * 1e3,
        nodes.collect::<Vec<_>>().join("  ")
    )
}

fn welcome(site: &FleetSettings, seats: &[Seat], routers: &[SocketAddr]) -> String {
    let procs = || seats.iter().filter_map(Seat::proc);
    let pids: Vec<String> = procs().map(|p| format!("{} {}", p.name, p.pid())).collect();
    let first = procs().next().map_or(0, FleetProcess::pid);
    let at = routers.first().map(ToString::to_string).unwrap_or_default();
    let me = std::env::current_exe().map_or("tenure".to_owned(), |path| path.display().to_string());
    format!(
        "{} shards, processes: {}\n\
         try, in another terminal:\n  \
         kill -- -{first}                 stop a node cleanly: no request fails; it restarts after 3s\n  \
         kill -9 -- -{first}              crash a node: its requests in flight fail, others are held for the next owner\n  \
         curl -i -H 'X-Key: k1' http://{at}/count\n  \
         {me} status --store {}\n\
         Ctrl-C stops the cluster\n",
        site.shards,
        pids.join(", "),
        site.store,
    )
}
