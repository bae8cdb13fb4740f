//! Writing down what a worker does, for the judge.

use std::fs::File;
use std::io::Write;

use serde::Serialize;
use tenure_judge::LogEvent;

use super::Work;

/// The log of one process: one line per write, so that a line is whole unless the process is killed inside the write.
#[derive(Debug)]
pub(crate) struct Record {
    file: File,
    node: String,
    pid: u32,
}

/// What one shard's lines are about.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) shard: String,
    pub(crate) epoch: u64,
    pub(crate) session: String,
}

#[derive(Serialize)]
struct Line<'a> {
    t: u64,
    pid: u32,
    shard: &'a str,
    epoch: u64,
    ev: LogEvent,
    node: &'a str,
    session: &'a str,
}

impl Record {
    pub(crate) fn open(work: &Work) -> Self {
        let pid = std::process::id();
        let name = format!("{}-{pid}.jsonl", work.node);
        let file = File::options()
            .create(true)
            .append(true)
            .open(work.site.join("logs").join(name));
        Self {
            file: file.expect("a log of its own"),
            node: work.node.clone(),
            pid,
        }
    }

    pub(crate) fn line(&self, t: u64, ev: LogEvent, subject: &Subject) {
        let line = Line {
            t,
            pid: self.pid,
            shard: &subject.shard,
            epoch: subject.epoch,
            ev,
            node: &self.node,
            session: &subject.session,
        };
        let mut text = serde_json::to_vec(&line).expect("plain values");
        text.push(b'\n');
        (&self.file).write_all(&text).expect("a log that takes it");
    }
}
