//! Local state of one shard, and the table of its phases.
//!
//! ```text
//!          Load             Loaded             Close               Stopped
//!  Idle ─────────► Loading ────────► Serving ─────────► Closing ───────────► Idle
//!    ▲                │                │  ▲
//!    │ RetryDelay ◄───┘ LoadFailed     │  │ Thaw
//!    │                          Freeze ▼  │
//!    │                              Frozen ──Drained──► Sealing ──Close──► Closing
//!    │   Warm                                 CatchUp
//!    └────────► Taking: Loading ► Loaded ─────────► CatchingUp ► Ready ──Promote──► Serving
//! ```
//!
//! [`Phase::next`] is the only code that makes a phase. An event that does not fit the phase, such as the late end of a former
//! activation, changes nothing.

use std::time::Duration;

use crate::ids::{Epoch, NodeName};
use crate::machine::{ActivationId, Close};
use crate::node::context::Ctx;
use crate::plan::LoadAverage;
use crate::reason::Reason;
use crate::rules::{Mutant, Rules};
use crate::settings::Timing;
use crate::time::Time;

/// What becomes of a shard once its work here has stopped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum AfterClose {
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
pub(super) enum Readiness {
    Loading,
    Loaded,
    CatchingUp,
    Ready,
}

/// Where a shard is at this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Phase {
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
    /// Nothing is in flight; the application writes out what must outlive the slot.
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

/// A write to the shard's record that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Writing {
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
pub(in crate::node) struct ShardSlot {
    phase: Phase,
    pub(super) writing: Option<Writing>,
    /// The highest epoch that was ever seen of it.
    pub(in crate::node) highest: Epoch,
    /// Epochs up to here are never served again: a release of them was sent.
    pub(super) given_up: Epoch,
    /// The last epoch that was served here.
    pub(super) served: Epoch,
    pub(super) not_before: Time,
    /// How often in a row it could not be loaded or its loop failed.
    pub(in crate::node) attempts: u32,
    pub(super) last_error: String,
    /// What the application says is wrong during the present run.
    pub(super) trouble: Option<String>,
    /// What it costs during the present run, where the application says so.
    pub(in crate::node) load: Option<LoadAverage>,
    /// It was told that its work does not stop.
    pub(super) overdue: bool,
    /// The move of this shard that this node was last part of, and how often in a row one was called off.
    pub(super) moving: Option<u64>,
    pub(super) aborted: u32,
    /// No move is begun before this.
    pub(super) move_not_before: Time,
    /// A seal that was sent: what it said, should it have to be sent again.
    pub(super) sealed: Option<(u64, String)>,
    /// A move that the application could not write out its state for: it is called off, not tried again.
    pub(super) unsealable: Option<u64>,
    /// The rev for which an observer has already said what it would do.
    pub(super) would: u64,
}

/// An event that can change the phase of a shard.
#[derive(Clone, Debug)]
pub(super) enum PhaseEvent {
    /// The node begins to load a shard that it owns.
    Load {
        activation: ActivationId,
        epoch: Epoch,
    },
    /// The node begins to load a shard that moves to it.
    Warm {
        activation: ActivationId,
        mv: u64,
        limit: Time,
    },
    /// The application has loaded.
    Loaded(ActivationId),
    /// The application could not load. Nothing of the activation runs any more.
    LoadFailed(ActivationId),
    /// The shard is sealed: the application catches up.
    CatchUp {
        limit: Time,
    },
    CaughtUp(ActivationId),
    /// The record names this node as the owner at the end of a move.
    Promote(Epoch),
    /// The gate is closed for a move.
    Freeze {
        mv: u64,
        limit: Time,
    },
    /// The gate is opened again, because the move was aborted.
    Thaw,
    /// Nothing is in flight behind the closed gate.
    Drained {
        activation: ActivationId,
        mv: u64,
        limit: Time,
    },
    /// Work is to stop.
    Close {
        how: Close,
        drain_until: Time,
        cancel_until: Time,
        then: AfterClose,
        reason: Reason,
    },
    /// Nothing of the activation runs any more.
    Stopped(ActivationId),
    /// The next load waits.
    Wait {
        until: Time,
    },
    /// A write was sent after which this epoch is never served again.
    GivenUp,
}

