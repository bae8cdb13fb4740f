//! The rule of admission, in front of every unit of work.
//!
//! A gate is the conjunction of two facts: the shard was opened for this stay, and the clock has not reached the time at
//! which the lease closes it. The second needs nobody to act: a process that is stopped, wedged or cut off from its own
//! timers still refuses when it wakes. Whoever implements a gate with atomics counts first and checks then; the other
//! order leaves a hole between the check and the count through which work slips past a closing gate.

use crate::time::Time;

/// Whether a gate that is `open`, under a lease that closes gates at `closes_at`, admits work at `now` (P1).
#[inline]
pub fn admits(open: bool, now: Time, closes_at: Time) -> bool {
    open && now < closes_at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_gate_closes_by_the_clock_alone() {
        assert!(admits(true, Time(9), Time(10)));
        assert!(!admits(true, Time(10), Time(10)));
        assert!(!admits(false, Time(9), Time(10)));
    }
}
