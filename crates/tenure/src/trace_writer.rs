//! Writes down every step of a node's machine, so that it can be run again and checked.
//!
//! The driver hands each step to a thread of the recorder's own and goes on at once. A disk that is slow, full or gone
//! costs the trace, never the node: the recorder then says so in the log, marks the place if it still can, and stops,
//! because steps after a gap cannot be run again.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel,
};
use std::time::Duration;

use tenure_core::machine::{Event, Step};
use tenure_core::time::Time;
use tenure_core::trace_format::{TraceBegin, TraceEnd, TraceGap, TraceLine, TraceStep};
use tracing::warn;

/// How many steps may wait for the disk.
const WAITING: usize = 4096;

/// Text that is gathered before it goes to the disk while more is coming.
const GATHER: usize = 1 << 18;

/// How long the end of a node waits for the disk.
const FAREWELL: Duration = Duration::from_secs(1);

/// Why a node cannot write its trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("trace file {} cannot be written: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Another process writes to the file.
    #[error("trace file {} is being written by another process; give each process its own", .0.display())]
    InUse(PathBuf),
}

/// What writes a trace, until it is dropped: everything is in the file then, unless the disk hangs.
pub(crate) struct TraceWriter {
    path: PathBuf,
    room: usize,
    steps: u64,
    lines: Option<SyncSender<TraceLine>>,
    /// Never sends; ends with the writer.
    written: Receiver<()>,
}

impl TraceWriter {
    /// Opens the file, or makes it; what is in it stays.
    pub(crate) fn open(path: &Path, begin: TraceBegin) -> Result<Self, TraceError> {
        Self::with_room(path, begin, WAITING)
    }

    fn with_room(path: &Path, begin: TraceBegin, room: usize) -> Result<Self, TraceError> {
        let trouble = |error| TraceError::File {
            path: path.to_owned(),
            error,
        };
        let mut file = File::options()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .map_err(trouble)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(TraceError::InUse(path.to_owned()));
            }
            Err(std::fs::TryLockError::Error(error)) => return Err(trouble(error)),
        }
        end_torn_line(&mut file).map_err(trouble)?;
        let (lines, queue) = sync_channel(room);
        let (writing, written) = sync_channel(0);
        let mut out = Out {
            path: path.to_owned(),
            file,
            text: Vec::new(),
        };
        out.push(&TraceLine::Begin(Box::new(begin)));
        std::thread::Builder::new()
            .name("tenure-trace".to_owned())
            .spawn(move || {
                let _writing = writing;
                out.write_all(&queue);
            })
            .map_err(trouble)?;
        Ok(Self {
            path: path.to_owned(),
            room,
            steps: 0,
            lines: Some(lines),
            written,
        })
    }

    /// Writes down a step. Never waits.
    pub(crate) fn stepped(&mut self, t: Time, event: Event, step: &Step) {
        self.steps += 1;
        self.send(TraceLine::Step(TraceStep {
            n: self.steps,
            t,
            event,
            actions: step.actions.clone(),
            wake: step.wake,
        }));
    }

    /// Writes down that the driver is gone and every gate closed.
    pub(crate) fn ended(&mut self, t: Time) {
        self.send(TraceLine::End(TraceEnd { t }));
    }

    fn send(&mut self, line: TraceLine) {
        let Some(lines) = &self.lines else { return };
        match lines.try_send(line) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                let reason = format!(
                    "the disk is too slow: {} steps of the trace wait to be written",
                    self.room
                );
                warn!(trace = %self.path.display(), step = self.steps, reason, "trace recording stopped, trace is incomplete");
                self.give_up(reason);
            }
            // The writer has said why.
            Err(TrySendError::Disconnected(_)) => self.lines = None,
        }
    }

    /// The mark goes behind all that waits, by somebody who can wait for it.
    fn give_up(&mut self, reason: String) {
        let Some(lines) = self.lines.take() else {
            return;
        };
        let gap = TraceLine::Gap(TraceGap {
            n: self.steps,
            reason,
        });
        let marking = std::thread::Builder::new().spawn(move || drop(lines.send(gap)));
        if let Err(error) = marking {
            warn!(trace = %self.path.display(), %error, "trace ends early and could not be marked as incomplete");
        }
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        self.lines = None;
        if self.written.recv_timeout(FAREWELL) == Err(RecvTimeoutError::Timeout) {
            warn!(trace = %self.path.display(), "end of the trace not written, disk does not respond");
        }
    }
}

