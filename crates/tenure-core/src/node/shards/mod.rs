//! Each shard's stay at this node: claim, load, serve, close, give up.
//!
//! ```text
//!         adopt            loaded                close                drained
//!  Idle ─────────► Loading ───────► Serving ───────────────► Closing ─────────► Idle, or a release is written
//!    ▲               │  ▲                                        ▲
//!    │   load failed ▼  │ back-off over                          │ lease lost, record lost, given away, stopping
//!    └──────────── Resting                                 Loading, Serving
//! ```
//!
//! [`Node::decide`] derives the next step from the record, the lease and the phase alone. Ownership is what the record says
//! *and* what this node has not given up: from the moment a release is sent, its epoch is barred here for ever, whatever
//! became of the write.
//!
//! A move has two sides (`moves`: what to do next; `hand_over`: what the application is told, and what it says):
//!
//! ```text
//!  owner      Serving ──routers hold──► Frozen ──in flight = 0──► Sealing ──sealed──► Closing ──► the seal is written
//!                ▲────── called off ──────┘                          └── called off: it is loaded again
//!  successor  loading ──► loaded, `warmed` is written ──sealed──► catching up ──► ready, `take` is written ──► Serving
//! ```

mod decide;
mod handler_events;
mod move_batches;
mod move_decisions;
mod move_effects;
mod scan_filter;

use crate::node::assignment::Assignment;
use crate::node::claim_retry::ClaimRetries;
use crate::node::context::Ctx;
use crate::node::membership::Membership;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{Epoch, NodeName, ShardId};
use crate::keys::Key;
use crate::machine::{Action, ActivationId, Close, Expect};
use crate::ownership::{self, Facts, Transition, Writer};
use crate::plan::LoadAverage;
use crate::reason::Reason;
use crate::record::{Owner, Ownership, Record};
use crate::rules::Mutant;
use crate::settings::Timing;
use crate::telemetry::{NodeEvent, ShardStep};
use crate::time::Time;

use decide::Decision;
pub(super) use move_batches::Together;

use super::Life;
use super::store_requests::{Settled, WritePurpose};
use super::timers::Timer;

/// How many shards are looked at in one step.
const MAX_SHARDS_PER_STEP: usize = 1000;

/// What becomes of a shard once its work here has stopped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum AfterClose {
    /// Look at the record again.
    Reevaluate,
    /// Give it up.
    Release {
        to: Option<NodeName>,
        reason: Reason,
    },
    /// Load it again after a while.
    RetryLater,
    /// Give it up although its state has no end that a successor could go on from: it is loaded from nothing elsewhere.
    GiveUp,
    /// Say where its state ends, for the target of this move.
    Seal { mv: u64, seal: String },
}

/// How far a successor has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Readiness {
    Loading,
    Loaded,
    CatchingUp,
    Ready,
}

/// Where a shard is at this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    Loading {
        activation: ActivationId,
        epoch: Epoch,
        since: Time,
    },
    Serving {
        activation: ActivationId,
        epoch: Epoch,
        since: Time,
    },
    Closing {
        activation: ActivationId,
        epoch: Epoch,
        how: Close,
        cut_at: Time,
        then: AfterClose,
        reason: Reason,
    },
    RetryDelay {
        until: Time,
    },
    /// Its gate is shut for this move; what is in flight finishes.
    Frozen {
        activation: ActivationId,
        epoch: Epoch,
        mv: u64,
        limit: Time,
    },
    /// Nothing is in flight; the application writes out what must outlive the stay.
    Sealing {
        activation: ActivationId,
        epoch: Epoch,
        mv: u64,
        limit: Time,
    },
    /// Another node owns it, and it moves here.
    Taking {
        activation: ActivationId,
        mv: u64,
        step: Readiness,
        limit: Time,
    },
}

impl Phase {
    /// The stay that it is in.
    fn run(&self) -> Option<ActivationId> {
        match self {
            Self::Idle | Self::RetryDelay { .. } => None,
            Self::Loading { activation, .. }
            | Self::Serving { activation, .. }
            | Self::Closing { activation, .. }
            | Self::Frozen { activation, .. }
            | Self::Sealing { activation, .. }
            | Self::Taking { activation, .. } => Some(*activation),
        }
    }
}

