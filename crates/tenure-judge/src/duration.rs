//! Durations as people write them, in nanoseconds.

/// Units, longest first, in nanoseconds.
const UNITS: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Reads a duration such as `1.5s`, `250ms` or `40us`; a bare number is nanoseconds.
pub fn parse_duration(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "`{text}` is not a duration: write a number and h, m, s, ms, us or ns, as in 1.5s or 250ms"
        )
    };
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = match unit {
        "" => 1,
        unit => {
            UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .ok_or_else(wrong)?
                .1
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u128 = whole.parse().map_err(|_| wrong())?;
    // Twelve digits behind the point say more than any unit can hold, and cannot overflow below.
    if fraction.is_empty() || fraction.len() > 12 {
        return Err(wrong());
    }
    let scale = 10_u128.pow(fraction.len() as u32);
    let fraction: u128 = fraction.parse().map_err(|_| wrong())?;
    let nanos = whole
        .saturating_mul(u128::from(unit))
        .saturating_add(fraction * u128::from(unit) / scale);
    u64::try_from(nanos).map_err(|_| format!("`{text}` is too long; use a shorter duration"))
}

/// Writes nanoseconds with the unit that leaves one to three digits before the point.
pub fn show_duration(nanos: u64) -> String {
    let (name, unit) = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => ("us", 1_000.0),
        1_000_000..1_000_000_000 => ("ms", 1_000_000.0),
        _ => ("s", 1_000_000_000.0),
    };
    format!("{:.3} {name}", nanos as f64 / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_and_without_a_unit() {
        let cases = [
            ("0", 0),
            ("1500", 1500),
            ("7ns", 7),
            ("40us", 40_000),
            ("250ms", 250_000_000),
            ("1.5s", 1_500_000_000),
            ("0.000000001s", 1),
            ("2m", 120_000_000_000),
            ("1h", 3_600_000_000_000),
        ];
        for (text, nanos) in cases {
            assert_eq!(parse_duration(text), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_by_name() {
        for text in [
            "",
            "s",
            "-1s",
            "1 s",
            "1.s",
            ".5s",
            "1.2.3s",
            "1d",
            "1S",
            "1.0000000000001s",
        ] {
            assert!(
                parse_duration(text)
                    .unwrap_err()
                    .contains(&format!("`{text}`")),
                "{text}"
            );
        }
        assert!(
            parse_duration("99999999999999999999h")
                .unwrap_err()
                .contains("too long")
        );
        assert!(
            parse_duration("18446744073709551616")
                .unwrap_err()
                .contains("too long")
        );
    }

    #[test]
    fn durations_are_shown_in_the_unit_that_fits() {
        let cases = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_500, "1.500 us"),
            (12_345_678, "12.346 ms"),
            (90_000_000_000, "90.000 s"),
        ];
        for (nanos, text) in cases {
            assert_eq!(show_duration(nanos), text);
        }
    }
}
