//! The steps of a move at this node: what the application is told, and what it answers.

use crate::ids::{Epoch, ShardId};
use crate::machine::{Action, ActivationId, Close};
use crate::node::Node;
use crate::node::timers::Timer;
use crate::ownership::Transition;
use crate::reason::Reason;
use crate::rules::Mutant;
use crate::telemetry::{NodeEvent, ShardStep};

use super::{AfterClose, Phase, Readiness, Writing};

impl Node {
    /// Begins to load a shard that another node serves.
    pub(super) fn warm(&mut self, id: &ShardId, mv: u64) {
        let (Some(session), Some(record)) =
            (self.ctx.session(), self.ctx.view.shards.get(id).cloned())
        else {
            return;
        };
        self.shards.run_count += 1;
        let activation = ActivationId(self.shards.run_count);
        let limit = self.ctx.now + self.ctx.config.timing.load_timeout;
        let stay = self.shards.slots.entry(id.clone()).or_default();
        stay.phase = Phase::Taking {
            activation,
            mv,
            step: Readiness::Loading,
            limit,
        };
        (stay.trouble, stay.load) = (None, None);
        self.loads_ahead(id);
        self.shards.runs.insert(activation, id.clone());
        let me = Some(self.ctx.config.name.clone());
        self.ctx
            .report_step(id, ShardStep::Warming, record.epoch, Reason::Moving, me);
        self.ctx.out.push(Action::Warm {
            activation,
            shard: id.clone(),
            epoch: record.epoch,
            session,
            meta: record.meta.clone(),
        });
        self.ctx.timers.set(Timer::Stay(id.clone()), limit);
    }

    /// A successor has loaded.
    pub(super) fn warmed(&mut self, id: &ShardId) {
        self.get_ready(id, Readiness::Loading, Readiness::Loaded);
    }

    fn get_ready(&mut self, id: &ShardId, from: Readiness, to: Readiness) {
        if let Some(stay) = self.shards.slots.get_mut(id)
            && let Phase::Taking { step, .. } = &mut stay.phase
            && *step == from
        {
            *step = to;
            self.look_at(id);
        }
    }

    pub(super) fn catch_up(&mut self, id: &ShardId, seal: String) {
        let until = self.ctx.now + self.ctx.config.timing.load_timeout;
        let Some(stay) = self.shards.slots.get_mut(id) else {
            return;
        };
        let Phase::Taking {
            activation,
            step,
            limit,
            ..
        } = &mut stay.phase
        else {
            return;
        };
        (*step, *limit) = (Readiness::CatchingUp, until);
        let activation = *activation;
        self.ctx.out.push(Action::CatchUp { activation, seal });
        self.ctx.timers.set(Timer::Stay(id.clone()), until);
    }

    pub(in crate::node) fn on_caught_up(&mut self, activation: ActivationId) {
        if let Some(id) = self.shards.runs.get(&activation).cloned() {
            self.get_ready(&id, Readiness::CatchingUp, Readiness::Ready);
        }
    }

    /// The record names this node at the end of a move: what it has made ready opens.
    pub(super) fn promote(&mut self, id: &ShardId, epoch: Epoch) {
        let now = self.ctx.now;
        let Some(stay) = self.shards.slots.get_mut(id) else {
            return;
        };
        let Phase::Taking { activation, .. } = stay.phase else {
            return;
        };
        stay.phase = Phase::Serving {
            activation,
            epoch,
            since: now,
        };
        stay.served = epoch;
        stay.came_back();
        self.forget_ahead(id);
        self.shards.retries.wait_for(&mut self.ctx, id, false);
        self.ctx.timers.clear(&Timer::Stay(id.clone()));
        self.ctx.out.push(Action::Own { activation, epoch });
        self.ctx.out.push(Action::Open(activation));
        let me = Some(self.ctx.config.name.clone());
        self.ctx
            .report_step(id, ShardStep::Serving, epoch, Reason::Taken, me);
        self.look_at(id);
    }

    /// A successor could not load, or not catch up.
    pub(super) fn could_not_succeed(&mut self, id: &ShardId, error: String) {
        let epoch = self.ctx.view.shards.get(id).map_or(Epoch(0), |r| r.epoch);
        let Some(stay) = self.shards.slots.get_mut(id) else {
            return;
        };
        stay.phase = Phase::Idle;
        stay.attempts += 1;
        let (attempt, writing) = (stay.attempts, stay.writing.is_some());
        self.forget_ahead(id);
        self.ctx.timers.clear(&Timer::Stay(id.clone()));
        self.ctx.note(NodeEvent::LoadFailed {
            shard: id.clone(),
            epoch,
            attempt,
            error: error.clone(),
        });
        if !writing && self.ctx.may_own() {
            // The owner serves on. Once it has sealed there is no way back but its own, and this does nothing.
            self.write(
                id,
                Transition::Cancel {
                    failed: Some(error),
                },
            );
        }
        self.ctx.changed.insert(crate::keys::Key::Shard(id.clone()));
    }

