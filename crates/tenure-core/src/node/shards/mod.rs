//! Local shards: claims, loads, moves and releases.
//!
//! | file | content |
//! |---|---|
//! | `slot` | state of one shard, and the table of its phases |
//! | `decide`, `move_decisions` | next step of a shard, derived from its record, the lease and its phase |
//! | `handler_events` | results of the application |
//! | `move_effects`, `move_batches` | steps of a move; moves that freeze together |
//! | `scan_filter` | shards that a scan of all shards can skip |
//!
//! A node owns a shard if the record names its session *and* the node has not given up the epoch. A node gives up an epoch when it
//! sends the release; it never serves that epoch again, whatever the outcome of the write.
//!
//! Both sides of a move:
//!
//! ```text
//!  owner   Serving ──routers hold──► Frozen ──nothing in flight──► Sealing ──sealed──► Closing ──► the seal is written
//!             ▲────── aborted ──────────┘                             └── aborted: the shard is loaded again
//!  target  loading ──► loaded, `warmed` is written ──sealed──► catching up ──► ready, `take` is written ──► Serving
//! ```

mod decide;
mod handler_events;
mod move_batches;
mod move_decisions;
mod move_effects;
mod scan_filter;
mod slot;
#[cfg(test)]
mod slot_tests;

use crate::node::assignment::Assignment;
use crate::node::claim_retry::ClaimRetries;
use crate::node::context::Ctx;
use crate::node::membership::Membership;
use crate::node::record_recovery;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{Epoch, ShardId};
use crate::keys::Key;
use crate::machine::{Action, ActivationId, Close, Expect};
use crate::ownership::{self, Transition, TransitionContext, WriteIdentity};
use crate::reason::Reason;
use crate::record::{Owner, Ownership, Record};
use crate::rules::Mutant;
use crate::telemetry::{NodeEvent, ShardStep};
use crate::time::Time;

use decide::Decision;
pub(super) use move_batches::IncomingMoves;
pub(super) use slot::ShardSlot;
use slot::{AfterClose, Phase, PhaseEvent, Readiness, Writing};

use super::Life;
use super::store_requests::{WriteOutcome, WritePurpose};
use super::timers::Timer;

/// Maximum number of shards that a scan evaluates in one step.
const MAX_SHARDS_PER_STEP: usize = 1000;

/// Local state of each shard.
pub(super) type Slots = BTreeMap<ShardId, ShardSlot>;

/// Local state of all shards at this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Shards {
    pub(super) slots: Slots,
    /// Shard of each activation that has not ended.
    pub(super) activations: BTreeMap<ActivationId, ShardId>,
    /// Shards of this node that move or are released to other nodes.
    pub(super) leaving: BTreeSet<ShardId>,
    /// Shards that move to this node and freeze together.
    pub(super) together: IncomingMoves,
    /// Shards with a write of unknown outcome, and the record revision that it would replace. Every tick reads them until the revision
    /// changes.
    pub(super) doubtful: BTreeMap<ShardId, u64>,
    /// Shards that the current scan has not evaluated yet.
    pub(super) to_scan: VecDeque<ShardId>,
    pub(super) retries: ClaimRetries,
    /// Number of activations so far.
    pub(super) activation_count: u64,
    /// `true` once the application has reported the cost of a shard.
    pub(super) measured: bool,
}

impl Shards {
    /// Returns `true` if this node has no activation and no write to a shard's record is in progress.
    pub(super) fn is_quiet(&self) -> bool {
        self.activations.is_empty() && self.slots.values().all(ShardSlot::is_quiet)
    }

    pub(super) fn scan_all_shards(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
    ) {
        for keyspace in assignment.greedy() {
            assignment.derive(cx, membership, &self.slots, &keyspace);
        }
        self.to_scan = self.shards_to_scan(cx, membership, assignment).into();
        self.continue_scan(cx, membership, assignment);
    }

    /// Continues a scan of all shards with its next portion.
    ///
    /// The session is renewed between two steps, not within one. With very many shards, a single step for all of them would delay a renewal
    /// for too long.
    pub(super) fn continue_scan(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
    ) {
        let mut derived = None;
        for _ in 0..MAX_SHARDS_PER_STEP {
            let Some(id) = self.to_scan.pop_front() else {
                return cx.timers.clear(&Timer::Scan);
            };
            if derived.as_ref() != Some(&id.keyspace) {
                assignment.derive(cx, membership, &self.slots, &id.keyspace);
                derived = Some(id.keyspace.clone());
            }
            self.evaluate_slot(cx, membership, assignment, &id);
        }
        if !self.to_scan.is_empty() {
            let soon = cx.now + std::time::Duration::from_micros(1);
            cx.timers.set(Timer::Scan, soon);
        }
    }

