//! Repeated measurements and how they are shown.

use std::time::Instant;

use serde::Serialize;

/// Several measurements of one thing.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl Figure {
    /// The figure of some measurements; zero of none.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(0.0);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            at(middle)
        } else {
            (at(middle.saturating_sub(1)) + at(middle)) / 2.0
        };
        Self {
            median,
            lowest: at(0),
            highest: at(values.len().saturating_sub(1)),
        }
    }
}

/// Row of the report of a benchmark.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReportRow {
    pub(crate) area: &'static str,
    pub(crate) case: String,
    pub(crate) unit: &'static str,
    pub(crate) figure: Figure,
    /// What it is compared with, measured in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) baseline: Option<Baseline>,
    /// What we aim for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) aim: Option<&'static str>,
}

/// The thing that a case is compared with.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Baseline {
    pub(crate) name: &'static str,
    pub(crate) figure: Figure,
    /// The median of the ratios of measurements taken in turn.
    pub(crate) ratio: f64,
}

impl ReportRow {
    /// A case on its own.
    pub(crate) fn plain(
        area: &'static str,
        case: impl Into<String>,
        unit: &'static str,
        values: Vec<f64>,
    ) -> Self {
        Self {
            area,
            case: case.into(),
            unit,
            figure: Figure::of(values),
            baseline: None,
            aim: None,
        }
    }

    /// A case with its baseline, measured in turn.
    pub(crate) fn beside(
        area: &'static str,
        case: impl Into<String>,
        unit: &'static str,
        name: &'static str,
        pairs: Vec<(f64, f64)>,
    ) -> Self {
        let ratios = pairs.iter().map(|(case, base)| case / base).collect();
        let (case_values, base_values) = pairs.into_iter().unzip();
        let baseline = Baseline {
            name,
            figure: Figure::of(base_values),
            ratio: Figure::of(ratios).median,
        };
        Self {
            baseline: Some(baseline),
            ..Self::plain(area, case, unit, case_values)
        }
    }

    /// The same with the figure that we aim for.
    pub(crate) fn aiming_at(self, aim: &'static str) -> Self {
        Self {
            aim: Some(aim),
            ..self
        }
    }

    pub(crate) fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        let f = &self.figure;
        let unit = self.unit;
        write!(
            out,
            "  {:<44} {:>9} {unit} ({} – {})",
            self.case,
            short(f.median),
            short(f.lowest),
            short(f.highest)
        )?;
        if let Some(base) = &self.baseline {
            write!(
                out,
                "\n    {:<42} {:>9} {unit}   ratio {:.2}",
                base.name,
                short(base.figure.median),
                base.ratio
            )?;
        }
        if let Some(aim) = self.aim {
            write!(out, "   aim {aim}")?;
        }
        writeln!(out)
    }
}

/// A number with as many digits as it deserves.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Nanoseconds per call of `work`, over `calls` calls.
pub(crate) fn nanos_per_call(calls: u32, mut work: impl FnMut()) -> f64 {
    let begun = Instant::now();
    for _ in 0..calls {
        work();
    }
    begun.elapsed().as_nanos() as f64 / f64::from(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Figure::of(vec![3.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Figure::of(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Figure::of(vec![]).median, 0.0);
        let f = Figure::of(vec![5.0, 1.0]);
        assert_eq!((f.lowest, f.highest), (1.0, 5.0));
    }

    #[test]
    fn ratios_are_of_measurements_taken_in_turn() {
        // One slow moment hits both sides of a pair and leaves the ratio alone.
        let row = ReportRow::beside(
            "a",
            "c",
            "ns",
            "b",
            vec![(2.0, 1.0), (200.0, 100.0), (2.0, 1.0)],
        );
        assert_eq!(row.baseline.unwrap().ratio, 2.0);
    }
}
