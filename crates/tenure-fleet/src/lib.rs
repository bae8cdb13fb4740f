//! Routers, sidecars and the example application as processes of this machine, with load and a journal.
//!
//! `tenure up` shows them, and `tenure-bench` measures them.

mod journal;
pub mod load;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

pub use journal::Journal;
use tenure_console::exit::Exit;

/// Longest duration of the start or the end of a process.
const TIMEOUT: Duration = Duration::from_secs(60);

const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Settings of the processes of one cluster.
#[derive(Clone, Debug)]
pub struct FleetSettings {
    /// The `tenure` program.
    pub program: PathBuf,
    /// Store URL.
    pub store: String,
    /// Name of the cluster.
    pub cluster: String,
    /// Directory of data directories and journals.
    pub dir: PathBuf,
    /// Number of shards.
    pub shards: u32,
    /// Whether the target of a move loads a shard while the owner still serves it.
    pub warm: bool,
    /// Simulated duration of a load.
    pub load_time: Duration,
    /// Maximum number of requests that a router holds.
    pub hold: u64,
    /// Time to live of leases; the store's default if `None`.
    pub ttl: Option<Duration>,
}

/// One process, which dies with this one and when dropped.
pub struct FleetProcess {
    /// Name of the node or router.
    pub name: String,
    /// Address that the process listens at.
    pub address: SocketAddr,
    child: Child,
}

impl FleetSettings {
    /// Directory of the application's journals.
    pub fn journals(&self) -> PathBuf {
        self.dir.join("journals")
    }

    fn command(&self, role: &str, name: &str, listen: SocketAddr) -> Vec<String> {
        let listen = listen.to_string();
        let mut args = ["--store", &self.store, "--cluster", &self.cluster, role]
            .map(String::from)
            .to_vec();
        args.extend(["--node", name, "--listen", &listen, "--keyspace", "demo"].map(String::from));
        args.extend(["--key-from", "header:X-Key"].map(String::from));
        if let Some(ttl) = self.ttl {
            args.extend(["--ttl".to_owned(), format!("{}ms", ttl.as_millis())]);
        }
        args
    }

    /// Starts a sidecar with the example application behind it; returns when it serves.
    pub fn node(&self, name: &str) -> Result<FleetProcess, Exit> {
        let app = free_port()?;
        let mut args = self.command("sidecar", name, ANY_PORT);
        let data = self.dir.join(name).to_string_lossy().into_owned();
        let shards = self.shards.to_string();
        let (url, hooks) = (format!("http://{app}"), format!("http://{app}/hooks"));
        args.extend(
            [
                "--data-dir",
                &data,
                "--shards",
                &shards,
                "--app",
                &url,
                "--hooks",
                &hooks,
            ]
            .map(String::from),
        );
        args.extend(
            [
                "--set",
                "planning_settle_time=200ms",
                "--set",
                "rejoin_after=500ms",
                "--set",
                "cool_down=500ms",
            ]
            .map(String::from),
        );
        if self.warm {
            args.push("--warm".to_owned());
        }
        let load = format!("{}ms", self.load_time.as_millis());
        let journals = self.journals().to_string_lossy().into_owned();
        let program = self.program.to_string_lossy().into_owned();
        args.extend(
            [
                "--",
                &program,
                "__app",
                &app.to_string(),
                &journals,
                "--load",
                &load,
            ]
            .map(String::from),
        );
        FleetProcess::start(&self.program, name, &args)
    }

    /// Starts a router; returns when it serves.
    pub fn router(&self, name: &str) -> Result<FleetProcess, Exit> {
        self.router_at(name, ANY_PORT)
    }

    /// Starts a router that listens at a given address.
    pub fn router_at(&self, name: &str, listen: SocketAddr) -> Result<FleetProcess, Exit> {
        let mut args = self.command("router", name, listen);
        args.extend(["--hold-max-requests".to_owned(), self.hold.to_string()]);
        FleetProcess::start(&self.program, name, &args)
    }
}

impl FleetProcess {
    fn start(program: &Path, name: &str, args: &[String]) -> Result<Self, Exit> {
        let run = [program.as_os_str()]
            .into_iter()
            .chain(args.iter().map(OsStr::new));
        let mut command = tenure_exec::bound_command(program, run);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|e| not_begun(name, &e.to_string()))?;
        let (told, heard) = mpsc::channel();
        let lines = child.stderr.take().map(BufReader::new);
        // To its end, so that it never waits for somebody who reads what it says.
        std::thread::spawn(move || {
            for line in lines
                .into_iter()
                .flat_map(BufRead::lines)
                .map_while(Result::ok)
            {
                let _ = told.send(line);
            }
        });
        let mut proc = Self {
            name: name.to_owned(),
            address: ANY_PORT,
            child,
        };
        let until = Instant::now() + TIMEOUT;
        let mut last = "the process printed nothing".to_owned();
        while let Ok(line) = heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
            match line.strip_prefix("listening at http://").map(str::parse) {
                Some(Ok(address)) => {
                    proc.address = address;
                    return Ok(proc);
                }
                _ => last = line,
            }
        }
        Err(not_begun(name, &last))
    }

    /// Id of the process, which is also that of its process group.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process group.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// Returns whether the process has ended.
    pub fn is_over(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the end of the process, up to a minute.
    pub async fn ended(&mut self) {
        let until = Instant::now() + TIMEOUT;
        while !self.is_over() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for FleetProcess {
    fn drop(&mut self) {
        if !self.is_over() {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Address of a free port of the loopback interface.
pub fn free_port() -> Result<SocketAddr, Exit> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    bound.map_err(|e| Exit::failed(format!("no free port was found on 127.0.0.1: {e}")))
}

fn not_begun(name: &str, reason: &str) -> Exit {
    Exit::failed(format!("{name} did not start: {reason}"))
}
