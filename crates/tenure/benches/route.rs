//! What a lookup costs: from a key to its owner among 100,000 shards, beside a `HashMap` get with the same keys.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::router::Router;
use tenure::store::memory::MemoryStore;
use tenure::store::{PutIf, Store};
use tenure::{Handler, Hashed, Node, Result, Shard, ShardId, ShardName};
use tenure_core::ids::{ClusterName, KeyspaceName};
use tenure_core::layout::{Key, prefix};

const SHARDS: u32 = 100_000;
const ROUNDS: usize = 1_000_000;
const SAMPLES: usize = 11;

struct Orders;

impl Handler for Orders {
    type State = ();
    async fn load(&self, _: &Shard) -> Result<()> {
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = Arc::new(MemoryStore::new());
    let node = Node::builder("memory:", "shop")
        .store(store.clone())
        .name("a");
    let node = node.keyspace("seed", Hashed(1), Orders).start().await?;
    while node.owned().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Left behind as by a crash: its record stands, and nobody watches the writes that follow.
    drop(node);
    let start = Instant::now();
    multiply(&*store).await?;
    let written = start.elapsed();
    let router = Router::builder("memory:", "shop").store(store).name("r");
    // To read so many records takes longer than a request may with the usual ttl.
    let router = router.ttl(Duration::from_secs(120));
    let router = router.start().await?;
    println!(
        "records written in {written:?}, router started {:?} later",
        start.elapsed() - written
    );
    let owner = router.look_up("orders", "user-42")?.owner;
    assert_eq!(owner.map(|owner| owner.node().as_str()), Some("a"));
    let keys: Vec<String> = (0..SHARDS).map(|i| format!("user-{i}")).collect();
    let map: HashMap<&str, u32> = keys.iter().map(|k| (k.as_str(), k.len() as u32)).collect();
    // A few keys that stay in the cache, and all of them, where the memory is what takes the time.
    for (what, keys) in [("256 hot keys", &keys[..256]), ("all keys", &keys[..])] {
        let (mut looked, mut got) = (Vec::new(), Vec::new());
        // Turn by turn, so that whatever else the machine does falls on both.
        for _ in 0..SAMPLES {
            looked.push(nanos(keys, |key| {
                router.look_up("orders", key).unwrap().epoch.0
            }));
            got.push(nanos(keys, |key| u64::from(map[key])));
        }
        let (looked, got) = (spread(looked), spread(got));
        println!("{SHARDS} shards, {what}: lookup {looked}; HashMap get {got}");
    }
    Ok(())
}

fn nanos(keys: &[String], look: impl Fn(&str) -> u64) -> f64 {
    let start = Instant::now();
    let mut at = 0;
    for _ in 0..ROUNDS {
        // A walk that jumps about, so that neither is helped by what lies next to what.
        at = (at + 61_803) % keys.len();
        black_box(look(&keys[at]));
    }
    start.elapsed().as_nanos() as f64 / ROUNDS as f64
}

fn spread(mut samples: Vec<f64>) -> String {
    samples.sort_by(f64::total_cmp);
    let (low, high) = (samples[0], samples[samples.len() - 1]);
    format!(
        "{:.1} ns ({low:.1} to {high:.1})",
        samples[samples.len() / 2]
    )
}

/// Writes a keyspace of many shards, all served by the one node that there is.
async fn multiply(store: &dyn Store) -> Result<()> {
    let cluster = ClusterName::new("shop")?;
    let read = async |key: &str| -> Result<serde_json::Value> {
        let path = format!("{}{key}", prefix(&cluster));
        let entry = store.get(&path).await?.ok_or("the seed is there")?;
        Ok(serde_json::from_slice(&entry.value)?)
    };
    let shard = read("shards/seed/0").await?.to_string().into_bytes();
    let mut keyspace = read("keyspaces/seed").await?;
    keyspace["shards"] = SHARDS.into();
    let path = |i: u32| Key::Shard(ShardId::new(orders(), ShardName::index(i))).path(&cluster);
    for first in (0..SHARDS).step_by(1000) {
        let puts = (first..first + 1000).map(|i| PutIf::create(path(i), shard.clone()));
        store.put_many(puts.collect()).await;
    }
    let path = Key::Keyspace(orders()).path(&cluster);
    let keyspace = keyspace.to_string().into_bytes();
    store.put_if(PutIf::create(path, keyspace)).await?;
    Ok(())
}

fn orders() -> KeyspaceName {
    KeyspaceName::new("orders").expect("a name")
}
