//! What the judge found.

use serde::Serialize;

/// How many findings of one kind are listed; all are counted.
const LISTED: usize = 100;

/// What the judge found in one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// How many lines were judged.
    pub lines: u64,
    /// How many shards they named.
    pub shards: usize,
    /// How many different (shard, epoch, pid) there were.
    pub works: usize,
    /// How often work began again at its own epoch (after a pause, say). Allowed.
    pub resumed: u64,
    /// The time that gaps and coverage were asked of; `None` if there was no line.
    pub window: Option<TimeWindow>,
    /// Two works alive on one shard at one instant.
    pub overlaps: Findings<Overlap>,
    /// Work that began under a lower epoch than work that had begun before it.
    pub regressions: Findings<EpochRegression>,
    /// Epochs that more than one process or node worked under.
    pub shared: Findings<SharedEpoch>,
    /// Effects stamped later than the start of a higher epoch.
    pub stale_effects: Findings<StaleEffects>,
    /// Lines before any `start` or after an `end`.
    pub strays: Findings<StrayLine>,
    /// Shards that were asked for and never worked on.
    pub unseen: Findings<String>,
    /// Shards that were worked on and not asked for.
    pub unexpected: Findings<String>,
    /// Per shard its longest time with nobody alive, longest first; shards without a gap are left out.
    pub gaps: Vec<UnservedGap>,
    /// Those of the gaps that are longer than was allowed.
    pub long_gaps: Findings<UnservedGap>,
    /// Shards that nobody was alive on in the last part of the window.
    pub uncovered: Findings<String>,
}

/// All findings of one kind counted, the first hundred listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Findings<T> {
    /// How many there are.
    pub count: u64,
    /// The first of them, by shard.
    pub listed: Vec<T>,
}

/// A stretch of time; both ends belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TimeWindow {
    /// The first nanosecond.
    pub from: u64,
    /// The last nanosecond.
    pub until: u64,
}

/// One process at one epoch of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkId {
    /// The fencing token it worked under.
    pub epoch: u64,
    /// The process.
    pub pid: u64,
    /// The node it named (the first by name, should its lines disagree).
    pub node: String,
}

/// Two works alive on one shard at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Overlap {
    /// The shard.
    pub shard: String,
    /// The work that began first.
    pub earlier: WorkId,
    /// From when to when it was alive.
    pub earlier_alive: TimeWindow,
    /// The work that began while the other was alive.
    pub later: WorkId,
    /// From when to when it was alive.
    pub later_alive: TimeWindow,
    /// When both were.
    pub both: TimeWindow,
}

/// Work that began under a lower epoch than work that had begun before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EpochRegression {
    /// The shard.
    pub shard: String,
    /// What began.
    pub work: WorkId,
    /// When.
    pub at: u64,
    /// The higher epoch that had begun before.
    pub after: WorkId,
    /// When that was.
    pub after_at: u64,
}

/// An epoch that more than one process or node worked under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharedEpoch {
    /// The shard.
    pub shard: String,
    /// The epoch.
    pub epoch: u64,
    /// The processes, in the order of their pids.
    pub pids: Vec<u64>,
    /// The nodes, by name.
    pub nodes: Vec<String>,
}

/// Effects of one work stamped later than the start of a higher epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StaleEffects {
    /// The shard.
    pub shard: String,
    /// Whose effects.
    pub work: WorkId,
    /// When a higher epoch had begun.
    pub superseded_at: u64,
    /// The first effect after that.
    pub first: u64,
    /// How many there are.
    pub effects: usize,
}

/// A line before any `start` or after an `end`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StrayLine {
    /// The shard.
    pub shard: String,
    /// Whose line.
    pub work: WorkId,
    /// Its stamp.
    pub at: u64,
    /// What it said.
    pub ev: crate::LogEvent,
}

/// A time with nobody alive on a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnservedGap {
    /// The shard.
    pub shard: String,
    /// The last line before it, or the begin of the window.
    pub from: u64,
    /// The first line after it, or the end of the window.
    pub until: u64,
}

impl UnservedGap {
    /// How long it was, in nanoseconds.
    pub fn nanos(&self) -> u64 {
        self.until - self.from
    }
}

impl<T> Default for Findings<T> {
    fn default() -> Self {
        Findings {
            count: 0,
            listed: Vec::new(),
        }
    }
}

impl<T> Findings<T> {
    /// Counts a finding and lists it while there is room.
    pub(crate) fn add(&mut self, finding: impl FnOnce() -> T) {
        self.count += 1;
        if self.listed.len() < LISTED {
            self.listed.push(finding());
        }
    }
}

impl Verdict {
    /// Whether nothing at all speaks against the run.
    pub fn is_clean(&self) -> bool {
        self.against().is_empty()
    }

    /// What speaks against the run: how many of which kind.
    pub fn against(&self) -> Vec<(&'static str, u64)> {
        let kinds = [
            ("overlaps", self.overlaps.count),
            ("decreasing epochs", self.regressions.count),
            ("epochs with more than one owner", self.shared.count),
            ("activations with stale effects", self.stale_effects.count),
            ("lines outside start and end", self.strays.count),
            ("shards never served", self.unseen.count),
            ("unexpected shards", self.unexpected.count),
            ("shards with a gap above the limit", self.long_gaps.count),
            ("shards not served at the end", self.uncovered.count),
        ];
        kinds.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_beyond_the_listed_are_counted() {
        let mut findings = Findings::default();
        for number in 0..250 {
            findings.add(|| number);
        }
        assert_eq!(
            (findings.count, findings.listed.len(), findings.listed[99]),
            (250, 100, 99)
        );
    }

    #[test]
    fn one_finding_of_any_kind_is_enough_to_be_against_the_run() {
        fn one<T>() -> Findings<T> {
            Findings {
                count: 1,
                listed: vec![],
            }
        }
        assert!(Verdict::default().is_clean());
        assert!(
            !Verdict {
                overlaps: one(),
                ..Verdict::default()
            }
            .is_clean()
        );
        assert!(
            !Verdict {
                uncovered: one(),
                ..Verdict::default()
            }
            .is_clean()
        );
        let both = Verdict {
            strays: one(),
            unseen: one(),
            ..Verdict::default()
        };
        assert_eq!(
            both.against(),
            [
                ("lines outside start and end", 1),
                ("shards never served", 1)
            ]
        );
    }
}
