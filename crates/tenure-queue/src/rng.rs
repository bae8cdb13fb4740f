//! Numbers that nobody can guess, and numbers that need only differ.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::rand::{GetRandomFlags, getrandom};
use tenure_core::hash::mix;

/// Counts up from random bits; each number is mixed, so that they look like chance and never repeat within a process.
#[derive(Debug)]
pub(crate) struct RandomNumbers(AtomicU64);

impl RandomNumbers {
    pub(crate) fn new() -> Self {
        let mut bytes = [0; 8];
        // Without entropy from the kernel the time and the process still tell two processes apart.
        if getrandom(&mut bytes, GetRandomFlags::empty()) != Ok(8) {
            let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
            let nanos = since.map_or(0, |d| d.as_nanos() as u64);
            bytes = mix(nanos ^ (u64::from(std::process::id()) << 40)).to_ne_bytes();
        }
        Self(AtomicU64::new(u64::from_ne_bytes(bytes)))
    }

    pub(crate) fn draw(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        mix(self.0.fetch_add(STEP, Ordering::Relaxed))
    }

    /// A number below `end`; zero if that is zero.
    pub(crate) fn below(&self, end: u64) -> u64 {
        self.draw().checked_rem(end).unwrap_or(0)
    }

    /// A duration, more or less by a quarter at most.
    pub(crate) fn around(&self, wait: std::time::Duration) -> std::time::Duration {
        let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX / 4);
        let spread = micros / 2;
        std::time::Duration::from_micros(micros - spread / 2 + self.below(spread + 1))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn no_number_comes_twice_and_waits_stray_by_a_quarter() {
        let chance = RandomNumbers::new();
        let drawn: std::collections::BTreeSet<u64> = (0..10_000).map(|_| chance.draw()).collect();
        assert_eq!(drawn.len(), 10_000);
        let wait = Duration::from_millis(100);
        for _ in 0..1000 {
            let around = chance.around(wait);
            assert!(
                around >= wait * 3 / 4 && around <= wait * 5 / 4,
                "{around:?}"
            );
        }
        assert_eq!(
            (chance.below(0), chance.around(Duration::ZERO)),
            (0, Duration::ZERO)
        );
    }
}
