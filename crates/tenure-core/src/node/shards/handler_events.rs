//! Events from the application's handlers, and their consequences.

use crate::ids::{Epoch, ShardId};
use crate::keys::Key;
use crate::machine::{Action, ActivationId, Close};
use crate::node::assignment::Assignment;
use crate::node::context::Ctx;
use crate::node::membership::Membership;
use crate::node::timers::Timer;
use crate::ownership;
use crate::ownership::{QUARANTINE_AFTER, Transition};
use crate::reason::Reason;
use crate::record::Ownership;
use crate::telemetry::{NodeEvent, ShardStep};

use super::{AfterClose, Phase, PhaseEvent, ShardSlot, Shards};

impl Shards {
    /// Returns the shard of an activation, and its slot.
    pub(super) fn slot_of(
        &mut self,
        activation: ActivationId,
    ) -> Option<(ShardId, &mut ShardSlot)> {
        let id = self.activations.get(&activation)?.clone();
        let slot = self.slots.get_mut(&id)?;
        Some((id, slot))
    }

    pub(in crate::node) fn on_loaded(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        activation: ActivationId,
    ) {
        let Some((id, slot)) = self.slot_of(activation) else {
            return;
        };
        let moves_here = matches!(slot.phase(), Phase::Taking { .. });
        if !moves_here && !cx.may_own() || !slot.advance(PhaseEvent::Loaded(activation), cx) {
            return;
        }
        let &Phase::Serving { epoch, .. } = slot.phase() else {
            return self.evaluate(cx, membership, assignment, &id);
        };
        slot.served = epoch;
        cx.timers.clear(&Timer::Shard(id.clone()));
        cx.out.push(Action::Open(activation));
        cx.report_step(
            &id,
            ShardStep::Serving,
            epoch,
            Reason::Loaded,
            Some(cx.config.name.clone()),
        );
        self.evaluate(cx, membership, assignment, &id);
    }

    /// Handles a failed load. Nothing of this activation runs any more.
    pub(in crate::node) fn on_load_failed(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        activation: ActivationId,
        error: String,
    ) {
        let Some((id, slot)) = self.slot_of(activation) else {
            return;
        };
        let before = slot.phase().clone();
        if !slot.advance(PhaseEvent::LoadFailed(activation), cx) {
            return;
        }
        self.activations.remove(&activation);
        match before {
            Phase::Loading { epoch, .. } => self.retry_later(cx, membership, &id, epoch, error),
            Phase::Closing { then, .. } => self.after_close(cx, membership, &id, then),
            _ => self.on_target_failed(cx, &id, error),
        }
    }

    /// Handles an unexpected end of the application's loop: drains the requests in flight and loads the shard again.
    pub(in crate::node) fn on_loop_ended(
        &mut self,
        cx: &mut Ctx,
        activation: ActivationId,
        error: Option<String>,
    ) {
        let retry_max = cx.config.timing.load_retry_max;
        let Some((id, slot)) = self.slot_of(activation) else {
            return;
        };
        let Some(served_for) = slot
            .served_for(cx.now)
            .filter(|_| slot.is_activation(activation))
        else {
            return;
        };
        if served_for >= retry_max {
            slot.attempts = 0;
        }
        slot.last_error = error
            .unwrap_or_else(|| "the handler's loop returned while the shard was served".to_owned());
        self.close(
            cx,
            &id,
            Close::Drain,
            Reason::LoopFailed,
            AfterClose::RetryLater,
        );
    }

    /// Takes the trouble that the application reports for a shard, and updates the record to match.
    pub(in crate::node) fn on_trouble(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        activation: ActivationId,
        said: Option<String>,
    ) {
        let Some((id, slot)) = self.slot_of(activation) else {
            return;
        };
        let runs = matches!(slot.phase(), Phase::Loading { .. } | Phase::Serving { .. });
        if runs && slot.is_activation(activation) {
            // Truncated as in the record, so that the two values can be compared.
            slot.trouble = said.map(ownership::brief);
            self.evaluate(cx, membership, assignment, &id);
        }
    }

    pub(in crate::node) fn on_drained(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        activation: ActivationId,
    ) {
        let Some((id, slot)) = self.slot_of(activation) else {
            return;
        };
        let before = slot.phase().clone();
        let Phase::Closing {
            epoch,
            then,
            reason,
            ..
        } = before
        else {
            return;
        };
        if !slot.advance(PhaseEvent::Stopped(activation), cx) {
            return;
        }
        self.activations.remove(&activation);
        cx.timers.clear(&Timer::Shard(id.clone()));
        cx.report_step(&id, ShardStep::Stopped, epoch, reason, None);
        self.after_close(cx, membership, &id, then);
    }

    fn after_close(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        id: &ShardId,
        then: AfterClose,
    ) {
        match then {
            AfterClose::Release { to, reason } if cx.may_own() && self.owns_in_record(cx, id) => {
                let writing = self.slots.get(id).is_some_and(|s| s.writing.is_some());
                if !writing {
                    self.write(cx, id, Transition::Release { to, reason });
                }
            }
            AfterClose::Seal { mv, seal } if cx.may_own() => self.write_seal(cx, id, mv, seal),
            AfterClose::GiveUp => {
                if let (Some(slot), Some(record)) = (self.slots.get_mut(id), cx.view.shards.get(id))
                {
                    slot.given_up = slot.given_up.max(record.epoch);
                }
                self.note_left(cx, id);
            }
            AfterClose::RetryLater => {
                let error = self
                    .slots
                    .get(id)
                    .map(|s| s.last_error.clone())
                    .unwrap_or_default();
                let epoch = cx.view.shards.get(id).map_or(Epoch(0), |r| r.epoch);
                self.retry_later(cx, membership, id, epoch, error);
            }
            _ => self.note_left(cx, id),
        }
        cx.changed.insert(Key::Shard(id.clone()));
    }

    fn owns_in_record(&self, cx: &Ctx, id: &ShardId) -> bool {
        cx.view
            .shards
            .get(id)
            .is_some_and(|r| cx.is_mine(r) && matches!(r.ownership, Ownership::Owned { .. }))
    }

    /// Delays the next load. After too many failed loads, releases the shard so that another node can try.
    fn retry_later(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        id: &ShardId,
        epoch: Epoch,
        error: String,
    ) {
        let timing = cx.timing();
        let now = cx.now;
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        slot.attempts += 1;
        let attempt = slot.attempts;
        let wait = timing.load_retry_min * 2u32.saturating_pow((attempt - 1).min(16));
        let until = now + wait.min(timing.load_retry_max);
        slot.advance(PhaseEvent::Wait { until }, cx);
        cx.timers.set(Timer::Shard(id.clone()), until);
        cx.note(NodeEvent::LoadFailed {
            shard: id.clone(),
            epoch,
            attempt,
            error: error.clone(),
        });
        let Some(record) = cx.view.shards.get(id).cloned() else {
            return;
        };
        let last = record
            .failures
            .iter()
            .filter(|f| f.node != cx.config.name)
            .count()
            + 1
            >= QUARANTINE_AFTER;
        let free_to_write = self.slots.get(id).is_some_and(|s| s.writing.is_none());
        if attempt >= timing.load_attempts
            && (last || membership.somebody_else_may_load(cx, id, &record))
            && cx.may_own()
            && self.owns_in_record(cx, id)
            && free_to_write
        {
            if let Some(slot) = self.slots.get_mut(id) {
                slot.attempts = 0;
            }
            self.write(cx, id, Transition::Fail { error });
        }
    }
}