    /// Shuts the gate of a shard for a move.
    pub(super) fn freeze(&mut self, id: &ShardId, mv: u64) {
        let limit = self.ctx.now + self.ctx.config.timing.drain_timeout;
        let Some(stay) = self.shards.slots.get_mut(id) else {
            return;
        };
        let Phase::Serving {
            activation, epoch, ..
        } = stay.phase
        else {
            return;
        };
        stay.phase = Phase::Frozen {
            activation,
            epoch,
            mv,
            limit,
        };
        // What is cut gets some time to end before the move is called off for its sake.
        let cut_at = self.ctx.now + self.ctx.config.timing.drain_timeout / 4 * 3;
        self.ctx.out.push(Action::Freeze {
            activation,
            move_id: mv,
            cancel_at: cut_at,
        });
        self.ctx
            .report_step(id, ShardStep::Frozen, epoch, Reason::Moving, None);
        self.ctx.timers.set(Timer::Stay(id.clone()), limit);
        if self.ctx.config.rules.broken_by(Mutant::SealWithoutDrain) {
            self.on_frozen(activation, mv);
        }
    }

    /// Opens the gate again: the move was called off before anything was sealed.
    pub(super) fn thaw(&mut self, id: &ShardId) {
        let now = self.ctx.now;
        let Some(stay) = self.shards.slots.get_mut(id) else {
            return;
        };
        let Phase::Frozen {
            activation, epoch, ..
        } = stay.phase
        else {
            return;
        };
        stay.phase = Phase::Serving {
            activation,
            epoch,
            since: now,
        };
        self.ctx.timers.clear(&Timer::Stay(id.clone()));
        self.ctx.out.push(Action::Thaw(activation));
        self.ctx
            .report_step(id, ShardStep::Thawed, epoch, Reason::MoveAborted, None);
        self.look_at(id);
    }

    /// Nothing is in flight behind a gate that was shut for a move.
    pub(in crate::node) fn on_frozen(&mut self, activation: ActivationId, shut_for: u64) {
        let limit = self.ctx.now + self.ctx.config.timing.drain_timeout;
        let Some(id) = self.shards.runs.get(&activation).cloned() else {
            return;
        };
        // The move may have been called off meanwhile.
        self.look_at(&id);
        let Some(stay) = self.shards.slots.get_mut(&id) else {
            return;
        };
        let Phase::Frozen {
            activation: current,
            epoch,
            mv,
            ..
        } = stay.phase
        else {
            return;
        };
        if current != activation || mv != shut_for {
            return;
        }
        stay.phase = Phase::Sealing {
            activation,
            epoch,
            mv,
            limit,
        };
        self.ctx.out.push(Action::Seal(activation));
        self.ctx.timers.set(Timer::Stay(id), limit);
    }

    pub(in crate::node) fn on_sealed(&mut self, activation: ActivationId, seal: String) {
        let Some(id) = self.shards.runs.get(&activation).cloned() else {
            return;
        };
        let Some(Phase::Sealing {
            activation: current,
            mv,
            ..
        }) = self.shards.slots.get(&id).map(|s| s.phase.clone())
        else {
            return;
        };
        if current == activation {
            self.close(
                &id,
                Close::Cancel,
                Reason::Moving,
                AfterClose::Seal { mv, seal },
            );
        }
    }

    /// The application could not write out its state: the move is called off, and the shard loaded again.
    pub(in crate::node) fn on_seal_failed(&mut self, activation: ActivationId, error: String) {
        let Some((id, stay)) = self.stay_of(activation) else {
            return;
        };
        let Phase::Sealing {
            activation: current,
            epoch,
            mv,
            ..
        } = stay.phase
        else {
            return;
        };
        if current != activation {
            return;
        }
        stay.unsealable = Some(mv);
        stay.last_error = error.clone();
        let attempt = stay.called_off + 1;
        self.ctx.note(NodeEvent::SealFailed {
            shard: id.clone(),
            epoch,
            attempt,
            error,
        });
        self.close(
            &id,
            Close::Cancel,
            Reason::MoveAborted,
            AfterClose::Reevaluate,
        );
    }

    /// Tells of a step of a move that stands in the record now.
    pub(super) fn tell_move(&mut self, id: &ShardId, writing: &Writing, epoch: Epoch) {
        let me = Some(self.ctx.config.name.clone());
        let record = self.ctx.view.shards.get(id);
        let to = record
            .and_then(|r| r.ownership.moving())
            .map(|(mv, _)| (mv.to.node.clone(), mv.reason));
        let (target, reason) = to.map_or((None, Reason::Moving), |(node, reason)| {
            (Some(node), reason)
        });
        match writing {
            Writing::Move => {
                self.ctx
                    .report_step(id, ShardStep::MoveStarted, epoch, reason, target)
            }
            Writing::Seal => self
                .ctx
                .report_step(id, ShardStep::Sealed, epoch, reason, target),
            Writing::Take => self
                .ctx
                .report_step(id, ShardStep::Taken, epoch, Reason::Taken, me),
            Writing::Cancel => {
                self.ctx
                    .report_step(id, ShardStep::Aborted, epoch, Reason::MoveAborted, None);
            }
            Writing::Reclaim => {
                self.ctx
                    .report_step(id, ShardStep::Reclaimed, epoch, Reason::TargetGone, me);
            }
            _ => {}
        }
    }
}