/// A process that was killed may have left half a line: the next one begins on a line of its own.
fn end_torn_line(file: &mut File) -> io::Result<()> {
    if !file.metadata()?.is_file() || file.metadata()?.len() == 0 {
        return Ok(());
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    match last {
        [b'\n'] => Ok(()),
        _ => file.write_all(b"\n"),
    }
}

/// The writer's side.
struct Out {
    path: PathBuf,
    file: File,
    text: Vec<u8>,
}

impl Out {
    fn push(&mut self, line: &TraceLine) {
        self.text.extend_from_slice(line.to_json().as_bytes());
        self.text.push(b'\n');
    }

    /// Writes until nobody sends any more. Whole lines go out, and nothing is held back while nothing comes.
    fn write_all(mut self, queue: &Receiver<TraceLine>) {
        loop {
            let next = match queue.try_recv() {
                Ok(line) if self.text.len() < GATHER => Some(line),
                ended => {
                    if let Err(error) = self.file.write_all(&self.text) {
                        warn!(trace = %self.path.display(), %error, "trace recording stopped, trace is incomplete");
                        return;
                    }
                    self.text.clear();
                    match ended {
                        Ok(line) => Some(line),
                        Err(TryRecvError::Empty) => queue.recv().ok(),
                        Err(TryRecvError::Disconnected) => None,
                    }
                }
            };
            match next {
                Some(line) => self.push(&line),
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{BufRead as _, BufReader};

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use tenure_core::ids::{ClusterName, NodeName};
    use tenure_core::machine::ActivationId;
    use tenure_core::node::NodeConfig;
    use tenure_core::record::Role;
    use tenure_core::rules::Rules;
    use tenure_core::settings::Settings;

    use super::*;

    fn begin() -> TraceBegin {
        TraceBegin {
            format: tenure_core::trace_format::FORMAT,
            version: String::new(),
            commit: None,
            cluster: ClusterName::new("shop").unwrap(),
            process: 1,
            clock: None,
            config: NodeConfig {
                name: NodeName::new("a").unwrap(),
                role: Role::Node,
                addresses: BTreeMap::new(),
                zone: None,
                weight: 100,
                labels: BTreeMap::new(),
                capacity: None,
                version: String::new(),
                keyspaces: BTreeMap::new(),
                timing: Settings::default().check(Duration::ZERO).unwrap(),
                rules: Rules::sound(),
                policy: None,
                timekeeper: tenure_core::node::Timekeeper::Nodes,
                boot_id: None,
                entropy: 1,
                last_session: None,
                rejoin: Default::default(),
                join: false,
                ephemeral: false,
            },
        }
    }

    fn kinds(text: &str) -> String {
        let kind = |line: &str| match TraceLine::parse(line).unwrap() {
            TraceLine::Begin(_) => 'b',
            TraceLine::Step(_) => 's',
            TraceLine::Gap(_) => 'g',
            TraceLine::End(_) => 'e',
        };
        text.lines().map(kind).collect()
    }

    #[test]
    fn a_disk_that_is_too_slow_costs_the_rest_of_the_trace_and_nobody_waits_for_it() {
        let dir = tempfile::tempdir().unwrap();
        // A pipe that nobody reads is a disk that hangs.
        let pipe = dir.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let mut reader =
            BufReader::new(File::options().read(true).write(true).open(&pipe).unwrap());
        let mut recorder = TraceWriter::with_room(&pipe, begin(), 2).unwrap();
        let mut steps = 0;
        while recorder.lines.is_some() {
            let error = "x".repeat(100_000);
            let activation = ActivationId(1);
            let step = Step::default();
            recorder.stepped(Time(1), Event::LoadFailed { activation, error }, &step);
            steps += 1;
        }
        assert!(steps < 10, "{steps} steps fitted");
        let mut read = String::new();
        let gap = loop {
            let from = read.len();
            reader.read_line(&mut read).unwrap();
            if let TraceLine::Gap(gap) = TraceLine::parse(&read[from..]).unwrap() {
                break gap;
            }
        };
        // Exactly what was not written down is said to be missing.
        assert_eq!(gap.n, steps);
        assert_eq!(
            kinds(&read),
            format!("b{}g", "s".repeat(gap.n as usize - 1))
        );
        recorder.ended(Time(2));
    }

    #[test]
    fn a_trace_goes_on_behind_what_is_there_and_after_half_a_line_on_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace");
        let mut recorder = TraceWriter::open(&path, begin()).unwrap();
        recorder.stepped(Time(1), Event::Tick, &Step::default());
        recorder.ended(Time(2));
        drop(recorder);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(kinds(&text), "bse");
        std::fs::write(&path, &text[..text.len() - 3]).unwrap();
        drop(TraceWriter::open(&path, begin()).unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        let whole: Vec<&str> = text
            .lines()
            .filter(|l| TraceLine::parse(l).is_ok())
            .collect();
        assert_eq!(kinds(&whole.join("\n")), "bsb");
        assert_eq!(text.lines().count(), 4);
    }

    #[test]
    fn one_file_has_one_writer_and_is_for_its_user_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace");
        let first = TraceWriter::open(&path, begin()).unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let second = TraceWriter::open(&path, begin()).err().unwrap().to_string();
        assert!(
            second.contains("is being written by another process"),
            "{second}"
        );
        drop(first);
        assert!(TraceWriter::open(&path, begin()).is_ok());
    }
}
