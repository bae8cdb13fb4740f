//! A cluster in a temporary SQLite file, the real binary to look at it, and real nodes to live in it.
#![allow(dead_code, reason = "not every test uses everything")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tenure::{Handler, Hashed, Node, Result, Shard};
use tenure_core::ids::{ClusterName, KeyspaceName, NodeName, Nonce, SessionId, ShardId, ShardName};
use tenure_core::keys::Key;
use tenure_core::record::{Head, Record};
use tenure_store::{Entry, Expect, Put, PutIf, Store};
use tokio::runtime::Runtime;

/// Short, so that what waits for a lease does not wait for long.
pub(crate) const TTL: Duration = Duration::from_millis(800);

pub(crate) struct TestCluster {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) runtime: Runtime,
}

/// What the binary did.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// Fails the test unless the exit code is this one.
    #[track_caller]
    pub(crate) fn with(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "stdout:\n{}\nstderr:\n{}",
            self.out, self.err
        );
        self
    }

    /// Fails the test unless stderr tells all of this.
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
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// The binary, without what the surroundings may have set.
pub(crate) fn tenure(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TENURE_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null());
    command
}

pub(crate) fn ran(args: &[&str]) -> Ran {
    tenure(args).output().unwrap().into()
}

impl TestCluster {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            runtime: Runtime::new().unwrap(),
        }
    }

    /// With a keyspace `orders` of that many shards.
    pub(crate) fn with_orders(shards: u32) -> Self {
        let shop = Self::new();
        let shards = shards.to_string();
        shop.run(&["keyspace", "create", "orders", "--shards", &shards])
            .with(0);
        shop
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("shop.db")
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.file().display())
    }

    /// The binary on this store, in the cluster `shop`.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = tenure(args);
        command
            .env("TENURE_STORE", self.url())
            .env("TENURE_CLUSTER", "shop");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.command(args).output().unwrap().into()
    }

    pub(crate) fn status(&self) -> Value {
        self.run(&["status", "--json"]).with(0).json()
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        self.runtime
            .block_on(tenure_store::open(&self.url()))
            .unwrap()
    }

    /// Every key that there is.
    pub(crate) fn store_keys(&self) -> std::collections::BTreeSet<String> {
        let listing = self.runtime.block_on(self.store().list("")).unwrap();
        listing.entries.into_iter().map(|entry| entry.key).collect()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Entry> {
        let path = key.path(&cluster());
        self.runtime.block_on(self.store().get(&path)).unwrap()
    }

    /// What stands at a key that must be readable.
    #[track_caller]
    pub(crate) fn record(&self, key: &Key) -> Record {
        let entry = self.get(key).expect("the key is there");
        Record::decode(key, &entry.value).unwrap()
    }

    /// Lays hands on a key: whatever was there is replaced.
    pub(crate) fn lay(&self, key: &Key, bytes: &[u8]) {
        // Whoever writes at the same moment is overwritten as well.
        for _ in 0..20 {
            let put = PutIf {
                key: key.path(&cluster()),
                value: bytes.into(),
                expect: match self.get(key) {
                    Some(entry) => Expect::Version(entry.version),
                    None => Expect::Absent,
                },
                lease: None,
            };
            let wrote = self.runtime.block_on(self.store().put_if(put)).unwrap();
            if matches!(wrote, Put::Won(_)) {
                return;
            }
        }
        panic!("others keep writing {key}");
    }

    /// Lays hands on a key: it is gone.
    pub(crate) fn delete(&self, key: &Key) {
        let version = self.get(key).expect("the key is there").version;
        let delete = tenure_store::DeleteIf::new(key.path(&cluster()), version);
        let gone = self
            .runtime
            .block_on(self.store().delete_if(delete))
            .unwrap();
        assert_eq!(gone, tenure_store::Delete::Won);
    }

    /// A node that serves `orders`, once every shard is served and the records say so.
    pub(crate) fn node(&self, name: &str, shards: u32) -> Node {
        let builder = Node::builder(self.url(), "shop")
            .name(name)
            .address("http", format!("http://127.0.0.1/{name}"))
            .zone("eu")
            .ttl(TTL)
            .keyspace("orders", Hashed(shards), NoopHandler);
        let node = self.runtime.block_on(builder.start()).unwrap();
        self.until(|status| served(status) == shards as usize);
        node
    }

    /// With a keyspace `orders` of that many shards, whose leader does not take its time.
    pub(crate) fn with_lively_orders(shards: u32) -> Self {
        let shop = Self::new();
        let shards = shards.to_string();
        let create = ["keyspace", "create", "orders", "--shards", &shards];
        let lively = [
            "--planning-settle-time",
            "50ms",
            "--rejoin-after",
            "0ms",
            "--cool-down",
            "0ms",
        ];
        shop.run(&[&create[..], &lively].concat()).with(0);
        shop
    }

    /// A node that serves `orders` and is set up further; without waiting for anything but its start.
    pub(crate) fn node_with(
        &self,
        name: &str,
        shards: u32,
        with: impl FnOnce(tenure::Builder) -> tenure::Builder,
    ) -> Node {
        let builder = Node::builder(self.url(), "shop").name(name).ttl(TTL);
        let builder = with(builder).keyspace("orders", Hashed(shards), NoopHandler);
        self.runtime.block_on(builder.start()).unwrap()
    }

    pub(crate) fn stop(&self, node: &Node) {
        self.runtime.block_on(node.stop()).unwrap();
    }

    /// Waits until the report is as wanted. The limit is for a machine that is busy with everything else.
    #[track_caller]
    pub(crate) fn until(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let limit = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(
                std::time::Instant::now() < limit,
                "not within 30 s: {status:#}"
            );
        }
    }
}

