//! A small cluster in virtual time: nodes over one memory store, each behind faults of its own.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::store::fault::{FaultConfig, FaultHandle, FaultStore};
use tenure::store::memory::MemoryStore;
use tenure::store::{PutIf, Store};
use tenure::{
    Builder, Clock, Epoch, Grant, Handler, Hashed, Node, NodeEvent, PlanningSettings, Result, Seal,
    Settings, Shard, ShardId, SharedState, StartError,
};
use tenure_core::ids::ClusterName;
use tenure_core::keys::Key;
use tenure_core::record::{Ownership, Record, ShardRecord};
use tokio::sync::broadcast;

/// The ttl of every test: margin 1.5 s, renewal every second, recovery window 2 s, requests 0.6 s.
pub(crate) const TTL: Duration = Duration::from_secs(6);
pub(crate) const MARGIN: Duration = Duration::from_millis(1500);

/// For how long a renewal is good. Where the store keeps the time, its clock may run fast by as much as is allowed.
pub(crate) fn good_for() -> Duration {
    if crate::LEASES {
        TTL * 1000 / 1010
    } else {
        TTL
    }
}

pub(crate) fn settings() -> Settings {
    Settings {
        ttl: TTL,
        ..Settings::default()
    }
}

/// A leader that does not take its time: what returns gets its share at once.
fn lively() -> PlanningSettings {
    PlanningSettings {
        settle_time: Some(Duration::from_millis(250)),
        rejoin_after: Some(Duration::ZERO),
        cool_down: Some(Duration::ZERO),
        ..PlanningSettings::default()
    }
}

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What happens inside handlers, in order, with the virtual time since the start in milliseconds.
#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    pub(crate) fn write(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|l| *l == line).count()
    }
}

/// How many loads of a shard are still to fail, by shard name; `u32::MAX` means all.
pub(crate) type Failing = Arc<Mutex<BTreeMap<String, u32>>>;

/// A handler that counts, and writes down what is done to it.
#[derive(Clone, Default)]
pub(crate) struct Counter {
    pub(crate) journal: Journal,
    pub(crate) failing: Failing,
    /// Loops that are running now.
    pub(crate) running: Arc<AtomicU32>,
}

pub(crate) struct Running(Arc<AtomicU32>);

impl Running {
    pub(crate) fn begin(count: &Arc<AtomicU32>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Handler for Counter {
    type State = u64;

    async fn load(&self, shard: &Shard) -> Result<u64> {
        if let Some(left) = self.failing.lock().unwrap().get_mut(shard.name().as_str())
            && *left > 0
        {
            *left = left.saturating_sub(u32::from(*left != u32::MAX));
            return Err("the disk is on fire".into());
        }
        self.journal.write(format!("load {}", shard.name()));
        Ok(0)
    }

    async fn seal(&self, shard: &Shard, _state: &mut u64) -> Result<Seal> {
        self.journal.write(format!("seal {}", shard.name()));
        Ok(Seal::default())
    }

    async fn run(&self, grant: Grant, _state: SharedState<u64>) -> Result<()> {
        let _running = Running::begin(&self.running);
        grant.cancelled().await;
        Ok(())
    }
}

/// One store and one clock.
pub(crate) struct TestCluster {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) cluster: ClusterName,
}

impl TestCluster {
    pub(crate) fn new() -> Self {
        Self {
            store: Arc::new(if crate::LEASES {
                MemoryStore::with_leases()
            } else {
                MemoryStore::new()
            }),
            clock: Clock::runtime(),
            cluster: ClusterName::new("shop").unwrap(),
        }
    }

    /// A node behind faults of its own, not yet started.
    pub(crate) fn node(&self, name: &str, handler: &Counter) -> (Builder, FaultHandle) {
        let (builder, faults) = self.bare(name);
        (
            builder
                .plan(lively())
                .keyspace("orders", Hashed(4), handler.clone()),
            faults,
        )
    }

