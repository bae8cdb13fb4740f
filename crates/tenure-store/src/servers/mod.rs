//! Real servers for tests: started on free loopback ports in temporary directories, and gone when the test is.
//!
//! - [`Server`] is one process: it can be stopped, continued and killed, and dies with whoever started it, even by SIGKILL.
//! - [`proxy`] stands between a client and any server and makes the network misbehave.
//! - One file per kind of server.
//!
//! Binaries are looked for in the directories of `$TENURE_SERVERS` (separated by colons), then in `$PATH`, then where
//! distributions put them. `./test` sees to it that they are there.

#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod proxy;
#[cfg(feature = "s3")]
pub mod s3;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::machine_identity::random_bytes;
use crate::rng::SplitMix;

/// How long a server may take to start before the test fails.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// A port of the loopback interface that nobody uses at the moment.
///
/// Taken from below the range out of which the kernel gives ports to clients: in there, any connection might be quicker.
pub fn free_port() -> u16 {
    const FIRST: u64 = 20_000;
    const COUNT: u64 = 12_000;
    let mut seed = [0; 8];
    seed.copy_from_slice(&random_bytes()[..8]);
    let mut rng = SplitMix::new(u64::from_ne_bytes(seed));
    for _ in 0..1000 {
        let port = (FIRST + rng.below(COUNT)) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}

/// The first of `names` that is in `$TENURE_SERVERS`, in `$PATH` or in one of `places`.
///
/// Panics if there is none: a test that needs a server and does not find it has not passed.
pub fn binary(names: &[&str], places: &[&str]) -> PathBuf {
    let listed = |variable: &str| std::env::var_os(variable).unwrap_or_default();
    let (own, path) = (listed("TENURE_SERVERS"), listed("PATH"));
    let own: Vec<PathBuf> = std::env::split_paths(&own).collect();
    let nested = own.iter().flat_map(|d| [d.join("bin"), d.join("usr/bin")]);
    let nested: Vec<PathBuf> = nested.collect();
    let mut directories = own;
    directories.extend(nested);
    directories.extend(std::env::split_paths(&path));
    directories.extend(places.iter().map(PathBuf::from));
    for directory in &directories {
        for name in names {
            let candidate = directory.join(name);
            if candidate.is_file() {
                return candidate;
            }
        }
    }
    panic!(
        "this test needs {}, which is neither in $TENURE_SERVERS nor in $PATH; ./test fetches what the tests need",
        names.join(" or ")
    );
}

/// A new directory for a server's files, gone when dropped: in memory where the system has a place for that and `$TMPDIR` does
/// not say otherwise. Copying and deleting data directories costs more than all that tests do with them.
pub fn temporary_directory(prefix: &str) -> TempDir {
    let memory = Path::new("/dev/shm");
    let place = match std::env::var_os("TMPDIR") {
        None if memory.is_dir() => memory.to_owned(),
        _ => std::env::temp_dir(),
    };
    let made = tempfile::Builder::new().prefix(prefix).tempdir_in(&place);
    made.unwrap_or_else(|e| panic!("no temporary directory in {}: {e}", place.display()))
}

/// Whether this process may act for everybody.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Reports that the calling test cannot run on this machine, and why. The test returns after that and counts as passed, so its
/// name and the reason are appended to the file `$TENURE_SKIPS`, which `./test` prints and counts.
///
/// Panics if that file cannot be written: a skip that nobody hears of is a test that did not run.
pub fn skipped(reason: &str) {
    let current = thread::current();
    let test = std::env::var("NEXTEST_TEST_NAME")
        .ok()
        .or_else(|| current.name().map(str::to_owned))
        .unwrap_or_else(|| "?".to_owned());
    let binary = std::env::var("NEXTEST_BINARY_ID").unwrap_or_default();
    println!("skipped: {reason}");
    if let Some(file) = std::env::var_os("TENURE_SKIPS") {
        let line = format!("{binary} {test}: {reason}\n");
        let opened = File::options().create(true).append(true).open(&file);
        opened
            .and_then(|mut file| io::Write::write_all(&mut file, line.trim_start().as_bytes()))
            .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
}

/// Waits until `ready` says so; panics with `what` and the log if that takes too long or if the server ends.
pub fn await_ready(server: &mut Server, what: &str, ready: impl FnMut() -> bool) {
    if let Some(status) = ready_or_ended(server, what, ready) {
        panic!("{what} ended at its start ({status}):\n{}", server.log());
    }
}

/// The same; if the server ends, this is how it did.
pub fn ready_or_ended(
    server: &mut Server,
    what: &str,
    mut ready: impl FnMut() -> bool,
) -> Option<ExitStatus> {
    let begun = Instant::now();
    while !ready() {
        if let Some(status) = server.ended() {
            return Some(status);
        }
        if begun.elapsed() > START_PATIENCE {
            panic!(
                "{what} is not ready after {START_PATIENCE:?}:\n{}",
                server.log()
            );
        }
        // Nothing tells when a foreign program is ready.
        thread::sleep(Duration::from_millis(10));
    }
    None
}

/// Whether somebody listens on this port of the loopback interface.
pub fn listens(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A running server process, with all that it starts. Killed when dropped, and by the kernel when this process dies.
#[derive(Debug)]
pub struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts a program whose output goes to the file `log`.
    ///
    /// `user` is who it runs as, where this process is root and the program will not run as such.
    pub fn start(program: &Path, args: &[String], user: Option<&str>, log: &Path) -> Self {
        let (mut command, out) = (wrapped(program, user), log_file(log));
        let err = out.try_clone().expect("a log file can be shared");
        command.args(args).stdin(Stdio::null());
        command.stdout(out).stderr(err);
        let child = spawn(command).unwrap_or_else(|e| {
            panic!(
                "{} cannot be started through setpriv: {e}",
                program.display()
            )
        });
        Self {
            child,
            log: log.to_owned(),
        }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends a signal to the process alone.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Stops the process and all that it started, as SIGSTOP does: connections stay open and nobody answers.
    ///
    /// Returns when every thread has stopped: until then a server may still answer.
    pub fn freeze(&self) {
        self.signal_all(Signal::STOP);
        let begun = Instant::now();
        while !family(self.pid()).into_iter().all(is_stopped) {
            assert!(begun.elapsed() < STOP_TIMEOUT, "the server does not stop");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets them go on.
    pub fn thaw(&self) {
        self.signal_all(Signal::CONT);
    }

    /// Kills the process and all that it started, at once and without a word to anybody.
    pub fn kill(&mut self) {
        self.signal_all(Signal::KILL);
        // It can only fail if it was already waited for.
        let _ = self.child.wait();
    }

    /// Asks the process to end by `signal`, and kills it if it has not after a while.
    pub fn stop(&mut self, signal: Signal) {
        const TIMEOUT: Duration = Duration::from_secs(10);
        self.thaw();
        self.signal(signal);
        let begun = Instant::now();
        while self.ended().is_none() {
            if begun.elapsed() > TIMEOUT {
                return self.kill();
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// What it has written so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Signals the process first and then whatever descends from it, until there is nobody new: some servers give each
    /// child a session of its own, so that no process group holds them all.
    fn signal_all(&self, signal: Signal) {
        let mut told = Vec::new();
        loop {
            let new: Vec<u32> = family(self.pid())
                .into_iter()
                .filter(|pid| !told.contains(pid))
                .collect();
            if new.is_empty() {
                return;
            }
            for pid in new {
                send(pid, signal);
                told.push(pid);
            }
        }
    }
}

/// Limit for the threads of a server to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// True if no thread of the process runs: all are stopped, or have ended.
fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    let stopped = |thread: io::Result<fs::DirEntry>| {
        let stat = thread.and_then(|thread| fs::read_to_string(thread.path().join("stat")));
        // The state follows the name, which is in parentheses.
        let state = stat
            .ok()
            .and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
        state.is_none_or(|state| matches!(state, 'T' | 't' | 'Z' | 'X'))
    };
    threads.into_iter().all(stopped)
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.kill();
        }
    }
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
}

/// A process and its descendants, parents before children.
fn family(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // `pid (name) state parent …`, where the name may hold anything.
        let parent = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut family = vec![root];
    let mut next = 0;
    while let Some(pid) = family.get(next) {
        let born = children.remove(pid).unwrap_or_default();
        family.extend(born);
        next += 1;
    }
    family
}

/// A command that is killed by the kernel when the thread that started it is gone, and runs as `user` if one is given.
fn wrapped(program: &Path, user: Option<&str>) -> Command {
    let mut command = Command::new("setpriv");
    if let Some(user) = user {
        command.args([
            format!("--reuid={user}"),
            format!("--regid={user}"),
            "--init-groups".to_owned(),
        ]);
    }
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    // A package that was unpacked and not installed has its libraries beside its programs.
    if let Some(root) = program.ancestors().find(|place| place.ends_with("usr"))
        && root != Path::new("/usr")
    {
        let own = root.join(format!("lib/{}-linux-gnu", std::env::consts::ARCH));
        command.env("LD_LIBRARY_PATH", own);
    }
    command
}

fn log_file(path: &Path) -> File {
    File::options()
        .create(true)
        .append(true)
        .open(path)
        .unwrap_or_else(|e| panic!("log file {}: {e}", path.display()))
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts a process from a thread that lives as long as this process: to the kernel, the parent whose death counts is the
/// *thread* that started the child, and a test's own thread may end before the server may.
fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, queue) = mpsc::channel::<Order>();
        let work = move || {
            for (mut command, reply) in queue {
                // Whoever asked waits for it.
                let _ = reply.send(command.spawn());
            }
        };
        let thread = thread::Builder::new().name("test-servers".to_owned());
        thread.spawn(work).expect("a thread can be started");
        orders
    });
    let (reply, answer) = mpsc::channel();
    let gone = || io::Error::other("the starting thread has ended");
    spawner.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(dir: &Path) -> Server {
        let script = "sleep 1000 & echo begun; wait".to_owned();
        let args = ["-c".to_owned(), script];
        let mut server = Server::start(Path::new("/bin/sh"), &args, None, &dir.join("log"));
        let log = dir.join("log");
        await_ready(&mut server, "the sleeper", || {
            fs::read_to_string(&log).is_ok_and(|text| text.contains("begun"))
        });
        server
    }

    fn state(pid: u32) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    fn until(mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(5));
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_server_is_frozen_thawed_and_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let server = sleeper(dir.path());
        let all = family(server.pid());
        assert_eq!(all.len(), 2, "{all:?}");
        server.freeze();
        until(|| all.iter().all(|pid| state(*pid) == Some('T')));
        server.thaw();
        until(|| all.iter().all(|pid| state(*pid) == Some('S')));
        drop(server);
        until(|| {
            all.iter()
                .all(|pid| matches!(state(*pid), None | Some('Z')))
        });
    }

    #[test]
    fn a_server_outlives_the_thread_that_asked_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let mut server = thread::spawn(move || sleeper(&path)).join().unwrap();
        // The kernel would have killed it before the thread could be joined.
        assert_eq!(server.ended(), None);
        assert_eq!(state(server.pid()), Some('S'));
    }

    /// Environment variables are the whole process's, so the skip happens in another one.
    #[test]
    fn a_skipped_test_appends_its_name_and_the_reason_to_the_file() {
        const CHILD: &str = "TENURE_TEST_SKIPS_NOW";
        if std::env::var_os(CHILD).is_some() {
            return skipped("there is no moon");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("skips");
        let name = "servers::tests::a_skipped_test_appends_its_name_and_the_reason_to_the_file";
        for _ in 0..2 {
            let status = Command::new(std::env::current_exe().unwrap())
                .args([name, "--exact"])
                .env(CHILD, "1")
                .env("TENURE_SKIPS", &file)
                .env_remove("NEXTEST_TEST_NAME")
                .env_remove("NEXTEST_BINARY_ID")
                .stdout(Stdio::null())
                .status();
            assert!(status.unwrap().success());
        }
        let line = format!("{name}: there is no moon\n");
        assert_eq!(fs::read_to_string(&file).unwrap(), line.repeat(2));
    }

    #[test]
    fn a_free_port_can_be_listened_on() {
        let port = free_port();
        assert!(!listens(port));
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        assert!(listens(port));
    }

    #[test]
    #[should_panic(expected = "./test fetches what the tests need")]
    fn a_missing_binary_fails_the_test_and_names_the_way_out() {
        binary(&["no-such-server"], &["/nowhere"]);
    }
}