    /// Returns `true` while a scan is due or has shards left.
    pub(super) fn is_scanning(&self, cx: &Ctx) -> bool {
        cx.scan_all || !self.to_scan.is_empty()
    }

    /// Evaluates one shard: derives its next step and performs it.
    pub(super) fn evaluate(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        id: &ShardId,
    ) {
        assignment.derive(cx, membership, &self.slots, &id.keyspace);
        self.evaluate_slot(cx, membership, assignment, id);
    }

    /// Evaluates one shard of a keyspace whose assignment is up to date.
    fn evaluate_slot(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        id: &ShardId,
    ) {
        if !matches!(cx.life, Life::Running | Life::Stopping) {
            return;
        }
        if !cx.config.keyspaces.contains_key(&id.keyspace) {
            return self.disclaim(cx, id);
        }
        let slot = self.slots.get(id);
        let waited = slot.is_some_and(|slot| slot.not_before > Time::ZERO);
        let rests =
            slot.is_none_or(|slot| matches!(slot.phase(), Phase::Idle | Phase::Serving { .. }));
        let idle = slot.is_none_or(|slot| slot.is_idle(cx.now));
        let cut = slot.is_some_and(ShardSlot::is_cut);
        if cut {
            self.report_overdue(cx, id);
        }
        let decision = match idle {
            true => self.decide_idle(cx, membership, assignment, id),
            false => self.decide(cx, membership, assignment, id),
        };
        match decision {
            Decision::Nothing => {
                // The wait that set this timer is over.
                if rests {
                    cx.timers.clear_shard(id);
                }
                if (waited || cut)
                    && let Some(slot) = self.slots.get_mut(id)
                    && cx.now >= slot.not_before
                {
                    slot.not_before = Time::ZERO;
                }
            }
            Decision::WaitUntil(at) => cx.timers.set(Timer::Shard(id.clone()), at),
            Decision::Close(how, reason, then) => self.close(cx, id, how, reason, then),
            Decision::Adopt(epoch) => self.adopt(cx, id, epoch),
            Decision::Write(change) => self.write(cx, id, change),
            Decision::Warm(mv) => self.warm(cx, id, mv),
            Decision::CatchUp(seal) => self.catch_up(cx, id, seal),
            Decision::Promote(epoch) => self.promote(cx, membership, assignment, id, epoch),
            Decision::Freeze(mv) => self.freeze(cx, membership, assignment, id, mv),
            Decision::Thaw => self.thaw(cx, membership, assignment, id),
            Decision::WouldDo(step, reason) => {
                let rev = cx.view.mark(&Key::Shard(id.clone()));
                let slot = self.slots.entry(id.clone()).or_default();
                if slot.would != rev {
                    slot.would = rev;
                    cx.note(NodeEvent::WouldDo {
                        shard: id.clone(),
                        step,
                        reason,
                    });
                }
            }
        }
    }

    /// Disclaims a shard of a keyspace that this node is not configured for. No other step of such a shard is possible here.
    fn disclaim(&mut self, cx: &mut Ctx, id: &ShardId) {
        let quiet = self.slots.get(id).is_none_or(ShardSlot::is_quiet);
        let Some(record) = cx.view.shards.get(id).filter(|_| quiet && cx.may_own()) else {
            return;
        };
        if let Ownership::Free {
            awaiting_disclaimers,
        } = &record.ownership
            && let Some(change) = record_recovery::disclaimer(cx, awaiting_disclaimers)
        {
            let not_before = self.slots.get(id).map_or(Time::ZERO, |s| s.not_before);
            match cx.now < not_before {
                true => cx.timers.set(Timer::Shard(id.clone()), not_before),
                false => self.write(cx, id, change),
            }
        }
    }

    /// Reports once that cancelled work does not stop. As long as the work runs, no other node can own the shard.
    fn report_overdue(&mut self, cx: &mut Ctx, id: &ShardId) {
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        if let &Phase::Closing {
            how: Close::Cancel,
            cut_at,
            epoch,
            ..
        } = slot.phase()
            && cx.now >= cut_at
            && !std::mem::replace(&mut slot.overdue, true)
        {
            cx.note(NodeEvent::CancelOverdue {
                shard: id.clone(),
                epoch,
            });
        }
    }

