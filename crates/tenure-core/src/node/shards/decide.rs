//! Next step of a shard, derived only from its record, the lease and its local phase.

use crate::node::session_end;
use std::sync::Arc;

use crate::ids::{Epoch, ShardId};
use crate::machine::Close;
use crate::node::assignment::Assignment;
use crate::node::context::Ctx;
use crate::node::membership::Membership;
use crate::ownership::Transition;
use crate::reason::Reason;
use crate::record::{Ownership, Role, ShardRecord};
use crate::rules::Mutant;
use crate::telemetry::ShardStep;
use crate::time::Time;

use super::{AfterClose, Phase, ShardSlot, Shards};

/// Next step of a shard.
pub(super) enum Decision {
    Nothing,
    WaitUntil(Time),
    Close(Close, Reason, AfterClose),
    Adopt(Epoch),
    Write(Transition),
    WouldDo(ShardStep, Reason),
    /// Load the shard while another node serves it.
    Warm(u64),
    CatchUp(String),
    /// Open the shard that this node took at the end of a move.
    Promote(Epoch),
    /// Freeze the gate for a move.
    Freeze(u64),
    Thaw,
}

impl Shards {
    pub(super) fn decide(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        id: &ShardId,
    ) -> Decision {
        let rules = cx.config.rules;
        let Some(slot) = self.slots.get(id) else {
            return self.decide_idle(cx, membership, assignment, id);
        };
        match slot.phase() {
            Phase::Loading { epoch, .. } | Phase::Serving { epoch, .. } => {
                let (epoch, writing) = (*epoch, slot.writing.is_some());
                self.decide_active(cx, membership, assignment, id, epoch, writing)
            }
            Phase::Closing {
                how: Close::Drain,
                cut_at,
                then,
                ..
            } => {
                if cx.now >= *cut_at {
                    return Decision::Close(Close::Cancel, Reason::DrainTimeout, then.clone());
                }
                Decision::WaitUntil(*cut_at)
            }
            Phase::Closing { .. }
                if rules.broken_by(Mutant::ClaimWhileBusy) && slot.writing.is_none() =>
            {
                self.decide_idle(cx, membership, assignment, id)
            }
            Phase::Closing { .. } => Decision::Nothing,
            Phase::Frozen {
                epoch, mv, limit, ..
            } => {
                let (epoch, mv, limit) = (*epoch, *mv, *limit);
                self.decide_frozen(cx, id, epoch, mv, limit)
            }
            Phase::Sealing {
                epoch, mv, limit, ..
            } => {
                let (epoch, mv, limit) = (*epoch, *mv, *limit);
                self.decide_sealing(cx, id, epoch, mv, limit)
            }
            Phase::Taking {
                mv, step, limit, ..
            } => {
                let (mv, step, limit) = (*mv, *step, *limit);
                self.decide_taking(cx, membership, id, mv, step, limit)
            }
            Phase::Idle | Phase::RetryDelay { .. } if slot.writing.is_some() => Decision::Nothing,
            Phase::Idle | Phase::RetryDelay { .. } if cx.now < slot.not_before => {
                Decision::WaitUntil(slot.not_before)
            }
            Phase::RetryDelay { until } => match cx.readable(id) {
                Ok((seen, _))
                    if cx.is_mine(&seen.record) && cx.now < *until && !cx.is_leaving() =>
                {
                    Decision::WaitUntil(*until)
                }
                _ => self.decide_idle(cx, membership, assignment, id),
            },
            Phase::Idle => self.decide_idle(cx, membership, assignment, id),
        }
    }

