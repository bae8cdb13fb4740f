//! Reported load, smoothed, so that the planner follows trends and not moments.

use std::time::Duration;

use crate::time::Time;

/// A moving average of a shard's load. Belongs to the shard, not to the node: it goes along when the shard moves, so that a
/// new owner does not start from nothing and give the shard away again.
///
/// The average moves towards each report by `elapsed / (elapsed + window)` of the distance. Unlike an exponential this is
/// exact in integers, so that everyone who computes it gets the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoadAverage {
    /// In thousandths of the reported unit.
    milli: u64,
    last: Option<Time>,
}

impl LoadAverage {
    /// The average after this report. The first one counts in full; one that is not later than the last counts for nothing.
    #[must_use]
    pub fn report(self, load: u32, now: Time, window: Duration) -> Self {
        let sample = u128::from(load) * 1000;
        let milli = match self.last {
            None => sample,
            Some(last) => {
                let elapsed = now.since(last).as_nanos();
                let whole = elapsed + window.as_nanos();
                let sum = u128::from(self.milli) * (whole - elapsed) + sample * elapsed;
                sum.checked_div(whole).unwrap_or(sample)
            }
        };
        Self {
            // An average of two values of 42 bits.
            milli: u64::try_from(milli).unwrap_or(u64::MAX),
            last: Some(self.last.map_or(now, |last| last.max(now))),
        }
    }

    /// An average that goes on from what somebody else measured.
    pub fn going_on_from(load: u32, now: Time) -> Self {
        Self {
            milli: u64::from(load) * 1000,
            last: Some(now),
        }
    }

    /// The load that the planner counts with.
    pub fn load(self) -> u32 {
        u32::try_from((self.milli + 500) / 1000).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn the_first_report_counts_in_full_and_a_spike_hardly() {
        let steady = LoadAverage::default().report(100, at(0), WINDOW);
        assert_eq!(steady.load(), 100);
        assert_eq!(steady.report(1000, at(1), WINDOW).load(), 129);
    }

    #[test]
    fn a_change_that_lasts_is_followed() {
        let mut load = LoadAverage::default().report(100, at(0), WINDOW);
        for s in 1..300 {
            load = load.report(500, at(s), WINDOW);
        }
        assert!((495..=500).contains(&load.load()), "{}", load.load());
    }

    #[test]
    fn a_report_from_the_past_changes_nothing() {
        let load = LoadAverage::default().report(100, at(50), WINDOW);
        assert_eq!(load.report(900, at(20), WINDOW), load);
    }

    #[test]
    fn the_largest_load_does_not_overflow() {
        let load = LoadAverage::default().report(u32::MAX, at(0), WINDOW);
        let later = load.report(u32::MAX, Time(u64::MAX - 1), WINDOW);
        assert_eq!(later.load(), u32::MAX);
    }

    #[test]
    fn without_a_window_the_last_report_is_the_load() {
        let load = LoadAverage::default().report(1, at(0), Duration::ZERO);
        assert_eq!(load.report(7, at(1), Duration::ZERO).load(), 7);
    }
}