    /// The same without a keyspace.
    pub(crate) fn bare(&self, name: &str) -> (Builder, FaultHandle) {
        let (store, faults) = FaultStore::new(self.store.clone(), FaultConfig::none(1));
        let builder = Node::builder("memory:", "shop")
            .store(Arc::new(store))
            .name(name)
            .address("http", format!("http://{name}"))
            .settings(settings())
            .clock(self.clock.clone());
        (builder, faults)
    }

    /// Starts a node; it must come up.
    pub(crate) async fn start(&self, name: &str, handler: &Counter) -> (Node, FaultHandle) {
        let (builder, faults) = self.node(name, handler);
        (started(builder).await.unwrap(), faults)
    }

    pub(crate) async fn record(&self, shard: &ShardId) -> ShardRecord {
        let key = Key::Shard(shard.clone());
        let entry = self.store.get(&key.path(&self.cluster)).await.unwrap();
        match Record::decode(&key, &entry.expect("a shard record").value) {
            Ok(Record::Shard(record)) => (*record).clone(),
            other => panic!("{shard}: {other:?}"),
        }
    }

    pub(crate) async fn epochs(&self) -> Vec<Epoch> {
        let mut epochs = Vec::new();
        for i in 0..4 {
            epochs.push(self.record(&shard(i)).await.epoch);
        }
        epochs
    }

    /// Removes a key by hand.
    pub(crate) async fn delete(&self, key: &Key) {
        let path = key.path(&self.cluster);
        let entry = self
            .store
            .get(&path)
            .await
            .unwrap()
            .expect("a key to delete");
        let delete = tenure::store::DeleteIf::new(path, entry.version);
        self.store.delete_if(delete).await.unwrap();
    }

    /// Takes a shard from its owner by hand, for another node.
    pub(crate) async fn release(&self, shard: &ShardId, to: &Node) {
        let mut record = self.record(shard).await;
        record.head.rev += 1;
        record.ownership = Ownership::FREE;
        record.assigned = Some(to.name().clone());
        let value = Record::Shard(Arc::new(record)).encode();
        self.overwrite(&Key::Shard(shard.clone()), &value).await;
    }

    /// Overwrites a key by hand.
    pub(crate) async fn overwrite(&self, key: &Key, value: &[u8]) {
        let path = key.path(&self.cluster);
        let entry = self
            .store
            .get(&path)
            .await
            .unwrap()
            .expect("a key to overwrite");
        let put = PutIf::update(path, value.to_vec(), entry.version);
        self.store.put_if(put).await.unwrap();
    }
}

/// Starts within a virtual minute, or fails.
pub(crate) async fn started(builder: Builder) -> Result<Node, StartError> {
    let start = tokio::time::timeout(Duration::from_secs(60), builder.start());
    start.await.expect("the start never ended")
}

/// Waits, for at most a virtual minute, until `ready` holds. Returns how long that took.
pub(crate) async fn until(what: &str, mut ready: impl AsyncFnMut() -> bool) -> Duration {
    let start = tokio::time::Instant::now();
    while !ready().await {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        tokio::time::sleep(ms(5)).await;
    }
    start.elapsed()
}

/// Waits until a node serves so many shards.
pub(crate) async fn owns(node: &Node, shards: usize) -> Duration {
    let what = format!("{} owns {shards}, not {:?}", node.name(), node.owned());
    until(&what, async || node.owned().len() == shards).await
}

pub(crate) fn shard(i: u32) -> ShardId {
    format!("orders/{i}").parse().unwrap()
}

/// A shard that the node owns.
pub(crate) fn some_shard(node: &Node) -> ShardId {
    node.owned().first().expect("an owned shard").clone()
}

/// The first note that `wanted` picks out.
pub(crate) async fn note<T>(
    notes: &mut broadcast::Receiver<Arc<NodeEvent>>,
    wanted: impl Fn(&NodeEvent) -> Option<T>,
) -> T {
    let first = async {
        loop {
            if let Some(found) = wanted(&notes.recv().await.expect("the node goes on")) {
                return found;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), first)
        .await
        .expect("the note never came")
}
