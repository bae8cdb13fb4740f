//! What writing everything down costs: a node at rest and a node that claims, with and without a trace, as fast as the
//! machine goes because time is virtual.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::store::memory::MemoryStore;
use tenure::{Clock, Hashed, Node, Result, Shard};

/// How much time passes in a sample.
const PASSES: Duration = Duration::from_secs(3600);
const SHARDS: u32 = 1000;
const SAMPLES: usize = 5;

struct Nothing;

impl tenure::Handler for Nothing {
    type State = ();

    async fn load(&self, _shard: &Shard) -> Result<()> {
        Ok(())
    }
}

/// Processor time of start and rest.
fn sample(trace: Option<&std::path::Path>) -> [Duration; 2] {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let begun = Instant::now();
        let mut builder = Node::builder("memory:", "bench")
            .store(Arc::new(MemoryStore::new()))
            .name("a")
            .clock(Clock::runtime())
            .keyspace("bench", Hashed(SHARDS), Nothing);
        if let Some(path) = trace {
            builder = builder.trace(path);
        }
        let node = builder.start().await.expect("a node");
        let start = begun.elapsed();
        let begun = Instant::now();
        tokio::time::sleep(PASSES).await;
        let rest = begun.elapsed();
        node.stop().await.expect("a good end");
        [start, rest]
    })
}

fn main() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("trace");
    // Turn by turn and the best of each, so that whatever else the machine does falls on neither.
    let mut best = [[Duration::MAX; 2]; 2];
    for _ in 0..SAMPLES {
        for (with, best) in best.iter_mut().enumerate() {
            let _ = std::fs::remove_file(&path);
            let times = sample((with == 1).then_some(path.as_path()));
            for (best, time) in best.iter_mut().zip(times) {
                *best = time.min(*best);
            }
        }
    }
    let text = std::fs::read_to_string(&path).expect("a trace");
    let [without, with] = best;
    let steps = text.lines().count() as u32;
    println!(
        "{steps} steps, {} bytes each on average; claiming {SHARDS} shards: {:?} without, {:?} with a trace; an hour at \
         rest: {:?} without, {:?} with",
        text.len() / text.lines().count().max(1),
        without[0],
        with[0],
        without[1],
        with[1],
    );
    println!(
        "at rest a step costs {:?} more",
        with[1].saturating_sub(without[1]) / steps
    );
}
