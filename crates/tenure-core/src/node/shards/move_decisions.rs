//! Next step of a moving shard, for owner and target, derived only from its record, the lease and its local phase.
//!
//! The record shows the progress of the move. The node that performs the next step writes it, guarded by the version that the decision is
//! based on. Cancel, seal, take and reclaim race through that version alone: the loser reads the record and follows it. Ages count from the
//! time when this node first saw a value, never by another node's clock.

use crate::node::session_end;
use std::sync::Arc;

use crate::ids::{Epoch, KeyspaceName, NodeName, ShardId};
use crate::machine::Close;
use crate::node::assignment::Assignment;
use crate::node::context::Ctx;
use crate::node::membership::Membership;
use crate::ownership::Transition;
use crate::reason::Reason;
use crate::record::{MovePhase, Owner, Ownership, ShardRecord};
use crate::rules::Mutant;
use crate::time::Time;

use super::decide::Decision;
use super::{AfterClose, Readiness, Shards};

impl Shards {
    /// Returns the decision that moves a shard to another node; `None` if the shard can only be released.
    pub(super) fn begin_move(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        id: &ShardId,
        record: &ShardRecord,
        to: Option<&NodeName>,
        reason: Reason,
    ) -> Option<Decision> {
        let Ownership::Owned { serving: true, .. } = record.ownership else {
            return None;
        };
        if cx.is_past_moving() {
            return None;
        }
        let to = self.target(cx, membership, id, to?)?;
        // A shard that this node does not serve needs no move: releasing it interrupts no request.
        let slot = self.slots.get(id).filter(|slot| slot.is_serving())?;
        let not_before = slot.move_not_before.max(slot.not_before);
        if cx.now < not_before {
            return Some(Decision::WaitUntil(not_before));
        }
        let mv = cx.move_id();
        Some(Decision::Write(Transition::BeginMove {
            id: mv,
            to,
            plan: record.plan,
            reason,
            more: false,
        }))
    }

    /// Returns the node of this name as the target of a shard's move; `None` if the node does not take shards of the keyspace.
    fn target(
        &self,
        cx: &Ctx,
        membership: &Membership,
        id: &ShardId,
        name: &NodeName,
    ) -> Option<Owner> {
        let owner = |session| Owner {
            node: name.clone(),
            session,
        };
        if cx.config.rules.broken_by(Mutant::HandedToStranger) {
            let any = membership.members.iter().find(|m| m.name == *name)?;
            return Some(owner(any.session));
        }
        let seat = membership.of(&id.keyspace).seat(name)?;
        seat.takes().then(|| owner(seat.session))
    }

    /// Decides about an owned shard that moves while it is still loading or serving here.
    pub(super) fn decide_moving(
        &mut self,
        cx: &mut Ctx,
        id: &ShardId,
        record: &ShardRecord,
        writing: bool,
    ) -> Decision {
        let (Some((mv, phase)), Some(since)) = (
            record
                .ownership
                .moving()
                .map(|(mv, phase)| (mv.clone(), phase)),
            cx.view.shards.seen(id).map(|seen| seen.since),
        ) else {
            return Decision::Nothing;
        };
        if let Some(slot) = self.slots.get_mut(id) {
            slot.moving = Some(mv.id);
        }
        self.leaving.insert(id.clone());
        session_end::check_expired(cx, mv.to.session);
        let slot = self.slots.get(id);
        let serving = slot.is_some_and(super::ShardSlot::is_serving);
        let unsealable = slot.is_some_and(|slot| slot.unsealable == Some(mv.id));
        let limit = match phase {
            MovePhase::Warming => since + cx.config.timing.load_timeout,
            MovePhase::Freezing => since + cx.config.timing.router_hold_timeout,
            MovePhase::Sealed => return Decision::Nothing,
        };
        let too_old = phase == MovePhase::Warming && (cx.now >= limit || cx.is_past_moving());
        if !serving || unsealable || too_old || cx.is_target_gone(&mv) {
            return match writing {
                true => Decision::Nothing,
                false => self.cancel(cx, id),
            };
        }
        if phase == MovePhase::Freezing && (cx.now >= limit || cx.routers_hold(id, mv.id)) {
            return Decision::Freeze(mv.id);
        }
        Decision::WaitUntil(limit)
    }

