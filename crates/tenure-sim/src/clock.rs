//! The clock of one simulated machine, seen from outside.

use tenure_core::time::Time;

/// Omniscient time, in nanoseconds since the beginning of the run. No process ever sees it.
pub type Instant = u64;

/// One millisecond of omniscient time.
pub const MS: u64 = 1_000_000;
/// One second of omniscient time.
pub const SEC: u64 = 1_000 * MS;

/// A clock that began somewhere and runs a little too fast or too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// What it showed at the beginning of the run.
    pub offset: u64,
    /// How much it gains, in parts per million; negative if it loses.
    pub rate_ppm: i64,
}

impl Clock {
    /// What the clock shows at `t`.
    #[inline]
    pub fn at(self, t: Instant) -> Time {
        let gain =
            t as i64 / 1_000_000 * self.rate_ppm + t as i64 % 1_000_000 * self.rate_ppm / 1_000_000;
        Time((self.offset + t).saturating_add_signed(gain))
    }

    /// The first instant at which the clock shows `time` or more; the end of time if it is [`Time::NEVER`].
    pub fn when(self, time: Time) -> Instant {
        if time == Time::NEVER {
            return Instant::MAX;
        }
        let ahead = time.0.saturating_sub(self.offset);
        let rate = (1_000_000 + self.rate_ppm) as u64;
        let mut t = match ahead.checked_mul(1_000_000) {
            Some(scaled) => scaled / rate,
            None => (u128::from(ahead) * 1_000_000 / u128::from(rate)) as u64,
        };
        while self.at(t) < time {
            t += 1;
        }
        while t > 0 && self.at(t - 1) >= time {
            t -= 1;
        }
        t
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_inverted_exactly() {
        for rate_ppm in [-60_000, -5_000, -1, 0, 1, 5_000, 60_000] {
            let clock = Clock {
                offset: 77 * SEC,
                rate_ppm,
            };
            for t in [0, 1, 999_999, MS, 3 * SEC + 17, 120 * SEC, 9_000 * SEC + 1] {
                let shown = clock.at(t);
                let first = clock.when(shown);
                assert!(first <= t && clock.at(first) >= shown, "{rate_ppm} {t}");
                assert!(first == 0 || clock.at(first - 1) < shown, "{rate_ppm} {t}");
            }
        }
    }

    #[test]
    fn a_time_that_never_comes_is_never_reached() {
        assert_eq!(
            Clock {
                offset: 5,
                rate_ppm: 3
            }
            .when(Time::NEVER),
            Instant::MAX
        );
    }
}