/// Loads nothing and serves everything.
struct NoopHandler;

impl Handler for NoopHandler {
    type State = ();
    async fn load(&self, _: &Shard) -> Result<()> {
        Ok(())
    }
}

pub(crate) fn cluster() -> ClusterName {
    ClusterName::new("shop").unwrap()
}

pub(crate) fn keyspace(name: &str) -> Key {
    Key::Keyspace(KeyspaceName::new(name).unwrap())
}

pub(crate) fn order(index: u32) -> Key {
    Key::Shard(ShardId::new(
        KeyspaceName::new("orders").unwrap(),
        ShardName::index(index),
    ))
}

pub(crate) fn node_key(name: &str) -> Key {
    Key::Node(NodeName::new(name).unwrap())
}

/// The head of a record that a test writes.
pub(crate) fn head(rev: u64) -> Head {
    let nonce = Nonce {
        writer: SessionId(7),
        n: rev,
    };
    Head {
        rev,
        ..Head::first(nonce)
    }
}

/// The problems of a report, as `kind key`.
pub(crate) fn problems(status: &Value) -> Vec<String> {
    let all = status["problems"].as_array().unwrap();
    all.iter()
        .map(|p| {
            format!(
                "{} {}",
                p["kind"].as_str().unwrap(),
                p["key"].as_str().unwrap()
            )
        })
        .collect()
}

/// The shard of this number in a report.
pub(crate) fn shard(status: &Value, index: u32) -> Value {
    let all = status["shards"].as_array().unwrap();
    let name = index.to_string();
    let found = all
        .iter()
        .find(|s| s["keyspace"] == "orders" && s["shard"] == name.as_str());
    found.cloned().unwrap_or(Value::Null)
}

/// How many shards of `orders` a node has.
pub(crate) fn has(status: &Value, node: &str) -> usize {
    let all = status["shards"].as_array().unwrap();
    all.iter()
        .filter(|s| s["owner"] == node && s["state"] == "serving")
        .count()
}

/// How many shards of `orders` are served.
pub(crate) fn served(status: &Value) -> usize {
    let all = status["shards"].as_array().unwrap();
    all.iter()
        .filter(|s| s["keyspace"] == "orders" && s["state"] == "serving")
        .count()
}
