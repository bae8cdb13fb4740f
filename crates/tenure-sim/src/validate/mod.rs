//! Trace validation: what real processes wrote down of themselves, run again and checked.
//!
//! | file | checks |
//! |---|---|
//! | `read` | that a file is made of lines of traces |
//! | `process` | one process: its steps are all there, and time goes on |
//! | `replay` | the machine that ships, told the same, does the same |
//! | `conduct` | the driver keeps its side of the contract |
//! | `shards` | every write of a shard's record is a transition of the table in [`tenure_core::ownership`] |
//! | `gates` | P1: two gates of one shard are never open at once |
//! | `cluster` | P2: epochs; versions and revs of all records; sessions that have ended stay ended |
//!
//! The first four look at one process at a time. The others hold all processes of a cluster side by side; times are compared
//! only where processes share a clock. Nothing here needs the whole trace in memory, only what is left to compare.

mod cluster;
mod driver_contract;
mod gates;
mod process;
mod read;
mod replay;
mod report;
mod shards;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use tenure_core::ids::ClusterName;
use tenure_core::trace_format::TraceLine;

use cluster::Cluster;
use process::Process;
use read::TraceReader;
pub use read::Unreadable;
pub use report::{CheckKind, Finding, ValidationReport};
use report::{FindingSink, TracePosition};

/// Reads traces, one file after the other, and says what is wrong with them.
#[derive(Default)]
pub struct Validator {
    clusters: BTreeMap<ClusterName, Cluster>,
    /// Every process by the random bits that it drew, and where it began.
    known: BTreeMap<u128, TracePosition>,
    sink: FindingSink,
}

impl Validator {
    /// Nothing read yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the traces that a file holds. An empty one is that of a process that was killed at its very start.
    pub fn read(&mut self, name: &str, input: impl BufRead) -> Result<(), Unreadable> {
        let mut lines = TraceReader::new(name, input);
        let mut current: Option<Process> = None;
        while let Some((place, line)) = lines.next()? {
            match (line, &mut current) {
                (TraceLine::Begin(begin), _) => {
                    self.end(current.take());
                    let known = self.known.insert(begin.config.entropy, place.clone());
                    if let Some(known) = known {
                        return Err(lines.trouble(format!(
                            "the trace of this process was already read at {known}; pass each file once"
                        )));
                    }
                    current = Some(Process::begin(place, *begin, &mut self.sink));
                }
                (_, None) => {
                    return Err(lines.trouble(
                        "the first line of a trace must be a `begin` line; pass a file that \
                        --trace wrote",
                    ));
                }
                (line, Some(process)) => {
                    let cluster = self.clusters.entry(process.cluster().clone()).or_default();
                    process.line(place, line, cluster, &mut self.sink);
                }
            }
        }
        self.end(current);
        self.sink.report.files += 1;
        Ok(())
    }

    /// Reads the traces that a file holds.
    pub fn read_file(&mut self, path: impl AsRef<Path>) -> Result<(), Unreadable> {
        let name = path.as_ref().display().to_string();
        match File::open(&path) {
            Ok(file) => self.read(&name, BufReader::new(file)),
            Err(error) => Err(Unreadable {
                file: name,
                line: None,
                reason: error.to_string(),
            }),
        }
    }

    fn end(&mut self, process: Option<Process>) {
        if let Some(process) = process {
            let cluster = self.clusters.entry(process.cluster().clone()).or_default();
            process.end(cluster, &mut self.sink);
        }
    }

    /// Compares what the processes did with each other, and says everything.
    pub fn finish(mut self) -> ValidationReport {
        for (_, cluster) in self.clusters {
            cluster.finish(&mut self.sink);
        }
        self.sink.into_report()
    }
}

/// Reads and checks the traces of one or several processes.
pub fn validate<P: AsRef<Path>>(
    files: impl IntoIterator<Item = P>,
) -> Result<ValidationReport, Unreadable> {
    let mut validator = Validator::new();
    for file in files {
        validator.read_file(file)?;
    }
    Ok(validator.finish())
}
