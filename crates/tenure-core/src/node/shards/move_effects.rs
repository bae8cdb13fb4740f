//! Steps of a move at this node: actions for the application, and its results.

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

use super::{AfterClose, Phase, PhaseEvent, ShardSlot, Shards, Writing};

impl Shards {
    /// Begins to load a shard that another node serves.
    pub(super) fn warm(&mut self, cx: &mut Ctx, id: &ShardId, mv: u64) {
        let (Some(session), Some(record)) = (cx.session(), cx.view.shards.get(id).cloned()) else {
            return;
        };
        self.activation_count += 1;
        let activation = ActivationId(self.activation_count);
        let limit = cx.now + cx.config.timing.load_timeout;
        let slot = self.slots.entry(id.clone()).or_default();
        let warm = PhaseEvent::Warm {
            activation,
            mv,
            limit,
        };
        if !slot.advance(warm, cx) {
            return;
        }
        (slot.trouble, slot.load) = (None, None);
        self.note_loading(cx, id);
        self.activations.insert(activation, id.clone());
        let me = Some(cx.config.name.clone());
        cx.report_step(id, ShardStep::Warming, record.epoch, Reason::Moving, me);
        cx.out.push(Action::Warm {
            activation,
            shard: id.clone(),
            epoch: record.epoch,
            session,
            meta: record.meta.clone(),
        });
        cx.timers.set(Timer::Shard(id.clone()), limit);
    }

    pub(super) fn catch_up(&mut self, cx: &mut Ctx, id: &ShardId, seal: String) {
        let until = cx.now + cx.config.timing.load_timeout;
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        if !slot.advance(PhaseEvent::CatchUp { limit: until }, cx) {
            return;
        }
        let Some(activation) = slot.phase().activation() else {
            return;
        };
        cx.out.push(Action::CatchUp { activation, seal });
        cx.timers.set(Timer::Shard(id.clone()), until);
    }

    pub(in crate::node) fn on_caught_up(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        activation: ActivationId,
    ) {
        if let Some((id, slot)) = self.slot_of(activation)
            && slot.advance(PhaseEvent::CaughtUp(activation), cx)
        {
            self.evaluate(cx, membership, assignment, &id);
        }
    }

    /// Opens a warmed shard: the record names this node as the owner at the end of a move.
    pub(super) fn promote(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        id: &ShardId,
        epoch: Epoch,
    ) {
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        if !slot.advance(PhaseEvent::Promote(epoch), cx) {
            return;
        }
        let Some(activation) = slot.phase().activation() else {
            return;
        };
        slot.served = epoch;
        slot.came_back();
        self.forget_move(cx, id);
        self.retries.wait_for(cx, id, false);
        cx.timers.clear(&Timer::Shard(id.clone()));
        cx.out.push(Action::Own { activation, epoch });
        cx.out.push(Action::Open(activation));
        let me = Some(cx.config.name.clone());
        cx.report_step(id, ShardStep::Serving, epoch, Reason::Taken, me);
        self.evaluate(cx, membership, assignment, id);
    }

    /// Handles a failed load or catch-up at the target of a move.
    pub(super) fn on_target_failed(&mut self, cx: &mut Ctx, id: &ShardId, error: String) {
        let epoch = cx.view.shards.get(id).map_or(Epoch(0), |r| r.epoch);
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        slot.attempts += 1;
        let (attempt, writing) = (slot.attempts, slot.writing.is_some());
        self.forget_move(cx, id);
        cx.timers.clear(&Timer::Shard(id.clone()));
        cx.note(NodeEvent::LoadFailed {
            shard: id.clone(),
            epoch,
            attempt,
            error: error.clone(),
        });
        if !writing && cx.may_own() {
            // The owner continues to serve. After the seal only the owner can end the move, and this write has no effect.
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

    /// Freezes the gate of a shard for a move.
    pub(super) fn freeze(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        id: &ShardId,
        mv: u64,
    ) {
        let limit = cx.now + cx.config.timing.drain_timeout;
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        if !slot.advance(PhaseEvent::Freeze { mv, limit }, cx) {
            return;
        }
        let &Phase::Frozen {
            activation, epoch, ..
        } = slot.phase()
        else {
            return;
        };
        // Cancelled requests get some time to end before the move is aborted because of them.
        let cut_at = cx.now + cx.config.timing.drain_timeout / 4 * 3;
        cx.out.push(Action::Freeze {
            activation,
            move_id: mv,
            cancel_at: cut_at,
        });
        cx.report_step(id, ShardStep::Frozen, epoch, Reason::Moving, None);
        cx.timers.set(Timer::Shard(id.clone()), limit);
        if cx.config.rules.broken_by(Mutant::SealWithoutDrain) {
            self.on_frozen(cx, membership, assignment, activation, mv);
        }
    }

    /// Thaws the gate: the move was aborted before the seal.
    pub(super) fn thaw(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        id: &ShardId,
    ) {
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        if !slot.advance(PhaseEvent::Thaw, cx) {
            return;
        }
        let &Phase::Serving {
            activation, epoch, ..
        } = slot.phase()
        else {
            return;
        };
        cx.timers.clear(&Timer::Shard(id.clone()));
        cx.out.push(Action::Thaw(activation));
        cx.report_step(id, ShardStep::Thawed, epoch, Reason::MoveAborted, None);
        self.evaluate(cx, membership, assignment, id);
    }

    /// Continues a move after the requests in flight behind the frozen gate have ended.
    pub(in crate::node) fn on_frozen(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        activation: ActivationId,
        frozen_for: u64,
    ) {
        let limit = cx.now + cx.config.timing.drain_timeout;
        let Some(id) = self.activations.get(&activation).cloned() else {
            return;
        };
        // The move may have been aborted in the meantime.
        self.evaluate(cx, membership, assignment, &id);
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        let drained = PhaseEvent::Drained {
            activation,
            mv: frozen_for,
            limit,
        };
        if !slot.advance(drained, cx) {
            return;
        }
        cx.out.push(Action::Seal(activation));
        cx.timers.set(Timer::Shard(id), limit);
    }

    pub(in crate::node) fn on_sealed(
        &mut self,
        cx: &mut Ctx,
        activation: ActivationId,
        seal: String,
    ) {
        let Some(id) = self.activations.get(&activation).cloned() else {
            return;
        };
        let Some(&Phase::Sealing {
            activation: current,
            mv,
            ..
        }) = self.slots.get(&id).map(ShardSlot::phase)
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

    /// Handles a failed seal: the move is aborted, and the shard is loaded again.
    pub(in crate::node) fn on_seal_failed(
        &mut self,
        cx: &mut Ctx,
        activation: ActivationId,
        error: String,
    ) {
        let Some((id, slot)) = self.slot_of(activation) else {
            return;
        };
        let &Phase::Sealing {
            activation: current,
            epoch,
            mv,
            ..
        } = slot.phase()
        else {
            return;
        };
        if current != activation {
            return;
        }
        slot.unsealable = Some(mv);
        slot.last_error = error.clone();
        let attempt = slot.aborted + 1;
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

    /// Reports a step of a move that the record now contains.
    pub(super) fn report_move(
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
