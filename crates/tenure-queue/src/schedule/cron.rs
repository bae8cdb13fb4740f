//! Times that recur, as cron writes them, in a time zone.
//!
//! Five fields: minute, hour, day of the month, month, day of the week; each `*`, a value, a range `a-b`, a step `*/n` or
//! `a-b/n`, or a list of these. Months and days have names too (`jan`, `mon`); Sunday is 0 or 7. If both days are restricted,
//! either is enough, as in cron; with a day that begins with `*` both have to fit. Also `@hourly`,
//! `@daily`, `@weekly`, `@monthly` and `@yearly`.
//!
//! Where clocks are put forward, a time that does not exist comes once, as much later as the clocks were moved; where they are put
//! back, a time that exists twice comes once, the first time. That is for hours that are named: `*` and `*/n` mean the hours that
//! there are, each of them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan};

/// For how many days the next time is looked for: 29 February comes again after eight years at the latest, and on the same day of
/// the week after forty.
const DAYS: u32 = 366 * 40 + 2;

/// A recurring time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    text: String,
    minutes: BTreeSet<i8>,
    hours: BTreeSet<i8>,
    days: BTreeSet<i8>,
    months: BTreeSet<i8>,
    weekdays: BTreeSet<i8>,
    /// Whether the hours are those that there are, rather than named ones.
    every_hour: bool,
    any_day: bool,
    any_weekday: bool,
}

impl Cron {
    /// The first of these times after `after`, by the clocks of `zone`; none if it never comes.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let mut date = zone.to_datetime(after).date();
        // A time of yesterday may have been moved past midnight.
        date = date.yesterday().unwrap_or(date);
        for _ in 0..DAYS {
            if self.is_on(date)
                && let Some(at) = self.times_on(date, zone).into_iter().find(|at| *at > after)
            {
                return Some(at);
            }
            date = date.checked_add(1.day()).ok()?;
        }
        None
    }

    /// How many of these times there are after `after` up to `upto`, and the last of them. Quick however many there are.
    pub fn passed(
        &self,
        after: Timestamp,
        upto: Timestamp,
        zone: &TimeZone,
    ) -> (u64, Option<Timestamp>) {
        let (mut count, mut last) = (0, None);
        let first = zone.to_datetime(after).date();
        let mut date = first.yesterday().unwrap_or(first);
        let end = zone.to_datetime(upto).date();
        while date <= end {
            if self.is_on(date) {
                let times = self.times_on(date, zone);
                let times = times.into_iter().filter(|at| *at > after && *at <= upto);
                for at in times {
                    count += 1;
                    last = last.max(Some(at));
                }
            }
            let Ok(next) = date.tomorrow() else { break };
            date = next;
        }
        (count, last)
    }

    fn is_on(&self, date: Date) -> bool {
        let weekday = date.weekday().to_sunday_zero_offset();
        let day = self.days.contains(&date.day());
        let weekday = self.weekdays.contains(&weekday);
        let fits = match self.any_day || self.any_weekday {
            true => day && weekday,
            false => day || weekday,
        };
        fits && self.months.contains(&date.month())
    }

    /// The times of one day, in order.
    fn times_on(&self, date: Date, zone: &TimeZone) -> BTreeSet<Timestamp> {
        let mut times = BTreeSet::new();
        for hour in &self.hours {
            for minute in &self.minutes {
                let civil = date.at(*hour, *minute, 0, 0);
                let there = zone.to_ambiguous_timestamp(civil);
                let (earlier, later) = match there.offset() {
                    AmbiguousOffset::Unambiguous { .. } => (true, false),
                    AmbiguousOffset::Gap { .. } => (false, !self.every_hour),
                    AmbiguousOffset::Fold { .. } => (true, self.every_hour),
                };
                if earlier {
                    times.extend(there.earlier());
                }
                if later {
                    times.extend(there.later());
                }
            }
        }
        times
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Cron {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let spelled = match text.trim() {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            other => other,
        };
        let fields: Vec<&str> = spelled.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(format!(
                "{text:?} has {} fields; cron has five: minute hour day month weekday",
                fields.len()
            ));
        };
        let about = |name: &str, e: String| format!("{text:?}, {name}: {e}");
        let read = |name: &str, field, range, names| {
            values(field, range, names).map_err(|e| about(name, e))
        };
        let weekdays = read("weekday", weekday, (0, 7), &WEEKDAYS[..])?;
        Ok(Self {
            text: text.trim().to_owned(),
            minutes: read("minute", minute, (0, 59), &[])?,
            hours: read("hour", hour, (0, 23), &[])?,
            days: read("day", day, (1, 31), &[])?,
            months: read("month", month, (1, 12), &MONTHS[..])?,
            weekdays: weekdays.into_iter().map(|day| day % 7).collect(),
            every_hour: hour.starts_with('*'),
            any_day: day.starts_with('*'),
            any_weekday: weekday.starts_with('*'),
        })
    }
}

/// By number, from the first of the range on.
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];

/// The values that a field stands for.
fn values(field: &str, range: (i8, i8), names: &[&str]) -> Result<BTreeSet<i8>, String> {
    let (least, most) = range;
    let number = |text: &str| -> Result<i8, String> {
        let lower = text.to_ascii_lowercase();
        let named = names.iter().position(|name| *name == lower);
        let number = match named {
            Some(n) => Some(n as i8 + least),
            None => text.parse().ok(),
        };
        number
            .filter(|n| (least..=most).contains(n))
            .ok_or_else(|| format!("{text:?} is not between {least} and {most}"))
    };
    let mut all = BTreeSet::new();
    for part in field.split(',') {
        let (span, step) = match part.split_once('/') {
            None => (part, None),
            Some((span, step)) => {
                let step: Option<usize> = step.parse().ok().filter(|n| *n > 0);
                (
                    span,
                    Some(step.ok_or_else(|| format!("{part:?} needs a step above 0"))?),
                )
            }
        };
        let (from, to) = match (span, span.split_once('-')) {
            ("*", _) => (least, most),
            (_, Some((from, to))) => (number(from)?, number(to)?),
            // `5/15` is from 5 on.
            (_, None) => (
                number(span)?,
                if step.is_some() { most } else { number(span)? },
            ),
        };
        if from > to {
            return Err(format!("{part:?} ends before its start"));
        }
        all.extend((from..=to).step_by(step.unwrap_or(1)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