    /// Decides whether a loading or serving shard may continue.
    fn decide_active(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        id: &ShardId,
        epoch: Epoch,
        writing: bool,
    ) -> Decision {
        if !cx.may_own() {
            return Decision::Close(Close::Cancel, Reason::LeaseLost, AfterClose::Reevaluate);
        }
        let (record, floor) = match cx.readable(id) {
            Ok((seen, floor)) => (Arc::clone(&seen.record), floor),
            Err(Reason::KeyspaceDeleted) => {
                let reason = Reason::KeyspaceDeleted;
                return Decision::Close(
                    Close::Drain,
                    reason,
                    AfterClose::Release { to: None, reason },
                );
            }
            Err(reason) => return Decision::Close(Close::Cancel, reason, AfterClose::Reevaluate),
        };
        if !cx.is_mine(&record) || record.epoch != epoch || is_sealed(&record) {
            return Decision::Close(Close::Cancel, Reason::Superseded, AfterClose::Reevaluate);
        }
        if epoch.generation() < floor {
            return Decision::Close(
                Close::Cancel,
                Reason::GenerationRaised,
                AfterClose::Reevaluate,
            );
        }
        if record.ownership.moving().is_some() {
            return self.decide_moving(cx, id, &record, writing);
        }
        self.note_aborted(cx, id, writing);
        if record.deleting {
            let reason = Reason::Deleted;
            return Decision::Close(
                Close::Drain,
                reason,
                AfterClose::Release { to: None, reason },
            );
        }
        if let Some((to, reason)) = assignment.release_target(cx, membership, id, &record)
            && (reason != Reason::Rebalance || self.leaving.len() < cx.config.timing.release_batch)
        {
            if cx.config.rules.broken_by(Mutant::ReleaseBeforeStop) && !writing {
                return Decision::Write(Transition::Release { to, reason });
            }
            return match self.begin_move(cx, membership, id, &record, to.as_ref(), reason) {
                Some(_) if writing => Decision::Nothing,
                Some(decision) => decision,
                None => Decision::Close(Close::Drain, reason, AfterClose::Release { to, reason }),
            };
        }
        if let Some(Phase::Loading { since, .. }) = self.slots.get(id).map(ShardSlot::phase) {
            let limit = *since + cx.config.timing.load_timeout;
            if cx.now < limit {
                return Decision::WaitUntil(limit);
            }
            if let Some(slot) = self.slots.get_mut(id) {
                slot.last_error = format!(
                    "loading did not finish within {:?}",
                    cx.config.timing.load_timeout
                );
            }
            return Decision::Close(Close::Cancel, Reason::LoadFailed, AfterClose::RetryLater);
        }
        match self.slots.get(id) {
            Some(slot) if slot.is_serving() && !writing => {
                self.decide_record_update(cx, slot, &record)
            }
            _ => Decision::Nothing,
        }
    }

    /// Updates the record of a serving shard if its `serving` or `trouble` field is out of date.
    fn decide_record_update(&self, cx: &Ctx, slot: &ShardSlot, record: &ShardRecord) -> Decision {
        let change = match record.ownership {
            Ownership::Owned { serving: false, .. } => Transition::Serve,
            Ownership::Owned { .. } if record.trouble != slot.trouble && !cx.is_leaving() => {
                Transition::ReportTrouble {
                    said: slot.trouble.clone(),
                }
            }
            _ => return Decision::Nothing,
        };
        if cx.now < slot.not_before {
            return Decision::WaitUntil(slot.not_before);
        }
        Decision::Write(change)
    }

