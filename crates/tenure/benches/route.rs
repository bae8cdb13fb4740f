//! What a lookup costs: from a key to its owner among 100,000 shards, beside a `HashMap` get with the same keys.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tenure::router::Router;
use tenure::store::memory::MemoryStore;
use tenure::{Handler, Hashed, Node, Result, Shard};

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
        .name("a")
        .ttl(std::time::Duration::from_secs(60))
        .keyspace("orders", Hashed(SHARDS), Orders)
        .start()
        .await?;
    let router = Router::builder("memory:", "shop").store(store).name("r");
    let router = router.start().await?;
    while node.owned().len() < SHARDS as usize {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let keys: Vec<String> = (0..SHARDS).map(|i| format!("user-{i}")).collect();
    let map: HashMap<&str, u32> = keys.iter().map(|k| (k.as_str(), k.len() as u32)).collect();
    let (mut looked, mut got) = (Vec::new(), Vec::new());
    // Turn by turn, so that whatever else the machine does falls on both.
    for _ in 0..SAMPLES {
        looked.push(nanos(&keys, |key| {
            router.look_up("orders", key).unwrap().epoch.0
        }));
        got.push(nanos(&keys, |key| u64::from(map[key])));
    }
    println!(
        "{SHARDS} shards: lookup {}; HashMap get {}",
        spread(looked),
        spread(got)
    );
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