impl Phase {
    /// Table of the phases: returns the phase after an event, or `None` if the event does not fit the phase.
    pub(super) fn next(&self, event: PhaseEvent, now: Time, rules: Rules) -> Option<Self> {
        let idle = matches!(self, Self::Idle | Self::RetryDelay { .. });
        let may_begin =
            idle || matches!(self, Self::Closing { .. }) && rules.broken_by(Mutant::ClaimWhileBusy);
        let current = |of: ActivationId| self.activation() == Some(of);
        Some(match (self, event) {
            (_, PhaseEvent::Load { activation, epoch }) if may_begin => Self::Loading {
                activation,
                epoch,
                since: now,
            },
            (
                _,
                PhaseEvent::Warm {
                    activation,
                    mv,
                    limit,
                },
            ) if may_begin => Self::Taking {
                activation,
                mv,
                step: Readiness::Loading,
                limit,
            },
            (&Self::Loading { epoch, .. }, PhaseEvent::Loaded(activation))
                if current(activation) =>
            {
                Self::Serving {
                    activation,
                    epoch,
                    since: now,
                }
            }
            (Self::Loading { .. } | Self::Taking { .. }, PhaseEvent::LoadFailed(activation))
            | (
                Self::Closing { .. },
                PhaseEvent::LoadFailed(activation) | PhaseEvent::Stopped(activation),
            ) if current(activation) => Self::Idle,
            (
                &Self::Taking {
                    activation,
                    mv,
                    step,
                    limit,
                },
                event,
            ) if !matches!(event, PhaseEvent::Close { .. } | PhaseEvent::GivenUp) => {
                return next_taking(activation, mv, step, limit, event, now);
            }
            (
                &Self::Serving {
                    activation, epoch, ..
                },
                PhaseEvent::Freeze { mv, limit },
            ) => Self::Frozen {
                activation,
                epoch,
                mv,
                limit,
            },
            (
                &Self::Frozen {
                    activation, epoch, ..
                },
                PhaseEvent::Thaw,
            ) => Self::Serving {
                activation,
                epoch,
                since: now,
            },
            (
                &Self::Frozen { epoch, mv, .. },
                PhaseEvent::Drained {
                    activation,
                    mv: drained,
                    limit,
                },
            ) if current(activation) && mv == drained => Self::Sealing {
                activation,
                epoch,
                mv,
                limit,
            },
            (
                phase,
                PhaseEvent::Close {
                    how,
                    drain_until,
                    cancel_until,
                    then,
                    reason,
                },
            ) => {
                let (how, reason) = phase.close_with(how, reason)?;
                Self::Closing {
                    activation: phase.activation()?,
                    epoch: phase.epoch(),
                    how,
                    cut_at: match how {
                        Close::Drain => drain_until,
                        Close::Cancel => cancel_until,
                    },
                    then,
                    reason,
                }
            }
            (Self::Idle | Self::RetryDelay { .. }, PhaseEvent::Wait { until }) => {
                Self::RetryDelay { until }
            }
            (Self::Serving { .. }, PhaseEvent::GivenUp) => return None,
            (_, PhaseEvent::GivenUp) => Self::Idle,
            _ => return None,
        })
    }

    /// Returns how work is stopped in this phase, and why; `None` if nothing runs or it is stopped already.
    fn close_with(&self, how: Close, reason: Reason) -> Option<(Close, Reason)> {
        match self {
            Self::Serving { .. } => Some((how, reason)),
            // The gate is closed, or was never open: no request waits for its end.
            Self::Loading { .. }
            | Self::Frozen { .. }
            | Self::Sealing { .. }
            | Self::Taking { .. } => Some((Close::Cancel, reason)),
            // A drain becomes a cancellation. The first reason remains.
            Self::Closing {
                how: Close::Drain,
                reason: first,
                ..
            } if how == Close::Cancel => Some((how, *first)),
            Self::Closing { .. } | Self::Idle | Self::RetryDelay { .. } => None,
        }
    }

