//! A store that is a server, as a scenario sees it.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tenure_store::servers::etcd::{Etcd, EtcdRelease};
use tenure_store::servers::nats::Nats;
use tenure_store::servers::postgres::Postgres;
use tenure_store::servers::s3::S3Service;

/// The backends under the names of the modules that their tests are in.
#[allow(non_camel_case_types)]
pub(crate) mod by_name {
    pub(crate) type etcd = super::Etcd;
    pub(crate) type nats = super::Nats;
    pub(crate) type postgres = super::Postgres;
    pub(crate) type s3 = super::S3Service;
}

/// A running server that things can happen to.
pub(crate) trait Backend: Sized {
    const NAME: &'static str;

    /// The default ttl of the store.
    const TTL: Duration;

    /// How late the server may be with the end of a session that it keeps the time of.
    const LATE: Duration;

    /// Whether sessions outlast a server that stood still for longer than the ttl: where the server keeps the time, its
    /// clock went on.
    const OUTLASTS_STANDSTILL: bool;

    /// Whether nodes hear of changes only when they look.
    const POLLS: bool = false;

    fn launch() -> Self;

    /// Where clients come to.
    fn address(&self) -> SocketAddr;

    /// The URL of the store through this port.
    fn url(&self, port: u16) -> String;

    /// Stops the server as SIGSTOP does.
    fn stand_still(&self);

    fn go_on(&self);

    /// Kills the server.
    fn crash(&mut self);

    /// Starts it again with what it has stored.
    fn come_back(&mut self);

    /// Deletes the one key that ends like this, past everybody.
    fn delete(&self, ending: &str);

    /// A number that grows with every write.
    fn writes(&self) -> u64;

    /// Describes the keys written after `writes` was this number. Empty for a store that does not record it.
    fn written_after(&self, _writes: u64) -> String {
        String::new()
    }
}

impl Backend for Etcd {
    const NAME: &'static str = "etcd";
    const TTL: Duration = Duration::from_secs(2);
    /// Leases that have run out are looked for twice a second.
    const LATE: Duration = Duration::from_millis(500);
    const OUTLASTS_STANDSTILL: bool = false;

    fn launch() -> Self {
        Self::start(EtcdRelease::V3_4)
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port(0)))
    }

    fn url(&self, port: u16) -> String {
        format!("etcd://127.0.0.1:{port}/test")
    }

    fn stand_still(&self) {
        self.freeze(0);
    }

    fn go_on(&self) {
        self.thaw(0);
    }

    fn crash(&mut self) {
        self.kill(0);
    }

    fn come_back(&mut self) {
        self.restart(0);
    }

    fn delete(&self, ending: &str) {
        let key = key_of(self, ending);
        let said = self.ctl(&["del", &key]);
        assert_eq!(said.trim(), "1", "{key}");
    }

    fn writes(&self) -> u64 {
        let said = self.ctl(&["get", "none", "--write-out=json"]);
        let said: serde_json::Value = serde_json::from_str(&said).expect("etcdctl speaks JSON");
        said["header"]["revision"].as_u64().expect("a revision")
    }

    fn written_after(&self, revision: u64) -> String {
        let fields = self.ctl(&["get", "--prefix", "", "--write-out=fields"]);
        let field = |entry: &str, name: &str| {
            let start = format!("\"{name}\" : ");
            let value = entry.lines().find_map(|line| line.strip_prefix(&start));
            value.unwrap_or_default().to_owned()
        };
        let revised = |entry: &str| field(entry, "ModRevision").parse::<u64>();
        let written = |entry: &&str| revised(entry).is_ok_and(|rev| rev > revision);
        let entries = fields.split("\"Key\" : ").skip(1).filter(written);
        let key = |entry: &str| entry.lines().next().unwrap_or_default().to_owned();
        let shown = entries.map(|entry| {
            format!(
                "{} version {} = {}",
                key(entry),
                field(entry, "Version"),
                field(entry, "Value")
            )
        });
        shown.collect()
    }
}

