//! The way out: gates closed, work stopped, shards released, session ended. In this order.

use crate::machine::{Action, Event, Step};
use crate::reason::Reason;
use crate::record::EndReason;
use crate::rules::Mutant;

use super::startup::Boot;
use super::store_requests::{Settled, WritePurpose};
use super::timers::Timer;
use super::{Life, Node};

impl Node {
    pub(super) fn begin_stop(&mut self) {
        match self.ctx.life {
            Life::Running => {
                self.leader.resign_leadership(&mut self.ctx);
                self.ctx.life = Life::Stopping;
                self.ctx.stopping_since = self.ctx.now;
                let limit = self.ctx.config.timing.drain_timeout + self.ctx.config.timing.ttl;
                self.ctx.timers.set(Timer::Stop, self.ctx.now + limit);
                if self.ctx.config.rules.broken_by(Mutant::EndBeforeRelease) {
                    self.resign_session();
                }
                self.ctx.timers.set(Timer::Renew, self.ctx.now);
                self.ctx.scan_all = true;
            }
            Life::Booting => {
                let limit = self.ctx.config.timing.drain_timeout + self.ctx.config.timing.ttl;
                self.ctx.life = Life::Stopping;
                self.startup.boot = Boot::default();
                self.ctx.timers.clear(&Timer::Boot);
                self.ctx.timers.set(Timer::Stop, self.ctx.now + limit);
            }
            Life::Stopping | Life::Over => {}
        }
    }

    /// Whether the node has sent its own session's end.
    pub(super) fn is_resigning(&self) -> bool {
        self.ctx.is_writing(&WritePurpose::Resign)
    }

    /// Ends the session if everything has stopped; at the limit, goes without having everything in order.
    pub(super) fn finish_stop(&mut self, limit: bool) {
        if !matches!(self.ctx.life, Life::Stopping) {
            return;
        }
        let quiet = self.shards.runs.is_empty()
            && self
                .shards
                .slots
                .values()
                .all(super::shards::ShardSlot::is_quiet);
        if limit {
            self.shards.cut_all(&mut self.ctx, Reason::NodeStopping);
            return self.stopped();
        }
        if !quiet {
            return;
        }
        let Some(session) = self.ctx.my_session().map(|h| h.id) else {
            return self.stopped();
        };
        let owns = self.ctx.view.shards.iter().any(|(id, s)| {
            s.record.is_owned_by(session) && self.ctx.config.keyspaces.contains_key(&id.keyspace)
        });
        let waits = self.is_resigning() || self.ctx.now < self.session.resign_not_before;
        if owns && self.ctx.may_own() || waits {
            return;
        }
        self.resign_session();
    }

    /// Writes the node's own session's end.
    pub(super) fn resign_session(&mut self) {
        let Some(id) = self.ctx.my_session().map(|h| h.id) else {
            return;
        };
        self.ctx
            .end_session(id, EndReason::Resigned, WritePurpose::Resign);
        if !matches!(self.ctx.life, Life::Stopping) {
            self.ctx.own = None;
            self.ctx.timers.clear(&Timer::Renew);
            self.ctx.timers.clear(&Timer::Lease);
        } else if let Some(holder) = &mut self.ctx.own {
            holder.resigned = true;
        }
    }

    pub(super) fn on_resigned(&mut self, outcome: Settled) {
        if !matches!(self.ctx.life, Life::Stopping) {
            return;
        }
        match outcome {
            Settled::Failed { .. } => {
                let retry = self.ctx.later(self.ctx.config.timing.renew_retry_interval);
                self.session.resign_not_before = retry;
                self.ctx.timers.set(Timer::Tick, retry);
            }
            // A renewal of ours may have come in between; the view has it, the next look resigns again.
            Settled::Lost if self.ctx.my_session().is_some_and(|h| !self.ctx.ended(h.id)) => {
                self.ctx.scan_all = true
            }
            _ => self.stopped(),
        }
    }

    fn stopped(&mut self) {
        self.ctx.life = Life::Over;
        self.ctx.out.push(Action::Stopped);
    }

    /// A node that is over only confirms what was under way.
    pub(super) fn step_after_the_end(&mut self, event: Event) -> Step {
        if let Event::Drained(activation) = event {
            self.shards.runs.remove(&activation);
        }
        Step::default()
    }
}
