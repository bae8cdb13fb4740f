//! The story of a run, one line per event; written only when somebody wants to read or compare it.

use std::fmt::Write as _;
use std::hash::Hasher as _;

use crate::clock::{Instant, MS, SEC};
use crate::store::Fnv;

/// How many lines of a story are kept: some forty times those of a long one.
const MOST_LINES: usize = 1_000_000;

/// Readable log of the events of a run, or where it goes instead.
#[derive(Debug, Default)]
pub enum EventLog {
    /// Nowhere: nothing is even put into words.
    #[default]
    Off,
    /// Into one number, to compare two runs.
    Hash {
        /// The number so far.
        hash: u64,
        /// The line in the making.
        line: String,
    },
    /// Into lines.
    Keep(Vec<String>),
}

impl EventLog {
    /// A trace that becomes one number.
    pub fn hashing() -> Self {
        Self::Hash {
            hash: 0xcbf2_9ce4_8422_2325,
            line: String::new(),
        }
    }

    /// Whether anybody listens.
    #[inline]
    pub fn on(&self) -> bool {
        !matches!(self, Self::Off)
    }

    /// Adds a line.
    pub fn line(&mut self, at: Instant, who: &str, what: std::fmt::Arguments<'_>) {
        let put = |out: &mut String| {
            let _ = write!(
                out,
                "{:>4}.{:06} {who:<7} {what}",
                at / SEC,
                at % SEC / (MS / 1000)
            );
        };
        match self {
            Self::Off => {}
            Self::Hash { hash, line } => {
                line.clear();
                put(line);
                line.push('\n');
                let mut hasher = Fnv(*hash);
                hasher.write(line.as_bytes());
                *hash = hasher.finish();
            }
            Self::Keep(lines) if lines.len() >= MOST_LINES => {
                if lines.len() == MOST_LINES {
                    lines.push(format!(
                        "# more than {MOST_LINES} lines: the rest is left out"
                    ));
                }
            }
            Self::Keep(lines) => {
                let mut line = String::new();
                put(&mut line);
                lines.push(line);
            }
        }
    }

    /// The number that the story became; 0 if it was not hashed.
    pub fn hash(&self) -> u64 {
        match self {
            Self::Hash { hash, .. } => *hash,
            _ => 0,
        }
    }

    /// The story.
    pub fn into_lines(self) -> Vec<String> {
        match self {
            Self::Keep(lines) => lines,
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_without_end_is_cut_and_says_so() {
        let mut trace = EventLog::Keep(vec![String::new(); MOST_LINES - 1]);
        for n in 0..3 {
            trace.line(n, "n0/p0", format_args!("again"));
        }
        let lines = trace.into_lines();
        assert_eq!(lines.len(), MOST_LINES + 1);
        assert!(lines[MOST_LINES - 1].ends_with("again"));
        assert!(lines[MOST_LINES].contains("left out"));
    }
}
