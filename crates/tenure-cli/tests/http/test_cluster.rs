//! A cluster of real processes in a temporary directory.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::client::Client;

/// For everything that should happen soon, on a machine that is busy.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Times that suit a test: shards come back soon. Leases last for long, so that a machine that is busy with other tests does
/// not cost anybody its shards.
pub(crate) const QUICK: [&str; 8] = [
    "--set",
    "planning_settle_time=100ms",
    "--set",
    "rejoin_after=100ms",
    "--set",
    "cool_down=100ms",
    "--ttl",
    "15s",
];

/// The same with a lease of this length, where it is to run out.
pub(crate) fn with_ttl(ttl: &'static str) -> [&'static str; 8] {
    let mut times = QUICK;
    times[7] = ttl;
    times
}

pub(crate) struct TestCluster {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) shards: u32,
}

/// A process of ours: killed when dropped.
pub(crate) struct Proc {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    log: Arc<Mutex<String>>,
    what: String,
}

impl TestCluster {
    pub(crate) fn new(shards: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("journals")).unwrap();
        Self { dir, shards }
    }

    /// A site whose keyspace has named shards.
    pub(crate) fn named() -> Self {
        Self::new(0)
    }

    fn kind(&self) -> Vec<String> {
        match self.shards {
            0 => vec!["--named".to_owned()],
            n => vec!["--shards".to_owned(), n.to_string()],
        }
    }

    pub(crate) fn journals(&self) -> PathBuf {
        self.dir.path().join("journals")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TENURE_") {
                command.env_remove(name);
            }
        }
        let store = format!("sqlite:{}", self.dir.path().join("store.db").display());
        command.args(["--store", &store, "--cluster", "shop"]);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command of the tool to its end.
    pub(crate) fn run(&self, args: &[&str]) -> (bool, String) {
        let output = self.command().args(args).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    /// A sidecar with the example application behind it.
    pub(crate) fn node(&self, name: &str, args: &[&str]) -> Proc {
        self.node_with(name, args, &[])
    }

    /// As [`Site::node`], with more for the application.
    pub(crate) fn node_with(&self, name: &str, args: &[&str], app: &[&str]) -> Proc {
        let at = free_port();
        let mut command = self.command();
        command
            .args(["sidecar", "--node", name, "--data-dir"])
            .arg(self.dir.path().join(name))
            .args(["--listen", ":0", "--keyspace", "orders"])
            .args(self.kind())
            .args([
                "--key-from",
                "header:X-Key",
                "--key-from",
                "shard-header:X-Shard",
            ])
            .args(["--app", &format!("http://{at}")])
            .args(["--hooks", &format!("http://{at}/hooks")])
            .args(args)
            .args(["--", env!("CARGO_BIN_EXE_tenure"), "__app"])
            .arg(at.to_string())
            .arg(self.journals())
            .args(app);
        Proc::start(command, name)
    }

    /// A sidecar of an application that is somewhere else.
    pub(crate) fn gate(&self, name: &str, app: &str, args: &[&str]) -> Proc {
        let mut command = self.command();
        let shards = self.shards.to_string();
        command
            .args(["sidecar", "--node", name, "--listen", ":0", "--app", app])
            .args(["--keyspace", "orders", "--shards", &shards])
            .args(["--key-from", "header:X-Key"])
            .args(args);
        Proc::start(command, name)
    }

    pub(crate) fn router(&self, name: &str, args: &[&str]) -> Proc {
        let mut command = self.command();
        command
            .args(["router", "--node", name, "--listen", ":0"])
            .args(["--keyspace", "orders"])
            .args([
                "--key-from",
                "header:X-Key",
                "--key-from",
                "shard-header:X-Shard",
            ])
            .args(args);
        if !args.contains(&"--ttl") {
            command.args(["--ttl", "15s"]);
        }
        Proc::start(command, name)
    }

    /// All shards with their owners.
    pub(crate) fn owners(&self) -> BTreeMap<String, String> {
        let (_, text) = self.run(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let shards = status["shards"].as_array().cloned().unwrap_or_default();
        let serving = shards.iter().filter(|s| s["state"] == "serving");
        let pair = |s: &serde_json::Value| {
            let (shard, owner) = (s["shard"].as_str()?, s["owner"].as_str()?);
            Some((shard.to_owned(), owner.to_owned()))
        };
        serving.filter_map(pair).collect()
    }

    /// Waits until all shards are served, by so many nodes.
    pub(crate) async fn settled(&self, nodes: usize) -> BTreeMap<String, String> {
        self.served(self.shards as usize, nodes).await
    }

    /// Waits until so many shards are served, by so many nodes.
    pub(crate) async fn served(&self, shards: usize, nodes: usize) -> BTreeMap<String, String> {
        until("all shards are served", || {
            let owners = self.owners();
            let mut names: Vec<_> = owners.values().collect();
            names.sort();
            names.dedup();
            let all = owners.len() == shards && names.len() == nodes;
            all.then_some(owners)
        })
        .await
    }

    /// Every line of every journal: shard, then epoch, key and what was sent.
    pub(crate) fn journal(&self) -> Vec<(String, u64, String, String)> {
        let mut lines = Vec::new();
        for file in std::fs::read_dir(self.journals()).unwrap() {
            let path = file.unwrap().path();
            let shard = path.file_stem().unwrap().to_string_lossy().into_owned();
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                let words: Vec<_> = line.split(' ').collect();
                let [_, epoch, key, said, _] = words[..] else {
                    panic!("{path:?}: {line:?}");
                };
                let epoch = epoch.parse().unwrap();
                lines.push((shard.clone(), epoch, key.to_owned(), said.to_owned()));
            }
        }
        lines
    }
}

impl Proc {
    fn start(command: Command, what: &str) -> Self {
        let admin = free_port();
        // Before the rest of the line that the application takes.
        let mut args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let at = args.iter().position(|a| a == "--listen").unwrap();
        let more = ["--log", "info", "--admin-addr", &admin.to_string()].map(Into::into);
        args.splice(at..at, more);
        let mut all = Command::new(command.get_program());
        all.env("NO_COLOR", "1");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => all.env(name, value),
                None => all.env_remove(name),
            };
        }
        let mut child = all
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log: Arc<Mutex<String>> = Arc::default();
        let (told, heard) = mpsc::channel();
        let (mut lines, kept) = (BufReader::new(child.stderr.take().unwrap()), log.clone());
        std::thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|n| n > 0) {
                if let Some(at) = line.trim().strip_prefix("listening at http://") {
                    let _ = told.send(at.parse().unwrap());
                }
                kept.lock().unwrap().push_str(&line);
                line.clear();
            }
            let _ = lines.read_to_string(&mut line);
        });
        let Ok(address) = heard.recv_timeout(SOON) else {
            let _ = child.kill();
            panic!("{what} does not start:\n{}", log.lock().unwrap());
        };
        Self {
            child,
            address,
            admin,
            log,
            what: what.to_owned(),
        }
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let until = Instant::now() + SOON;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            let what = &self.what;
            assert!(
                Instant::now() < until,
                "{what} does not end:\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let status = self.ended().await;
        assert!(status.success(), "{}: {status}\n{}", self.what, self.log());
    }

    /// The value of one of its metrics.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = Client::new(self.admin).get("/metrics").await.text();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|rest| rest.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in\n{text}"))
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.what, self.log());
        }
    }
}

/// A port that nobody listens at.
pub(crate) fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// Waits until something is so.
pub(crate) async fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + SOON;
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < limit, "never so: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