/// A write to the shard's record that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Writing {
    Claim,
    Serve,
    Release(Reason),
    Fail,
    Disclaim,
    ReportTrouble,
    Move,
    Seal,
    Take,
    Cancel,
    Reclaim,
    Other,
}

/// A shard at this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ShardSlot {
    phase: Phase,
    writing: Option<Writing>,
    /// The highest epoch that was ever seen of it.
    pub(super) highest: Epoch,
    /// Epochs up to here are never served again: a release of them was sent.
    given_up: Epoch,
    /// The last epoch that was served here.
    served: Epoch,
    not_before: Time,
    /// How often in a row it could not be loaded or its loop failed.
    pub(super) attempts: u32,
    last_error: String,
    /// What the application says is wrong during the present run.
    trouble: Option<String>,
    /// What it costs during the present run, where the application says so.
    pub(super) load: Option<LoadAverage>,
    /// It was told that its work does not stop.
    overdue: bool,
    /// The move of this shard that this node was last part of, and how often in a row one was called off.
    moving: Option<u64>,
    called_off: u32,
    /// No move is begun before this.
    move_not_before: Time,
    /// A seal that was sent: what it said, should it have to be sent again.
    sealed: Option<(u64, String)>,
    /// A move that the application could not write out its state for: it is called off, not tried again.
    unsealable: Option<u64>,
    /// The rev for which an observer has already said what it would do.
    would: u64,
}

/// Local state of each shard.
pub(super) type Slots = BTreeMap<ShardId, ShardSlot>;

/// Local state of all shards at this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Shards {
    pub(super) slots: Slots,
    /// Shards by activation that has not ended.
    pub(super) runs: BTreeMap<ActivationId, ShardId>,
    /// Shards of this node that move or are released to other nodes.
    pub(super) leaving: BTreeSet<ShardId>,
    /// Shards that move to this node and freeze together.
    pub(super) together: Together,
    /// Shards with a write that may still land, and the rev that it would replace: read at every tick until it has moved.
    pub(super) doubtful: BTreeMap<ShardId, u64>,
    /// Rest of a scan of all shards.
    pub(super) to_scan: VecDeque<ShardId>,
    pub(super) retries: ClaimRetries,
    /// Number of activations so far.
    pub(super) run_count: u64,
    /// The application has reported the cost of a shard.
    pub(super) measured: bool,
}

impl ShardSlot {
    pub(super) fn is_settling(&self) -> bool {
        let claims_again = matches!(self.phase, Phase::Idle) && self.not_before > Time::ZERO;
        matches!(self.phase, Phase::Loading { .. })
            || matches!(self.writing, Some(Writing::Claim))
            || (claims_again && self.served == Epoch(0) && self.attempts == 0)
    }

    /// Nothing will be heard any more of what was being written.
    pub(super) fn forget_writing(&mut self) {
        self.writing = None;
    }

    /// The shard is here anew, and not because a move of it was called off: what became of earlier moves is no reason to
    /// put off the next.
    fn came_back(&mut self) {
        (self.moving, self.called_off, self.move_not_before) = (None, 0, Time::ZERO);
    }

    /// For [`Node::essence`]: forgets since when it serves, if that was before `old`, and what of the count of moves that were
    /// called off makes no difference to the wait for the next.
    pub(super) fn forget(&mut self, old: Time, timing: &Timing) {
        while let Some(less) = self.called_off.checked_sub(1)
            && timing.move_retry(less) == timing.move_retry(self.called_off)
        {
            self.called_off = less;
        }
        if let Phase::Serving { since, .. } = &mut self.phase
            && *since <= old
        {
            *since = Time::ZERO;
        }
    }

    /// Whether nothing of it runs here, is being written, or is waited for.
    fn is_idle(&self, now: Time) -> bool {
        matches!(self.phase, Phase::Idle) && self.writing.is_none() && now >= self.not_before
    }

    /// Whether this is the run that it is in.
    pub(super) fn is_run(&self, wanted: ActivationId) -> bool {
        self.phase.run() == Some(wanted)
    }

    pub(super) fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Serving { .. })
    }

    pub(super) fn is_claiming(&self) -> bool {
        matches!(self.writing, Some(Writing::Claim))
    }

    fn is_cut(&self) -> bool {
        matches!(
            self.phase,
            Phase::Closing {
                how: Close::Cancel,
                ..
            }
        )
    }

    /// Whether nothing of this shard runs, or is being written, here.
    pub(super) fn is_quiet(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::RetryDelay { .. }) && self.writing.is_none()
    }
}

