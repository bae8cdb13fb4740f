//! The lines of a file. What a killed process left of its last line is passed over; anything else that is not a line is not.

use std::fmt;
use std::io::BufRead;
use std::sync::Arc;

use tenure_core::trace_format::TraceLine;

use super::TracePosition;

/// A file that cannot be checked because it cannot be read, or is not a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The file.
    pub file: String,
    /// The line, from one.
    pub line: Option<u64>,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.reason),
            None => write!(f, "{}: {}", self.file, self.reason),
        }
    }
}

impl std::error::Error for Unreadable {}

/// Reader of a trace, line by line.
pub(super) struct TraceReader<R> {
    input: R,
    file: Arc<str>,
    line: u64,
    buffer: Vec<u8>,
    /// A line that is none: forgiven if a process begins after it, or nothing does.
    torn: Option<Unreadable>,
}

impl<R: BufRead> TraceReader<R> {
    pub(super) fn new(name: &str, input: R) -> Self {
        Self {
            input,
            file: name.into(),
            line: 0,
            buffer: Vec::new(),
            torn: None,
        }
    }

    /// What is wrong with the line that was read last.
    pub(super) fn trouble(&self, reason: impl Into<String>) -> Unreadable {
        Unreadable {
            file: self.file.to_string(),
            line: Some(self.line),
            reason: reason.into(),
        }
    }

    pub(super) fn next(&mut self) -> Result<Option<(TracePosition, TraceLine)>, Unreadable> {
        loop {
            self.buffer.clear();
            self.line += 1;
            let read = self.input.read_until(b'\n', &mut self.buffer);
            read.map_err(|error| self.trouble(error.to_string()))?;
            // A line without an end was being written when its process died, or still is.
            if self.buffer.pop() != Some(b'\n') {
                return Ok(None);
            }
            let parsed = std::str::from_utf8(&self.buffer)
                .map_err(|error| error.to_string())
                .and_then(TraceLine::parse);
            match (parsed, self.torn.take()) {
                (Ok(line), torn) => {
                    if let (false, Some(torn)) = (matches!(line, TraceLine::Begin(_)), torn) {
                        return Err(torn);
                    }
                    let place = TracePosition {
                        file: self.file.clone(),
                        line: self.line,
                    };
                    return Ok(Some((place, line)));
                }
                (Err(_), Some(torn)) => return Err(torn),
                (Err(reason), None) if self.line == 1 => return Err(self.trouble(reason)),
                (Err(reason), None) if self.buffer.starts_with(b"{\"begin\"") => {
                    return Err(self.trouble(reason));
                }
                (Err(reason), None) => self.torn = Some(self.trouble(reason)),
            }
        }
    }
}
