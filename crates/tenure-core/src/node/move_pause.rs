//! Pause of planned moves: what an operator wrote to the cluster record, and the end of a pause with a duration.
//!
//! A pause has no wall-clock time. Each node counts the duration from the time at which it saw the pause, and moves shards again when
//! its own count ends. Every such node then tries to remove the pause from the record; one write wins.

use std::sync::Arc;

use crate::keys::Key;
use crate::machine::Expect;
use crate::record::{ClusterRecord, MovesPaused, Record, Role};
use crate::time::Time;

use super::Life;
use super::context::Ctx;
use super::store_requests::WritePurpose;
use super::timers::Timer;

/// Cluster record as last seen, and its pause with a duration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct MovePause {
    cluster: Option<Arc<ClusterRecord>>,
    timed: Option<TimedPause>,
}

/// A pause with a duration, as this node counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TimedPause {
    rev: u64,
    ends: Time,
}

impl MovePause {
    /// Returns the cluster record as last seen, also after it was lost.
    pub(super) fn cluster(&self) -> Option<&ClusterRecord> {
        self.cluster.as_deref()
    }

    fn in_record(&self) -> Option<&MovesPaused> {
        self.cluster.as_ref()?.moves_paused.as_ref()
    }

    /// Returns `true` while planned moves are paused.
    pub(super) fn is_active(&self, now: Time) -> bool {
        self.in_record().is_some() && self.timed.is_none_or(|pause| now < pause.ends)
    }
}

/// Applies a new value of the cluster record: starts, keeps or ends a pause.
pub(super) fn apply_cluster(cx: &mut Ctx, record: &Arc<ClusterRecord>) {
    let before = cx.pause.is_active(cx.now);
    cx.pause.cluster = Some(Arc::clone(record));
    match cx.pause.in_record().map(|pause| (pause.rev, pause.lasts)) {
        Some((rev, Some(_))) if cx.pause.timed.is_some_and(|pause| pause.rev == rev) => {}
        Some((rev, Some(lasts))) => {
            let ends = cx.now + lasts;
            cx.pause.timed = Some(TimedPause { rev, ends });
            cx.timers.set(Timer::PauseEnd, ends);
        }
        Some((_, None)) | None => {
            cx.pause.timed = None;
            cx.timers.clear(&Timer::PauseEnd);
        }
    }
    if before && !cx.pause.is_active(cx.now) {
        cx.scan_all = true;
    }
}

/// Moves shards again after the duration of a pause, and removes the pause from the cluster record. Returns whether a pause ended.
pub(super) fn end_pause(cx: &mut Ctx) -> bool {
    let Some(pause) = cx.pause.timed.filter(|pause| pause.ends <= cx.now) else {
        return false;
    };
    cx.scan_all = true;
    let again = cx.now + cx.config.timing.tick_interval;
    cx.timers.set(Timer::PauseEnd, again);
    remove_pause(cx, pause);
    true
}

fn remove_pause(cx: &mut Ctx, pause: TimedPause) {
    let writes = matches!(cx.config.role, Role::Node | Role::Planner);
    if !writes || !matches!(cx.life, Life::Running) {
        return;
    }
    let Some(seen) = cx.view.cluster.seen(&()).cloned() else {
        return;
    };
    if seen.record.moves_paused.as_ref().map(|p| p.rev) != Some(pause.rev) {
        return;
    }
    let record = ClusterRecord {
        head: seen.record.head.next(cx.nonce()),
        moves_paused: None,
        ..ClusterRecord::clone(&seen.record)
    };
    let record = Record::Cluster(Arc::new(record));
    let expect = Expect::Version(seen.version);
    cx.put(Key::Cluster, expect, record, WritePurpose::Unimportant);
}
