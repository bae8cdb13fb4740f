//! What a gate costs: entering and leaving, beside a bare atomic add and sub with one read of the clock.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure::Clock;
use tenure::gate::{Gate, LeaseCell};

const ROUNDS: u32 = 1_000_000;
const SAMPLES: usize = 9;

fn main() {
    let clock = Clock::boot();
    let lease = LeaseCell::new();
    let far = clock.now() + Duration::from_secs(3600);
    lease.extend(far, far);
    let gate = Gate::new(clock.clone(), lease);
    gate.open();
    let count = AtomicU64::new(0);
    for threads in [1, 2] {
        let bare = median(threads, || {
            count.fetch_add(1, Ordering::AcqRel);
            black_box(clock.now());
            count.fetch_sub(1, Ordering::AcqRel);
        });
        let gated = median(threads, || {
            black_box(gate.enter().is_ok());
        });
        println!(
            "{threads} thread(s): atomic add, clock, sub {bare:.1} ns; gate enter and leave {gated:.1} ns; {:.2}x",
            gated / bare
        );
    }
}

/// The median time of one call, in nanoseconds, with so many threads calling at once.
fn median(threads: usize, call: impl Fn() + Sync) -> f64 {
    let mut samples: Vec<f64> = (0..SAMPLES)
        .map(|_| {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| (0..ROUNDS).for_each(|_| call()));
                }
            });
            start.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    samples[SAMPLES / 2]
}
