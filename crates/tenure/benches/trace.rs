//! What writing everything down costs: a node at rest and a node that claims, with and without a trace, as fast as the
//! machine goes because time is virtual.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::ClockId;
use tenure::store::memory::MemoryStore;
use tenure::{Clock, Hashed, Node, Result, Shard};

/// How much time passes in a sample.
const PASSES: Duration = Duration::from_secs(3600);
const SHARDS: u32 = 1000;
const SAMPLES: usize = 5;

struct NoopHandler;

impl tenure::Handler for NoopHandler {
    type State = ();

    async fn load(&self, _shard: &Shard) -> Result<()> {
        Ok(())
    }
}

/// Processor time of the driver's thread, and of the whole process.
#[derive(Clone, Copy)]
struct Cost {
    thread: Duration,
    process: Duration,
}

impl Cost {
    const MOST: Self = Self {
        thread: Duration::MAX,
        process: Duration::MAX,
    };

    fn so_far() -> Self {
        let read = |clock| {
            let time = rustix::time::clock_gettime(clock);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        Self {
            thread: read(ClockId::ThreadCPUTime),
            process: read(ClockId::ProcessCPUTime),
        }
    }

    fn since(earlier: Self) -> Self {
        let now = Self::so_far();
        Self {
            thread: now.thread - earlier.thread,
            process: now.process - earlier.process,
        }
    }

    fn least(self, other: Self) -> Self {
        Self {
            thread: self.thread.min(other.thread),
            process: self.process.min(other.process),
        }
    }
}

/// What the start costs, and what the rest of a node's life does.
fn sample(trace: Option<&Path>) -> [Cost; 2] {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let begun = Cost::so_far();
        let mut builder = Node::builder("memory:", "bench")
            .store(Arc::new(MemoryStore::new()))
            .name("a")
            .clock(Clock::runtime())
            .keyspace("bench", Hashed(SHARDS), NoopHandler);
        if let Some(path) = trace {
            builder = builder.trace(path);
        }
        let node = builder.start().await.expect("a node");
        let start = Cost::since(begun);
        let begun = Cost::so_far();
        tokio::time::sleep(PASSES).await;
        node.stop().await.expect("a good end");
        [start, Cost::since(begun)]
    })
}

fn main() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("trace");
    // Turn by turn and the least of each, so that whatever else the machine does falls on neither.
    let mut least = [[Cost::MOST; 2]; 2];
    for _ in 0..SAMPLES {
        for (with, least) in least.iter_mut().enumerate() {
            let _ = std::fs::remove_file(&path);
            let costs = sample((with == 1).then_some(path.as_path()));
            for (least, cost) in least.iter_mut().zip(costs) {
                *least = least.least(cost);
            }
        }
    }
    let text = std::fs::read_to_string(&path).expect("a trace");
    let lines = text.lines().count();
    println!(
        "{lines} lines, {} bytes each on average",
        text.len() / lines
    );
    for (what, n) in [("claiming everything", 0), ("an hour and the stop", 1)] {
        let [without, with] = [least[0][n], least[1][n]];
        println!(
            "{what}: driver {:?}, {:?} with a trace; process {:?}, {:?}",
            without.thread, with.thread, without.process, with.process
        );
    }
}
