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
//! Only [`Phase::next`] creates a phase. An event that does not fit the phase, such as the late end of an earlier activation, changes
//! nothing.

use std::time::Duration;

use crate::ids::{Epoch, NodeName};
use crate::machine::{ActivationId, Close};
use crate::node::context::Ctx;
use crate::plan::LoadAverage;
use crate::reason::Reason;
use crate::rules::{Mutant, Rules};
use crate::settings::Timing;
use crate::time::Time;

/// Next step of a shard after its work at this node has stopped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum AfterClose {
    /// Evaluate the record again.
    Reevaluate,
    /// Release the epoch and assign the shard to `to`.
    Release {
        to: Option<NodeName>,
        reason: Reason,
    },
    /// Load the shard again after a delay.
    RetryLater,
    /// Give up the epoch without a seal, so that the target has no position to continue from. Another node loads the shard without
    /// preloaded state.
    GiveUp,
    /// Write the position where the state ends, for the target of this move.
    Seal { mv: u64, seal: String },
}

/// Progress of the target of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Readiness {
    Loading,
    Loaded,
    CatchingUp,
    Ready,
}

/// Phase of a shard at this node.
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
    /// The gate is frozen for this move; requests in flight finish.
    Frozen {
        activation: ActivationId,
        epoch: Epoch,
        mv: u64,
        limit: Time,
    },
    /// Nothing is in flight; the application writes the state that must outlive the activation.
    Sealing {
        activation: ActivationId,
        epoch: Epoch,
        mv: u64,
        limit: Time,
    },
    /// Another node owns the shard, and the shard moves to this node.
    Taking {
        activation: ActivationId,
        mv: u64,
        step: Readiness,
        limit: Time,
    },
}

/// Kind of a write to the shard's record that is in progress.
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

/// Local state of one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::node) struct ShardSlot {
    phase: Phase,
    pub(super) writing: Option<Writing>,
    /// Highest epoch ever seen in the shard's record.
    pub(in crate::node) highest: Epoch,
    /// Highest epoch that is never served again, because the node has sent a write that ends it.
    pub(super) given_up: Epoch,
    /// Last epoch that this node served.
    pub(super) served: Epoch,
    pub(super) not_before: Time,
    /// Number of consecutive failures of a load or of the handler's loop.
    pub(in crate::node) attempts: u32,
    pub(super) last_error: String,
    /// Trouble that the application reports during the current activation.
    pub(super) trouble: Option<String>,
    /// Cost that the application reports during the current activation, if any.
    pub(in crate::node) load: Option<LoadAverage>,
    /// `true` once this node has reported that cancelled work does not stop.
    pub(super) overdue: bool,
    /// Move of this shard that this node last took part in.
    pub(super) moving: Option<u64>,
    /// Number of consecutive aborted moves of this shard.
    pub(super) aborted: u32,
    /// Earliest time of the next move.
    pub(super) move_not_before: Time,
    /// Move and position of a seal that was sent, in case the write must be repeated.
    pub(super) sealed: Option<(u64, String)>,
    /// Move whose state the application could not seal. The node aborts this move instead of retrying it.
    pub(super) unsealable: Option<u64>,
    /// Record revision for which a node in shadow mode has already reported its decision.
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
    /// The application has loaded the shard.
    Loaded(ActivationId),
    /// The application could not load the shard. Nothing of the activation runs any more.
    LoadFailed(ActivationId),
    /// The shard is sealed: the application catches up.
    CatchUp {
        limit: Time,
    },
    CaughtUp(ActivationId),
    /// The record names this node as the owner at the end of a move.
    Promote(Epoch),
    /// The gate is frozen for a move.
    Freeze {
        mv: u64,
        limit: Time,
    },
    /// The gate is thawed, because the move was aborted.
    Thaw,
    /// Nothing is in flight behind the frozen gate.
    Drained {
        activation: ActivationId,
        mv: u64,
        limit: Time,
    },
    /// Work must end, by a drain or at once.
    Close {
        how: Close,
        drain_until: Time,
        cancel_until: Time,
        then: AfterClose,
        reason: Reason,
    },
    /// Nothing of the activation runs any more.
    Stopped(ActivationId),
    /// The next load is delayed.
    Wait {
        until: Time,
    },
    /// The node sent a write after which it never serves this epoch again.
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
            // The gate is closed or frozen, or was never open: no request waits for its end.
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

/// Returns the phase after an event for a shard that moves to this node: the rows of the table for [`Phase::Taking`].
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

    /// Returns the time for which the shard has been serving; `None` if it does not serve.
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

    /// Forgets the write in progress: no reply to it will be evaluated.
    pub(in crate::node) fn forget_writing(&mut self) {
        self.writing = None;
    }

    /// Resets the history of moves, after a load or a take that does not follow from an aborted move. Earlier moves are no reason to delay
    /// the next one.
    pub(super) fn came_back(&mut self) {
        (self.moving, self.aborted, self.move_not_before) = (None, 0, Time::ZERO);
    }

    /// Removes differences without consequence, for [`Node::essence`](crate::node::Node::essence).
    ///
    /// The first is the start of serving, if it is not after `old`. The second is the part of the count of aborted moves that does not
    /// change the next wait.
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

    /// Returns `true` if the shard has no activation here, no write in progress and no wait.
    pub(super) fn is_idle(&self, now: Time) -> bool {
        matches!(self.phase, Phase::Idle) && self.writing.is_none() && now >= self.not_before
    }

    /// Returns `true` if the shard is in this activation.
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

    /// Returns `true` if the shard has no activation here and no write in progress.
    pub(in crate::node) fn is_quiet(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::RetryDelay { .. }) && self.writing.is_none()
    }
}
