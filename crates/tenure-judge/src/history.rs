//! What one shard went through: who was alive on it, from when to when.

use std::collections::{BTreeMap, BTreeSet};

use crate::LogEvent;
use crate::verdict::WorkId;

/// Everything heard about one shard, by work.
#[derive(Debug, Default)]
pub(crate) struct ShardHistory {
    works: BTreeMap<(u64, u64), WorkLog>,
}

/// Everything heard from one (epoch, pid).
#[derive(Debug, Default)]
struct WorkLog {
    nodes: BTreeSet<String>,
    events: Vec<(u64, LogEvent)>,
}

/// A time during which one work was alive; both stamps belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The line that opened it, if that was no `start`.
    pub(crate) stray: Option<LogEvent>,
}

/// One work with its spans in the order of time.
#[derive(Debug)]
pub(crate) struct WorkHistory {
    pub(crate) work: WorkId,
    /// All nodes that its lines named; more than one is a finding.
    pub(crate) nodes: BTreeSet<String>,
    pub(crate) spans: Vec<Span>,
    /// Stamps of its effects, in the order of time.
    pub(crate) effects: Vec<u64>,
}

impl ShardHistory {
    pub(crate) fn see(&mut self, t: u64, epoch: u64, pid: u64, ev: LogEvent, node: &str) {
        let log = self.works.entry((epoch, pid)).or_default();
        if !log.nodes.contains(node) {
            log.nodes.insert(node.to_owned());
        }
        log.events.push((t, ev));
    }

    /// Turns lines into spans; works are in the order of epoch, then pid.
    pub(crate) fn tell(self) -> Vec<WorkHistory> {
        self.works
            .into_iter()
            .map(|((epoch, pid), log)| log.tell(epoch, pid))
            .collect()
    }
}

impl WorkLog {
    fn tell(mut self, epoch: u64, pid: u64) -> WorkHistory {
        // Stable: with equal stamps (a coarse clock) the process's own order of writing decides.
        self.events.sort_by_key(|&(t, _)| t);
        let node = self.nodes.first().cloned().unwrap_or_default();
        WorkHistory {
            work: WorkId { epoch, pid, node },
            spans: spans(&self.events),
            effects: self
                .events
                .iter()
                .filter(|(_, ev)| *ev == LogEvent::Effect)
                .map(|&(t, _)| t)
                .collect(),
            nodes: self.nodes,
        }
    }
}

/// Cuts the lines of one work, in the order of time, into spans.
fn spans(events: &[(u64, LogEvent)]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut open = false;
    for &(t, ev) in events {
        match (ev, spans.last_mut().filter(|_| open)) {
            (LogEvent::Start, _) => spans.push(Span {
                first: t,
                last: t,
                stray: None,
            }),
            (_, Some(span)) => span.last = t,
            (_, None) => spans.push(Span {
                first: t,
                last: t,
                stray: Some(ev),
            }),
        }
        open = ev != LogEvent::End;
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use LogEvent::{Beat, Effect, End, Start};

    /// Checks that events become these (first, last) spans, `true` where they lack a start.
    fn check(events: &[(u64, LogEvent)], expected: &[(u64, u64, bool)]) {
        let found: Vec<_> = spans(events)
            .iter()
            .map(|s| (s.first, s.last, s.stray.is_some()))
            .collect();
        assert_eq!(found, expected, "{events:?}");
    }

    #[test]
    fn work_is_alive_from_its_start_to_its_last_line() {
        check(&[], &[]);
        check(&[(5, Start)], &[(5, 5, false)]);
        check(&[(5, Start), (9, Beat)], &[(5, 9, false)]);
        check(&[(5, Start), (9, Effect), (12, End)], &[(5, 12, false)]);
    }

    #[test]
    fn a_start_opens_a_new_span_with_nobody_alive_before_it() {
        check(
            &[(5, Start), (9, End), (20, Start), (25, Beat)],
            &[(5, 9, false), (20, 25, false)],
        );
        check(
            &[(5, Start), (9, Beat), (20, Start)],
            &[(5, 9, false), (20, 20, false)],
        );
    }

    #[test]
    fn lines_outside_any_start_are_strays_of_their_own() {
        check(&[(5, Beat), (7, Beat)], &[(5, 7, true)]);
        check(
            &[(5, Start), (6, End), (8, Effect), (9, End)],
            &[(5, 6, false), (8, 9, true)],
        );
        check(&[(5, End), (6, End)], &[(5, 5, true), (6, 6, true)]);
    }

    #[test]
    fn lines_may_come_in_any_order_and_equal_stamps_keep_theirs() {
        let mut log = ShardHistory::default();
        for (t, ev) in [
            (30, Effect),
            (10, Start),
            (20, End),
            (20, Start),
            (15, Beat),
        ] {
            log.see(t, 1, 1, ev, "n1");
        }
        let told = log.tell();
        let pairs: Vec<_> = told[0].spans.iter().map(|s| (s.first, s.last)).collect();
        assert_eq!(pairs, [(10, 20), (20, 30)]);
        assert_eq!(told[0].effects, [30]);
    }
}