    /// Aborts a move. After a failed attempt, waits before the next one.
    fn cancel(&self, cx: &Ctx, id: &ShardId) -> Decision {
        let not_before = self.slots.get(id).map_or(Time::ZERO, |s| s.not_before);
        if cx.now < not_before {
            return Decision::WaitUntil(not_before);
        }
        Decision::Write(Transition::Cancel { failed: None })
    }

    /// Decides about a shard whose gate is frozen for a move.
    pub(super) fn decide_frozen(
        &mut self,
        cx: &mut Ctx,
        id: &ShardId,
        epoch: Epoch,
        mv: u64,
        limit: Time,
    ) -> Decision {
        let record = match cx.still_mine(id, epoch) {
            Ok(record) => record,
            Err(reason) => return Decision::Close(Close::Cancel, reason, AfterClose::Reevaluate),
        };
        let goes_on = is_freezing(&record, mv);
        if !goes_on {
            return Decision::Thaw;
        }
        let target_gone = record
            .ownership
            .moving()
            .is_some_and(|(mv, _)| cx.is_target_gone(mv));
        if cx.now < limit && !target_gone {
            return Decision::WaitUntil(limit);
        }
        // The requests in flight do not end, or the target is gone: this node continues to serve.
        match self.slots.get(id).is_some_and(|s| s.writing.is_some()) {
            true => Decision::Nothing,
            false => self.cancel(cx, id),
        }
    }

    /// Decides about a shard whose state the application seals for the target.
    pub(super) fn decide_sealing(
        &mut self,
        cx: &mut Ctx,
        id: &ShardId,
        epoch: Epoch,
        mv: u64,
        limit: Time,
    ) -> Decision {
        match cx.still_mine(id, epoch) {
            Err(reason) => Decision::Close(Close::Cancel, reason, AfterClose::Reevaluate),
            Ok(record) if !is_freezing(&record, mv) => {
                Decision::Close(Close::Cancel, Reason::MoveAborted, AfterClose::Reevaluate)
            }
            Ok(_) if cx.now >= limit => {
                Decision::Close(Close::Cancel, Reason::DrainTimeout, AfterClose::GiveUp)
            }
            Ok(_) => Decision::WaitUntil(limit),
        }
    }

    /// Decides about a shard that this node has sealed. The node reclaims the shard if the target is gone or does not take it in time.
    pub(super) fn decide_sealed(
        &mut self,
        cx: &mut Ctx,
        record: &ShardRecord,
        since: Time,
    ) -> Decision {
        let Some((mv, _)) = record.ownership.moving() else {
            return Decision::Nothing;
        };
        session_end::check_expired(cx, mv.to.session);
        let limit = since + cx.config.timing.take_timeout;
        let too_old = cx.now >= limit;
        if !too_old && !cx.ended(mv.to.session) {
            return Decision::WaitUntil(limit);
        }
        Decision::Write(Transition::Reclaim { too_old })
    }

    /// Decides about a seal that was sent but is not in the record: repeats the write, or aborts the move.
    pub(super) fn decide_seal_again(
        &mut self,
        _cx: &mut Ctx,
        id: &ShardId,
        record: &ShardRecord,
    ) -> Decision {
        let moving = record.ownership.moving().map(|(mv, _)| mv.id);
        let said = self.slots.get(id).and_then(|s| s.sealed.clone());
        match said {
            Some((mv, seal)) if Some(mv) == moving => Decision::Write(Transition::Seal { seal }),
            _ => Decision::Write(Transition::Cancel { failed: None }),
        }
    }

