//! A shop in one process: nodes that keep ledgers on a shared disk, routers, and a wire between them that takes a while.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::router::{HoldLimits, Route, RouteError, Router, RouterBuilder, SendResult};
use tenure::store::fault::{FaultConfig, FaultStore};
use tenure::store::memory::MemoryStore;
use tenure::store::{Put, PutIf, Store};
use tenure::{
    AssignedBy, Builder, Clock, Epoch, Handler, Hashed, Node, Result, Seal, Settings, Shard,
    ShardId, StartError,
};
use tenure_core::ids::{ClusterName, Nonce, SessionId, Version};
use tenure_core::keys::Key;
use tenure_core::record::{Head, MovePhase, NodeMode, Record, Role, SessionRecord, ShardRecord};
use tokio::sync::watch;

pub(crate) const TTL: Duration = Duration::from_secs(6);
pub(crate) const SHARDS: u32 = 8;

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn settings() -> Settings {
    Settings {
        ttl: TTL,
        ..Settings::default()
    }
}

/// One write, as it stands on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) key: String,
    pub(crate) n: u64,
    pub(crate) epoch: Epoch,
}

/// What outlives every node.
pub(crate) type Disk = Arc<Mutex<BTreeMap<ShardId, Vec<Line>>>>;

/// What a test may do to the sealing of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sealing {
    Go,
    Wait,
    Fail,
}

/// Keeps a ledger per shard. What it has in memory must be what is on the disk, at every write (P3).
#[derive(Clone)]
pub(crate) struct Ledger<const CATCHES_UP: bool> {
    pub(crate) disk: Disk,
    pub(crate) sealing: watch::Receiver<Sealing>,
    pub(crate) load_time: Duration,
}

impl<const CATCHES_UP: bool> Ledger<CATCHES_UP> {
    fn read(&self, shard: &Shard) -> Vec<Line> {
        let disk = self.disk.lock().unwrap();
        disk.get(shard.id()).cloned().unwrap_or_default()
    }
}

impl<const C: bool> Handler for Ledger<C> {
    type State = Vec<Line>;
    const CATCHES_UP: bool = C;

    async fn load(&self, shard: &Shard) -> Result<Vec<Line>> {
        let lines = self.read(shard);
        tokio::time::sleep(self.load_time).await;
        // What was written meanwhile is for `catch_up`, where that follows.
        Ok(if shard.is_owned() {
            self.read(shard)
        } else {
            lines
        })
    }

    async fn catch_up(&self, shard: &Shard, state: &mut Vec<Line>, from: &Seal) -> Result<()> {
        *state = self.read(shard);
        assert_eq!(from.as_str(), state.len().to_string(), "the tail is whole");
        Ok(())
    }

    async fn seal(&self, _shard: &Shard, state: &mut Vec<Line>) -> Result<Seal> {
        let mut sealing = self.sealing.clone();
        let told = *sealing.wait_for(|s| *s != Sealing::Wait).await?;
        match told {
            Sealing::Fail => Err("the disk is full".into()),
            _ => Ok(Seal::new(state.len().to_string())),
        }
    }
}

/// All of it.
pub(crate) struct TestCluster<const CATCHES_UP: bool> {
    url: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) disk: Disk,
    pub(crate) sealing: watch::Sender<Sealing>,
    pub(crate) load_time: Duration,
    pub(crate) mode: AssignedBy,
    wire: Wire<CATCHES_UP>,
}

/// The way from routers to nodes.
#[derive(Clone, Default)]
pub(crate) struct Wire<const CATCHES_UP: bool> {
    nodes: Arc<Mutex<BTreeMap<String, Node>>>,
    calls: Arc<AtomicU64>,
}

impl<const C: bool> Wire<C> {
    /// Carries a write to the node that a route names, as a network would: there, done, and back.
    pub(crate) async fn write(
        &self,
        route: Route,
        key: &str,
        n: u64,
        disk: &Disk,
    ) -> SendResult<()> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let node = self.nodes.lock().unwrap()[route.owner.address("wire").unwrap()].clone();
        tokio::time::sleep(Duration::from_micros(100 + call % 7 * 150)).await;
        let entered = match node.enter_at::<Ledger<C>>("orders", key, route.epoch) {
            Ok(entered) => entered,
            Err(refused) => return refused.into(),
        };
        let done = entered.run(async |state: &mut Vec<Line>, grant| {
            tokio::time::sleep(Duration::from_micros(200)).await;
            let line = Line {
                key: key.to_owned(),
                n,
                epoch: grant.epoch(),
            };
            let mut disk = disk.lock().unwrap();
            let lines = disk.entry(grant.shard().clone()).or_default();
            assert_eq!(state.len(), lines.len(), "memory is what the disk says");
            lines.push(line.clone());
            state.push(line);
        });
        done.await.expect("no lease is lost here");
        SendResult::Done(())
    }
}

