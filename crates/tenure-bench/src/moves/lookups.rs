//! Duration of a lookup: from a key to its owner among very many shards, beside a `HashMap` get with the same keys.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tenure::router::Router;
use tenure::{Hashed, Node};
use tenure_core::ids::{ClusterName, KeyspaceName, ShardId, ShardName};
use tenure_core::keys::Key;
use tenure_store::memory::MemoryStore;
use tenure_store::{PutIf, Store};

use crate::exit::Exit;
use crate::measure::Figure;
use crate::table::{Table, WIDTH};
use crate::worker::{CLUSTER, KEYSPACE, NoopHandler};

const ROUNDS: usize = 200_000;
const SAMPLES: usize = 11;
/// So few keys stay in a processor's cache.
const HOT: usize = 256;

/// What lookups took.
#[derive(Debug, Serialize)]
pub(crate) struct Lookups {
    shards: u32,
    /// How long a router took to read all records and start.
    router_started_ms: f64,
    rows: Vec<LookupRow>,
}

#[derive(Debug, Serialize)]
struct LookupRow {
    keys: usize,
    lookup_ns: Figure,
    hash_map_ns: Figure,
}

pub(crate) async fn measure(shards: u32) -> Result<Lookups, Exit> {
    eprintln!("measuring lookups among {shards} shards …");
    let store = Arc::new(MemoryStore::new());
    let node = Node::builder("memory:", CLUSTER)
        .store(store.clone())
        .name("a");
    let node = node.keyspace("seed", Hashed(1), NoopHandler).start();
    let node = node.await.map_err(|e| Exit::failed(e.to_string()))?;
    while node.owned().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Left behind as by a crash: its record stands, and nobody follows the writes that come.
    drop(node);
    multiply(&*store, shards).await?;
    let begun = Instant::now();
    let router = Router::builder("memory:", CLUSTER).store(store).name("r");
    let router = router
        .start()
        .await
        .map_err(|e| Exit::failed(e.to_string()))?;
    let router_started_ms = super::millis(begun.elapsed());
    let keys: Vec<String> = (0..shards.max(HOT as u32))
        .map(|i| format!("user-{i}"))
        .collect();
    let map: HashMap<&str, u32> = keys.iter().map(|k| (k.as_str(), k.len() as u32)).collect();
    let mut rows = Vec::new();
    for keys in [&keys[..HOT], &keys[..]] {
        let (mut looked, mut got) = (Vec::new(), Vec::new());
        // Turn by turn, so that whatever else the machine does falls on both.
        for _ in 0..SAMPLES {
            looked.push(nanos(keys, |key| {
                router
                    .look_up(KEYSPACE, key)
                    .map_or(0, |found| found.epoch.0)
            }));
            got.push(nanos(keys, |key| u64::from(map[key])));
        }
        rows.push(LookupRow {
            keys: keys.len(),
            lookup_ns: Figure::of(looked),
            hash_map_ns: Figure::of(got),
        });
    }
    Ok(Lookups {
        shards,
        router_started_ms,
        rows,
    })
}

fn nanos(keys: &[String], look: impl Fn(&str) -> u64) -> f64 {
    let begun = Instant::now();
    let mut at = 0;
    for _ in 0..ROUNDS {
        // A walk that jumps about, so that neither is helped by what lies next to what.
        at = (at + 61_803) % keys.len();
        black_box(look(&keys[at]));
    }
    begun.elapsed().as_nanos() as f64 / ROUNDS as f64
}

/// Writes a keyspace of many shards, all served by the one node that there is.
async fn multiply(store: &dyn Store, shards: u32) -> Result<(), Exit> {
    let cluster = ClusterName::new(CLUSTER)?;
    let read = async |key: Key| -> Result<Vec<u8>, Exit> {
        let entry = store.get(&key.path(&cluster)).await?;
        Ok(entry
            .ok_or_else(|| {
                Exit::failed(
                    "a record that the benchmark wrote is missing in its store; another process \
                deleted it; run the benchmark again",
                )
            })?
            .value
            .to_vec())
    };
    let seed = KeyspaceName::new("seed")?;
    let shard = read(Key::Shard(ShardId::new(seed.clone(), ShardName::index(0)))).await?;
    let keyspace = read(Key::Keyspace(seed)).await?;
    let mut keyspace: serde_json::Value =
        serde_json::from_slice(&keyspace).map_err(|e| Exit::failed(e.to_string()))?;
    keyspace["shards"] = shards.into();
    let name = KeyspaceName::new(KEYSPACE)?;
    let path = |i: u32| {
        let id = ShardId::new(name.clone(), ShardName::index(i));
        Key::Shard(id).path(&cluster)
    };
    for first in (0..shards).step_by(1000) {
        let some = first..(first + 1000).min(shards);
        let puts = some.map(|i| PutIf::create(path(i), shard.clone()));
        for put in store.put_many(puts.collect()).await {
            put?;
        }
    }
    let path = Key::Keyspace(name).path(&cluster);
    let keyspace = keyspace.to_string().into_bytes();
    store.put_if(PutIf::create(path, keyspace)).await?;
    Ok(())
}

impl Lookups {
    pub(crate) fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        writeln!(
            out,
            "\nlookups among {} shards (aim: ≤ 20 ns); the router was ready {} ms after the start\n",
            self.shards,
            super::shown(self.router_started_ms)
        )?;
        let mut table = Table::new(&[
            "#KEYS",
            "#LOOKUP ns",
            "#from – to",
            "#HashMap ns",
            "#from – to",
        ]);
        for row in &self.rows {
            let span = |f: &Figure| format!("{:.1} – {:.1}", f.lowest, f.highest);
            table.row(vec![
                row.keys.to_string(),
                format!("{:.1}", row.lookup_ns.median),
                span(&row.lookup_ns),
                format!("{:.1}", row.hash_map_ns.median),
                span(&row.hash_map_ns),
            ]);
        }
        write!(out, "{}", table.render(WIDTH))
    }
}
