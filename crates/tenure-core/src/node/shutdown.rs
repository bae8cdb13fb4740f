//! The way out: gates closed, work stopped, shards released, session ended. In this order.

use crate::machine::{Action, Event, Step};
use crate::reason::Reason;
use crate::record::EndReason;
use crate::rules::Mutant;

use super::store_requests::{Pending, Settled, WritePurpose};
use super::timers::Timer;
use super::{Life, Node};

impl Node {
    pub(super) fn begin_stop(&mut self) {
        match self.life {
            Life::Running => {
                self.resign_leadership();
                self.life = Life::Stopping;
                self.stopping_since = self.now;
                let limit = self.config.timing.drain_timeout + self.config.timing.ttl;
                self.timers.set(Timer::Stop, self.now + limit);
                if self.config.rules.broken_by(Mutant::EndBeforeRelease) {
                    self.resign_session();
                }
                self.timers.set(Timer::Renew, self.now);
                self.look_at_all = true;
            }
            Life::Booting(_) => {
                let limit = self.config.timing.drain_timeout + self.config.timing.ttl;
                self.life = Life::Stopping;
                self.timers.clear(&Timer::Boot);
                self.timers.set(Timer::Stop, self.now + limit);
            }
            Life::Stopping | Life::Over => {}
        }
    }

    /// Whether the node has sent its own session's end.
    pub(super) fn is_resigning(&self) -> bool {
        self.pending.values().any(|p| {
            matches!(p, Pending::Put { purpose, .. } | Pending::ReadBack { purpose, .. } if *purpose == WritePurpose::Resign)
        })
    }

    /// Ends the session if everything has stopped; at the limit, goes without having everything in order.
    pub(super) fn finish_stop(&mut self, limit: bool) {
        if !matches!(self.life, Life::Stopping) {
            return;
        }
        let quiet =
            self.runs.is_empty() && self.shards.values().all(super::shards::ShardSlot::is_quiet);
        if limit {
            self.cut_all(Reason::NodeStopping);
            return self.stopped();
        }
        if !quiet {
            return;
        }
        let Some(session) = self.my_session().map(|h| h.id) else {
            return self.stopped();
        };
        let owns = self.view.shards.iter().any(|(id, s)| {
            s.record.is_owned_by(session) && self.config.keyspaces.contains_key(&id.keyspace)
        });
        let waits = self.is_resigning() || self.now < self.resign_not_before;
        if owns && self.may_own() || waits {
            return;
        }
        self.resign_session();
    }

    /// Writes the node's own session's end.
    pub(super) fn resign_session(&mut self) {
        let Some(id) = self.my_session().map(|h| h.id) else {
            return;
        };
        self.end_session(id, EndReason::Resigned, WritePurpose::Resign);
        if !matches!(self.life, Life::Stopping) {
            self.holder = None;
            self.timers.clear(&Timer::Renew);
            self.timers.clear(&Timer::Lease);
        } else if let Some(holder) = &mut self.holder {
            holder.resigned = true;
        }
    }

    pub(super) fn on_resigned(&mut self, outcome: Settled) {
        if !matches!(self.life, Life::Stopping) {
            return;
        }
        match outcome {
            Settled::Failed { .. } => {
                let retry = self.later(self.config.timing.renew_retry_interval);
                self.resign_not_before = retry;
                self.timers.set(Timer::Tick, retry);
            }
            // A renewal of ours may have come in between; the view has it, the next look resigns again.
            Settled::Lost if self.my_session().is_some_and(|h| !self.ended(h.id)) => {
                self.look_at_all = true
            }
            _ => self.stopped(),
        }
    }

    fn stopped(&mut self) {
        self.life = Life::Over;
        self.out.push(Action::Stopped);
    }

    /// A node that is over only confirms what was under way.
    pub(super) fn step_after_the_end(&mut self, event: Event) -> Step {
        if let Event::Drained(activation) = event {
            self.runs.remove(&activation);
        }
        Step::default()
    }
}
