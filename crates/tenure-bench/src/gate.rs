//! The gate beside the least that any gate must do: count, read the clock, count back.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure::gate::{Gate, LeaseCell};
use tenure::{Clock, Time};

use super::measure::{ReportRow, nanos_per_call};

const CALLS: u32 = 1_000_000;

pub(crate) fn measure(repeat: u32) -> Vec<ReportRow> {
    let clock = Clock::boot();
    let lease = LeaseCell::new();
    lease.extend(Time::NEVER, Time::NEVER);
    let gate = Gate::new(clock.clone(), lease);
    gate.open();
    let count = AtomicU64::new(0);
    let enter = || drop(black_box(gate.enter()));
    let bare = || {
        count.fetch_add(1, Ordering::AcqRel);
        black_box(clock.now());
        count.fetch_sub(1, Ordering::AcqRel);
    };
    let alone = (0..repeat)
        .map(|_| (nanos_per_call(CALLS, enter), nanos_per_call(CALLS, bare)))
        .collect();
    let together = (0..repeat)
        .map(|_| (two_threads(&enter), two_threads(&bare)))
        .collect();
    let name = "atomic add, clock read, atomic sub";
    vec![
        ReportRow::beside("gate", "enter and leave", "ns", name, alone).aiming_at("≤ 1.5"),
        ReportRow::beside(
            "gate",
            "enter and leave, two threads, one shard",
            "ns",
            name,
            together,
        )
        .aiming_at("≤ 1.5"),
    ]
}

/// Nanoseconds per call when two threads do the same at the same time.
fn two_threads(work: &(impl Fn() + Sync)) -> f64 {
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        let run = || {
            start.wait();
            nanos_per_call(CALLS / 2, work)
        };
        let other = scope.spawn(run);
        let mine = run();
        other
            .join()
            .map_or(mine, |other| f64::midpoint(mine, other))
    })
}
