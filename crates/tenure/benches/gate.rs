//! What a gate costs: entering and leaving, beside a bare atomic add and sub with one read of the clock.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure::Clock;
use tenure::gate::{Gate, LeaseCell};

const ROUNDS: u32 = 300_000;
const SAMPLES: usize = 30;

fn main() {
    let clock = Clock::boot();
    let lease = LeaseCell::new();
    let far = clock.now() + Duration::from_secs(3600);
    lease.extend(far, far);
    let gate = Gate::new(clock.clone(), lease);
    gate.open();
    let count = AtomicU64::new(0);
    let bare = || {
        count.fetch_add(1, Ordering::AcqRel);
        black_box(clock.now());
        count.fetch_sub(1, Ordering::AcqRel);
    };
    let gated = || {
        black_box(gate.enter().is_ok());
    };
    for threads in [1, 2] {
        // Turn by turn and the best of each, so that whatever else the machine does falls on neither.
        let (mut b, mut g) = (f64::MAX, f64::MAX);
        for _ in 0..SAMPLES {
            b = b.min(nanos(threads, bare));
            g = g.min(nanos(threads, gated));
        }
        println!(
            "{threads} thread(s): atomic add, clock, sub {b:.1} ns; gate enter and leave {g:.1} ns; {:.2}x",
            g / b
        );
    }
}

/// The time of one call, in nanoseconds, with so many threads calling at once.
fn nanos(threads: usize, call: impl Fn() + Sync) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| (0..ROUNDS).for_each(|_| call()));
        }
    });
    start.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
}
