//! Points in store time, as tasks and keys have them.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The last moment that there is: the end of the year 9998.
const LAST: u64 = 253_370_764_799_999;

/// A point in store time, to the millisecond.
///
/// Written as `2026-11-16T09:30:00.123Z`. Between 1970 and 9998; what would be outside is at the border.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreTime(u64);

impl StoreTime {
    /// So many milliseconds after the beginning of 1970.
    pub fn from_millis(millis: u64) -> Self {
        Self(millis.min(LAST))
    }

    /// Milliseconds since the beginning of 1970.
    pub fn as_millis(self) -> u64 {
        self.0
    }

    /// This long after it.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        Self::from_millis(self.0.saturating_add(by))
    }

    /// This long before it.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(by))
    }

    /// How long it is after `earlier`; zero if it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// The same point as others write it.
    pub fn timestamp(self) -> Timestamp {
        // Bounded in `from_millis`: every moment is a timestamp.
        Timestamp::from_millisecond(self.0 as i64).unwrap_or_default()
    }

    /// How it stands in keys: sorted as text, sorted in time.
    pub fn stamp(self) -> String {
        let utc = self.civil();
        format!(
            "{:04}{:02}{:02}T{:02}{:02}{:02}.{:03}Z",
            utc.year(),
            utc.month(),
            utc.day(),
            utc.hour(),
            utc.minute(),
            utc.second(),
            utc.millisecond()
        )
    }

    /// Reads what [`StoreTime::stamp`] wrote.
    pub fn from_stamp(text: &str) -> Option<Self> {
        let civil = DateTime::strptime("%Y%m%dT%H%M%S.%3fZ", text).ok()?;
        let moment = Self::from(civil.to_zoned(TimeZone::UTC).ok()?.timestamp());
        (moment.stamp() == text).then_some(moment)
    }

    fn civil(self) -> DateTime {
        TimeZone::UTC.to_datetime(self.timestamp())
    }
}

impl From<Timestamp> for StoreTime {
    fn from(at: Timestamp) -> Self {
        Self::from_millis(u64::try_from(at.as_millisecond()).unwrap_or(0))
    }
}

impl From<SystemTime> for StoreTime {
    fn from(at: SystemTime) -> Self {
        let since = at.duration_since(SystemTime::UNIX_EPOCH);
        Self::default().plus(since.unwrap_or_default())
    }
}

impl fmt::Display for StoreTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.timestamp())
    }
}

impl FromStr for StoreTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<Timestamp>() {
            Ok(at) => Ok(Self::from(at)),
            Err(e) => Err(format!(
                "{text:?} is not a time such as 2026-11-16T09:30:00Z: {e}"
            )),
        }
    }
}

impl Serialize for StoreTime {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StoreTime {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_moment_reads_as_a_date() {
        let at: StoreTime = "2026-11-16T09:30:00.123Z".parse().unwrap();
        assert_eq!(at.to_string(), "2026-11-16T09:30:00.123Z");
        assert_eq!(at.stamp(), "20261116T093000.123Z");
        assert_eq!(
            serde_json::to_string(&at).unwrap(),
            "\"2026-11-16T09:30:00.123Z\""
        );
        assert_eq!(StoreTime::default().to_string(), "1970-01-01T00:00:00.000Z");
        assert!(
            "yesterday"
                .parse::<StoreTime>()
                .unwrap_err()
                .contains("2026")
        );
    }

    #[test]
    fn what_is_no_stamp_is_refused() {
        for text in [
            "",
            "20261116T093000Z",
            "20261316T093000.123Z",
            "20261116T093000.1234Z",
        ] {
            assert_eq!(StoreTime::from_stamp(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn stamps_sort_like_time_and_read_back(a in 0..LAST + 9, b in 0..LAST + 9) {
            let (a, b) = (StoreTime::from_millis(a), StoreTime::from_millis(b));
            prop_assert_eq!(a.stamp().cmp(&b.stamp()), a.cmp(&b));
            prop_assert_eq!(StoreTime::from_stamp(&a.stamp()), Some(a));
            prop_assert_eq!(a.to_string().parse::<StoreTime>(), Ok(a));
        }
    }
}
