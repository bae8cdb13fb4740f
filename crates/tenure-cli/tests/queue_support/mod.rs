//! A queue in a store, the real binary on it, and real workers whose programs leave marks.
#![allow(dead_code, reason = "no test file uses all of it")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

#[path = "../sigstop/mod.rs"]
mod sigstop;
pub(crate) use sigstop::{send, stop_outside};

pub(crate) const TENURE: &str = env!("CARGO_BIN_EXE_tenure");
pub(crate) const CLUSTER: &str = "shop";

/// How long anything may take that is bound to happen, on a machine that is busy with everything else.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);

/// What the binary did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    #[track_caller]
    pub(crate) fn with(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "stdout: {}\nstderr: {}",
            self.out, self.err
        );
        self
    }

    #[track_caller]
    pub(crate) fn telling(self, wanted: &[&str]) -> Self {
        for text in wanted {
            assert!(self.err.contains(text), "{text:?} is not in:\n{}", self.err);
        }
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}", self.out))
    }

    #[track_caller]
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        self.out.lines().map(parse).collect()
    }
}

/// A directory with a store, unless another one is named.
pub(crate) struct TestCluster {
    dir: TempDir,
    pub(crate) store: String,
}

impl TestCluster {
    /// On a new SQLite file.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = format!("sqlite:{}", dir.path().join("q.db").display());
        Self { dir, store }
    }

    /// On a store of one's choice, which must be empty.
    pub(crate) fn on(store: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            dir,
            store: store.to_owned(),
        }
    }

    /// With a queue `q` that is quick to notice the dead.
    pub(crate) fn with_queue(self, options: &[&str]) -> Self {
        let quick = [
            "create",
            "q",
            "--retry-delay",
            "20ms",
            "--retry-delay-max",
            "100ms",
        ];
        self.queue(&[&quick[..], options].concat()).with(0);
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The file of the store, if it is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.store.strip_prefix("sqlite:").map(Path::new)
    }

    /// The binary on this store, without what the surroundings may have set.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(TENURE);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TENURE_") {
                command.env_remove(name);
            }
        }
        command
            .args(["--store", &self.store, "--cluster", CLUSTER])
            .args(args)
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        ran(&mut self.command(args))
    }

    /// `tenure queue …`.
    pub(crate) fn queue(&self, args: &[&str]) -> Ran {
        self.run(&[&["queue"], args].concat())
    }

    /// The binary with something on its standard input.
    pub(crate) fn run_fed(&self, args: &[&str], input: &[u8]) -> Ran {
        let mut command = self.command(args);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
        let feeding = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        feeding.join().unwrap();
        Ran {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Submits a task and gives its id.
    #[track_caller]
    pub(crate) fn submit(&self, args: &[&str]) -> String {
        let ran = self.run(&[&["task", "submit", "q"], args].concat()).with(0);
        ran.out.trim().to_owned()
    }

    #[track_caller]
    pub(crate) fn task(&self, id: &str) -> Value {
        self.run(&["task", "show", "q", id, "--json"])
            .with(0)
            .json()
    }

    /// The task once it has ended.
    #[track_caller]
    pub(crate) fn ended(&self, id: &str) -> Value {
        let mut task = Value::Null;
        until(&format!("task {id} has ended"), || {
            task = self.task(id);
            ["done", "dead", "cancelled"].contains(&state(&task))
        });
        task
    }

    #[track_caller]
    pub(crate) fn until_state(&self, id: &str, wanted: &str) -> Value {
        let mut task = Value::Null;
        until(&format!("task {id} is {wanted}"), || {
            task = self.task(id);
            state(&task) == wanted
        });
        task
    }

    pub(crate) fn stats(&self) -> Value {
        self.queue(&["stats", "q", "--json"]).with(0).json()
    }

    /// The command of a worker, up to `--`. Options of the form `TENURE_NAME=VALUE` are set in its environment.
    pub(crate) fn worker_command(&self, name: &str, options: &[&str]) -> Command {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.path(&format!("{name}.err")))
            .unwrap();
        let mut command = self.command(&["worker", "q", "--node", name]);
        add_options(&mut command, options);
        command.stderr(log).stdout(Stdio::null());
        command
    }

    /// A worker that runs a line of shell for each task; returns when it has begun.
    pub(crate) fn worker(&self, name: &str, options: &[&str], script: &str) -> Process {
        let mut command = self.worker_command(name, options);
        let told = self.said(name).matches("started on queue").count();
        let process = Process::spawn(command.args(["--", "sh", "-c", script]));
        until(&format!("worker {name} has begun"), || {
            self.said(name).matches("started on queue").count() > told
        });
        process
    }

    /// What a worker and its programs have said.
    pub(crate) fn said(&self, name: &str) -> String {
        fs::read_to_string(self.path(&format!("{name}.err"))).unwrap_or_default()
    }

    /// Lines of a file that programs append to.
    pub(crate) fn marks(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Stops a worker, at a moment at which others can go on.
    pub(crate) fn freeze(&self, process: &Process) {
        match self.file() {
            Some(file) => stop_outside(process.pid(), file),
            None => process.signal(Signal::STOP),
        }
    }

    /// Who serves each shard of the queue, as `tenure status` has it.
    pub(crate) fn owners(&self) -> Vec<Option<String>> {
        let ran = self.run(&["status", "--json"]);
        if ran.out.is_empty() {
            // No worker has ever been there.
            return Vec::new();
        }
        let status = ran.json();
        let shards = status["shards"].as_array().cloned().unwrap_or_default();
        let of_queue = shards.iter().filter(|s| s["keyspace"] == "queue.q");
        of_queue
            .map(|s| (s["state"] == "serving").then(|| s["owner"].as_str().unwrap().to_owned()))
            .collect()
    }

    /// How many shards each of these workers serves.
    pub(crate) fn shares(&self, names: &[&str]) -> Vec<usize> {
        let owners = self.owners();
        let count = |name: &&str| owners.iter().flatten().filter(|o| o == name).count();
        names.iter().map(count).collect()
    }
}

/// Adds flags, and options of the form `TENURE_NAME=VALUE` to the environment.
pub(crate) fn add_options(command: &mut Command, options: &[&str]) {
    for option in options {
        match option.split_once('=') {
            Some((name, value)) if name.starts_with("TENURE_") => drop(command.env(name, value)),
            _ => drop(command.arg(option)),
        }
    }
}

/// Runs a command to its end.
pub(crate) fn ran(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

pub(crate) fn state(task: &Value) -> &str {
    task["state"]["status"].as_str().unwrap()
}

/// The kinds of events in a task's history.
pub(crate) fn events(task: &Value) -> Vec<&str> {
    let history = task["history"].as_array().unwrap();
    history
        .iter()
        .map(|e| e["event"].as_str().unwrap())
        .collect()
}

/// A running process. Continued and killed when dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("the process ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// Waits for something that must come, and says what if it does not.
#[track_caller]
pub(crate) fn until(what: &str, mut come: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !come() {
        assert!(begun.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Lets real time pass, where that time itself is what the test is about.
pub(crate) fn pass(time: Duration) {
    std::thread::sleep(time);
}

/// All records of the store, by key.
pub(crate) fn records(site: &TestCluster) -> Vec<(String, Vec<u8>)> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = tenure_store::open(&site.store).await.unwrap();
        let listing = store.list("").await.unwrap();
        let entries = listing.entries.into_iter();
        entries.map(|e| (e.key, e.value.to_vec())).collect()
    })
}

/// The sessions of a worker that have not ended.
pub(crate) fn sessions(site: &TestCluster, node: &str) -> Vec<Value> {
    let sessions = records(site).into_iter();
    let sessions = sessions.filter(|(key, _)| key.starts_with(&format!("{CLUSTER}/sessions/")));
    let parsed = sessions.map(|(_, value)| serde_json::from_slice::<Value>(&value).unwrap());
    parsed
        .filter(|s| s["node"] == node && s.get("ended").is_none())
        .collect()
}

/// A port of this machine that nobody listens at.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// What is served at a port of this machine: status and body. Nothing if nobody listens.
pub(crate) fn served(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let status = text.split(' ').nth(1)?.parse().ok()?;
    let (_, body) = text.split_once("\r\n\r\n")?;
    Some((status, body.to_owned()))
}
