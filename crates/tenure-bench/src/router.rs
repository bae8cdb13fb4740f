//! `tenure-bench router`: processor time of the router per request, beside nginx on the same upstream in the same run.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::program::TenureProgram;
use super::{Machine, put_out};
use crate::exit::Exit;
use tenure_fleet::load::Load;
use tenure_fleet::{FleetSettings, free_port};

/// What nginx is run with.
const NGINX: &str = include_str!("nginx.conf");
/// The kernel counts processor time in hundredths of a second.
const TICK: Duration = Duration::from_millis(10);
const TIMEOUT: Duration = Duration::from_secs(10);

/// Measure processor time per request and throughput of the router, compared with nginx
#[derive(Debug, Args)]
#[command(
    after_help = "Router and nginx forward all requests to one sidecar of an example application, over persistent connections, with one\n\
    worker per processor. nginx is found in PATH or by --nginx; without it only the router is measured.\n\n\
    Examples:\n  tenure-bench router\n  tenure-bench router --nginx /usr/sbin/nginx --time-ms 10000 --json"
)]
pub(crate) struct RouterBench {
    /// Number of concurrent requests
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Duration of each measurement, in milliseconds
    #[arg(long, default_value_t = 3000, value_name = "MS", value_parser = clap::value_parser!(u64).range(100..))]
    time_ms: u64,
    /// Number of repetitions, alternating between router and nginx
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// nginx program to compare with
    #[arg(long, value_name = "FILE")]
    nginx: Option<PathBuf>,
    #[command(flatten)]
    program: TenureProgram,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
struct Figures {
    who: &'static str,
    /// Of each repetition.
    cpu_us_per_request: Vec<f64>,
    requests_per_second: Vec<f64>,
    failed: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    clients: u32,
    time_ms: u64,
    figures: Vec<Figures>,
    /// The router's processor time per request as a multiple of nginx's; medians.
    cpu_ratio: Option<f64>,
}

impl RouterBench {
    pub(crate) async fn run(self) -> Result<ExitCode, Exit> {
        let machine = Machine::this();
        machine.warn();
        let dir = tempfile::tempdir()
            .map_err(|e| Exit::failed(format!("a temporary directory cannot be created: {e}")))?;
        let site = FleetSettings {
            program: self.program.path()?,
            store: format!("sqlite:{}", dir.path().join("tenure.db").display()),
            cluster: "bench".to_owned(),
            dir: dir.path().to_owned(),
            shards: 64,
            warm: false,
            load_time: Duration::ZERO,
            hold: 10_000,
            ttl: None,
        };
        let node = site.node("n1")?;
        let router = site.router("r1")?;
        let nginx = self.nginx(dir.path(), node.address, machine.cores).await?;
        let mut sides = vec![("router", router.pid(), router.address)];
        if let Some(nginx) = &nginx {
            sides.push(("nginx", nginx.0.id(), nginx.1));
        }
        let mut figures: Vec<Figures> = sides
            .iter()
            .map(|(who, ..)| Figures {
                who,
                ..Figures::default()
            })
            .collect();
        for round in 0..=self.repeat {
            for ((who, group, at), figures) in sides.iter().zip(&mut figures) {
                eprintln!("measuring {who} …");
                let (spent, before) = (processor_time(*group), Instant::now());
                let load =
                    Load::begin(&[*at], self.clients as usize, Duration::ZERO, u64::MAX >> 1);
                tokio::time::sleep(Duration::from_millis(self.time_ms)).await;
                let tally = load.end(true).await;
                let (spent, took) = (processor_time(*group) - spent, before.elapsed());
                // The first round opens connections.
                if round > 0 && tally.answered > 0 {
                    let each = spent.as_secs_f64() * 1e6 / tally.answered as f64;
                    figures.cpu_us_per_request.push(each);
                    figures
                        .requests_per_second
                        .push(tally.answered as f64 / took.as_secs_f64());
                }
                figures.failed += tally.failed;
            }
        }
        let cpu = |f: &Figures| median(&f.cpu_us_per_request);
        let report = Report {
            machine,
            clients: self.clients,
            time_ms: self.time_ms,
            cpu_ratio: figures.get(1).map(|nginx| cpu(&figures[0]) / cpu(nginx)),
            figures,
        };
        put_out(self.json, &report, |out| report.print(out))
    }

