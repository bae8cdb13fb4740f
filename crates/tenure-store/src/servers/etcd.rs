//! Real etcd clusters for tests: one member or several, 3.4 or 3.5, with faults on demand.

use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use super::{Server, await_ready, binary, free_port, temporary_directory};

/// Where `.ci/servers` puts them unless told otherwise.
const FETCHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/servers");

/// Which etcd is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtcdRelease {
    /// 3.4, the oldest that we run on.
    V3_4,
    /// 3.5.
    V3_5,
}

impl EtcdRelease {
    fn directory(self) -> &'static str {
        match self {
            Self::V3_4 => "etcd-3.4",
            Self::V3_5 => "etcd-3.5",
        }
    }

    /// `etcd` or `etcdctl` of this release. Panics if there is none.
    fn binary(self, name: &str) -> PathBuf {
        let nested = format!("{}/usr/bin/{name}", self.directory());
        match self {
            // Whatever is installed stands in for it.
            Self::V3_4 => binary(&[&nested, name], &[FETCHED]),
            Self::V3_5 => binary(&[&nested], &[FETCHED]),
        }
    }
}

/// How a cluster is started.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    release: EtcdRelease,
    members: usize,
    args: Vec<String>,
    tls: Option<TlsFiles>,
}

/// The files that a server with TLS needs.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Whom clients and server trust.
    pub ca: PathBuf,
    /// The server's certificate, which etcdctl shows too.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl EtcdOptions {
    /// One member of this release.
    pub fn new(release: EtcdRelease) -> Self {
        Self {
            release,
            members: 1,
            args: Vec::new(),
            tls: None,
        }
    }

    /// So many members.
    #[must_use]
    pub fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// One more argument for every member.
    #[must_use]
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// Clients come by TLS, and must show a certificate.
    #[must_use]
    pub fn tls(mut self, tls: TlsFiles) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Starts the cluster and waits until it takes writes.
    pub fn start(self) -> Etcd {
        let dir = temporary_directory("tenure-etcd-");
        let mut members: Vec<Member> = (0..self.members)
            .map(|n| Member {
                name: format!("n{n}"),
                client: free_port(),
                peer: free_port(),
                server: None,
            })
            .collect();
        let cluster = members
            .iter()
            .map(|m| format!("{}=http://127.0.0.1:{}", m.name, m.peer));
        let cluster = cluster.collect::<Vec<_>>().join(",");
        for member in &mut members {
            member.start(&self, dir.path(), &cluster);
        }
        let mut etcd = Etcd {
            options: self,
            cluster,
            members,
            dir,
        };
        etcd.await_writes();
        etcd
    }
}

#[derive(Debug)]
struct Member {
    name: String,
    client: u16,
    peer: u16,
    server: Option<Server>,
}

impl Member {
    fn start(&mut self, options: &EtcdOptions, dir: &Path, cluster: &str) {
        let scheme = if options.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let client = format!("{scheme}://127.0.0.1:{}", self.client);
        let peer = format!("http://127.0.0.1:{}", self.peer);
        let data = dir.join(&self.name);
        let mut args: Vec<String> = [
            ("--name", &self.name),
            ("--data-dir", &data.display().to_string()),
            ("--listen-client-urls", &client),
            ("--advertise-client-urls", &client),
            ("--listen-peer-urls", &peer),
            ("--initial-advertise-peer-urls", &peer),
            ("--initial-cluster", &cluster.to_owned()),
            ("--logger", &"zap".to_owned()),
            ("--log-level", &"warn".to_owned()),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value.clone()])
        .collect();
        if let Some(tls) = &options.tls {
            let file = |path: &Path| path.display().to_string();
            args.extend(["--client-cert-auth".to_owned()]);
            args.extend(["--trusted-ca-file".to_owned(), file(&tls.ca)]);
            args.extend(["--cert-file".to_owned(), file(&tls.cert)]);
            args.extend(["--key-file".to_owned(), file(&tls.key)]);
        }
        args.extend(options.args.iter().cloned());
        let log = dir.join(format!("{}.log", self.name));
        let program = options.release.binary("etcd");
        self.server = Some(Server::start(&program, &args, None, &log));
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("the member runs")
    }
}

/// A running cluster. Members are numbered from 0. Gone when dropped.
#[derive(Debug)]
pub struct Etcd {
    options: EtcdOptions,
    cluster: String,
    members: Vec<Member>,
    dir: TempDir,
}

impl Etcd {
    /// One member of this release.
    pub fn start(release: EtcdRelease) -> Self {
        EtcdOptions::new(release).start()
    }

    /// `HOST:PORT` of a member.
    pub fn endpoint(&self, member: usize) -> String {
        format!("127.0.0.1:{}", self.members[member].client)
    }

    /// The port that a member's clients come to.
    pub fn port(&self, member: usize) -> u16 {
        self.members[member].client
    }

