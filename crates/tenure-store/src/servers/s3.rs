//! Real services that speak S3, for tests: SeaweedFS, moto, and one that ignores conditions.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::{Server, await_ready, binary, free_port, listens, ready_or_ended, temporary_directory};

/// Where `.ci/servers` puts them unless told otherwise.
const FETCHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/servers");
/// How often a service is started anew because a port of it was taken.
const PORT_ATTEMPTS: usize = 5;
/// The bucket that is there from the start.
pub const BUCKET: &str = "shop";

/// Which service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum S3ServiceKind {
    /// SeaweedFS: a real one, and light.
    Seaweed,
    /// moto with one thread, which keeps everything in its memory.
    Moto,
    /// rclone, which accepts every conditional write.
    Rclone,
}

/// One who may use the service: a key, its secret, and what it may do.
#[derive(Clone, Copy, Debug)]
pub struct S3User {
    /// The key.
    pub key: &'static str,
    /// Its secret.
    pub secret: &'static str,
    /// In the words of SeaweedFS.
    pub rights: &'static [&'static str],
}

/// Who may do everything.
pub const OPERATOR: S3User = S3User {
    key: "tenure-test",
    secret: "tenure-test-secret",
    rights: &["Admin", "Read", "List", "Tagging", "Write"],
};

/// A running service with an empty bucket. Gone when dropped.
#[derive(Debug)]
pub struct S3Service {
    kind: S3ServiceKind,
    port: u16,
    /// Ports of its parts that talk among themselves.
    inner: [u16; 3],
    users: Vec<S3User>,
    server: Option<Server>,
    dir: TempDir,
}

/// How often SeaweedFS has told its parts who keeps which lock. Before the first time, a second or more after its start, two
/// writers who race under one condition may both win: the trial at the start has caught it.
fn rings(log: &Path) -> usize {
    let said = fs::read_to_string(log).unwrap_or_default();
    let told = |line: &&str| line.contains("s3@") && line.contains("received ring update");
    said.lines().filter(told).count()
}

impl S3Service {
    /// SeaweedFS.
    pub fn start() -> Self {
        Self::start_with(S3ServiceKind::Seaweed, &[OPERATOR])
    }

    /// This service, with these users.
    pub fn start_with(kind: S3ServiceKind, users: &[S3User]) -> Self {
        let mut s3 = Self {
            kind,
            port: 0,
            inner: [0; 3],
            users: users.to_vec(),
            server: None,
            dir: temporary_directory("tenure-s3-"),
        };
        s3.write_keys();
        // Somebody may take a port between its being found free and its being used, above all one of those that SeaweedFS
        // derives from the others: they are among those that connections get.
        for _ in 0..PORT_ATTEMPTS {
            s3.port = port_pair();
            s3.inner = [port_pair(), port_pair(), port_pair()];
            if s3.launch() {
                return s3;
            }
        }
        panic!("{kind:?} found its ports taken {PORT_ATTEMPTS} times in a row");
    }

    /// The keys of all users, as the `aws` command keeps them; the profiles are called as the keys.
    fn write_keys(&self) {
        let profile = |user: &S3User| {
            let S3User { key, secret, .. } = user;
            format!("[{key}]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
        };
        let text: String = self.users.iter().map(profile).collect();
        fs::write(self.dir.path().join("credentials"), text).expect("keys can be written");
    }

    /// The port that clients come to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The store URL of a prefix in the bucket, looked at often.
    pub fn url(&self, prefix: &str) -> String {
        self.url_through(self.port, prefix)
    }

    /// The same through another port.
    pub fn url_through(&self, port: u16, prefix: &str) -> String {
        self.url_as(port, prefix, OPERATOR.key)
    }

    /// The same as a user.
    pub fn url_as(&self, port: u16, prefix: &str, key: &str) -> String {
        let keys = self.dir.path().join("credentials");
        format!(
            "s3://{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{port}&poll=20ms&credentials={}&profile={key}",
            keys.display()
        )
    }

    /// Stops the service as SIGSTOP does.
    pub fn freeze(&self) {
        self.running().freeze();
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.running().thaw();
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.server = None;
    }

    /// Starts it again with what it has stored.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.launch(), "{:?} found a port taken", self.kind);
    }

    /// What it has said.
    pub fn log(&self) -> String {
        self.running().log()
    }

    /// What SeaweedFS has under a prefix, past all keys and rights: the path of each object, and what is in it.
    pub fn objects(&self, prefix: &str) -> BTreeMap<String, serde_json::Value> {
        let mut found = BTreeMap::new();
        let mut folders = vec![format!("/buckets/{BUCKET}/{prefix}/")];
        while let Some(folder) = folders.pop() {
            let said = self.filer(
                "GET",
                &format!("{folder}?limit=100000"),
                "Accept: application/json",
            );
            let said: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
            for entry in said["Entries"].as_array().into_iter().flatten() {
                let path = entry["FullPath"].as_str().unwrap_or_default().to_owned();
                if path.ends_with(".json") {
                    let body = self.filer("GET", &path, "Accept: */*");
                    found.insert(path, serde_json::from_str(&body).unwrap_or_default());
                } else {
                    folders.push(format!("{path}/"));
                }
            }
        }
        found
    }

    /// Removes an object of SeaweedFS by its path, as an operator might.
    pub fn remove(&self, path: &str) {
        self.filer("DELETE", path, "Accept: */*");
    }

    /// Asks the part of SeaweedFS that knows the folders; gives the body of the answer.
    fn filer(&self, method: &str, path: &str, header: &str) -> String {
        let answer = asked_with(self.inner[2], method, path, header);
        let answer = answer.unwrap_or_else(|e| panic!("{method} {path}: {e}"));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        assert!(head.starts_with("HTTP/1.0 20"), "{method} {path}: {head}");
        body.to_owned()
    }

