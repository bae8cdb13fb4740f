//! How often a task is tried, and how long it waits in between.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How often a task is tried before it is a dead letter, and the waits between tries.
///
/// The wait after the n-th failure is `first × 2ⁿ⁻¹`, at most `longest`, give or take a quarter by chance, so that tasks
/// that failed together do not come back together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// How often it is tried in all, at least once.
    pub max_attempts: u32,
    /// The wait after the first failure.
    #[serde(rename = "delay_ms", with = "millis")]
    pub delay: Duration,
    /// The longest wait.
    #[serde(rename = "delay_max_ms", with = "millis")]
    pub delay_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            delay: Duration::from_secs(1),
            delay_max: Duration::from_secs(300),
        }
    }
}

impl RetryPolicy {
    /// No second try.
    pub fn never() -> Self {
        Self {
            max_attempts: 1,
            ..Self::default()
        }
    }

    /// How long to wait after so many failures. `chance` is any number: it decides on the part that is left to chance.
    pub fn wait(&self, failures: u32, chance: u64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let wait = self
            .delay
            .saturating_mul(1 << doublings)
            .min(self.delay_max);
        let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let quarter = millis / 4;
        let spread = chance.checked_rem(2 * quarter + 1).unwrap_or(0);
        Duration::from_millis(millis - quarter + spread)
    }
}

/// Durations as whole milliseconds.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// The same where there may be none.
pub(crate) mod maybe_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::millis::serialize(value, to),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let millis = Option::<u64>::deserialize(from)?;
        Ok(millis.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_stray_by_a_quarter_at_most() {
        let retry = RetryPolicy {
            max_attempts: 9,
            delay: Duration::from_millis(100),
            delay_max: Duration::from_secs(1),
        };
        for (failures, middle) in [
            (1, 100),
            (2, 200),
            (3, 400),
            (4, 800),
            (5, 1000),
            (99, 1000),
        ] {
            let mut seen = std::collections::BTreeSet::new();
            for chance in 0..5000 {
                let wait = retry.wait(failures, chance).as_millis() as u64;
                assert!(wait >= middle - middle / 4 && wait <= middle + middle / 4);
                seen.insert(wait);
            }
            assert!(seen.len() as u64 > middle / 3, "{failures}: {seen:?}");
        }
    }

    #[test]
    fn no_wait_and_no_end_are_no_trouble() {
        let none = RetryPolicy {
            delay: Duration::ZERO,
            ..RetryPolicy::default()
        };
        assert_eq!(none.wait(3, 7), Duration::ZERO);
        let long = RetryPolicy {
            delay: Duration::MAX,
            delay_max: Duration::MAX,
            ..RetryPolicy::default()
        };
        assert!(long.wait(40, u64::MAX) > Duration::from_secs(1 << 40));
    }
}