    fn close(&mut self, cx: &mut Ctx, id: &ShardId, how: Close, reason: Reason, then: AfterClose) {
        let timing = &cx.config.timing;
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        let served_for = slot.served_for(cx.now);
        let releases = matches!(
            then,
            AfterClose::Release {
                reason: Reason::Rebalance,
                ..
            }
        );
        let event = PhaseEvent::Close {
            how,
            drain_until: cx.now + timing.drain_timeout,
            cancel_until: cx.now + timing.kill_grace,
            then,
            reason,
        };
        if !slot.advance(event, cx) {
            return;
        }
        let &Phase::Closing {
            activation,
            epoch,
            how,
            cut_at,
            ..
        } = slot.phase()
        else {
            return;
        };
        slot.overdue = false;
        if served_for.is_some_and(|time| time >= timing.load_retry_max) {
            slot.attempts = 0;
        }
        if releases {
            self.leaving.insert(id.clone());
        }
        self.forget_move(cx, id);
        cx.out.push(Action::Close { activation, how });
        let step = match how {
            Close::Drain => ShardStep::Draining,
            Close::Cancel if reason == Reason::MoveAborted => ShardStep::Aborted,
            Close::Cancel => ShardStep::Cancelled,
        };
        if reason != Reason::Moving {
            cx.report_step(id, step, epoch, reason, None);
        }
        cx.timers.set(Timer::Shard(id.clone()), cut_at);
    }

    /// Closes every gate and cancels all work. The records remain unchanged.
    pub(super) fn cut_all(&mut self, cx: &mut Ctx, reason: Reason) {
        let active: Vec<_> = self.activations.values().cloned().collect();
        for id in active {
            let then = match self.slots.get(&id).map(ShardSlot::phase) {
                Some(Phase::Closing { then, .. }) => then.clone(),
                _ => AfterClose::Reevaluate,
            };
            self.close(cx, &id, Close::Cancel, reason, then);
        }
    }

    /// Starts an activation: the record names this session at an epoch that the node has not given up.
    fn adopt(&mut self, cx: &mut Ctx, id: &ShardId, epoch: Epoch) {
        let Some(session) = cx.session() else {
            return;
        };
        self.activation_count += 1;
        let activation = ActivationId(self.activation_count);
        let now = cx.now;
        let record = cx.view.shards.get(id);
        let meta = record.and_then(|r| r.meta.clone());
        let claimed = record
            .and_then(|r| r.history.last())
            .filter(|p| p.epoch == epoch)
            .map(|p| p.reason);
        let slot = self.slots.entry(id.clone()).or_default();
        let reason = if slot.served == epoch {
            Reason::Recovered
        } else {
            claimed.unwrap_or(Reason::ClaimFound)
        };
        let load = PhaseEvent::Load { activation, epoch };
        if !slot.advance(load, cx) {
            return;
        }
        slot.trouble = None;
        slot.load = None;
        if reason != Reason::TargetGone {
            slot.came_back();
        }
        self.activations.insert(activation, id.clone());
        cx.timers.clear(&Timer::Shard(id.clone()));
        cx.report_step(
            id,
            ShardStep::Loading,
            epoch,
            reason,
            Some(cx.config.name.clone()),
        );
        cx.out.push(Action::Load {
            activation,
            shard: id.clone(),
            epoch,
            session,
            meta,
        });
        cx.timers.set(
            Timer::Shard(id.clone()),
            now + cx.config.timing.load_timeout,
        );
    }

    /// Writes a change to the shard's record, guarded by the version that the decision is based on.
    fn write(&mut self, cx: &mut Ctx, id: &ShardId, change: Transition) {
        let Some(seen) = cx.view.shards.seen(id).cloned() else {
            return;
        };
        let Some(session) = cx.session() else {
            return;
        };
        let nonce = cx.nonce();
        let writer = WriteIdentity {
            owner: Owner {
                node: cx.config.name.clone(),
                session,
            },
            nonce,
        };
        let keyspace = cx.view.keyspaces.get(&id.keyspace);
        let floor = keyspace.map_or(0, |k| k.min_generation);
        let forgetful = cx.config.rules.broken_by(Mutant::EpochForgotten);
        let highest = self
            .slots
            .get(id)
            .filter(|_| !forgetful)
            .map_or(Epoch(0), |s| s.highest);
        let writing = match &change {
            Transition::Claim => Writing::Claim,
            Transition::Serve => Writing::Serve,
            Transition::Release { reason, .. } => Writing::Release(*reason),
            Transition::Fail { .. } => Writing::Fail,
            Transition::DisclaimOwnership { .. } => Writing::Disclaim,
            Transition::ReportTrouble { .. } => Writing::ReportTrouble,
            Transition::BeginMove { .. } => Writing::Move,
            Transition::Seal { .. } => Writing::Seal,
            Transition::Take { .. } => Writing::Take,
            Transition::Cancel { .. } => Writing::Cancel,
            Transition::Reclaim { .. } => Writing::Reclaim,
            _ => Writing::Other,
        };
        let facts = TransitionContext {
            ended: &|s| cx.ended(s),
            highest_epoch: highest,
            min_generation: floor,
            load: self.known_load(cx, id),
            rules: cx.config.rules,
        };
        let Ok(record) = ownership::apply(&seen.record, &writer, change, &facts) else {
            return;
        };
        let slot = self.slots.entry(id.clone()).or_default();
        if matches!(writing, Writing::Release(_) | Writing::Fail | Writing::Seal) {
            slot.given_up = slot.given_up.max(seen.record.epoch);
            slot.advance(PhaseEvent::GivenUp, cx);
        }
        if matches!(writing, Writing::Move) {
            self.leaving.insert(id.clone());
        }
        slot.writing = Some(writing);
        let record = Record::Shard(std::sync::Arc::new(record));
        cx.put(
            Key::Shard(id.clone()),
            Expect::Version(seen.version),
            record,
            WritePurpose::Shard(id.clone()),
        );
    }

