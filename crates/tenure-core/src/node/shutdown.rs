//! Stop of a node, in this order: close gates, stop work, release shards, end the session.

use crate::machine::Action;
use crate::node::session_end;
use crate::record::EndReason;
use crate::rules::Mutant;

use super::Life;
use super::context::Ctx;
use super::election::Leader;
use super::renewal::Session;
use super::shards::Shards;
use super::startup::{Boot, Startup};
use super::store_requests::{WriteOutcome, WritePurpose};
use super::timers::Timer;

impl Ctx {
    /// Returns `true` while the write that ends the node's own session is in progress.
    pub(super) fn is_resigning(&self) -> bool {
        self.is_writing(&WritePurpose::Resign)
    }

    /// Writes the end of the node's own session.
    pub(super) fn resign_session(&mut self) {
        let Some(id) = self.my_session().map(|h| h.id) else {
            return;
        };
        session_end::end_session(self, id, EndReason::Resigned, WritePurpose::Resign);
        if !matches!(self.life, Life::Stopping) {
            self.own = None;
            self.timers.clear(&Timer::Renew);
            self.timers.clear(&Timer::Lease);
        } else if let Some(holder) = &mut self.own {
            holder.resigned = true;
        }
    }

    pub(super) fn stopped(&mut self) {
        self.life = Life::Over;
        self.out.push(Action::Stopped);
    }
}

/// State of a stop.
pub(super) enum StopState {
    /// Shards are still being released, or the end of the session is being written.
    Waiting,
    /// Nothing is left to do.
    Finished,
    /// The end of the session is due.
    Resign,
}

/// Returns the next step of a stopping node.
pub(super) fn stop_state(cx: &Ctx, shards: &Shards, session: &Session) -> StopState {
    if !shards.is_quiet() {
        return StopState::Waiting;
    }
    let Some(own) = cx.my_session().map(|own| own.id) else {
        return StopState::Finished;
    };
    let owns = cx.view.shards.iter().any(|(id, seen)| {
        seen.record.is_owned_by(own) && cx.config.keyspaces.contains_key(&id.keyspace)
    });
    let waits = cx.is_resigning() || cx.now < session.resign_not_before;
    match owns && cx.may_own() || waits {
        true => StopState::Waiting,
        false => StopState::Resign,
    }
}

/// Continues a stop after the write of the session's end is settled.
pub(super) fn on_resigned(cx: &mut Ctx, session: &mut Session, outcome: &WriteOutcome) {
    if !matches!(cx.life, Life::Stopping) {
        return;
    }
    match outcome {
        WriteOutcome::Failed { .. } => {
            let retry = cx.later(cx.config.timing.renew_retry_interval);
            session.resign_not_before = retry;
            cx.timers.set(Timer::Tick, retry);
        }
        // A renewal of this node may have come first. The view contains it, and the next scan resigns again.
        WriteOutcome::Lost if cx.my_session().is_some_and(|own| !cx.ended(own.id)) => {
            cx.scan_all = true
        }
        _ => cx.stopped(),
    }
}

/// Begins the stop of a node.
pub(super) fn begin(cx: &mut Ctx, startup: &mut Startup, leader: &mut Leader) {
    let limit = cx.now + cx.config.timing.drain_timeout + cx.config.timing.ttl;
    match cx.life {
        Life::Running => {
            leader.resign_leadership(cx);
            cx.life = Life::Stopping;
            cx.stopping_since = cx.now;
            cx.timers.set(Timer::Stop, limit);
            if cx.broken_by(Mutant::EndBeforeRelease) {
                cx.resign_session();
            }
            cx.timers.set(Timer::Renew, cx.now);
            cx.scan_all = true;
        }
        Life::Booting => {
            cx.life = Life::Stopping;
            startup.boot = Boot::default();
            cx.timers.clear(&Timer::Boot);
            cx.timers.set(Timer::Stop, limit);
        }
        Life::Stopping | Life::Over => {}
    }
}