    /// nginx as a proxy to the gate; nothing if there is none.
    async fn nginx(
        &self,
        dir: &Path,
        upstream: SocketAddr,
        workers: usize,
    ) -> Result<Option<Nginx>, Exit> {
        let program = self.nginx.clone().unwrap_or_else(|| PathBuf::from("nginx"));
        let at = free_port()?;
        let config = NGINX
            .replace("WORKERS;", &format!("{workers};"))
            .replace("DIR/", &format!("{}/", dir.display()))
            .replace("LISTEN;", &format!("{at};"))
            .replace("UPSTREAM;", &format!("{upstream};"));
        let path = dir.join("nginx.conf");
        std::fs::write(&path, config)
            .map_err(|e| Exit::failed(format!("file {} cannot be written: {e}", path.display())))?;
        let started = Command::new(&program)
            .arg("-p")
            .arg(dir)
            .arg("-c")
            .arg(&path)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut nginx = match started {
            Ok(child) => Nginx(child, at),
            Err(error) if self.nginx.is_some() => {
                return Err(Exit::usage(format!(
                    "--nginx {}: the program cannot be started: {error}",
                    program.display()
                )));
            }
            Err(_) => {
                eprintln!("nginx is not in PATH; only the router is measured (pass --nginx FILE)");
                return Ok(None);
            }
        };
        let until = Instant::now() + TIMEOUT;
        while tokio::net::TcpStream::connect(at).await.is_err() {
            let over = !matches!(nginx.0.try_wait(), Ok(None));
            if over || Instant::now() >= until {
                return Err(Exit::failed(format!(
                    "{} does not accept connections",
                    program.display()
                )));
            }
            tokio::time::sleep(TICK).await;
        }
        Ok(Some(nginx))
    }
}

/// A running nginx. Ends when dropped.
struct Nginx(Child, SocketAddr);

impl Drop for Nginx {
    fn drop(&mut self) {
        use rustix::process::{Pid, Signal, kill_process_group};
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// What the processes of a group have spent so far.
fn processor_time(group: u32) -> Duration {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ticks = processes.filter_map(|process| {
        let text = std::fs::read_to_string(process.path().join("stat")).ok()?;
        // After the name, which may hold anything: state, parent, group, …, user and system time.
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        (number(2)? == u64::from(group)).then(|| {
            number(11)
                .zip(number(12))
                .map(|(user, system)| user + system)
        })?
    });
    TICK * u32::try_from(ticks.sum::<u64>()).unwrap_or(u32::MAX)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Report {
    fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        self.machine.print(out)?;
        writeln!(
            out,
            "{} concurrent requests, {} ms each; median of {} (lowest – highest)\n",
            self.clients,
            self.time_ms,
            self.figures
                .first()
                .map_or(0, |f| f.cpu_us_per_request.len())
        )?;
        for f in &self.figures {
            let spread = |values: &[f64]| {
                let low = values.iter().copied().fold(f64::INFINITY, f64::min);
                let high = values.iter().copied().fold(0.0, f64::max);
                format!("{:.1} ({low:.1} – {high:.1})", median(values))
            };
            writeln!(
                out,
                "{:<8} {} µs of processor time per request   {} requests/s   {} failed",
                f.who,
                spread(&f.cpu_us_per_request),
                spread(&f.requests_per_second),
                f.failed
            )?;
        }
        match self.cpu_ratio {
            Some(ratio) => writeln!(
                out,
                "\nthe router uses {ratio:.2} times the processor time of nginx"
            ),
            None => Ok(()),
        }
    }
}
