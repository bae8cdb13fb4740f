//! Times as servers write them.

use std::time::{Duration, SystemTime};

/// Reads `2026-11-16T07:00:05.573519513Z`, as JetStream and S3 write it. Nothing else.
pub(crate) fn parse(text: &str) -> Option<SystemTime> {
    let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let mut clock = clock.splitn(3, ':').map(str::parse::<i64>);
    let (h, m, s) = (
        clock.next()?.ok()?,
        clock.next()?.ok()?,
        clock.next()?.ok()?,
    );
    let nanos: u32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    let seconds = days(year, month, day) * 86_400 + h * 3_600 + m * 60 + s;
    let since = Duration::new(u64::try_from(seconds).ok()?, nanos);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// Days since 1970-01-01 in the Gregorian calendar. The year begins in March, so that the odd day is its last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let month = (month + 9) % 12;
    let before = year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    before + (153 * month + 2) / 5 + day - 1 - 719_468
}

/// Year, month and day of so many days after 1970-01-01.
#[cfg(feature = "s3")]
pub(crate) fn date(since: i64) -> (i64, i64, i64) {
    let mut year = 1970 + since / 366;
    while days(year + 1, 1, 1) <= since {
        year += 1;
    }
    let month = (2..=12).take_while(|m| days(year, *m, 1) <= since).count() as i64 + 1;
    (year, month, since - days(year, month, 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "s3")]
    #[test]
    fn every_day_has_its_date() {
        let mut last = (1969, 12, 31);
        for day in 0..60_000 {
            let date = date(day);
            assert_eq!(days(date.0, date.1, date.2), day);
            assert!(date > last, "{date:?} after {last:?}");
            last = date;
        }
    }

    fn nanos(text: &str) -> Option<u128> {
        let since = parse(text)?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(since.as_nanos())
    }

    #[test]
    fn times_are_read_to_the_nanosecond() {
        assert_eq!(nanos("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(
            nanos("1970-03-01T00:00:00.5Z"),
            Some(59 * 86_400_000_000_000 + 500_000_000)
        );
        assert_eq!(
            nanos("2024-02-29T12:00:00Z"),
            Some(1_709_208_000_000_000_000)
        );
        assert_eq!(
            nanos("2026-11-16T07:00:05.573519513Z"),
            Some(1_794_812_405_573_519_513)
        );
    }

    #[test]
    fn anything_else_is_no_time() {
        for text in [
            "",
            "now",
            "2026-11-16",
            "2026-11-16T07:00:05",
            "0001-01-01T00:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
