//! Standard output, for data alone. A reader that has seen enough (`tenure status | head`) ends the program quietly.

use std::io::{self, Write};
use std::process;

use serde::Serialize;

/// Writes text as it is.
pub fn text(text: &str) {
    bytes(text.as_bytes());
}

/// Writes bytes as they are.
pub fn bytes(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    if let Err(e) = written {
        if e.kind() == io::ErrorKind::BrokenPipe {
            process::exit(0);
        }
        eprintln!("error: standard output cannot be written: {e}");
        process::exit(1);
    }
}

/// Writes one line.
pub fn line(line: impl AsRef<str>) {
    text(&format!("{}\n", line.as_ref()));
}

/// Writes a document that a person may read too.
pub fn json(value: &impl Serialize) {
    line(serde_json::to_string_pretty(value).unwrap_or_default());
}

/// Writes a document on one line, for streams of them.
pub fn json_line(value: &impl Serialize) {
    line(serde_json::to_string(value).unwrap_or_default());
}