impl<const C: bool> TestCluster<C> {
    pub(crate) fn new() -> Self {
        Self::with("memory:", Arc::new(MemoryStore::new()), Clock::runtime())
    }

    /// In real time, over the store at this URL.
    pub(crate) async fn over(url: &str) -> Self {
        let store = tenure::store::open(url).await.unwrap();
        Self::with(url, store, Clock::boot())
    }

    fn with(url: &str, store: Arc<dyn Store>, clock: Clock) -> Self {
        Self {
            url: url.to_owned(),
            store,
            clock,
            disk: Disk::default(),
            sealing: watch::channel(Sealing::Go).0,
            load_time: ms(300),
            mode: AssignedBy::Leader,
            wire: Wire::default(),
        }
    }

    pub(crate) async fn node(&self, name: &str) -> Node {
        let ledger = Ledger::<C> {
            disk: self.disk.clone(),
            sealing: self.sealing.subscribe(),
            load_time: self.load_time,
        };
        let builder = self.node_builder(name);
        let builder = builder.keyspace("orders", Hashed(SHARDS), ledger);
        let node = builder.start().await.unwrap();
        let known = self
            .wire
            .nodes
            .lock()
            .unwrap()
            .insert(name.to_owned(), node.clone());
        drop(known);
        node
    }

    /// A node that has no keyspace yet.
    pub(crate) fn node_builder(&self, name: &str) -> Builder {
        let mut builder = Node::builder(&self.url, "shop");
        if self.is_virtual() {
            builder = builder.store(self.slow());
        }
        builder
            .name(name)
            .address("wire", name)
            .settings(settings())
            .clock(self.clock.clone())
            .assigned_by(self.mode)
    }

    /// The store as it is over a network: in virtual time a bare memory store takes no time at all.
    fn slow(&self) -> Arc<dyn Store> {
        let (store, faults) = FaultStore::new(self.store.clone(), FaultConfig::none(1));
        faults.slow(ms(1));
        Arc::new(store)
    }

    pub(crate) fn is_virtual(&self) -> bool {
        self.url == "memory:"
    }

    pub(crate) fn router_builder(&self, name: &str) -> RouterBuilder {
        let mut builder = Router::builder(&self.url, "shop");
        if self.is_virtual() {
            builder = builder.store(self.slow());
        }
        builder
            .name(name)
            .settings(settings())
            .clock(self.clock.clone())
    }

    pub(crate) async fn router(&self, name: &str) -> Router {
        self.router_builder(name).start().await.unwrap()
    }

    /// Sends one write through a router.
    pub(crate) async fn send(&self, router: &Router, key: &str, n: u64) -> Result<(), RouteError> {
        send(&self.wire, &self.disk, router, key, n).await
    }

    /// Begins to send one write through a router; what comes after this call arrived later.
    pub(crate) fn begin(
        &self,
        router: &Router,
        key: &str,
        n: u64,
    ) -> tokio::task::JoinHandle<Result<(), RouteError>> {
        let (wire, disk) = (self.wire.clone(), self.disk.clone());
        let (router, key) = (router.clone(), key.to_owned());
        tokio::spawn(async move { send(&wire, &disk, &router, &key, n).await })
    }

    pub(crate) async fn owns(&self, node: &Node, shards: usize) {
        until(&format!("{} has {shards}", node.name()), async || {
            node.owned().len() == shards
        })
        .await;
    }

    /// Whether two nodes have all shards between them, and each has some.
    pub(crate) fn settled(&self, a: &Node, b: &Node) -> bool {
        let (a, b) = (a.owned().len(), b.owned().len());
        a > 0 && b > 0 && a + b == SHARDS as usize
    }