    /// Returns the activation in this phase.
    pub(super) fn activation(&self) -> Option<ActivationId> {
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

    /// Returns the epoch in this phase; zero if another node owns the shard.
    fn epoch(&self) -> Epoch {
        match self {
            Self::Idle | Self::RetryDelay { .. } | Self::Taking { .. } => Epoch(0),
            Self::Loading { epoch, .. }
            | Self::Serving { epoch, .. }
            | Self::Closing { epoch, .. }
            | Self::Frozen { epoch, .. }
            | Self::Sealing { epoch, .. } => *epoch,
        }
    }
}

/// The rows of the table for a shard that moves to this node.
fn next_taking(
    activation: ActivationId,
    mv: u64,
    step: Readiness,
    limit: Time,
    event: PhaseEvent,
    now: Time,
) -> Option<Phase> {
    let (step, limit) = match (step, event) {
        (Readiness::Loading, PhaseEvent::Loaded(of)) if of == activation => {
            (Readiness::Loaded, limit)
        }
        (_, PhaseEvent::CatchUp { limit }) => (Readiness::CatchingUp, limit),
        (Readiness::CatchingUp, PhaseEvent::CaughtUp(of)) if of == activation => {
            (Readiness::Ready, limit)
        }
        (_, PhaseEvent::Promote(epoch)) => {
            return Some(Phase::Serving {
                activation,
                epoch,
                since: now,
            });
        }
        _ => return None,
    };
    Some(Phase::Taking {
        activation,
        mv,
        step,
        limit,
    })
}

impl ShardSlot {
    pub(super) fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Applies an event to the phase; returns `false` if the event does not fit.
    pub(super) fn advance(&mut self, event: PhaseEvent, cx: &Ctx) -> bool {
        let next = self.phase.next(event, cx.now, cx.config.rules);
        let fits = next.is_some();
        if let Some(next) = next {
            self.phase = next;
        }
        fits
    }

    /// Returns for how long the shard has been serving; `None` if it does not serve.
    pub(super) fn served_for(&self, now: Time) -> Option<Duration> {
        match self.phase {
            Phase::Serving { since, .. } => Some(now.since(since)),
            _ => None,
        }
    }

    pub(in crate::node) fn is_settling(&self) -> bool {
        let claims_again = matches!(self.phase, Phase::Idle) && self.not_before > Time::ZERO;
        matches!(self.phase, Phase::Loading { .. })
            || matches!(self.writing, Some(Writing::Claim))
            || (claims_again && self.served == Epoch(0) && self.attempts == 0)
    }

    /// Nothing will be heard any more of what was being written.
    pub(in crate::node) fn forget_writing(&mut self) {
        self.writing = None;
    }

    /// The shard is here anew, and not because a move of it was called off: what became of earlier moves is no reason to
    /// put off the next.
    pub(super) fn came_back(&mut self) {
        (self.moving, self.aborted, self.move_not_before) = (None, 0, Time::ZERO);
    }

    /// For [`Node::essence`]: forgets since when it serves, if that was before `old`, and what of the count of moves that were
    /// called off makes no difference to the wait for the next.
    pub(in crate::node) fn forget(&mut self, old: Time, timing: &Timing) {
        while let Some(less) = self.aborted.checked_sub(1)
            && timing.move_retry(less) == timing.move_retry(self.aborted)
        {
            self.aborted = less;
        }
        if let Phase::Serving { since, .. } = &mut self.phase
            && *since <= old
        {
            *since = Time::ZERO;
        }
    }

    /// Whether nothing of it runs here, is being written, or is waited for.
    pub(super) fn is_idle(&self, now: Time) -> bool {
        matches!(self.phase, Phase::Idle) && self.writing.is_none() && now >= self.not_before
    }

    /// Whether this is the run that it is in.
    pub(in crate::node) fn is_activation(&self, wanted: ActivationId) -> bool {
        self.phase.activation() == Some(wanted)
    }

    pub(in crate::node) fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Serving { .. })
    }

    pub(in crate::node) fn is_claiming(&self) -> bool {
        matches!(self.writing, Some(Writing::Claim))
    }

    pub(super) fn is_cut(&self) -> bool {
        matches!(
            self.phase,
            Phase::Closing {
                how: Close::Cancel,
                ..
            }
        )
    }

    /// Whether nothing of this shard runs, or is being written, here.
    pub(in crate::node) fn is_quiet(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::RetryDelay { .. }) && self.writing.is_none()
    }
}
