//! What the application says of its stays, and what follows from it.

use crate::ids::{Epoch, ShardId};
use crate::keys::Key;
use crate::machine::{Action, ActivationId, Close};
use crate::ownership::{self, QUARANTINE_AFTER, Transition};
use crate::reason::Reason;
use crate::record::Ownership;
use crate::telemetry::{NodeEvent, ShardStep};

use super::{AfterClose, Phase, ShardSlot};
use crate::node::Node;
use crate::node::timers::Timer;

impl Node {
    /// The stay that a run is one of, and its shard.
    pub(super) fn stay_of(&mut self, run: ActivationId) -> Option<(ShardId, &mut ShardSlot)> {
        let id = self.runs.get(&run)?.clone();
        let stay = self.shards.get_mut(&id)?;
        Some((id, stay))
    }

    pub(in crate::node) fn on_loaded(&mut self, run: ActivationId) {
        let (may_own, now) = (self.may_own(), self.now);
        let Some((id, stay)) = self.stay_of(run) else {
            return;
        };
        if stay.phase.is_succeeding() && stay.is_run(run) {
            return self.warmed(&id);
        }
        let Phase::Loading {
            run: current,
            epoch,
            ..
        } = stay.phase
        else {
            return;
        };
        if current != run || !may_own {
            return;
        }
        stay.phase = Phase::Serving {
            run,
            epoch,
            since: now,
        };
        stay.served = epoch;
        self.timers.clear(&Timer::Stay(id.clone()));
        self.out.push(Action::Open(run));
        self.tell(
            &id,
            ShardStep::Serving,
            epoch,
            Reason::Loaded,
            Some(self.config.name.clone()),
        );
        self.look_at(&id);
    }

    /// A load failed; nothing of this stay runs any more.
    pub(in crate::node) fn on_load_failed(&mut self, run: ActivationId, error: String) {
        let Some((id, stay)) = self.stay_of(run) else {
            return;
        };
        match stay.phase.clone() {
            Phase::Loading {
                run: current,
                epoch,
                ..
            } if current == run => {
                self.runs.remove(&run);
                self.rest(&id, epoch, error);
            }
            Phase::Closing {
                run: current, then, ..
            } if current == run => {
                stay.phase = Phase::Idle;
                self.runs.remove(&run);
                self.after_close(&id, then);
            }
            Phase::Taking { run: current, .. } if current == run => {
                self.runs.remove(&run);
                self.could_not_succeed(&id, error);
            }
            _ => {}
        }
    }

    /// The application's loop ended by itself: finish what is in flight and load again.
    pub(in crate::node) fn on_run_ended(&mut self, run: ActivationId, error: Option<String>) {
        let (retry_max, now) = (self.config.timing.load_retry_max, self.now);
        let Some((id, stay)) = self.stay_of(run) else {
            return;
        };
        let Phase::Serving {
            run: current,
            since,
            ..
        } = stay.phase
        else {
            return;
        };
        if current != run {
            return;
        }
        if now.since(since) >= retry_max {
            stay.attempts = 0;
        }
        stay.last_error = error.unwrap_or_else(|| "its loop ended".to_owned());
        self.close(
            &id,
            Close::Drain,
            Reason::LoopFailed,
            AfterClose::RetryLater,
        );
    }

    /// The application says how a shard fares; the record is to say the same.
    pub(in crate::node) fn on_trouble(&mut self, run: ActivationId, said: Option<String>) {
        let Some((id, stay)) = self.stay_of(run) else {
            return;
        };
        let (Phase::Loading { run: current, .. } | Phase::Serving { run: current, .. }) =
            stay.phase
        else {
            return;
        };
        if current == run {
            // Cut as the record has it, so that the two can be compared.
            stay.trouble = said.map(ownership::brief);
            self.look_at(&id);
        }
    }

    pub(in crate::node) fn on_drained(&mut self, run: ActivationId) {
        let Some((id, stay)) = self.stay_of(run) else {
            return;
        };
        let Phase::Closing {
            run: current,
            epoch,
            then,
            why,
            ..
        } = stay.phase.clone()
        else {
            return;
        };
        if current != run {
            return;
        }
        stay.phase = Phase::Idle;
        self.runs.remove(&run);
        self.timers.clear(&Timer::Stay(id.clone()));
        self.tell(&id, ShardStep::Stopped, epoch, why, None);
        self.after_close(&id, then);
    }

    fn after_close(&mut self, id: &ShardId, then: AfterClose) {
        match then {
            AfterClose::Release { to, why } if self.may_own() && self.owns_in_record(id) => {
                let writing = self.shards.get(id).is_some_and(|s| s.writing.is_some());
                if !writing {
                    self.write(id, Transition::Release { to, why });
                }
            }
            AfterClose::Seal { mv, seal } if self.may_own() => self.write_seal(id, mv, seal),
            AfterClose::GiveUp => {
                if let (Some(stay), Some(record)) =
                    (self.shards.get_mut(id), self.view.shards.get(id))
                {
                    stay.given_up = stay.given_up.max(record.epoch);
                }
                self.left(id);
            }
            AfterClose::RetryLater => {
                let error = self
                    .shards
                    .get(id)
                    .map(|s| s.last_error.clone())
                    .unwrap_or_default();
                let epoch = self.view.shards.get(id).map_or(Epoch(0), |r| r.epoch);
                self.rest(id, epoch, error);
            }
            _ => self.left(id),
        }
        self.dirty.insert(Key::Shard(id.clone()));
    }

    fn owns_in_record(&self, id: &ShardId) -> bool {
        self.view
            .shards
            .get(id)
            .is_some_and(|r| self.is_mine(r) && matches!(r.ownership, Ownership::Owned { .. }))
    }

    /// Waits before the next load; after too many, lets another node try.
    fn rest(&mut self, id: &ShardId, epoch: Epoch, error: String) {
        let timing = self.timing();
        let now = self.now;
        let Some(stay) = self.shards.get_mut(id) else {
            return;
        };
        stay.attempts += 1;
        let attempt = stay.attempts;
        let wait = timing.load_retry_min * 2u32.saturating_pow((attempt - 1).min(16));
        let until = now + wait.min(timing.load_retry_max);
        stay.phase = Phase::RetryDelay { until };
        self.timers.set(Timer::Stay(id.clone()), until);
        self.note(NodeEvent::LoadFailed {
            shard: id.clone(),
            epoch,
            attempt,
            error: error.clone(),
        });
        let Some(record) = self.view.shards.get(id).cloned() else {
            return;
        };
        let last = record
            .failures
            .iter()
            .filter(|f| f.node != self.config.name)
            .count()
            + 1
            >= QUARANTINE_AFTER;
        let free_to_write = self.shards.get(id).is_some_and(|s| s.writing.is_none());
        if attempt >= timing.load_attempts
            && (last || self.somebody_else_may_load(id, &record))
            && self.may_own()
            && self.owns_in_record(id)
            && free_to_write
        {
            if let Some(stay) = self.shards.get_mut(id) {
                stay.attempts = 0;
            }
            self.write(id, Transition::Fail { error });
        }
    }
}
