use super::*;

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

/// The next `count` times after a moment, as that zone's clocks show them.
fn next(cron: &str, from: &str, place: &str, count: usize) -> Vec<String> {
    let cron: Cron = cron.parse().unwrap();
    let (zone, mut at) = (zone(place), from.parse::<Timestamp>().unwrap());
    let mut times = Vec::new();
    for _ in 0..count {
        let Some(next) = cron.next(at, &zone) else {
            break;
        };
        assert!(next > at);
        at = next;
        let shown = at.to_zoned(zone.clone());
        times.push(shown.strftime("%m-%d %H:%M %:z").to_string());
    }
    times
}

#[test]
fn fields_mean_what_they_mean_in_cron() {
    for (cron, wanted) in [
        (
            "*/20 * * * *",
            ["11-16 09:40", "11-16 10:00", "11-16 10:20"],
        ),
        (
            "5/25 9 * * *",
            ["11-16 09:55", "11-17 09:05", "11-17 09:30"],
        ),
        (
            "0 8-10,22 * * *",
            ["11-16 10:00", "11-16 22:00", "11-17 08:00"],
        ),
        ("30 1 1 * *", ["12-01 01:30", "01-01 01:30", "02-01 01:30"]),
        (
            "0 0 * * mon-fri",
            ["11-17 00:00", "11-18 00:00", "11-19 00:00"],
        ),
        ("0 0 * * 7", ["11-22 00:00", "11-29 00:00", "12-06 00:00"]),
        (
            "0 0 20 * sun",
            ["11-20 00:00", "11-22 00:00", "11-29 00:00"],
        ),
        ("0 0 */7 * *", ["11-22 00:00", "11-29 00:00", "12-01 00:00"]),
        // As in cron: with a star in one of them, both days have to fit.
        (
            "0 0 */2 * mon",
            ["11-23 00:00", "12-07 00:00", "12-21 00:00"],
        ),
        (
            "0 0 1-7 * */6",
            ["12-05 00:00", "12-06 00:00", "01-02 00:00"],
        ),
        (
            "0 12 29 feb *",
            ["02-29 12:00", "02-29 12:00", "02-29 12:00"],
        ),
        ("@hourly", ["11-16 10:00", "11-16 11:00", "11-16 12:00"]),
        ("@weekly", ["11-22 00:00", "11-29 00:00", "12-06 00:00"]),
    ] {
        let wanted = wanted.map(|at| format!("{at} +00:00"));
        assert_eq!(
            next(cron, "2026-11-16T09:30:00Z", "UTC", 3),
            wanted,
            "{cron}"
        );
    }
}

#[test]
fn a_named_hour_that_is_skipped_comes_once_and_later() {
    // Berlin, 29 March 2026: 02:00 becomes 03:00.
    let times = next("30 2 * * *", "2026-03-28T00:00:00Z", "Europe/Berlin", 3);
    assert_eq!(
        times,
        [
            "03-28 02:30 +01:00",
            "03-29 03:30 +02:00",
            "03-30 02:30 +02:00"
        ]
    );
}

#[test]
fn a_named_hour_that_comes_twice_is_meant_once() {
    // Berlin, 25 October 2026: 03:00 becomes 02:00.
    let times = next("30 2 * * *", "2026-10-24T12:00:00Z", "Europe/Berlin", 2);
    assert_eq!(times, ["10-25 02:30 +02:00", "10-26 02:30 +01:00"]);
}

#[test]
fn every_hour_means_the_hours_that_there_are() {
    let spring = next("0 * * * *", "2026-03-29T00:30:00Z", "Europe/Berlin", 2);
    assert_eq!(spring, ["03-29 03:00 +02:00", "03-29 04:00 +02:00"]);
    let autumn = next("*/30 * * * *", "2026-10-25T00:15:00Z", "Europe/Berlin", 4);
    assert_eq!(
        autumn,
        [
            "10-25 02:30 +02:00",
            "10-25 02:00 +01:00",
            "10-25 02:30 +01:00",
            "10-25 03:00 +01:00"
        ]
    );
}

#[test]
fn a_time_that_was_moved_past_midnight_is_not_forgotten() {
    // Beirut puts its clocks forward at midnight: 00:00 becomes 01:00.
    let times = next("30 0 * * *", "2026-03-28T12:00:00Z", "Asia/Beirut", 2);
    assert_eq!(times, ["03-29 01:30 +03:00", "03-30 00:30 +03:00"]);
}

#[test]
fn what_never_comes_never_comes() {
    assert!(next("0 0 30 2 *", "2026-11-16T00:00:00Z", "UTC", 1).is_empty());
}

#[test]
fn wrong_texts_are_refused_with_the_reason() {
    for (text, reason) in [
        ("* * * *", "has 4 fields"),
        ("60 * * * *", "\"60\" is not between 0 and 59"),
        ("* * 0 * *", "between 1 and 31"),
        ("*/0 * * * *", "needs a step above 0"),
        ("9-5 * * * *", "ends before its start"),
        ("* * * * someday", "someday"),
        ("", "has 0 fields"),
    ] {
        let e = text.parse::<Cron>().unwrap_err();
        assert!(e.contains(reason), "{text}: {e}");
    }
}

#[test]
fn times_that_passed_are_those_that_came_one_by_one() {
    let from: Timestamp = "2026-03-20T09:30:00Z".parse().unwrap();
    let upto: Timestamp = "2026-04-02T00:00:00Z".parse().unwrap();
    for text in [
        "*/7 * * * *",
        "30 2 * * *",
        "0 0 * * mon",
        "30 0 30 * *",
        "0 0 30 2 *",
    ] {
        for place in ["Europe/Berlin", "Asia/Beirut", "UTC"] {
            let (cron, zone): (Cron, _) = (text.parse().unwrap(), zone(place));
            let (mut at, mut count, mut last) = (from, 0, None);
            while let Some(next) = cron.next(at, &zone)
                && next <= upto
            {
                (at, count, last) = (next, count + 1, Some(next));
            }
            assert_eq!(
                cron.passed(from, upto, &zone),
                (count, last),
                "{text} {place}"
            );
        }
    }
    let long_ago: Timestamp = "2016-01-01T00:00:00Z".parse().unwrap();
    let every: Cron = "0 * * * *".parse().unwrap();
    let (count, _) = every.passed(long_ago, upto, &zone("UTC"));
    assert_eq!(count, 24 * (3653 + 31 + 28 + 31) + 24);
}
