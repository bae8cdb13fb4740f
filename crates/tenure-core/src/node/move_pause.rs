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
        self.recovery.cluster.as_ref()?.moves_paused.as_ref()
    }

    /// Returns `true` while planned moves are paused.
    pub(super) fn are_moves_paused(&self) -> bool {
        self.pause_in_record().is_some()
            && self
                .leader
                .timed_pause
                .is_none_or(|p| self.ctx.now < p.ends)
    }

    /// Applies a new value of the cluster record: starts, keeps or ends a pause.
    pub(super) fn apply_cluster(&mut self, record: &Arc<ClusterRecord>) {
        let before = self.are_moves_paused();
        self.recovery.cluster = Some(Arc::clone(record));
        match self.pause_in_record().map(|p| (p.rev, p.lasts)) {
            Some((rev, Some(_))) if self.leader.timed_pause.is_some_and(|p| p.rev == rev) => {}
            Some((rev, Some(lasts))) => {
                let ends = self.ctx.now + lasts;
                self.leader.timed_pause = Some(TimedPause { rev, ends });
                self.ctx.timers.set(Timer::PauseEnd, ends);
            }
            Some((_, None)) | None => {
                self.leader.timed_pause = None;
                self.ctx.timers.clear(&Timer::PauseEnd);
            }
        }
        if before && !self.are_moves_paused() {
            self.ctx.scan_all = true;
        }
    }

    /// Moves shards again after the duration of a pause, and removes the pause from the cluster record.
    pub(super) fn end_pause(&mut self) {
        let Some(pause) = self.leader.timed_pause.filter(|p| p.ends <= self.ctx.now) else {
            return;
        };
        self.ctx.scan_all = true;
        self.plan_soon();
        let again = self.ctx.now + self.ctx.config.timing.tick_interval;
        self.ctx.timers.set(Timer::PauseEnd, again);
        let writes = matches!(self.ctx.config.role, Role::Node | Role::Planner);
        if !writes || !matches!(self.ctx.life, Life::Running) {
            return;
        }
        let Some(seen) = self.ctx.view.cluster.seen(&()).cloned() else {
            return;
        };
        if seen.record.moves_paused.as_ref().map(|p| p.rev) != Some(pause.rev) {
            return;
        }
        let record = ClusterRecord {
            head: seen.record.head.next(self.ctx.nonce()),
            moves_paused: None,
            ..ClusterRecord::clone(&seen.record)
        };
        self.ctx.put(
            Key::Cluster,
            Expect::Version(seen.version),
            Record::Cluster(Arc::new(record)),
            WritePurpose::Unimportant,
        );
    }
}