    fn running(&self) -> &Server {
        self.server.as_ref().expect("the service runs")
    }

    /// Starts it; false if a port that it needs is taken.
    fn launch(&mut self) -> bool {
        let log = self.dir.path().join("log");
        let rings = rings(&log);
        let server = match self.kind {
            S3ServiceKind::Seaweed => self.seaweed(),
            S3ServiceKind::Moto => self.moto(),
            S3ServiceKind::Rclone => self.rclone(),
        };
        self.server = Some(server);
        let (kind, port) = (self.kind, self.port);
        let server = self.server.as_mut().expect("it was started");
        let ready = || match kind {
            S3ServiceKind::Seaweed => {
                asked(port, "GET", "/status").is_ok_and(|a| a.contains(" 200 "))
            }
            S3ServiceKind::Moto => {
                asked(port, "PUT", &format!("/{BUCKET}")).is_ok_and(|a| a.contains(" 200 "))
            }
            S3ServiceKind::Rclone => listens(port),
        };
        if !ready_or_taken(server, &format!("{kind:?}"), ready) {
            self.server = None;
            return false;
        }
        if kind == S3ServiceKind::Seaweed {
            // The bucket is made a moment later; where its folders are, that can be asked without a key.
            let (filer, folder) = (self.inner[2], format!("/buckets/{BUCKET}/"));
            await_ready(server, "the bucket", || {
                asked(filer, "GET", &folder).is_ok_and(|a| a.contains(" 200 "))
            });
            await_ready(server, "the ring of its locks", || {
                self::rings(&log) > rings
            });
        }
        true
    }

    fn seaweed(&self) -> Server {
        let program = binary(&["seaweedfs/bin/weed", "weed"], &[FETCHED]);
        let dir = self.dir.path().display().to_string();
        let users: Vec<serde_json::Value> = self
            .users
            .iter()
            .map(|user| {
                serde_json::json!({
                    "name": user.key,
                    "credentials": [{ "accessKey": user.key, "secretKey": user.secret }],
                    "actions": user.rights,
                })
            })
            .collect();
        let config = self.dir.path().join("s3.json");
        let text = serde_json::json!({ "identities": users }).to_string();
        fs::write(&config, text).expect("a configuration can be written");
        let [master, volume, filer] = self.inner;
        let args = [
            // What it says is waited for, and files get it late.
            "-alsologtostderr=true".to_owned(),
            "-logdir".to_owned(),
            dir.clone(),
            "mini".to_owned(),
            format!("-dir={dir}"),
            "-ip=127.0.0.1".to_owned(),
            "-ip.bind=127.0.0.1".to_owned(),
            format!("-master.port={master}"),
            format!("-volume.port={volume}"),
            format!("-filer.port={filer}"),
            format!("-s3.port={}", self.port),
            format!("-s3.config={}", config.display()),
            "-s3.autoCreateBucket=false".to_owned(),
            "-s3.port.iceberg=0".to_owned(),
            "-s3.port.lance=0".to_owned(),
            "-webdav=false".to_owned(),
            "-admin.ui=false".to_owned(),
            format!("-bucket={BUCKET}"),
        ];
        Server::start(&program, &args, None, &self.dir.path().join("log"))
    }

    fn moto(&self) -> Server {
        let program = binary(&["moto/bin/moto_server"], &[FETCHED]);
        let python = binary(&["python3"], &["/usr/bin"]);
        let library = program.ancestors().nth(2).expect("it is in a folder");
        // As it comes it answers in several threads, and then loses conditions when writers race: the trial at the start has
        // caught it. With one thread it keeps to them.
        let script = format!(
            "import sys; sys.path.insert(0, {:?})\n\
             from werkzeug.serving import run_simple\n\
             from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app\n\
             run_simple('127.0.0.1', {}, DomainDispatcherApplication(create_backend_app), threaded=False)",
            library.display().to_string(),
            self.port
        );
        Server::start(
            &python,
            &["-c".to_owned(), script],
            None,
            &self.dir.path().join("log"),
        )
    }

    fn rclone(&self) -> Server {
        let program = binary(&["rclone/bin/rclone", "rclone"], &[FETCHED]);
        let root = self.dir.path().join("root");
        fs::create_dir_all(root.join(BUCKET)).expect("a folder can be made");
        let args = [
            "serve".to_owned(),
            "s3".to_owned(),
            format!("--addr=127.0.0.1:{}", self.port),
            format!("--auth-key={},{}", OPERATOR.key, OPERATOR.secret),
            format!("--config={}", self.dir.path().join("none").display()),
            root.display().to_string(),
        ];
        Server::start(&program, &args, None, &self.dir.path().join("log"))
    }
}

/// Waits until a service is ready; false if it has ended because somebody else has a port that it needs.
fn ready_or_taken(server: &mut Server, what: &str, ready: impl FnMut() -> bool) -> bool {
    let Some(status) = ready_or_ended(server, what, ready) else {
        return true;
    };
    let log = server.log();
    assert!(
        log.contains("address already in use"),
        "{what} ended at its start ({status}):\n{log}"
    );
    false
}

/// A port that is free together with the one that SeaweedFS takes beside it.
fn port_pair() -> u16 {
    loop {
        let port = free_port();
        if !listens(port + 10_000) {
            return port;
        }
    }
}

/// One request without a key: its answer, or as much as came.
fn asked(port: u16, method: &str, path: &str) -> io::Result<String> {
    asked_with(port, method, path, "Accept: */*")
}

fn asked_with(port: u16, method: &str, path: &str, header: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    // In the old way, so that the answer comes in one piece and ends with the connection.
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n{header}\r\nContent-Length: 0\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
