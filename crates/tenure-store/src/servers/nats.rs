//! Real NATS servers for tests: one or three with JetStream, with faults on demand.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Server, await_ready, binary, free_port, listens, temporary_directory};

/// Where `.ci/servers` puts it unless told otherwise.
const FETCHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/servers");
/// How long anything may take before the test fails.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Which server is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatsRelease {
    /// One that we run on.
    Present,
    /// 2.9, which is too old.
    V2_9,
}

/// How a cluster is started.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    release: NatsRelease,
    members: usize,
    jetstream: bool,
    storage: String,
    more: String,
    operator: Option<(String, String)>,
}

impl Default for NatsOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl NatsOptions {
    /// One server with JetStream.
    pub fn new() -> Self {
        Self {
            release: NatsRelease::Present,
            members: 1,
            jetstream: true,
            storage: String::new(),
            more: String::new(),
            operator: None,
        }
    }

    /// Another release.
    #[must_use]
    pub fn release(mut self, release: NatsRelease) -> Self {
        self.release = release;
        self
    }

    /// So many servers, one cluster.
    #[must_use]
    pub fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// Leaves JetStream off.
    #[must_use]
    pub fn without_jetstream(mut self) -> Self {
        self.jetstream = false;
        self
    }

    /// More settings of JetStream, as they stand in the configuration file.
    #[must_use]
    pub fn storage(mut self, settings: &str) -> Self {
        settings.clone_into(&mut self.storage);
        self
    }

    /// More lines for the configuration file.
    #[must_use]
    pub fn more(mut self, lines: &str) -> Self {
        lines.clone_into(&mut self.more);
        self
    }

    /// Who the test itself is to the servers.
    #[must_use]
    pub fn operator(mut self, user: &str, password: &str) -> Self {
        self.operator = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// Starts the servers and waits until they take requests.
    pub fn start(self) -> Nats {
        let dir = temporary_directory("tenure-nats-");
        let members = (0..self.members).map(|n| Member {
            name: format!("n{n}"),
            client: free_port(),
            peer: free_port(),
            monitor: free_port(),
            server: None,
        });
        let mut nats = Nats {
            members: members.collect(),
            options: self,
            dir,
        };
        for member in 0..nats.members.len() {
            nats.launch(member);
        }
        nats.await_ready();
        nats
    }
}

#[derive(Debug)]
struct Member {
    name: String,
    client: u16,
    peer: u16,
    monitor: u16,
    server: Option<Server>,
}

/// Running servers, numbered from 0. Gone when dropped.
#[derive(Debug)]
pub struct Nats {
    options: NatsOptions,
    members: Vec<Member>,
    dir: TempDir,
}

impl Nats {
    /// One server with JetStream.
    pub fn start() -> Self {
        NatsOptions::new().start()
    }

    /// `HOST:PORT` of a server.
    pub fn endpoint(&self, member: usize) -> String {
        format!("127.0.0.1:{}", self.members[member].client)
    }

    /// The port that a server's clients come to.
    pub fn port(&self, member: usize) -> u16 {
        self.members[member].client
    }

    /// The port that a server is watched by.
    pub fn monitor(&self, member: usize) -> u16 {
        self.members[member].monitor
    }

    /// A store URL with all servers.
    pub fn url(&self, bucket: &str) -> String {
        let endpoints: Vec<String> = (0..self.members.len()).map(|n| self.endpoint(n)).collect();
        format!("nats://{}/{bucket}", endpoints.join(","))
    }

    /// Stops a server as SIGSTOP does: connections stay open and nobody answers.
    pub fn freeze(&self, member: usize) {
        self.server(member).freeze();
    }

    /// Lets a server go on.
    pub fn thaw(&self, member: usize) {
        self.server(member).thaw();
    }

    /// Kills a server at once.
    pub fn kill(&mut self, member: usize) {
        self.members[member].server = None;
    }

    /// Stops a server in good order.
    pub fn stop(&mut self, member: usize) {
        if let Some(mut server) = self.members[member].server.take() {
            server.stop(Signal::TERM);
        }
    }

    /// Starts a server again with what it has stored, and waits until it takes requests.
    pub fn restart(&mut self, member: usize) {
        self.kill(member);
        self.launch(member);
        self.await_ready();
    }

    /// The server that leads a bucket. Waits for an election to end.
    pub fn leader(&self, bucket: &str) -> usize {
        let begun = Instant::now();
        loop {
            for member in self.running() {
                let said = self.try_ask(member, &format!("$JS.API.STREAM.INFO.KV_{bucket}"), "");
                let leader = said
                    .ok()
                    .and_then(|said| said["cluster"]["leader"].as_str().map(str::to_owned));
                let at = |leader: String| self.members.iter().position(|m| m.name == leader);
                if let Some(n) = leader
                    .and_then(at)
                    .filter(|n| self.running().any(|m| m == *n))
                {
                    return n;
                }
            }
            assert!(begun.elapsed() < TIMEOUT, "nobody leads {bucket}");
        }
    }

    /// Asks JetStream, as an operator does. Panics if there is no answer.
    pub fn ask(&self, subject: &str, body: &Value) -> Value {
        let member = self.running().next().expect("a server runs");
        let body = body.to_string();
        let answer = self.try_ask(member, subject, &body);
        answer.unwrap_or_else(|e| panic!("{subject}: {e}"))
    }

