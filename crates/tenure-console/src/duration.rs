//! Durations as people write them: a number and its unit.

use std::time::Duration;

const UNITS: [(&str, u64); 4] = [
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads `2500ms`, `3s`, `1.5m`, `1h`.
pub fn parse(text: &str) -> Result<Duration, String> {
    let bad = |reason: &str| {
        format!(
            "{text:?} is not a duration: {reason}; write a number and a unit, such as 2500ms, 3s or 1m"
        )
    };
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(bad("the number is missing"));
    }
    if unit.is_empty() {
        return Err(bad("the unit is missing"));
    }
    let Some((_, unit_ns)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(bad(&format!(
            "the unit {unit:?} is unknown (known: ms, s, m, h)"
        )));
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if part.contains('.') || whole.is_empty() || part.len() > 9 {
        return Err(bad("the number is invalid"));
    }
    let nanos = || {
        let whole = whole.parse::<u64>().ok()?.checked_mul(*unit_ns)?;
        let scale = 10u128.pow(u32::try_from(part.len()).ok()?);
        let part = if part.is_empty() {
            0
        } else {
            part.parse::<u128>().ok()?
        };
        whole.checked_add(u64::try_from(part * u128::from(*unit_ns) / scale).ok()?)
    };
    nanos()
        .map(Duration::from_nanos)
        .ok_or_else(|| bad("the duration is too long"))
}

/// Writes a duration so that [`parse`] reads it, to a thousandth of a millisecond.
pub fn show(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    for (name, unit) in UNITS.iter().rev() {
        if nanos > 0 && nanos.is_multiple_of(u128::from(*unit)) {
            return format!("{}{name}", nanos / u128::from(*unit));
        }
    }
    let micros = duration.as_micros();
    if micros.is_multiple_of(1000) {
        return format!("{}ms", micros / 1000);
    }
    format!("{}.{:03}ms", micros / 1000, micros % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
        for (text, ms) in [
            ("2500ms", 2500),
            ("3s", 3000),
            ("1m", 60_000),
            ("1.5s", 1500),
            ("1h", 3_600_000),
            ("0ms", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_named_with_the_way_out() {
        for (text, reason) in [
            ("3", "unit is missing"),
            ("s", "number is missing"),
            ("", "number is missing"),
            ("3 s", "unit \" s\" is unknown"),
            ("3x", "unit \"x\" is unknown"),
            ("-3s", "number is missing"),
            ("1.2.3s", "number is invalid"),
            (".s", "number is invalid"),
            ("99999999999h", "too long"),
        ] {
            let e = parse(text).unwrap_err();
            assert!(e.contains(reason) && e.contains("2500ms"), "{e}");
            assert!(e.contains(&format!("{text:?}")), "{e}");
        }
    }

    #[test]
    fn what_is_shown_reads_back() {
        for (nanos, shown) in [
            (0, "0ms"),
            (2_500_000_000, "2500ms"),
            (3_000_000_000, "3s"),
            (60_000_000_000, "1m"),
            (7_200_000_000_000, "2h"),
            (416_666_666, "416.666ms"),
        ] {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(show(duration), shown);
            let back = parse(shown).unwrap();
            assert_eq!(back.as_micros(), duration.as_micros());
        }
    }
}