impl Shards {
    /// Returns `true` if no shard runs or is being written here.
    pub(super) fn is_quiet(&self) -> bool {
        self.runs.is_empty() && self.slots.values().all(ShardSlot::is_quiet)
    }

    pub(super) fn look_at_every_shard(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
    ) {
        for keyspace in assignment.greedy() {
            assignment.derive_wants(cx, membership, &self.slots, &keyspace);
        }
        self.to_scan = self.worth_a_look(cx, membership, assignment).into();
        self.look_on(cx, membership, assignment);
    }

    /// Goes on with a look at every shard, for a portion of them: the session is renewed between two steps, not within one,
    /// and with very many shards one step for all of them would take longer than a renewal may.
    pub(super) fn look_on(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
    ) {
        let mut derived = None;
        for _ in 0..MAX_SHARDS_PER_STEP {
            let Some(id) = self.to_scan.pop_front() else {
                return cx.timers.clear(&Timer::Look);
            };
            if derived.as_ref() != Some(&id.keyspace) {
                assignment.derive_wants(cx, membership, &self.slots, &id.keyspace);
                derived = Some(id.keyspace.clone());
            }
            self.look_closely(cx, membership, assignment, &id);
        }
        if !self.to_scan.is_empty() {
            let soon = cx.now + std::time::Duration::from_micros(1);
            cx.timers.set(Timer::Look, soon);
        }
    }

    /// Whether some shards are still to be looked at.
    pub(super) fn is_looking(&self, cx: &Ctx) -> bool {
        cx.scan_all || !self.to_scan.is_empty()
    }

    /// Decides about one shard and does it.
    pub(super) fn look_at(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        assignment: &mut Assignment,
        id: &ShardId,
    ) {
        assignment.derive_wants(cx, membership, &self.slots, &id.keyspace);
        self.look_closely(cx, membership, assignment, id);
    }