    /// The state of a bucket.
    pub fn state(&self, bucket: &str) -> Value {
        let subject = format!("$JS.API.STREAM.INFO.KV_{bucket}");
        self.ask(&subject, &json!({}))["state"].take()
    }

    /// The subjects that have a message, marks of deletions included.
    pub fn subjects(&self, bucket: &str) -> Vec<String> {
        let subject = format!("$JS.API.STREAM.INFO.KV_{bucket}");
        let said = self.ask(&subject, &json!({ "subjects_filter": ">" }));
        let subjects = said["state"]["subjects"].as_object();
        subjects
            .into_iter()
            .flat_map(|s| s.keys().cloned())
            .collect()
    }

    /// Deletes a key by its subject, as `nats kv del` does.
    pub fn delete(&self, subject: &str) {
        let member = self.running().next().expect("a server runs");
        let headers = "NATS/1.0\r\nKV-Operation: DEL\r\n\r\n";
        let said = self
            .exchange(member, subject, headers, "")
            .expect("an answer");
        assert!(said["seq"].is_u64(), "{subject}: {said}");
    }

    fn running(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.members.len()).filter(|n| self.members[*n].server.is_some())
    }

    fn server(&self, member: usize) -> &Server {
        let server = self.members[member].server.as_ref();
        server.expect("the server runs")
    }

    fn try_ask(&self, member: usize, subject: &str, body: &str) -> io::Result<Value> {
        self.exchange(member, subject, "", body)
    }

    /// One request over a connection of its own.
    fn exchange(
        &self,
        member: usize,
        subject: &str,
        headers: &str,
        body: &str,
    ) -> io::Result<Value> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.members[member].client))?;
        stream.set_read_timeout(Some(Duration::from_secs(3)))?;
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        let mut connect = json!({ "verbose": false, "headers": true, "no_responders": true });
        if let Some((user, password)) = &self.options.operator {
            connect["user"] = user.as_str().into();
            connect["pass"] = password.as_str().into();
        }
        write!(writer, "CONNECT {connect}\r\nSUB _INBOX.test 1\r\n")?;
        let (head, all) = (headers.len(), headers.len() + body.len());
        match head {
            0 => write!(writer, "PUB {subject} _INBOX.test {all}\r\n{body}\r\n")?,
            _ => write!(
                writer,
                "HPUB {subject} _INBOX.test {head} {all}\r\n{headers}{body}\r\n"
            )?,
        }
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.first() {
                Some(&"PING") => writer.write_all(b"PONG\r\n")?,
                Some(&"MSG") => {
                    let length = words.last().and_then(|n| n.parse().ok()).unwrap_or(0);
                    let mut payload = vec![0; length];
                    reader.read_exact(&mut payload)?;
                    return Ok(serde_json::from_slice(&payload)?);
                }
                Some(&"HMSG") => return Err(io::Error::other("nobody answers")),
                Some(&"-ERR") => return Err(io::Error::other(line)),
                _ => {}
            }
        }
    }

    fn launch(&mut self, member: usize) {
        let program = match self.options.release {
            NatsRelease::Present => binary(&["nats/bin/nats-server", "nats-server"], &[FETCHED]),
            NatsRelease::V2_9 => binary(&["nats-2.9/usr/sbin/nats-server"], &[FETCHED]),
        };
        let config = self.config(member);
        let name = &self.members[member].name;
        let path: PathBuf = self.dir.path().join(format!("{name}.conf"));
        fs::write(&path, config).expect("a configuration can be written");
        let args = ["-c".to_owned(), path.display().to_string()];
        let log = self.dir.path().join(format!("{name}.log"));
        self.members[member].server = Some(Server::start(&program, &args, None, &log));
    }

    fn config(&self, member: usize) -> String {
        let own = &self.members[member];
        let mut text = format!(
            "server_name: {}\nlisten: 127.0.0.1:{}\nhttp: 127.0.0.1:{}\n",
            own.name, own.client, own.monitor
        );
        if self.options.jetstream {
            let dir: &Path = &self.dir.path().join(&own.name);
            let storage = &self.options.storage;
            let _ = writeln!(
                text,
                "jetstream {{ store_dir: {:?}\n{storage} }}",
                dir.display().to_string()
            );
        }
        if self.members.len() > 1 {
            let routes: Vec<String> = self
                .members
                .iter()
                .map(|m| format!("nats://127.0.0.1:{}", m.peer))
                .collect();
            let _ = writeln!(
                text,
                "cluster {{ name: test, listen: 127.0.0.1:{}, routes: [{}] }}",
                own.peer,
                routes.join(", ")
            );
        }
        text.push_str(&self.options.more);
        text
    }

    fn await_ready(&mut self) {
        let many = self.members.len() > 1;
        for member in &mut self.members {
            let (client, monitor) = (member.client, member.monitor);
            let what = format!("NATS server {}", member.name);
            if let Some(server) = &mut member.server {
                // Where there are several, each says when it knows who leads.
                await_ready(server, &what, || {
                    listens(client) && (!many || is_healthy(monitor))
                });
            }
        }
    }
}

fn is_healthy(monitor: u16) -> bool {
    let asking = || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, monitor))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, io::Error>(answer)
    };
    asking().is_ok_and(|answer| answer.contains(" 200 "))
}
