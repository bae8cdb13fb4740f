//! The independent judge of what real processes did.
//!
//! Processes under test write down when they work on a shard; the judge reads those logs afterwards and says
//! whether there was ever more than one owner. It shares no code with the rest of the workspace, so that a mistake
//! there cannot hide itself here.
//!
//! # The log
//!
//! One JSON object per line, appended, never rewritten:
//!
//! ```json
//! {"t":81234567890123,"pid":4711,"shard":"orders/17","epoch":4294967297,"ev":"start","node":"n1"}
//! ```
//!
//! | field | meaning |
//! |---|---|
//! | `t` | nanoseconds of the machine's boot-time monotonic clock (`CLOCK_BOOTTIME`), read just before the line is written |
//! | `pid` | the process that does the work |
//! | `shard` | what it works on; for a hashed keyspace `KEYSPACE/NUMBER` |
//! | `epoch` | the fencing token it works under |
//! | `ev` | `start`, `beat`, `effect` (a change that others can see) or `end` |
//! | `node` | the node on whose behalf it works |
//!
//! Further fields are ignored. All files of one run must come from one boot of one machine: only then can their
//! stamps be compared. Give every process a file of its own (its pid in the name): a process that is killed in the
//! middle of a write leaves half a line, which is tolerated at the end of a file and nowhere else.
//! The order of files and of lines does not matter; stamps decide. Where stamps of one process are equal, the order
//! of its lines does.
//!
//! # What counts as alive
//!
//! *Work* is one (shard, epoch, pid). It is alive from a `start` to the last line that follows, up to and including
//! its `end`. A killed process has no `end` and was alive up to its last line. A stopped process that wakes and
//! writes another line was alive all the while: that is how a late owner is caught. A `start` after an `end` opens
//! a second span of the same work (an owner that paused and came back), with nobody alive in between.
//!
//! # What is reported
//!
//! See [`Verdict`]: overlaps, epochs that go back, epochs with two owners, effects under an epoch that was already
//! superseded, lines outside any `start`, gaps, and shards not served at the end. Two spans that only touch (one
//! ends in the nanosecond in which the other begins) do not overlap.
//!
//! # From Rust
//!
//! ```
//! use tenure_judge::{LogEvent, LogLine, judge};
//!
//! let line = |t, pid, epoch, ev| LogLine { t, pid, epoch, ev, shard: "orders/17".into(), node: "n1".into() };
//! let verdict = judge([
//!     line(100, 1, 1, LogEvent::Start),
//!     line(200, 2, 2, LogEvent::Start),
//!     line(250, 1, 1, LogEvent::Beat), // epoch 1 is still at it
//!     line(300, 2, 2, LogEvent::End),
//! ]);
//! assert_eq!(verdict.overlaps.count, 1);
//! assert!(!verdict.is_clean());
//! ```
//!
//! Memory: 16 bytes per line (up to twice that while a list grows), whatever the length of the lines.

mod checks;
mod duration;
mod history;
mod judge;
mod line;
mod read;
mod requirements;
mod verdict;

pub use duration::{parse_duration, show_duration};
pub use judge::{Judge, judge};
pub use line::{LogEvent, LogLine};
pub use read::{ReadError, ReadSummary, find_logs, read_log, read_logs};
pub use requirements::Requirements;
pub use verdict::{
    EpochRegression, Findings, Overlap, SharedEpoch, StaleEffects, StrayLine, TimeWindow,
    UnservedGap, Verdict, WorkId,
};