    pub(crate) async fn record(&self, shard: &ShardId) -> ShardRecord {
        match self.get(&Key::Shard(shard.clone())).await.1 {
            Record::Shard(record) => (*record).clone(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn get(&self, key: &Key) -> (Version, Record) {
        let entry = self.store.get(&key.path(&cluster())).await.unwrap();
        let entry = entry.unwrap_or_else(|| panic!("{key:?} exists"));
        (entry.version, Record::decode(key, &entry.value).unwrap())
    }

    /// Has a node give its shards away, as an operator would.
    pub(crate) async fn drain(&self, node: &Node) {
        let key = Key::Node(node.name().clone());
        loop {
            let (version, record) = self.get(&key).await;
            let Record::Node(record) = record else {
                panic!("{record:?}")
            };
            let mut record = (*record).clone();
            record.mode = NodeMode::Draining;
            record.head = record.head.next(nonce());
            let value = Record::Node(Arc::new(record)).encode();
            if self.put(&key, value, version).await {
                return;
            }
        }
    }

    /// Creates a named shard by hand.
    pub(crate) async fn create(&self, keyspace: &str, name: &str) {
        let shard = ShardId::new(keyspace.parse().unwrap(), name.parse().unwrap());
        let Record::Keyspace(keyspace) = self.get(&Key::Keyspace(shard.keyspace.clone())).await.1
        else {
            panic!("no keyspace {keyspace}")
        };
        let record = ShardRecord::new(Head::first(nonce()), keyspace.generation);
        let value = Record::Shard(Arc::new(record)).encode();
        let key = Key::Shard(shard).path(&cluster());
        self.store.put_if(PutIf::create(key, value)).await.unwrap();
    }

    /// Replaces a value by hand, if it is still the one of this version.
    pub(crate) async fn put(&self, key: &Key, value: Vec<u8>, version: Version) -> bool {
        let put = PutIf::update(key.path(&cluster()), value, version);
        matches!(self.store.put_if(put).await.unwrap(), Put::Won(_))
    }

    /// The first shard that is found in this phase of a move, once there is one.
    pub(crate) async fn moving(&self, phase: MovePhase) -> ShardId {
        let mut found = None;
        until("a shard moves", async || {
            for i in 0..SHARDS {
                let shard: ShardId = format!("orders/{i}").parse().unwrap();
                let moving = self.record(&shard).await;
                if moving.ownership.moving().map(|m| m.1) == Some(phase) {
                    found = Some(shard);
                }
            }
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    /// The live session of a node or router.
    pub(crate) async fn session_of(&self, name: &str) -> (SessionId, SessionRecord) {
        let Record::Node(node) = self.get(&Key::Node(name.parse().unwrap())).await.1 else {
            panic!("no node {name}")
        };
        match self.get(&Key::Session(node.session)).await.1 {
            Record::Session(record) => (node.session, (*record).clone()),
            other => panic!("{other:?}"),
        }
    }

    /// Writes the session of a router that never does anything, and that nobody can tell from a live one for a ttl.
    pub(crate) async fn mute_router(&self, like: &Router) -> SessionId {
        let (_, mut record) = self.session_of(like.name().as_str()).await;
        let id = SessionId(0xdead_0000);
        record.node = "mute".parse().unwrap();
        assert_eq!(record.role, Role::Router);
        let key = Key::Session(id).path(&cluster());
        let value = Record::Session(Arc::new(record)).encode();
        self.store.put_if(PutIf::create(key, value)).await.unwrap();
        id
    }

    /// Nothing acknowledged is lost or done twice, and the order of every key is that of its client.
    pub(crate) fn audit(&self, acknowledged: &BTreeMap<String, u64>) {
        let disk = self.disk.lock().unwrap();
        let mut found: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for lines in disk.values() {
            assert!(lines.is_sorted_by_key(|l| l.epoch), "epochs only grow");
            for line in lines {
                found.entry(&line.key).or_default().push(line.n);
            }
        }
        for (key, last) in acknowledged {
            let expected: Vec<u64> = (1..=*last).collect();
            assert_eq!(found[key.as_str()], expected, "{key}");
        }
    }
}

async fn send<const C: bool>(
    wire: &Wire<C>,
    disk: &Disk,
    router: &Router,
    key: &str,
    n: u64,
) -> Result<(), RouteError> {
    router
        .send("orders", key, 100, async |route| {
            wire.write(route, key, n, disk).await
        })
        .await
}

pub(crate) fn cluster() -> ClusterName {
    ClusterName::new("shop").unwrap()
}

fn nonce() -> Nonce {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Nonce {
        writer: SessionId(0xbad),
        n: NEXT.fetch_add(1, Ordering::Relaxed),
    }
}

/// A key of a shard.
pub(crate) fn key_of(shard: &ShardId) -> String {
    let mut keys = (0..).map(|i| format!("key-{i}"));
    keys.find(|key| shard_of(key) == *shard).unwrap()
}

/// The shard of a key.
pub(crate) fn shard_of(key: &str) -> ShardId {
    let index = tenure_core::hash::shard_index(key.as_bytes(), SHARDS);
    format!("orders/{index}").parse().unwrap()
}

/// A value of a metric of a router.
pub(crate) fn metric(router: &Router, name: &'static str) -> f64 {
    router.metrics().value(name, "")
}

/// Limits that fit settings with short times.
pub(crate) fn short() -> (Settings, HoldLimits) {
    let settings = Settings {
        router_hold_timeout: ms(500),
        drain_timeout: ms(1000),
        take_timeout: ms(500),
        ..settings()
    };
    let limits = HoldLimits {
        count: 8,
        bytes: 1000,
        age: ms(2000),
    };
    (settings, limits)
}

pub(crate) async fn until(what: &str, mut ready: impl AsyncFnMut() -> bool) -> Duration {
    let start = tokio::time::Instant::now();
    while !ready().await {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        tokio::time::sleep(ms(1)).await;
    }
    start.elapsed()
}

pub(crate) fn problems(error: StartError) -> Vec<String> {
    match error {
        StartError::Invalid(problems) => problems,
        other => panic!("{other}"),
    }
}
