//! The steps of a move at this node: what the application is told, and what it answers.

use crate::ids::{Epoch, ShardId};
use crate::machine::{Action, ActivationId, Close};
use crate::node::assignment::Assignment;
use crate::node::context::Ctx;
use crate::node::membership::Membership;
use crate::node::timers::Timer;
use crate::ownership::Transition;
use crate::reason::Reason;
use crate::rules::Mutant;
use crate::telemetry::{NodeEvent, ShardStep};

use super::{AfterClose, Phase, Readiness, Shards, Writing};

impl Shards {
    /// Begins to load a shard that another node serves.
    pub(super) fn warm(&mut self, cx: &mut Ctx, id: &ShardId, mv: u64) {
        let (Some(session), Some(record)) = (cx.session(), cx.view.shards.get(id).cloned()) else {
            return;
        };
        self.run_count += 1;
        let activation = ActivationId(self.run_count);
        let limit = cx.now + cx.config.timing.load_timeout;
        let stay = self.slots.entry(id.clone()).or_default();
        stay.phase = Phase::Taking {
            activation,
            mv,
            step: Readiness::Loading,
            limit,
        };
        (stay.trouble, stay.load) = (None, None);
        self.loads_ahead(cx, id);
        self.runs.insert(activation, id.clone());
        let me = Some(cx.config.name.clone());
        cx.report_step(id, ShardStep::Warming, record.epoch, Reason::Moving, me);
        cx.out.push(Action::Warm {
            activation,
            shard: id.clone(),
            epoch: record.epoch,
            session,
            meta: record.meta.clone(),
        });
        cx.timers.set(Timer::Stay(id.clone()), limit);
    }

    /// A successor has loaded.
    pub(super) fn warmed(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        id: &ShardId,
    ) {
        self.get_ready(
            cx,
            membership,
            assignment,
            id,
            Readiness::Loading,
            Readiness::Loaded,
        );
    }

    fn get_ready(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        id: &ShardId,
        from: Readiness,
        to: Readiness,
    ) {
        if let Some(stay) = self.slots.get_mut(id)
            && let Phase::Taking { step, .. } = &mut stay.phase
            && *step == from
        {
            *step = to;
            self.look_at(cx, membership, assignment, id);
        }
    }

