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
    pub(super) fn stay_of(
        &mut self,
        activation: ActivationId,
    ) -> Option<(ShardId, &mut ShardSlot)> {
        let id = self.runs.get(&activation)?.clone();
        let stay = self.shards.get_mut(&id)?;
        Some((id, stay))
    }

    pub(in crate::node) fn on_loaded(&mut self, activation: ActivationId) {
        let (may_own, now) = (self.may_own(), self.now);
        let Some((id, stay)) = self.stay_of(activation) else {
            return;
        };
        if stay.phase.is_succeeding() && stay.is_run(activation) {
            return self.warmed(&id);
        }
        let Phase::Loading {
            activation: current,
            epoch,
            ..
        } = stay.phase
        else {
            return;
        };
        if current != activation || !may_own {
            return;
        }
        stay.phase = Phase::Serving {
            activation,
            epoch,
            since: now,
        };
        stay.served = epoch;
        self.timers.clear(&Timer::Stay(id.clone()));
        self.out.push(Action::Open(activation));
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
    pub(in crate::node) fn on_load_failed(&mut self, activation: ActivationId, error: String) {
        let Some((id, stay)) = self.stay_of(activation) else {
            return;
        };
        match stay.phase.clone() {
            Phase::Loading {
                activation: current,
                epoch,
                ..
            } if current == activation => {
                self.runs.remove(&activation);
                self.rest(&id, epoch, error);
            }
            Phase::Closing {
                activation: current,
                then,
                ..
            } if current == activation => {
                stay.phase = Phase::Idle;
                self.runs.remove(&activation);
                self.after_close(&id, then);
            }
            Phase::Taking {
                activation: current,
                ..
            } if current == activation => {
                self.runs.remove(&activation);
                self.could_not_succeed(&id, error);
            }
            _ => {}
        }
    }

    /// The application's loop ended by itself: finish what is in flight and load again.
    pub(in crate::node) fn on_run_ended(
        &mut self,
        activation: ActivationId,
        error: Option<String>,
    ) {
        let (retry_max, now) = (self.config.timing.load_retry_max, self.now);
        let Some((id, stay)) = self.stay_of(activation) else {
            return;
        };
        let Phase::Serving {
            activation: current,
            since,
            ..
        } = stay.phase
        else {
            return;
        };
        if current != activation {
            return;
        }
        if now.since(since) >= retry_max {
            stay.attempts = 0;
        }
        stay.last_error = error
            .unwrap_or_else(|| "the handler's loop returned while the shard was served".to_owned());
        self.close(
            &id,
            Close::Drain,
            Reason::LoopFailed,
            AfterClose::RetryLater,
        );
    }

    /// The application says how a shard fares; the record is to say the same.
    pub(in crate::node) fn on_trouble(&mut self, activation: ActivationId, said: Option<String>) {
        let Some((id, stay)) = self.stay_of(activation) else {
            return;
        };
        let (Phase::Loading {
            activation: current,
            ..
        }
        | Phase::Serving {
            activation: current,
            ..
        }) = stay.phase
        else {
            return;
        };
        if current == activation {
            // Cut as the record has it, so that the two can be compared.
            stay.trouble = said.map(ownership::brief);
            self.look_at(&id);
        }
    }

    pub(in crate::node) fn on_drained(&mut self, activation: ActivationId) {
        let Some((id, stay)) = self.stay_of(activation) else {
            return;
        };
        let Phase::Closing {
            activation: current,
            epoch,
            then,
            reason,
            ..
        } = stay.phase.clone()
        else {
            return;
        };
        if current != activation {
            return;
        }
        stay.phase = Phase::Idle;
        self.runs.remove(&activation);
        self.timers.clear(&Timer::Stay(id.clone()));
        self.tell(&id, ShardStep::Stopped, epoch, reason, None);
        self.after_close(&id, then);
    }

    fn after_close(&mut self, id: &ShardId, then: AfterClose) {
        match then {
            AfterClose::Release { to, reason } if self.may_own() && self.owns_in_record(id) => {
                let writing = self.shards.get(id).is_some_and(|s| s.writing.is_some());
                if !writing {
                    self.write(id, Transition::Release { to, reason });
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