    /// Decides about a shard that moves to this node or to another one; `None` if no move determines the next step.
    pub(super) fn decide_target(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        id: &ShardId,
        record: &ShardRecord,
        since: Time,
    ) -> Option<Decision> {
        let (mv, phase) = record.ownership.moving()?;
        let owner_ended = record.owner().is_some_and(|o| cx.ended(o.session));
        if record.deleting && owner_ended && phase != MovePhase::Sealed {
            // No node takes the shard any more. The first member of the keyspace deletes its record.
            return None;
        }
        if Some(mv.to.session) != cx.session() {
            // If the owner is gone, the target of the move has priority for two ttls.
            let until = since + cx.config.timing.ttl * 2;
            let waits = owner_ended && cx.now < until && !cx.ended(mv.to.session);
            return waits.then_some(Decision::WaitUntil(until));
        }
        // The node reads the record periodically until the shard is sealed: a watch may miss the next step.
        let phase_is_sealed = phase == MovePhase::Sealed;
        self.retries
            .wait_for(cx, id, !phase_is_sealed && !owner_ended);
        if phase_is_sealed {
            // This node has no preloaded state, or no longer has it. The node takes the shard first and then loads it.
            return Some(Decision::Write(Transition::Take { serving: false }));
        }
        if self.rejects_move(cx, membership, &id.keyspace, phase, owner_ended)
            // Two nodes may have chosen this one for its last free place.
            || (phase == MovePhase::Warming || owner_ended) && assignment.lacks_room(cx, &self.slots, &id.keyspace, 0)
        {
            return Some(self.cancel(cx, id));
        }
        if owner_ended {
            return Some(Decision::Write(Transition::Claim));
        }
        let catches_up = cx
            .config
            .keyspaces
            .get(&id.keyspace)
            .is_some_and(|k| k.catches_up);
        Some(match phase {
            MovePhase::Warming if catches_up => Decision::Warm(mv.id),
            MovePhase::Warming => Decision::Write(Transition::Warmed),
            // The preloaded state was lost. Without it the shard should not freeze, because requests would wait for a full load.
            MovePhase::Freezing if catches_up => self.cancel(cx, id),
            _ => Decision::Nothing,
        })
    }

    /// Returns `true` if this node aborts a move to itself, because the node stops, drains or is cordoned.
    ///
    /// A cordon does not abort a move whose owner may have frozen its gate already. Requests would meet a frozen gate, and the shard was
    /// assigned before the cordon. If the owner has ended, a cordoned node does not claim the shard.
    fn rejects_move(
        &self,
        cx: &Ctx,
        membership: &Membership,
        keyspace: &KeyspaceName,
        phase: MovePhase,
        owner_ended: bool,
    ) -> bool {
        let before_freeze = phase == MovePhase::Warming || owner_ended;
        cx.is_leaving() || !cx.is_active() || before_freeze && membership.is_cordoned(cx, keyspace)
    }