    pub(super) fn on_write_settled(
        &mut self,
        cx: &mut Ctx,
        assignment: &mut Assignment,
        id: ShardId,
        outcome: WriteOutcome,
    ) {
        let retry = cx.later(cx.config.timing.renew_retry_interval);
        if outcome == (WriteOutcome::Failed { unknown: true }) {
            let mark = cx.view.mark(&Key::Shard(id.clone()));
            self.doubtful.insert(id.clone(), mark);
        }
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        let writing = slot.writing.take();
        // A trouble report that settles while the shard closes does not mean that the shard has left.
        let told_in_leaving = matches!(writing, Some(Writing::ReportTrouble))
            && matches!(slot.phase(), Phase::Closing { .. });
        // A shard that begins to move counts as leaving until its record shows otherwise.
        let moves = matches!(writing, Some(Writing::Move | Writing::Seal));
        slot.not_before = match outcome {
            WriteOutcome::Failed { .. } => retry,
            _ => Time::ZERO,
        };
        let epoch = cx.view.shards.get(&id).map_or(Epoch(0), |r| r.epoch);
        let me = Some(cx.config.name.clone());
        if outcome == WriteOutcome::Done {
            let last = cx
                .view
                .shards
                .get(&id)
                .and_then(|r| r.history.last())
                .map(|p| p.reason);
            match writing {
                Some(Writing::Claim) => cx.report_step(
                    &id,
                    ShardStep::Claimed,
                    epoch,
                    last.unwrap_or(Reason::Free),
                    me,
                ),
                Some(Writing::Release(reason)) => {
                    let to = cx.view.shards.get(&id).and_then(|r| r.assigned.clone());
                    cx.report_step(&id, ShardStep::Released, epoch, reason, to);
                }
                Some(Writing::Fail) => {
                    let quarantined = cx
                        .view
                        .shards
                        .get(&id)
                        .is_some_and(|r| r.quarantine.is_some());
                    let step = if quarantined {
                        ShardStep::Quarantined
                    } else {
                        ShardStep::Released
                    };
                    cx.report_step(&id, step, epoch, Reason::LoadFailed, None);
                }
                Some(writing) => self.report_move(cx, &id, &writing, epoch),
                None => {}
            }
        }
        if !matches!(outcome, WriteOutcome::Failed { .. }) && !told_in_leaving && !moves {
            self.note_left(cx, &id);
        }
        cx.from_watch = false;
        assignment.stale(&id.keyspace);
        cx.changed.insert(Key::Shard(id));
    }

    /// Removes a shard from those that leave. At half of the limit a scan becomes due, so that other shards can leave.
    fn note_left(&mut self, cx: &mut Ctx, id: &ShardId) {
        if self.leaving.remove(id) && self.leaving.len() == cx.config.timing.release_batch / 2 {
            cx.scan_all = true;
        }
    }

    /// Remembers the highest epoch of a shard's record.
    pub(super) fn note_epoch(&mut self, id: &ShardId, epoch: Epoch) {
        match self.slots.get_mut(id) {
            Some(slot) => slot.highest = slot.highest.max(epoch),
            None => {
                let slot = self.slots.entry(id.clone()).or_default();
                slot.highest = epoch;
            }
        }
    }

    /// Reads the shards with a write of unknown outcome.
    pub(super) fn read_doubtful(&mut self, cx: &mut Ctx) {
        let view = &cx.view;
        self.doubtful
            .retain(|id, mark| view.mark(&Key::Shard(id.clone())) == *mark);
        for id in self.doubtful.keys() {
            cx.read(Key::Shard(id.clone()));
        }
    }

    /// Forgets all writes in progress: their replies will be ignored.
    pub(super) fn forget_writes(&mut self) {
        self.slots.values_mut().for_each(ShardSlot::forget_writing);
    }
}