    /// Decides about a shard without an activation here: load, claim, take, release or disclaim.
    pub(super) fn decide_idle(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        id: &ShardId,
    ) -> Decision {
        if !cx.may_own() {
            return Decision::Nothing;
        }
        let Ok((seen, floor)) = cx.readable(id) else {
            self.retries.wait_for(cx, id, false);
            return self.decide_unreadable(cx, id);
        };
        let (record, since) = (Arc::clone(&seen.record), seen.since);
        if cx.is_mine(&record) && is_sealed(&record) {
            // The state ends at the seal. Only the target, or a new epoch, continues from there.
            return self.decide_sealed(cx, &record, since);
        }
        if cx.is_mine(&record) {
            self.retries.wait_for(cx, id, false);
            if record.epoch.generation() < floor {
                return Decision::Write(Transition::Claim);
            }
            if record.deleting && record.ownership.moving().is_none() {
                let reason = Reason::Deleted;
                return Decision::Write(Transition::Release { to: None, reason });
            }
            let given_up = self.slots.get(id).map_or(Epoch(0), |s| s.given_up);
            let rules = cx.config.rules;
            let barred = record.epoch <= given_up;
            let reopens = rules.broken_by(Mutant::ReopenAfterUnknownRelease);
            if barred && !reopens && record.ownership.moving().is_some() {
                return self.decide_seal_again(cx, id, &record);
            }
            if barred && !reopens {
                let given = assignment
                    .release_target(cx, membership, id, &record)
                    .and_then(|(to, _)| to);
                return Decision::Write(Transition::Release {
                    to: given.or_else(|| record.assigned.clone()),
                    reason: Reason::Rebalance,
                });
            }
            if let Some((to, reason)) = assignment.release_target(cx, membership, id, &record)
                && record.ownership.moving().is_none()
            {
                return Decision::Write(Transition::Release { to, reason });
            }
            return Decision::Adopt(record.epoch);
        }
        self.note_left(cx, id);
        if let Some(owner) = record.owner() {
            session_end::check_expired(cx, owner.session);
        }
        if let Some(decision) = self.decide_target(cx, membership, assignment, id, &record, since) {
            return decision;
        }
        if let Ownership::Free {
            awaiting_disclaimers,
        } = &record.ownership
        {
            for witness in awaiting_disclaimers {
                session_end::check_expired(cx, *witness);
            }
        }
        if let Ownership::Free {
            awaiting_disclaimers,
        } = &record.ownership
            && let Some(change) = cx.disclaimer(awaiting_disclaimers)
        {
            return Decision::Write(change);
        }
        let wanted = !cx.is_leaving() && assignment.should_take(cx, membership, id, &record);
        let live_owner = record.owner().is_some_and(|o| !cx.ended(o.session));
        let deaf = cx.from_watch && !cx.config.timing.claim_watch_enabled;
        let held_elsewhere = wanted && (live_owner || deaf) && cx.config.role == Role::Node;
        self.retries.wait_for(cx, id, held_elsewhere);
        if record.deleting && !live_owner && membership.is_first_of(cx, &id.keyspace) {
            return Decision::Write(Transition::Delete);
        }
        let claimable = record.quarantine.is_none() && !record.deleting;
        if !claimable || matches!(record.ownership, Ownership::Deleted) {
            return Decision::Nothing;
        }
        if !wanted && !live_owner && cx.view.is_coordinated(&id.keyspace) && !cx.is_leaving() {
            let at = cx.fallback_claim_at(&record, since);
            if at > cx.now && at < Time::NEVER {
                return Decision::WaitUntil(at);
            }
        }
        if !wanted {
            return Decision::Nothing;
        }
        if live_owner && cx.simulates_plan(&id.keyspace) {
            return Decision::WouldDo(ShardStep::MoveStarted, Reason::Planned);
        }
        if live_owner && !cx.config.rules.broken_by(Mutant::TakeoverWithoutProof) {
            return Decision::Nothing;
        }
        if matches!(&record.ownership, Ownership::Free { awaiting_disclaimers } if !awaiting_disclaimers.is_empty())
        {
            return Decision::Nothing;
        }
        if assignment.lacks_room(cx, &self.slots, &id.keyspace, 1) {
            return Decision::Nothing;
        }
        self.decide_claim(cx, &record)
    }

    fn decide_claim(&mut self, cx: &mut Ctx, record: &ShardRecord) -> Decision {
        if cx.from_watch && !cx.config.timing.claim_watch_enabled {
            // The next retry claims the shard, even if earlier rounds of retries have ended long ago.
            self.retries.claim_on_retry(cx);
            return Decision::Nothing;
        }
        if cx.config.role == Role::Shadow {
            let reason = if record.owner().is_some() {
                Reason::OwnerEnded
            } else {
                Reason::Free
            };
            return Decision::WouldDo(ShardStep::Claimed, reason);
        }
        Decision::Write(Transition::Claim)
    }

    fn decide_unreadable(&mut self, cx: &mut Ctx, id: &ShardId) -> Decision {
        // This node still owns a shard of a removed keyspace in the records, so it releases the shard for good.
        let removed = cx
            .view
            .keyspaces
            .get(&id.keyspace)
            .is_some_and(|k| k.deleted);
        let Some(record) = cx.view.shards.get(id).filter(|r| removed && cx.is_mine(r)) else {
            return Decision::Nothing;
        };
        match record.ownership {
            Ownership::Owned { .. } => Decision::Write(Transition::Release {
                to: None,
                reason: Reason::KeyspaceDeleted,
            }),
            _ => Decision::Nothing,
        }
    }
}

fn is_sealed(record: &ShardRecord) -> bool {
    matches!(record.ownership, Ownership::Sealed { .. })
}
