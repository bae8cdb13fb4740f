//! Seeds that have been run, kept in a file so that an interrupted run can continue.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::Hasher as _;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use tenure_console::exit::Exit;

/// Seeds that were run, and what came of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    /// The first seed.
    pub(super) from: u64,
    /// The seed after the last.
    pub(super) to: u64,
    pub(super) failed: u64,
    pub(super) first_failed: Option<u64>,
}

/// Everything that one build of the program has run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// Which build: results of another one say nothing about this one.
    pub(super) program: String,
    /// The commit that it was built from, if the build was told.
    pub(super) commit: Option<String>,
    /// In order, never overlapping.
    pub(super) finished: Vec<Part>,
}

impl State {
    /// Nothing run yet by this build.
    pub(super) fn new() -> Result<Self, Exit> {
        Ok(Self {
            program: program().map_err(|e| {
                Exit::failed(format!(
                    "the executable of this program cannot be read: {e}"
                ))
            })?,
            commit: option_env!("TENURE_COMMIT").map(str::to_owned),
            finished: Vec::new(),
        })
    }

    /// What the file says, if it is there and of this build.
    pub(super) fn load(path: &Path) -> Result<Self, Exit> {
        let new = Self::new()?;
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(new),
            Err(e) => {
                return Err(Exit::usage(format!(
                    "state file {} cannot be read: {e}",
                    path.display()
                )));
            }
        };
        let found: Self = serde_json::from_str(&text).map_err(|e| {
            Exit::usage(format!(
                "{} is not a state file of `tenure-sim run`: {e}; give another file",
                path.display()
            ))
        })?;
        if found.program != new.program {
            eprintln!(
                "state file {} is from another build of this program and will be replaced",
                path.display()
            );
            return Ok(new);
        }
        Ok(found)
    }

    /// Writes the file whole, or leaves it as it was.
    pub(super) fn save(&self, path: &Path) -> Result<(), Exit> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        let saved = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
        saved.map_err(|e| {
            Exit::failed(format!(
                "state file {} cannot be written: {e}",
                path.display()
            ))
        })
    }

    /// The parts of a range that have not been run.
    pub(super) fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut at = range.start;
        for part in &self.finished {
            if part.from > at && at < range.end {
                missing.push(at..part.from.min(range.end));
            }
            at = at.max(part.to);
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        missing
    }

    /// Adds what was run; neighbours become one.
    pub(super) fn add(&mut self, part: Part) {
        self.finished.push(part);
        self.finished.sort_by_key(|part| part.from);
        let mut joined: Vec<Part> = Vec::new();
        for part in self.finished.drain(..) {
            match joined.last_mut() {
                Some(last) if last.to == part.from => {
                    last.to = part.to;
                    last.failed += part.failed;
                    last.first_failed = last.first_failed.or(part.first_failed);
                }
                _ => joined.push(part),
            }
        }
        self.finished = joined;
    }
}

/// A number that stands for the bytes of this very program.
fn program() -> io::Result<String> {
    let mut file = File::open(std::env::current_exe()?)?;
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(format!("{:016x}", hasher.finish())),
            n => hasher.write(&buffer[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(from: u64, to: u64, first_failed: Option<u64>) -> Part {
        Part {
            from,
            to,
            failed: u64::from(first_failed.is_some()),
            first_failed,
        }
    }

    #[test]
    #[allow(
        clippy::single_range_in_vec_init,
        reason = "one range is what is expected"
    )]
    fn what_was_run_is_left_out_and_neighbours_become_one() {
        let mut state = State::new().unwrap();
        assert_eq!(state.missing(&(0..100)), [0..100]);
        state.add(part(50, 60, Some(51)));
        state.add(part(0, 10, None));
        assert_eq!(state.missing(&(0..100)), [10..50, 60..100]);
        assert_eq!(state.missing(&(55..58)), []);
        assert_eq!(state.missing(&(5..20)), [10..20]);
        state.add(part(10, 50, Some(12)));
        assert_eq!(
            state.finished,
            [Part {
                failed: 2,
                ..part(0, 60, Some(12))
            }]
        );
    }

    #[test]
    fn a_state_reads_back_and_one_of_another_build_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sim.json");
        let mut state = State::load(&path).unwrap();
        state.add(part(0, 10, None));
        state.save(&path).unwrap();
        assert_eq!(State::load(&path).unwrap(), state);
        state.program = "other".to_owned();
        state.save(&path).unwrap();
        assert_eq!(State::load(&path).unwrap().finished, []);
        fs::write(&path, "{").unwrap();
        assert!(
            State::load(&path)
                .unwrap_err()
                .message
                .contains("is not a state file")
        );
    }
}