    /// A store URL with all members.
    pub fn url(&self, prefix: &str) -> String {
        let endpoints: Vec<String> = (0..self.members.len()).map(|n| self.endpoint(n)).collect();
        format!("etcd://{}/{prefix}", endpoints.join(","))
    }

    /// The members that do not run are left out.
    fn running(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.members.len()).filter(|n| self.members[*n].server.is_some())
    }

    /// Stops a member as SIGSTOP does: connections stay open and nobody answers.
    pub fn freeze(&self, member: usize) {
        self.members[member].server().freeze();
    }

    /// Lets a member go on.
    pub fn thaw(&self, member: usize) {
        self.members[member].server().thaw();
    }

    /// Kills a member at once.
    pub fn kill(&mut self, member: usize) {
        self.members[member].server = None;
    }

    /// Stops a member in good order.
    pub fn stop(&mut self, member: usize) {
        if let Some(mut server) = self.members[member].server.take() {
            server.stop(Signal::TERM);
        }
    }

    /// Starts a member again with what it has stored, and waits until the cluster takes writes.
    pub fn restart(&mut self, member: usize) {
        self.kill(member);
        self.members[member].start(&self.options, self.dir.path(), &self.cluster);
        self.await_writes();
    }

    /// Writes a snapshot, as an operator does for a backup.
    pub fn backup(&self) -> PathBuf {
        let path = self.dir.path().join("backup.db");
        self.ctl(&["snapshot", "save", &path.display().to_string()]);
        path
    }

    /// Stops the one member that there is and starts it again with what a backup holds, as a cluster of its own.
    pub fn restore(&mut self, backup: &Path) {
        self.kill(0);
        let member = &self.members[0];
        let data = self.dir.path().join(&member.name);
        std::fs::remove_dir_all(&data).expect("the member has a directory");
        let peer = format!("http://127.0.0.1:{}", member.peer);
        let (backup, data) = (backup.display().to_string(), data.display().to_string());
        let done = self.ask(
            0,
            &[
                "snapshot",
                "restore",
                &backup,
                "--data-dir",
                &data,
                "--name",
                &member.name,
                "--initial-cluster",
                &self.cluster,
                "--initial-advertise-peer-urls",
                &peer,
                "--initial-cluster-token",
                "restored",
            ],
        );
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        self.restart(0);
    }

    /// The member that leads. Waits for an election to end.
    pub fn leader(&self) -> usize {
        let begun = Instant::now();
        loop {
            for n in self.running() {
                let said = self.ask(n, &["endpoint", "status", "--write-out=fields"]);
                let said = String::from_utf8_lossy(&said.stdout).into_owned();
                let field = |name: &str| {
                    let line = said.lines().find(|l| l.starts_with(&format!("\"{name}\"")));
                    line.and_then(|l| l.split(" : ").nth(1)).map(str::to_owned)
                };
                if field("MemberID").is_some() && field("MemberID") == field("Leader") {
                    return n;
                }
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "no leader");
        }
    }

    /// Runs etcdctl against a running member and gives what it printed. Panics if it fails.
    pub fn ctl(&self, args: &[&str]) -> String {
        let member = self.running().next().expect("a member runs");
        let done = self.ask(member, args);
        assert!(
            done.status.success(),
            "etcdctl {args:?}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Runs etcdctl against one member.
    pub fn ask(&self, member: usize, args: &[&str]) -> Output {
        let mut command = Command::new(self.options.release.binary("etcdctl"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ETCDCTL_")) {
            command.env_remove(name);
        }
        command.env("ETCDCTL_API", "3");
        let scheme = if let Some(tls) = &self.options.tls {
            command.arg("--cacert").arg(&tls.ca);
            command.arg("--cert").arg(&tls.cert);
            command.arg("--key").arg(&tls.key);
            "https"
        } else {
            "http"
        };
        let endpoint = format!("{scheme}://{}", self.endpoint(member));
        command.args(["--endpoints", &endpoint, "--command-timeout=3s"]);
        command.args(args);
        command.output().expect("etcdctl can be run")
    }

    fn await_writes(&mut self) {
        for n in 0..self.members.len() {
            let port = self.members[n].client;
            let what = format!("etcd member {n}");
            if let Some(server) = &mut self.members[n].server {
                await_ready(server, &what, || {
                    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
                });
            }
        }
        let begun = Instant::now();
        let member = self.running().next().expect("a member runs");
        // The answer comes from a quorum; whether the user may read is of no interest here.
        loop {
            let done = self.ask(member, &["get", "--keys-only", "tenure-test-ready"]);
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            if done.status.success() || said.contains("user name is empty") {
                return;
            }
            let log = self.members[member].server().log();
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "etcd takes no calls: {said}\n{log}"
            );
        }
    }
}
