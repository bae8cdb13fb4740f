//! What was found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

/// How many findings are described; all are counted.
const DESCRIBED: usize = 100;

/// Position in a trace file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TracePosition {
    pub(super) file: Arc<str>,
    pub(super) line: u64,
}

impl fmt::Display for TracePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// What was looked at when something was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckKind {
    /// Lines of the trace are missing or out of order.
    Trace,
    /// The machine, told the same, does something else.
    Replay,
    /// The driver breaks its side of the contract.
    Driver,
    /// Two gates of one shard are open at once, or a session was ended while it could still serve.
    #[serde(rename = "P1")]
    P1,
    /// An epoch with two owners, or one that goes back.
    #[serde(rename = "P2")]
    P2,
    /// A record is written in a way that there is no transition for, or two writes win against one version.
    Record,
    /// A session goes on after its end.
    Session,
}

impl fmt::Display for CheckKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trace => "trace",
            Self::Replay => "replay",
            Self::Driver => "driver",
            Self::P1 => "P1",
            Self::P2 => "P2",
            Self::Record => "record",
            Self::Session => "session",
        })
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// In which file.
    pub file: String,
    /// On which line.
    pub line: u64,
    /// What was looked at.
    pub check: CheckKind,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}: {}: {}",
            self.file, self.line, self.check, self.what
        )
    }
}

/// What was read, and what was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ValidationReport {
    /// How many things are wrong.
    pub violations: u64,
    /// The first of them.
    pub findings: Vec<Finding>,
    /// How many files were read.
    pub files: u64,
    /// How many processes they tell of.
    pub processes: u64,
    /// The nodes that these were.
    pub nodes: BTreeSet<String>,
    /// Processes whose trace ends without their end: they were killed, or still run.
    pub cut_off: u64,
    /// Processes whose trace was given up while they went on, and why.
    pub gaps: Vec<String>,
    /// How many steps there are.
    pub steps: u64,
    /// How many of them were run again, with the same outcome.
    pub replayed: u64,
    /// What the machines were told, by kind.
    pub events: BTreeMap<String, u64>,
    /// Steps of shards at nodes, by kind.
    pub transitions: BTreeMap<String, u64>,
    /// Writes of shard records that won, by the transition that they made.
    pub writes: BTreeMap<String, u64>,
    /// How often a shard was taken from an owner whose session had ended.
    pub failovers: u64,
    /// Intervals in which a gate was open that were compared with each other.
    pub openings: u64,
    /// The longest that a machine was woken after the time at which it wanted to be, in milliseconds.
    pub longest_wake_delay_ms: f64,
    /// The longest that a request to the store was not answered, in milliseconds.
    pub longest_answer_ms: f64,
    /// Requests that had no answer when their process ended.
    pub unanswered: u64,
}

impl ValidationReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.violations == 0
    }
}

/// Sink of the findings while files are read.
#[derive(Default)]
pub(super) struct FindingSink {
    pub(super) report: ValidationReport,
    pub(super) longest_wake_delay: Duration,
    pub(super) longest_answer: Duration,
}

impl FindingSink {
    pub(super) fn found(
        &mut self,
        place: &TracePosition,
        check: CheckKind,
        what: impl Into<String>,
    ) {
        self.report.violations += 1;
        if self.report.findings.len() < DESCRIBED {
            self.report.findings.push(Finding {
                file: place.file.to_string(),
                line: place.line,
                check,
                what: what.into(),
            });
        }
    }

    pub(super) fn count(counts: &mut BTreeMap<String, u64>, kind: &str) {
        match counts.get_mut(kind) {
            Some(count) => *count += 1,
            None => drop(counts.insert(kind.to_owned(), 1)),
        }
    }

    pub(super) fn into_report(mut self) -> ValidationReport {
        self.report.findings.sort();
        self.report.longest_wake_delay_ms = self.longest_wake_delay.as_secs_f64() * 1e3;
        self.report.longest_answer_ms = self.longest_answer.as_secs_f64() * 1e3;
        self.report
    }
}