/// The one key that ends like this.
pub(crate) fn key_of(etcd: &Etcd, ending: &str) -> String {
    let keys = etcd.ctl(&["get", "--prefix", "", "--keys-only"]);
    let keys: Vec<&str> = keys.lines().filter(|k| k.ends_with(ending)).collect();
    assert_eq!(keys.len(), 1, "{ending}: {keys:?}");
    keys[0].to_owned()
}

impl Backend for Nats {
    const NAME: &'static str = "nats";
    const TTL: Duration = Duration::from_millis(2500);
    const LATE: Duration = Duration::ZERO;
    const OUTLASTS_STANDSTILL: bool = true;

    fn launch() -> Self {
        Self::start()
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port(0)))
    }

    fn url(&self, port: u16) -> String {
        format!("nats://127.0.0.1:{port}/test")
    }

    fn stand_still(&self) {
        self.freeze(0);
    }

    fn go_on(&self) {
        self.thaw(0);
    }

    fn crash(&mut self) {
        self.kill(0);
    }

    fn come_back(&mut self) {
        self.restart(0);
    }

    fn delete(&self, ending: &str) {
        let ending = ending.replace('/', ".");
        let subjects = self.subjects("test");
        let subjects: Vec<&String> = subjects.iter().filter(|s| s.ends_with(&ending)).collect();
        assert_eq!(subjects.len(), 1, "{ending}: {subjects:?}");
        Self::delete(self, subjects[0]);
    }

    fn writes(&self) -> u64 {
        let state = self.state("test");
        state["last_seq"].as_u64().expect("a sequence")
    }
}

impl Backend for Postgres {
    const NAME: &'static str = "postgres";
    const TTL: Duration = Duration::from_millis(2500);
    const LATE: Duration = Duration::ZERO;
    const OUTLASTS_STANDSTILL: bool = true;

    fn launch() -> Self {
        Self::start()
    }

    fn address(&self) -> SocketAddr {
        self.address()
    }

    fn url(&self, port: u16) -> String {
        self.url_at(port)
    }

    fn stand_still(&self) {
        self.server().freeze();
    }

    fn go_on(&self) {
        self.server().thaw();
    }

    fn crash(&mut self) {
        self.kill();
    }

    fn come_back(&mut self) {
        self.restart();
    }

    fn delete(&self, ending: &str) {
        let delete = format!("DELETE FROM tenure.kv WHERE key LIKE '%{ending}' RETURNING key");
        let said = self.sql(&delete);
        assert_eq!(said.lines().count(), 1, "{ending}: {said}");
    }

    fn writes(&self) -> u64 {
        let said = self.sql("SELECT sum(count) FROM tenure.kv_writes");
        said.parse().expect("a number")
    }
}

impl Backend for S3Service {
    const NAME: &'static str = "s3";
    /// Short, so that tests end; with less, a busy machine that wakes all parts of SeaweedFS is measured.
    const TTL: Duration = Duration::from_secs(5);
    /// Nobody knows of a renewal before the next look.
    const LATE: Duration = Duration::from_millis(250);
    const OUTLASTS_STANDSTILL: bool = true;
    const POLLS: bool = true;

    fn launch() -> Self {
        Self::start()
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()))
    }

    fn url(&self, port: u16) -> String {
        let url = self.url_through(port, "test");
        url.replace("poll=20ms", &format!("poll={}ms", Self::LATE.as_millis()))
    }

    fn stand_still(&self) {
        self.freeze();
    }

    fn go_on(&self) {
        self.thaw();
    }

    fn crash(&mut self) {
        self.kill();
    }

    fn come_back(&mut self) {
        self.restart();
    }

    fn delete(&self, ending: &str) {
        let ending = format!("{ending}!.json");
        let objects = self.objects("test");
        let found: Vec<&String> = objects.keys().filter(|o| o.ends_with(&ending)).collect();
        assert_eq!(found.len(), 1, "{ending}: {objects:?}");
        self.remove(found[0]);
    }

    /// The sum of how often each record was written.
    fn writes(&self) -> u64 {
        let objects = self.objects("test");
        let rev = |body: &serde_json::Value| body["value"]["rev"].as_u64();
        objects.values().filter_map(rev).sum()
    }
}
