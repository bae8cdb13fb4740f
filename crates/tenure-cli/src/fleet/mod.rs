//! Routers, sidecars and the example application on this machine, as processes, for `up` and `bench restarts`.

mod journal;
pub(crate) mod load;

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, kill_process_group};

use crate::exit::Exit;
use crate::supervise::myself;
pub(crate) use journal::Journal;

/// How long a process may take to begin, or to end once it was asked to.
const TIMEOUT: Duration = Duration::from_secs(60);

const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) store: String,
    pub(crate) cluster: String,
    pub(crate) dir: PathBuf,
    pub(crate) shards: u32,
    /// Whether the application loads while the last owner still serves, and how long a load takes.
    pub(crate) warm: bool,
    pub(crate) load_time: Duration,
    /// How many requests a router holds.
    pub(crate) hold: u64,
    pub(crate) ttl: Option<Duration>,
}

/// One process. It dies with this one, and when dropped.
pub(crate) struct Proc {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    child: Child,
}

impl Site {
    /// Where the application keeps what it was told.
    pub(crate) fn journals(&self) -> PathBuf {
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
    pub(crate) fn node(&self, name: &str) -> Result<Proc, Exit> {
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
        let me = std::env::current_exe().map_err(|e| not_begun(name, &e.to_string()))?;
        let load = format!("{}ms", self.load_time.as_millis());
        let journals = self.journals().to_string_lossy().into_owned();
        let me = me.to_string_lossy().into_owned();
        args.extend(
            [
                "--",
                &me,
                "__app",
                &app.to_string(),
                &journals,
                "--load",
                &load,
            ]
            .map(String::from),
        );
        Proc::start(name, &args)
    }

    /// Starts a router; returns when it knows everything.
    pub(crate) fn router(&self, name: &str) -> Result<Proc, Exit> {
        self.router_at(name, ANY_PORT)
    }

    /// Starts a router where clients look for it.
    pub(crate) fn router_at(&self, name: &str, listen: SocketAddr) -> Result<Proc, Exit> {
        let mut args = self.command("router", name, listen);
        args.extend(["--hold-max-requests".to_owned(), self.hold.to_string()]);
        Proc::start(name, &args)
    }
}

impl Proc {
    fn start(name: &str, args: &[String]) -> Result<Self, Exit> {
        let me = std::env::current_exe().map_err(|e| not_begun(name, &e.to_string()))?;
        let mut command = myself();
        command
            .arg("__reaper")
            .arg(format!("--parent={}", getpid().as_raw_nonzero()))
            .arg("--")
            .arg(me)
            .args(args)
            .process_group(0)
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

    /// Its process, for people who want to kill it.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end; kills it if that does not come.
    pub(crate) async fn ended(&mut self) {
        let until = Instant::now() + TIMEOUT;
        while !self.is_over() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        if !self.is_over() {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

pub(crate) fn free_port() -> Result<SocketAddr, Exit> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    bound.map_err(|e| Exit::failed(format!("no free port was found on 127.0.0.1: {e}")))
}

fn not_begun(name: &str, reason: &str) -> Exit {
    Exit::failed(format!("{name} did not start: {reason}"))
}
