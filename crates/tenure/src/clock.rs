//! The only clock of a process.
//!
//! Deadlines are points on a monotonic clock that goes on while the machine is suspended: a laptop that wakes after an hour
//! must find its leases over. Wall clocks play no part anywhere.

use std::future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::time::Time;

/// Timers stand still while the machine is suspended, the clock does not: no sleep is longer than this without a look at it.
const SLICE: Duration = Duration::from_secs(1);

/// A clock. Cheap to clone; all clones show the same time.
#[derive(Clone, Debug)]
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Boot,
    Runtime {
        origin: tokio::time::Instant,
        number: u64,
    },
}

impl Default for Clock {
    fn default() -> Self {
        Self::boot()
    }
}

impl Clock {
    /// The machine's boot-time clock: monotonic, and counts the time spent suspended where the system offers that.
    pub fn boot() -> Self {
        Self(Kind::Boot)
    }

    /// The clock of the tokio runtime, which tests can pause and advance. A node with this clock runs wholly on the
    /// runtime that starts it.
    pub fn runtime() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(Kind::Runtime {
            origin: tokio::time::Instant::now(),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Whether this is a clock of [`Clock::runtime`].
    pub(crate) fn is_runtime(&self) -> bool {
        matches!(self.0, Kind::Runtime { .. })
    }

    /// Names the clock: two participants whose clocks have the same name may compare times.
    pub fn id(&self) -> Option<String> {
        match &self.0 {
            Kind::Boot => tenure_store::machine_identity::boot_id(),
            Kind::Runtime { number, .. } => Some(format!("runtime/{number}")),
        }
    }

    /// The time now.
    #[inline]
    pub fn now(&self) -> Time {
        match &self.0 {
            Kind::Boot => boot_now(),
            // Begins at one second, so that a moment before the start can be named.
            Kind::Runtime { origin, .. } => Time(1_000_000_000) + origin.elapsed(),
        }
    }

    /// Waits until the clock shows `at`; returns at once if it already does.
    pub async fn sleep_until(&self, at: Time) {
        if at == Time::NEVER {
            return future::pending().await;
        }
        loop {
            let left = at.since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(SLICE)).await;
        }
    }

    /// Waits for a while.
    pub async fn sleep(&self, time: Duration) {
        self.sleep_until(self.now() + time).await;
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[inline]
fn boot_now() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Time(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn boot_now() -> Time {
    use std::sync::OnceLock;
    use std::time::Instant;
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    Time(1_000_000_000) + ORIGIN.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_runtime_clock_follows_virtual_time() {
        let clock = Clock::runtime();
        let start = clock.now();
        clock.sleep(Duration::from_secs(3600)).await;
        let slept = clock.now().since(start);
        assert!(slept >= Duration::from_secs(3600), "{slept:?}");
        assert!(slept < Duration::from_secs(3601), "{slept:?}");
    }

    #[tokio::test]
    async fn the_boot_clock_grows_and_wakes_no_sooner_than_asked() {
        let clock = Clock::boot();
        let until = clock.now() + Duration::from_millis(5);
        clock.sleep_until(until).await;
        assert!(clock.now() >= until);
    }

    #[tokio::test(start_paused = true)]
    async fn a_point_in_the_past_is_not_waited_for_and_never_never_comes() {
        let clock = Clock::runtime();
        clock.sleep_until(Time::ZERO).await;
        let never = tokio::time::timeout(Duration::from_secs(1), clock.sleep_until(Time::NEVER));
        assert!(never.await.is_err());
    }

    #[test]
    fn clocks_have_one_name_if_and_only_if_they_show_one_time() {
        assert_eq!(Clock::boot().id(), Clock::boot().id());
        let (a, b) = (Clock::runtime(), Clock::runtime());
        assert_eq!(a.id(), a.clone().id());
        assert_ne!(a.id(), b.id());
    }
}
