//! The node process that the benchmarks start, kill and stop.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use tenure::{Hashed, Node, Result, Shard};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Exit;
use crate::store_access::random_id;

/// The keyspace that benchmarks use.
pub(crate) const KEYSPACE: &str = "bench";
/// The cluster that benchmarks use.
pub(crate) const CLUSTER: &str = "bench";

/// A node with shards that hold nothing.
#[derive(Debug, Args)]
pub(crate) struct BenchNode {
    #[arg(long)]
    database: PathBuf,
    #[arg(long)]
    name: String,
    #[arg(long)]
    shards: u32,
    #[arg(long)]
    ttl_ms: u64,
}

/// Handler that does nothing when it gets or loses a shard.
pub(crate) struct NoopHandler;

impl tenure::Handler for NoopHandler {
    type State = ();

    async fn load(&self, _shard: &Shard) -> Result<()> {
        Ok(())
    }
}

impl BenchNode {
    pub(crate) async fn run(self) -> Result<ExitCode, Exit> {
        let failed = |e: &dyn std::fmt::Display| Exit::failed(e.to_string());
        let mut stop = signal(SignalKind::terminate()).map_err(|e| failed(&e))?;
        let node = Node::builder(format!("sqlite:{}", self.database.display()), CLUSTER)
            .name(&self.name)
            .ttl(Duration::from_millis(self.ttl_ms))
            .keyspace(KEYSPACE, Hashed(self.shards), NoopHandler)
            .start()
            .await
            .map_err(|e| failed(&e))?;
        stop.recv().await;
        node.stop().await.map_err(|e| failed(&e))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A node process that ends with its handle.
pub(crate) struct Worker(pub(super) Child);

impl Worker {
    pub(crate) fn start(
        database: &Path,
        name: &str,
        shards: u32,
        ttl: Duration,
    ) -> Result<Self, Exit> {
        let exe = std::env::current_exe()
            .map_err(|e| Exit::failed(format!("the path of this program cannot be read: {e}")))?;
        let child = Command::new(exe)
            .arg("__node")
            .arg("--database")
            .arg(database)
            .args([
                "--name",
                name,
                "--shards",
                &shards.to_string(),
                "--ttl-ms",
                &ttl.as_millis().to_string(),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| Exit::failed(format!("a node process cannot be started: {e}")))?;
        Ok(Self(child))
    }

    /// Asks the process to stop in good order.
    pub(crate) fn terminate(&self) {
        let pid = i32::try_from(self.0.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }

    /// Ends the process without warning.
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
    }

    /// Processor time that the process has used so far.
    pub(crate) fn cpu(&self) -> Duration {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks: u64 = after_name
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|n| n.parse::<u64>().ok())
            .sum();
        // USER_HZ is 100 on every Linux that we build for.
        Duration::from_millis(ticks * 10)
    }

    /// Memory that the process has resident, in MiB.
    pub(crate) fn resident_mib(&self) -> f64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix("VmRSS:"))
            .unwrap_or("0");
        line.split_whitespace()
            .next()
            .and_then(|n| n.parse::<f64>().ok())
            .unwrap_or(0.0)
            / 1024.0
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory for one measurement, removed with its handle.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Result<Self, Exit> {
        let unique = format!("tenure-bench-{:016x}", random_id() as u64);
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir(&path).map_err(|e| {
            Exit::failed(format!(
                "directory {} cannot be created: {e}",
                path.display()
            ))
        })?;
        Ok(Self(path))
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.0.join("bench.db")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
