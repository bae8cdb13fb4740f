//! The logs of all workers, read as they grow.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tenure_judge::LogEvent;

/// One line of a worker's log; the session is beyond what the judge asks for.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Line {
    pub(crate) t: u64,
    pub(crate) pid: u64,
    pub(crate) shard: String,
    pub(crate) epoch: u64,
    pub(crate) ev: LogEvent,
    pub(crate) node: String,
    pub(crate) session: String,
}

/// Who worked on a shard at its highest epoch, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) node: String,
    pub(crate) pid: u64,
    pub(crate) session: String,
    pub(crate) epoch: u64,
    /// When it began, for the last time.
    pub(crate) start: u64,
    pub(crate) last: u64,
    /// Whether it has said that it is over.
    pub(crate) over: bool,
}

/// Node, process, session and epoch: what must not change where no owner changes.
pub(crate) type Owner = (String, u64, String, u64);

impl Holder {
    pub(crate) fn owner(&self) -> Owner {
        let (node, session) = (self.node.clone(), self.session.clone());
        (node, self.pid, session, self.epoch)
    }
}

/// Who worked on each shard at its highest epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holders(pub(crate) BTreeMap<String, Holder>);

impl Holders {
    /// The owner of each shard.
    pub(crate) fn owners(&self) -> BTreeMap<String, Owner> {
        let owners = self.0.iter().map(|(shard, h)| (shard.clone(), h.owner()));
        owners.collect()
    }

    /// The nodes that have a shard, by name.
    pub(crate) fn nodes(&self) -> Vec<&str> {
        let nodes: BTreeSet<&str> = self.0.values().map(|h| h.node.as_str()).collect();
        nodes.into_iter().collect()
    }

    /// The shards of a node.
    pub(crate) fn of(&self, node: &str) -> BTreeSet<String> {
        let theirs = self.0.iter().filter(|(_, h)| h.node == node);
        theirs.map(|(shard, _)| shard.clone()).collect()
    }

    /// The sessions of a node.
    pub(crate) fn sessions(&self, node: &str) -> BTreeSet<&str> {
        let theirs = self.0.values().filter(|h| h.node == node);
        theirs.map(|h| h.session.as_str()).collect()
    }

    /// When the last of the shards was begun.
    pub(crate) fn last_start(&self) -> u64 {
        self.0.values().map(|h| h.start).max().unwrap_or_default()
    }
}

/// Everything that was read so far.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    offsets: BTreeMap<PathBuf, u64>,
    pub(crate) lines: Vec<Line>,
    pub(crate) holders: Holders,
}

impl Logs {
    /// Reads what was added. Half a line is left for the next time.
    pub(crate) fn read(&mut self, dir: &Path) {
        for entry in fs::read_dir(dir).expect("the logs") {
            let path = entry.expect("a log").path();
            let offset = self.offsets.entry(path.clone()).or_default();
            let mut file = fs::File::open(path).expect("a log");
            file.seek(SeekFrom::Start(*offset)).expect("a file");
            let mut text = Vec::new();
            file.read_to_end(&mut text).expect("a file");
            let whole = text
                .iter()
                .rposition(|b| *b == b'\n')
                .map_or(0, |at| at + 1);
            *offset += whole as u64;
            for line in text[..whole]
                .split(|b| *b == b'\n')
                .filter(|l| !l.is_empty())
            {
                let line: Line = serde_json::from_slice(line).expect("a line of a log");
                self.note(&line);
                self.lines.push(line);
            }
        }
    }

    fn note(&mut self, line: &Line) {
        let known = self.holders.0.get_mut(&line.shard);
        match known {
            Some(known) if known.epoch > line.epoch => {}
            Some(known) if (known.epoch, known.pid) == (line.epoch, line.pid) => {
                if line.ev == LogEvent::Start {
                    known.start = line.t;
                }
                known.last = known.last.max(line.t);
                known.over = line.ev == LogEvent::End;
            }
            _ => {
                let holder = Holder {
                    node: line.node.clone(),
                    pid: line.pid,
                    session: line.session.clone(),
                    epoch: line.epoch,
                    start: line.t,
                    last: line.t,
                    over: line.ev == LogEvent::End,
                };
                self.holders.0.insert(line.shard.clone(), holder);
            }
        }
    }
}