    /// Decides about a shard that this node warms or catches up as the target of a move.
    pub(super) fn decide_taking(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        id: &ShardId,
        mv: u64,
        step: Readiness,
        limit: Time,
    ) -> Decision {
        if !cx.may_own() {
            return Decision::Close(Close::Cancel, Reason::LeaseLost, AfterClose::Reevaluate);
        }
        let (record, floor) = match cx.readable(id) {
            Ok((seen, floor)) => (Arc::clone(&seen.record), floor),
            Err(reason) => return Decision::Close(Close::Cancel, reason, AfterClose::Reevaluate),
        };
        let given_up = self.slots.get(id).map_or(Epoch(0), |s| s.given_up);
        let taken = matches!(&record.ownership, Ownership::Owned { serving: true, .. })
            && cx.is_mine(&record)
            && record
                .history
                .last()
                .is_some_and(|p| p.reason == Reason::Taken);
        if taken && step == Readiness::Ready && record.epoch > given_up {
            if record.epoch.generation() < floor {
                return Decision::Close(
                    Close::Cancel,
                    Reason::GenerationRaised,
                    AfterClose::Reevaluate,
                );
            }
            return Decision::Promote(record.epoch);
        }
        let current = record.ownership.moving().filter(|(m, _)| m.id == mv);
        let Some((current, phase)) = current.map(|(mv, phase)| (mv.clone(), phase)) else {
            return Decision::Close(Close::Cancel, Reason::MoveAborted, AfterClose::Reevaluate);
        };
        let owner_ended = record.owner().is_some_and(|o| cx.ended(o.session));
        if owner_ended && phase != MovePhase::Sealed {
            // The preloaded state may miss the last writes of the dead owner.
            return Decision::Close(Close::Cancel, Reason::OwnerEnded, AfterClose::Reevaluate);
        }
        if let Some(owner) = record.owner() {
            session_end::check_expired(cx, owner.session);
        }
        if cx.now >= limit && matches!(step, Readiness::Loading | Readiness::CatchingUp) {
            return Decision::Close(Close::Cancel, Reason::LoadFailed, AfterClose::Reevaluate);
        }
        self.retries.wait_for(cx, id, phase != MovePhase::Sealed);
        let (writing, not_before) = match self.slots.get(id) {
            Some(slot) => (slot.writing.is_some(), slot.not_before),
            None => return Decision::Nothing,
        };
        if writing {
            return Decision::Nothing;
        }
        if self.rejects_move(cx, membership, &id.keyspace, phase, false)
            && phase != MovePhase::Sealed
        {
            return self.cancel(cx, id);
        }
        let hasty = cx.config.rules.broken_by(Mutant::TailBeforeSeal);
        let change = match (phase, step) {
            (MovePhase::Warming, Readiness::Loaded) => {
                // A stopping owner does not wait for further moves.
                let stops = |owner: &Owner| cx.view.is_stopping(owner.session);
                let more = current.more && !record.owner().is_some_and(stops);
                let at = self.freezes_at(cx, id, mv, more, limit);
                if cx.now < at {
                    return Decision::WaitUntil(at);
                }
                Transition::Warmed
            }
            (MovePhase::Freezing, Readiness::Loaded) if hasty => {
                return Decision::CatchUp(String::new());
            }
            (MovePhase::Sealed, Readiness::Loaded) => return catch_up(&record),
            (MovePhase::Sealed, Readiness::Ready) => Transition::Take { serving: true },
            (_, Readiness::Loading | Readiness::CatchingUp) => return Decision::WaitUntil(limit),
            _ => return Decision::Nothing,
        };
        match cx.now < not_before {
            true => Decision::WaitUntil(not_before),
            false => Decision::Write(change),
        }
    }

    /// Records that a shard served here has no move in progress and none being written. After an aborted move, the next one waits.
    ///
    /// A move whose first write failed never reached the record. Such a shard must not count as leaving either, or it would use up
    /// `release_batch`.
    pub(super) fn note_aborted(&mut self, cx: &mut Ctx, id: &ShardId, writing: bool) {
        let Some(slot) = self.slots.get_mut(id).filter(|_| !writing) else {
            return;
        };
        if slot.moving.take().is_some() {
            let wait = cx.config.timing.move_retry(slot.aborted);
            slot.move_not_before = cx.now + wait;
            slot.aborted += 1;
        }
        self.note_left(cx, id);
    }

    /// Writes the position where a shard's state ends, if the move is still in progress.
    pub(super) fn write_seal(&mut self, cx: &mut Ctx, id: &ShardId, mv: u64, seal: String) {
        let goes_on = cx
            .view
            .shards
            .get(id)
            .is_some_and(|r| cx.is_mine(r) && is_freezing(r, mv));
        let idle = self.slots.get(id).is_some_and(|s| s.writing.is_none());
        if goes_on && idle {
            if let Some(slot) = self.slots.get_mut(id) {
                slot.sealed = Some((mv, seal.clone()));
            }
            self.write(cx, id, Transition::Seal { seal });
        } else {
            self.note_left(cx, id);
        }
    }
}

fn is_freezing(record: &ShardRecord, mv: u64) -> bool {
    matches!(&record.ownership, Ownership::Freezing { mv: m, .. } if m.id == mv)
}

fn catch_up(record: &ShardRecord) -> Decision {
    match &record.ownership {
        Ownership::Sealed { seal, .. } => Decision::CatchUp(seal.clone()),
        _ => Decision::Nothing,
    }
}