    /// The same, with all that is derived for its keyspace up to date.
    fn look_closely(
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
        let stay = self.slots.get(id);
        let waited = stay.is_some_and(|stay| stay.not_before > Time::ZERO);
        let rests =
            stay.is_none_or(|stay| matches!(stay.phase, Phase::Idle | Phase::Serving { .. }));
        let idle = stay.is_none_or(|stay| stay.is_idle(cx.now));
        let cut = stay.is_some_and(ShardSlot::is_cut);
        if cut {
            self.tell_overdue(cx, id);
        }
        let decision = match idle {
            true => self.decide_idle(cx, membership, assignment, id),
            false => self.decide(cx, membership, assignment, id),
        };
        match decision {
            Decision::Nothing => {
                // What it once waited for is over.
                if rests {
                    cx.timers.clear_stay(id);
                }
                if (waited || cut)
                    && let Some(stay) = self.slots.get_mut(id)
                    && cx.now >= stay.not_before
                {
                    stay.not_before = Time::ZERO;
                }
            }
            Decision::WaitUntil(at) => cx.timers.set(Timer::Stay(id.clone()), at),
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
                let stay = self.slots.entry(id.clone()).or_default();
                if stay.would != rev {
                    stay.would = rev;
                    cx.note(NodeEvent::WouldDo {
                        shard: id.clone(),
                        step,
                        reason,
                    });
                }
            }
        }
    }

    /// A shard of a keyspace that this node has nothing to do with: all it can say is that it does not own it.
    fn disclaim(&mut self, cx: &mut Ctx, id: &ShardId) {
        let quiet = self.slots.get(id).is_none_or(ShardSlot::is_quiet);
        let Some(record) = cx.view.shards.get(id).filter(|_| quiet && cx.may_own()) else {
            return;
        };
        if let Ownership::Free {
            awaiting_disclaimers,
        } = &record.ownership
            && let Some(change) = cx.deny(awaiting_disclaimers)
        {
            let not_before = self.slots.get(id).map_or(Time::ZERO, |s| s.not_before);
            match cx.now < not_before {
                true => cx.timers.set(Timer::Stay(id.clone()), not_before),
                false => self.write(cx, id, change),
            }
        }
    }

    /// Says once that work which was cancelled does not stop: as long as it runs, nobody else can have the shard.
    fn tell_overdue(&mut self, cx: &mut Ctx, id: &ShardId) {
        let Some(stay) = self.slots.get_mut(id) else {
            return;
        };
        if let Phase::Closing {
            how: Close::Cancel,
            cut_at,
            epoch,
            ..
        } = stay.phase
            && cx.now >= cut_at
            && !std::mem::replace(&mut stay.overdue, true)
        {
            cx.note(NodeEvent::CancelOverdue {
                shard: id.clone(),
                epoch,
            });
        }
    }

    fn close(&mut self, cx: &mut Ctx, id: &ShardId, how: Close, reason: Reason, then: AfterClose) {
        let limits = [cx.config.timing.drain_timeout, cx.config.timing.kill_grace];
        let Some(stay) = self.slots.get_mut(id) else {
            return;
        };
        let (activation, epoch, how) = match &stay.phase {
            // Its gate is shut, or was never open.
            Phase::Frozen {
                activation, epoch, ..
            }
            | Phase::Sealing {
                activation, epoch, ..
            } => (*activation, *epoch, Close::Cancel),
            Phase::Taking { activation, .. } => (*activation, Epoch(0), Close::Cancel),
            Phase::Serving {
                activation, epoch, ..
            } => (*activation, *epoch, how),
            // Nothing was admitted yet, so there is nothing to let finish.
            Phase::Loading {
                activation, epoch, ..
            } => (*activation, *epoch, Close::Cancel),
            Phase::Closing {
                activation,
                epoch,
                how: Close::Drain,
                ..
            } if how == Close::Cancel => (*activation, *epoch, how),
            _ => return,
        };
        let first = match &stay.phase {
            Phase::Closing { reason: first, .. } => *first,
            _ => reason,
        };
        let cut_at = cx.now
            + if how == Close::Drain {
                limits[0]
            } else {
                limits[1]
            };
        stay.overdue = false;
        if matches!(
            then,
            AfterClose::Release {
                reason: Reason::Rebalance,
                ..
            }
        ) {
            self.leaving.insert(id.clone());
        }
        if let Phase::Serving { since, .. } = stay.phase
            && cx.now.since(since) >= cx.config.timing.load_retry_max
        {
            stay.attempts = 0;
        }
        stay.phase = Phase::Closing {
            activation,
            epoch,
            how,
            cut_at,
            then,
            reason: first,
        };
        self.forget_ahead(cx, id);
        cx.out.push(Action::Close { activation, how });
        let step = match how {
            Close::Drain => ShardStep::Draining,
            Close::Cancel if reason == Reason::MoveAborted => ShardStep::Aborted,
            Close::Cancel => ShardStep::Cancelled,
        };
        if reason != Reason::Moving {
            cx.report_step(id, step, epoch, reason, None);
        }
        cx.timers.set(Timer::Stay(id.clone()), cut_at);
    }

    /// Closes every gate and cancels all work; the records are left alone.
    pub(super) fn cut_all(&mut self, cx: &mut Ctx, reason: Reason) {
        let active: Vec<_> = self.runs.values().cloned().collect();
        for id in active {
            let then = match self.slots.get(&id).map(|s| &s.phase) {
                Some(Phase::Closing { then, .. }) => then.clone(),
                _ => AfterClose::Reevaluate,
            };
            self.close(cx, &id, Close::Cancel, reason, then);
        }
    }

    /// Begins a stay: the record names this session at an epoch that it has not given up.
    fn adopt(&mut self, cx: &mut Ctx, id: &ShardId, epoch: Epoch) {
        let Some(session) = cx.session() else {
            return;
        };
        self.run_count += 1;
        let activation = ActivationId(self.run_count);
        let now = cx.now;
        let record = cx.view.shards.get(id);
        let meta = record.and_then(|r| r.meta.clone());
        let claimed = record
            .and_then(|r| r.history.last())
            .filter(|p| p.epoch == epoch)
            .map(|p| p.reason);
        let stay = self.slots.entry(id.clone()).or_default();
        let reason = if stay.served == epoch {
            Reason::Recovered
        } else {
            claimed.unwrap_or(Reason::ClaimFound)
        };
        stay.phase = Phase::Loading {
            activation,
            epoch,
            since: now,
        };
        stay.trouble = None;
        stay.load = None;
        if reason != Reason::TargetGone {
            stay.came_back();
        }
        self.runs.insert(activation, id.clone());
        cx.timers.clear(&Timer::Stay(id.clone()));
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
        cx.timers
            .set(Timer::Stay(id.clone()), now + cx.config.timing.load_timeout);
    }

    /// Writes a change to the shard's record, guarded by the version it was decided on.
    fn write(&mut self, cx: &mut Ctx, id: &ShardId, change: Transition) {
        let Some(seen) = cx.view.shards.seen(id).cloned() else {
            return;
        };
        let Some(session) = cx.session() else {
            return;
        };
        let nonce = cx.nonce();
        let writer = Writer {
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
        let facts = Facts {
            ended: &|s| cx.ended(s),
            highest_epoch: highest,
            min_generation: floor,
            load: self.known_load(cx, id),
            rules: cx.config.rules,
        };
        let Ok(record) = ownership::apply(&seen.record, &writer, change, &facts) else {
            return;
        };
        let stay = self.slots.entry(id.clone()).or_default();
        if matches!(writing, Writing::Release(_) | Writing::Fail | Writing::Seal) {
            stay.given_up = stay.given_up.max(seen.record.epoch);
            stay.phase = match stay.phase {
                Phase::Serving { .. } => stay.phase.clone(),
                _ => Phase::Idle,
            };
        }
        if matches!(writing, Writing::Move) {
            self.leaving.insert(id.clone());
        }
        stay.writing = Some(writing);
        let record = Record::Shard(std::sync::Arc::new(record));
        cx.put(
            Key::Shard(id.clone()),
            Expect::Version(seen.version),
            record,
            WritePurpose::Stay(id.clone()),
        );
    }

    pub(super) fn on_stay_settled(
        &mut self,
        cx: &mut Ctx,
        assignment: &mut Assignment,
        id: ShardId,
        outcome: Settled,
    ) {
        let retry = cx.later(cx.config.timing.renew_retry_interval);
        if outcome == (Settled::Failed { unknown: true }) {
            let mark = cx.view.mark(&Key::Shard(id.clone()));
            self.doubtful.insert(id.clone(), mark);
        }
        let Some(stay) = self.slots.get_mut(&id) else {
            return;
        };
        let writing = stay.writing.take();
        // What was told meanwhile of a shard on its way out does not bring it there.
        let told_in_leaving = matches!(writing, Some(Writing::ReportTrouble))
            && matches!(stay.phase, Phase::Closing { .. });
        // A shard that begins to move is on its way out until its record says otherwise.
        let moves = matches!(writing, Some(Writing::Move | Writing::Seal));
        stay.not_before = match outcome {
            Settled::Failed { .. } => retry,
            _ => Time::ZERO,
        };
        let epoch = cx.view.shards.get(&id).map_or(Epoch(0), |r| r.epoch);
        let me = Some(cx.config.name.clone());
        if outcome == Settled::Done {
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
                Some(writing) => self.tell_move(cx, &id, &writing, epoch),
                None => {}
            }
        }
        if !matches!(outcome, Settled::Failed { .. }) && !told_in_leaving && !moves {
            self.left(cx, &id);
        }
        cx.from_watch = false;
        assignment.stale(&id.keyspace);
        cx.changed.insert(Key::Shard(id));
    }

    /// A shard is no longer on its way out; when half of those that may leave at a time have left, others may.
    fn left(&mut self, cx: &mut Ctx, id: &ShardId) {
        if self.leaving.remove(id) && self.leaving.len() == cx.config.timing.release_batch / 2 {
            cx.scan_all = true;
        }
    }

    /// Remembers the epoch of a shard's record.
    pub(super) fn note_epoch(&mut self, id: &ShardId, epoch: Epoch) {
        match self.slots.get_mut(id) {
            Some(slot) => slot.highest = slot.highest.max(epoch),
            None => {
                let slot = self.slots.entry(id.clone()).or_default();
                slot.highest = epoch;
            }
        }
    }

    /// Reads the shards with a write that may still land.
    pub(super) fn read_doubtful(&mut self, cx: &mut Ctx) {
        let view = &cx.view;
        self.doubtful
            .retain(|id, mark| view.mark(&Key::Shard(id.clone())) == *mark);
        for id in self.doubtful.keys() {
            cx.read(Key::Shard(id.clone()));
        }
    }

    /// Forgets all writes in progress: no reply to them will be taken.
    pub(super) fn forget_writes(&mut self) {
        self.slots.values_mut().for_each(ShardSlot::forget_writing);
    }
}
