//! Pause of planned moves: what an operator wrote to the cluster record, and the end of a pause with a duration.
//!
//! A pause has no wall-clock time. Each node counts the duration from the time at which it saw the pause, and moves shards again when
//! its own count ends. Every such node then tries to remove the pause from the record; one write wins.

use std::sync::Arc;

use super::store_requests::WritePurpose;
use super::timers::Timer;
use super::{Life, Node};
use crate::keys::Key;
use crate::machine::Expect;
use crate::record::{ClusterRecord, MovesPaused, Record, Role};
use crate::time::Time;

/// A pause with a duration, as this node counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TimedPause {
    rev: u64,
    ends: Time,
}

impl Node {
    fn pause_in_record(&self) -> Option<&MovesPaused> {
        self.cluster.as_ref()?.moves_paused.as_ref()
    }

    /// Returns `true` while planned moves are paused.
    pub(super) fn are_moves_paused(&self) -> bool {
        self.pause_in_record().is_some() && self.timed_pause.is_none_or(|p| self.now < p.ends)
    }

    /// Applies a new value of the cluster record: starts, keeps or ends a pause.
    pub(super) fn apply_cluster(&mut self, record: &Arc<ClusterRecord>) {
        let before = self.are_moves_paused();
        self.cluster = Some(Arc::clone(record));
        match self.pause_in_record().map(|p| (p.rev, p.lasts)) {
            Some((rev, Some(_))) if self.timed_pause.is_some_and(|p| p.rev == rev) => {}
            Some((rev, Some(lasts))) => {
                let ends = self.now + lasts;
                self.timed_pause = Some(TimedPause { rev, ends });
                self.timers.set(Timer::PauseEnd, ends);
            }
            Some((_, None)) | None => {
                self.timed_pause = None;
                self.timers.clear(&Timer::PauseEnd);
            }
        }
        if before && !self.are_moves_paused() {
            self.look_at_all = true;
        }
    }

    /// Moves shards again after the duration of a pause, and removes the pause from the cluster record.
    pub(super) fn end_pause(&mut self) {
        let Some(pause) = self.timed_pause.filter(|p| p.ends <= self.now) else {
            return;
        };
        self.look_at_all = true;
        self.plan_soon();
        let again = self.now + self.config.timing.tick_interval;
        self.timers.set(Timer::PauseEnd, again);
        let writes = matches!(self.config.role, Role::Node | Role::Planner);
        if !writes || !matches!(self.life, Life::Running) {
            return;
        }
        let Some(seen) = self.view.cluster.seen(&()).cloned() else {
            return;
        };
        if seen.record.moves_paused.as_ref().map(|p| p.rev) != Some(pause.rev) {
            return;
        }
        let record = ClusterRecord {
            head: seen.record.head.next(self.nonce()),
            moves_paused: None,
            ..ClusterRecord::clone(&seen.record)
        };
        self.put(
            Key::Cluster,
            Expect::Version(seen.version),
            Record::Cluster(Arc::new(record)),
            WritePurpose::Unimportant,
        );
    }
}