    pub(super) fn catch_up(&mut self, cx: &mut Ctx, id: &ShardId, seal: String) {
        let until = cx.now + cx.config.timing.load_timeout;
        let Some(stay) = self.slots.get_mut(id) else {
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
        cx.out.push(Action::CatchUp { activation, seal });
        cx.timers.set(Timer::Stay(id.clone()), until);
    }

    pub(in crate::node) fn on_caught_up(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        activation: ActivationId,
    ) {
        if let Some(id) = self.runs.get(&activation).cloned() {
            self.get_ready(
                cx,
                membership,
                assignment,
                &id,
                Readiness::CatchingUp,
                Readiness::Ready,
            );
        }
    }

    /// The record names this node at the end of a move: what it has made ready opens.
    pub(super) fn promote(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        id: &ShardId,
        epoch: Epoch,
    ) {
        let now = cx.now;
        let Some(stay) = self.slots.get_mut(id) else {
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
        self.forget_ahead(cx, id);
        self.retries.wait_for(cx, id, false);
        cx.timers.clear(&Timer::Stay(id.clone()));
        cx.out.push(Action::Own { activation, epoch });
        cx.out.push(Action::Open(activation));
        let me = Some(cx.config.name.clone());
        cx.report_step(id, ShardStep::Serving, epoch, Reason::Taken, me);
        self.look_at(cx, membership, assignment, id);
    }

    /// A successor could not load, or not catch up.
    pub(super) fn could_not_succeed(&mut self, cx: &mut Ctx, id: &ShardId, error: String) {
        let epoch = cx.view.shards.get(id).map_or(Epoch(0), |r| r.epoch);
        let Some(stay) = self.slots.get_mut(id) else {
            return;
        };
        stay.phase = Phase::Idle;
        stay.attempts += 1;
        let (attempt, writing) = (stay.attempts, stay.writing.is_some());
        self.forget_ahead(cx, id);
        cx.timers.clear(&Timer::Stay(id.clone()));
        cx.note(NodeEvent::LoadFailed {
            shard: id.clone(),
            epoch,
            attempt,
            error: error.clone(),
        });
        if !writing && cx.may_own() {
            // The owner serves on. Once it has sealed there is no way back but its own, and this does nothing.
            self.write(
                cx,
                id,
                Transition::Cancel {
                    failed: Some(error),
                },
            );
        }
        cx.changed.insert(crate::keys::Key::Shard(id.clone()));
    }

    /// Shuts the gate of a shard for a move.
    pub(super) fn freeze(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        id: &ShardId,
        mv: u64,
    ) {
        let limit = cx.now + cx.config.timing.drain_timeout;
        let Some(stay) = self.slots.get_mut(id) else {
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
        let cut_at = cx.now + cx.config.timing.drain_timeout / 4 * 3;
        cx.out.push(Action::Freeze {
            activation,
            move_id: mv,
            cancel_at: cut_at,
        });
        cx.report_step(id, ShardStep::Frozen, epoch, Reason::Moving, None);
        cx.timers.set(Timer::Stay(id.clone()), limit);
        if cx.config.rules.broken_by(Mutant::SealWithoutDrain) {
            self.on_frozen(cx, membership, assignment, activation, mv);
        }
    }

    /// Opens the gate again: the move was called off before anything was sealed.
    pub(super) fn thaw(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        id: &ShardId,
    ) {
        let now = cx.now;
        let Some(stay) = self.slots.get_mut(id) else {
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
        cx.timers.clear(&Timer::Stay(id.clone()));
        cx.out.push(Action::Thaw(activation));
        cx.report_step(id, ShardStep::Thawed, epoch, Reason::MoveAborted, None);
        self.look_at(cx, membership, assignment, id);
    }

    /// Nothing is in flight behind a gate that was shut for a move.
    pub(in crate::node) fn on_frozen(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        activation: ActivationId,
        shut_for: u64,
    ) {
        let limit = cx.now + cx.config.timing.drain_timeout;
        let Some(id) = self.runs.get(&activation).cloned() else {
            return;
        };
        // The move may have been called off meanwhile.
        self.look_at(cx, membership, assignment, &id);
        let Some(stay) = self.slots.get_mut(&id) else {
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
        cx.out.push(Action::Seal(activation));
        cx.timers.set(Timer::Stay(id), limit);
    }

    pub(in crate::node) fn on_sealed(
        &mut self,
        cx: &mut Ctx,
        activation: ActivationId,
        seal: String,
    ) {
        let Some(id) = self.runs.get(&activation).cloned() else {
            return;
        };
        let Some(Phase::Sealing {
            activation: current,
            mv,
            ..
        }) = self.slots.get(&id).map(|s| s.phase.clone())
        else {
            return;
        };
        if current == activation {
            self.close(
                cx,
                &id,
                Close::Cancel,
                Reason::Moving,
                AfterClose::Seal { mv, seal },
            );
        }
    }

    /// The application could not write out its state: the move is called off, and the shard loaded again.
    pub(in crate::node) fn on_seal_failed(
        &mut self,
        cx: &mut Ctx,
        activation: ActivationId,
        error: String,
    ) {
        let Some((id, stay)) = self.stay_of(cx, activation) else {
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
        cx.note(NodeEvent::SealFailed {
            shard: id.clone(),
            epoch,
            attempt,
            error,
        });
        self.close(
            cx,
            &id,
            Close::Cancel,
            Reason::MoveAborted,
            AfterClose::Reevaluate,
        );
    }

    /// Tells of a step of a move that stands in the record now.
    pub(super) fn tell_move(
        &mut self,
        cx: &mut Ctx,
        id: &ShardId,
        writing: &Writing,
        epoch: Epoch,
    ) {
        let me = Some(cx.config.name.clone());
        let record = cx.view.shards.get(id);
        let to = record
            .and_then(|r| r.ownership.moving())
            .map(|(mv, _)| (mv.to.node.clone(), mv.reason));
        let (target, reason) = to.map_or((None, Reason::Moving), |(node, reason)| {
            (Some(node), reason)
        });
        match writing {
            Writing::Move => cx.report_step(id, ShardStep::MoveStarted, epoch, reason, target),
            Writing::Seal => cx.report_step(id, ShardStep::Sealed, epoch, reason, target),
            Writing::Take => cx.report_step(id, ShardStep::Taken, epoch, Reason::Taken, me),
            Writing::Cancel => {
                cx.report_step(id, ShardStep::Aborted, epoch, Reason::MoveAborted, None);
            }
            Writing::Reclaim => {
                cx.report_step(id, ShardStep::Reclaimed, epoch, Reason::TargetGone, me);
            }
            _ => {}
        }
    }
}
