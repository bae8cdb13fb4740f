//! Finds log files and reads them line by line.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::{Judge, LogLine};

/// The longest line there may be; anything longer is not a log.
const LONGEST_LINE: usize = 64 * 1024;

/// What reading the logs came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadSummary {
    /// How many files were read.
    pub files: usize,
    /// How many of them end in half a line, as a process leaves it that was killed while writing.
    pub truncated: usize,
}

/// Why the logs cannot be judged.
#[derive(Debug)]
pub enum ReadError {
    /// A path that cannot be read.
    Unreadable(PathBuf, io::Error),
    /// A directory without a single log.
    NoLogs(PathBuf),
    /// A line, other than half a line at the very end, that is not of the format.
    Garbage {
        /// The file.
        file: PathBuf,
        /// Its line, counted from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Unreadable(path, error) => {
                write!(f, "cannot read {}: {error}", path.display())
            }
            ReadError::NoLogs(path) => {
                write!(
                    f,
                    "no *.jsonl file under {}; name the files if they have another extension",
                    path.display()
                )
            }
            ReadError::Garbage { file, line, reason } => {
                write!(f, "{}:{line}: not a log line: {reason}", file.display())
            }
        }
    }
}

impl std::error::Error for ReadError {}

/// Shows the judge all lines of the given files and of the `*.jsonl` files under the given directories.
pub fn read_logs(paths: &[PathBuf], judge: &mut Judge) -> Result<ReadSummary, ReadError> {
    let mut reading = ReadSummary::default();
    for file in find_logs(paths)? {
        let opened =
            File::open(&file).map_err(|error| ReadError::Unreadable(file.clone(), error))?;
        reading.files += 1;
        reading.truncated += usize::from(read_log(
            &file,
            BufReader::with_capacity(1 << 18, opened),
            judge,
        )?);
    }
    Ok(reading)
}

/// Lists the given files and the `*.jsonl` files under the given directories, each once. Links inside of
/// directories are not followed.
pub fn find_logs(paths: &[PathBuf]) -> Result<BTreeSet<PathBuf>, ReadError> {
    let mut found = BTreeSet::new();
    for path in paths {
        let unreadable = |error| ReadError::Unreadable(path.clone(), error);
        let real = fs::canonicalize(path).map_err(unreadable)?;
        if !fs::metadata(&real).map_err(unreadable)?.is_dir() {
            found.insert(real);
            continue;
        }
        let mut inside = BTreeSet::new();
        walk(&real, &mut inside)?;
        if inside.is_empty() {
            return Err(ReadError::NoLogs(path.clone()));
        }
        found.append(&mut inside);
    }
    Ok(found)
}

fn walk(dir: &Path, found: &mut BTreeSet<PathBuf>) -> Result<(), ReadError> {
    let unreadable = |error| ReadError::Unreadable(dir.to_owned(), error);
    for entry in fs::read_dir(dir).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let kind = entry.file_type().map_err(unreadable)?;
        if kind.is_dir() {
            walk(&entry.path(), found)?;
        } else if kind.is_file()
            && entry
                .path()
                .extension()
                .is_some_and(|extension| extension == "jsonl")
        {
            found.insert(entry.path());
        }
    }
    Ok(())
}

/// Shows the judge all lines of one log; `file` is only its name in errors. Says whether it ends in half a line.
pub fn read_log(file: &Path, mut log: impl BufRead, judge: &mut Judge) -> Result<bool, ReadError> {
    let mut buffer = Vec::new();
    let mut number = 0;
    loop {
        buffer.clear();
        number += 1;
        let garbage = |reason: String| ReadError::Garbage {
            file: file.to_owned(),
            line: number,
            reason,
        };
        log.by_ref()
            .take(LONGEST_LINE as u64 + 1)
            .read_until(b'\n', &mut buffer)
            .map_err(|error| ReadError::Unreadable(file.to_owned(), error))?;
        let whole = buffer.pop_if(|byte| *byte == b'\n').is_some();
        if !whole && buffer.is_empty() {
            return Ok(false);
        }
        if buffer.len() > LONGEST_LINE {
            return Err(garbage(format!("longer than {LONGEST_LINE} bytes")));
        }
        match LogLine::parse(&buffer) {
            Ok(line) => judge.see(&line),
            Err(_) if !whole => return Ok(true),
            Err(error) => return Err(garbage(error.to_string())),
        }
    }
}
