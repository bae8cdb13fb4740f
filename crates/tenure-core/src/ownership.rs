//! The shard-record machine: every transition that a shard's record can make, as one table.
//!
//! ```text
//!          claim            plan              warmed            sealed              take
//!  free ─────────► held ─────────► warming ─────────► freezing ─────────► sealed ─────────► held (epoch+1)
//!   ▲   (node)      │   (planner)     │   (target)       │    (owner)        │    (target)
//!   └── release ────┘                 └───── cancel ─────┘                   └── reaffirm: owner back, epoch+1
//!       (owner)
//!  any state whose owner's session has ended ──► claim (epoch+1), or free
//! ```
//!
//! Each transition is one compare-and-swap by the participant whose fact it is. [`apply`] says what the new record is, or
//! why there is none; the version that the decision was made on guards the write. Nothing here knows of time, views or
//! messages, which is why one table serves nodes, the simulator, the model checker and the trace validator.

use crate::ids::{Epoch, NodeName, Nonce, SessionId};
use crate::reason::Reason;
use crate::record::{
    HISTORY_LEN, Head, LoadFailure, Move, Owner, OwnerChange, Ownership, PlanId, Quarantine,
    ShardRecord,
};
use crate::rules::{Mutant, Rules};

/// How many different nodes may fail to load a shard before nobody may claim it.
pub const QUARANTINE_AFTER: usize = 3;

/// How many bytes of what an application says of its trouble a record keeps.
pub const TROUBLE_LEN: usize = 200;

/// What somebody wants to do to a shard's record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Transition {
    /// Own it: because it is free, because its owner's session has ended, or anew under a raised generation.
    Claim,
    /// Say that it is loaded and admits work. By the owner.
    Serve,
    /// Begin a move. By the planner, or by the owner that sheds.
    BeginMove {
        /// Distinguishes the move.
        id: u64,
        /// The target incarnation.
        to: Owner,
        /// The plan that says so.
        plan: PlanId,
        /// Why.
        reason: Reason,
        /// True if the plan has further moves to the same node that its budgets do not allow yet.
        more: bool,
    },
    /// Say that the target has loaded. By the target.
    Warmed,
    /// Say that the owner has stopped, and where. By the owner.
    Seal {
        /// Opaque position for the successor.
        seal: String,
    },
    /// Own it at the end of a move. By the target.
    Take {
        /// Whether it has loaded the shard, up to the seal, and admits work at once.
        serving: bool,
    },
    /// Call a move off before it is sealed. By planner, owner or target.
    Cancel {
        /// What the target's application said, if it could not load the shard.
        failed: Option<String>,
    },
    /// Own it again after sealing. By the old owner.
    Reclaim {
        /// The writer has watched this phase for longer than its limit.
        too_old: bool,
    },
    /// Take it from an owner whose session has ended, for nobody in particular.
    ReleaseDeadOwner,
    /// Give it up. By the owner, with its gate closed and nothing in flight.
    Release {
        /// Who should have it next.
        to: Option<NodeName>,
        /// Why.
        reason: Reason,
    },
    /// Say what is wrong with it although it is served, or that all is well again. By the owner.
    ReportTrouble {
        /// What the application says; cut to [`TROUBLE_LEN`].
        said: Option<String>,
    },
    /// Give it up because it could not be loaded. By the owner.
    Fail {
        /// What the application said.
        error: String,
    },
    /// Say who should have it. By the planner.
    Assign {
        /// Who.
        node: Option<NodeName>,
        /// The plan that says so.
        plan: PlanId,
    },
    /// Say where it should always be. By an operator.
    Pin {
        /// Where; nothing: anywhere.
        node: Option<NodeName>,
    },
    /// Say where it should go once. By an operator; taken back by the planner if that cannot be.
    RequestMove {
        /// Where; nothing: nowhere in particular.
        node: Option<NodeName>,
    },
    /// Say that it is to be deleted, once its owner has stopped. By an operator, of a named shard.
    MarkForDeletion,
    /// Say that this incarnation does not own a restored shard. By itself, or by anyone once its session has ended.
    DisclaimOwnership {
        /// The incarnation.
        session: SessionId,
    },
    /// Let nodes claim a quarantined shard again. By an operator.
    ClearQuarantine,
    /// Delete a named shard that nobody owns, or whose owner's session has ended.
    Delete,
    /// Create a named shard that was deleted.
    Recreate {
        /// What the creator attaches.
        meta: Option<String>,
    },
}

/// Why a change cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransitionError {
    /// The record's state has no such transition.
    Illegal,
    /// The owner's session may still be live.
    OwnerLive,
    /// The writer is not the one whose fact this is.
    NotYours,
    /// The target of the move is not live.
    TargetEnded,
    /// The target may still be live and the phase is not too old.
    TargetLive,
    /// Somebody who may own the shard has not yet denied it.
    AwaitingDisclaimers,
    /// No node may claim it until it is repaired.
    Quarantined,
    /// A newer plan was applied before.
    StalePlan,
}

impl std::fmt::Display for TransitionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Illegal => "its present state does not allow this change",
            Self::OwnerLive => "the session of its owner may still be live",
            Self::NotYours => "another node owns it",
            Self::TargetEnded => "the session of the target has ended",
            Self::TargetLive => "the session of the target may still be live",
            Self::AwaitingDisclaimers => {
                "nodes that may own it have not yet confirmed that they do not"
            }
            Self::Quarantined => "it is quarantined",
            Self::StalePlan => "a newer plan was applied before",
        })
    }
}

/// Context of an ownership transition: facts that the writer knows in addition to the record. `ended` must never change from true to false.
pub struct TransitionContext<'a> {
    /// Returns `true` if a session is proven to be over.
    pub ended: &'a dyn Fn(SessionId) -> bool,
    /// The highest epoch of this shard that the writer has ever seen: a record that was lost and came back may know less.
    pub highest_epoch: Epoch,
    /// The keyspace's floor: a new owner's epoch is of this generation at least.
    pub min_generation: u32,
    /// What the shard costs, as far as the writer knows: goes along when its owner changes.
    pub load: Option<u32>,
    /// The rules to follow.
    pub rules: Rules,
}

/// Identity of a write to a shard record: the writer and its nonce.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WriteIdentity {
    /// The incarnation.
    pub owner: Owner,
    /// Marks the write.
    pub nonce: Nonce,
}

/// Applies a transition by an operator and returns the new record.
///
/// An operator has no session, owns no shard and knows only the record. The writer in `nonce` takes the place of a session. `ended` must be stable, as in [`TransitionContext`].
pub fn apply_as_operator(
    record: &ShardRecord,
    change: Transition,
    nonce: Nonce,
    ended: &dyn Fn(SessionId) -> bool,
) -> Result<ShardRecord, TransitionError> {
    let writer = WriteIdentity {
        owner: Owner {
            node: NodeName::unchecked("operator"),
            session: nonce.writer,
        },
        nonce,
    };
    let facts = TransitionContext {
        ended,
        highest_epoch: record.epoch,
        min_generation: 0,
        load: None,
        rules: Rules::sound(),
    };
    apply(record, &writer, change, &facts)
}

/// The record that `change` by `writer` makes of `record`.
pub fn apply(
    record: &ShardRecord,
    writer: &WriteIdentity,
    change: Transition,
    facts: &TransitionContext<'_>,
) -> Result<ShardRecord, TransitionError> {
    let me = &writer.owner;
    let is_me = |by: &Owner| {
        by.session == me.session
            || (facts.rules.broken_by(Mutant::NameIsIdentity) && by.node == me.node)
    };
    let ended = |by: &Owner| {
        (facts.ended)(by.session)
            || facts.rules.broken_by(Mutant::TakeoverWithoutProof)
            || (facts.rules.broken_by(Mutant::NameIsIdentity)
                && by.node == me.node
                && by.session != me.session)
    };
    let mut new = record.clone();
    new.head = Head::next(&record.head, writer.nonce);
    let edit = Edit {
        record,
        writer,
        facts,
    };
    match (&record.ownership, change) {
        (_, Transition::Claim) if record.quarantine.is_some() => Err(TransitionError::Quarantined),
        (tenancy, Transition::Claim) if record.deleting && !tenancy.owner().is_some_and(is_me) => {
            Err(TransitionError::Illegal)
        }
        (
            Ownership::Free {
                awaiting_disclaimers,
            },
            Transition::Claim,
        ) if !awaiting_disclaimers.is_empty() => Err(TransitionError::AwaitingDisclaimers),
        (Ownership::Free { .. }, Transition::Claim) => {
            Ok(edit.give_to_me(new, false, Reason::Free))
        }
        (Ownership::Deleted, Transition::Claim) => Err(TransitionError::Illegal),
        (tenancy, Transition::Claim) => match tenancy.owner() {
            Some(by) if is_me(by) && record.epoch.generation() < facts.min_generation => {
                Ok(edit.give_to_me(new, false, Reason::GenerationRaised))
            }
            Some(by) if ended(by) => Ok(edit.give_to_me(new, false, Reason::OwnerEnded)),
            _ => Err(TransitionError::OwnerLive),
        },

        (Ownership::Owned { by, serving: false }, Transition::Serve) => {
            if !is_me(by) {
                return Err(TransitionError::NotYours);
            }
            new.ownership = Ownership::Owned {
                by: by.clone(),
                serving: true,
            };
            new.served_since = !new.failures.is_empty();
            Ok(new)
        }

        (
            Ownership::Owned { by, serving: true },
            Transition::BeginMove {
                id,
                to,
                plan,
                reason,
                more,
            },
        ) => {
            if plan < record.plan && !facts.rules.broken_by(Mutant::LowerTermAccepted) {
                return Err(TransitionError::StalePlan);
            }
            if to.session == by.session {
                return Err(TransitionError::Illegal);
            }
            if (facts.ended)(to.session) {
                return Err(TransitionError::TargetEnded);
            }
            new.plan = plan;
            new.move_request = None;
            new.assigned = Some(to.node.clone());
            new.ownership = Ownership::Warming {
                by: by.clone(),
                mv: Move {
                    id,
                    to,
                    reason,
                    more,
                },
            };
            Ok(new)
        }
        (Ownership::Warming { by, mv }, Transition::Warmed) => {
            if !is_me(&mv.to) {
                return Err(TransitionError::NotYours);
            }
            new.ownership = Ownership::Freezing {
                by: by.clone(),
                mv: mv.clone(),
            };
            Ok(new)
        }
        (Ownership::Freezing { by, mv }, Transition::Seal { seal }) => {
            if !is_me(by) {
                return Err(TransitionError::NotYours);
            }
            new.cost = facts.load.or(new.cost);
            new.ownership = Ownership::Sealed {
                by: by.clone(),
                mv: mv.clone(),
                seal,
            };
            Ok(new)
        }
        (Ownership::Sealed { mv, .. }, Transition::Take { serving }) => {
            if !is_me(&mv.to) {
                return Err(TransitionError::NotYours);
            }
            new.served_since |= serving && !new.failures.is_empty();
            Ok(edit.give_to_me(new, serving, Reason::Taken))
        }
        (
            Ownership::Warming { by, mv } | Ownership::Freezing { by, mv },
            Transition::Cancel { failed },
        ) => {
            if let Some(error) = failed {
                if !is_me(&mv.to) {
                    return Err(TransitionError::NotYours);
                }
                edit.remember_failure(&mut new, brief(error));
            }
            new.assigned = Some(by.node.clone());
            new.ownership = Ownership::Owned {
                by: by.clone(),
                serving: true,
            };
            Ok(new)
        }
        (Ownership::Sealed { by, mv, .. }, Transition::Reclaim { too_old }) => {
            if !is_me(by) {
                return Err(TransitionError::NotYours);
            }
            if !too_old && !(facts.ended)(mv.to.session) {
                return Err(TransitionError::TargetLive);
            }
            Ok(edit.give_to_me(new, false, Reason::TargetGone))
        }

        (Ownership::Free { .. } | Ownership::Deleted, Transition::ReleaseDeadOwner) => {
            Err(TransitionError::Illegal)
        }
        (tenancy, Transition::ReleaseDeadOwner) => match tenancy.owner() {
            Some(by) if ended(by) => Ok(edit.give_to_nobody(new, Reason::DeadOwnerReleased)),
            _ => Err(TransitionError::OwnerLive),
        },
        (Ownership::Owned { by, .. }, Transition::Release { to, reason }) => {
            if !is_me(by) {
                return Err(TransitionError::NotYours);
            }
            new.assigned = to;
            let mut new = edit.give_to_nobody(new, reason);
            if record.deleting {
                new.make_tombstone();
            }
            Ok(new)
        }
        (Ownership::Owned { by, .. }, Transition::ReportTrouble { said }) => {
            if !is_me(by) {
                return Err(TransitionError::NotYours);
            }
            new.trouble = said.map(brief);
            Ok(new)
        }
        (Ownership::Owned { by, .. }, Transition::Fail { error }) => {
            if !is_me(by) {
                return Err(TransitionError::NotYours);
            }
            edit.remember_failure(&mut new, error);
            if new.failures.len() >= QUARANTINE_AFTER {
                let nodes: Vec<_> = new
                    .failures
                    .iter()
                    .map(|f| format!("{}: {}", f.node, f.error))
                    .collect();
                new.quarantine = Some(Quarantine {
                    reason: format!("could not be loaded by {}", nodes.join("; ")),
                });
            }
            new.assigned = None;
            Ok(edit.give_to_nobody(new, Reason::LoadFailed))
        }

        (
            Ownership::Free {
                awaiting_disclaimers,
            },
            Transition::DisclaimOwnership { session },
        ) => {
            if session != me.session && !(facts.ended)(session) {
                return Err(TransitionError::NotYours);
            }
            if !awaiting_disclaimers.contains(&session) {
                return Err(TransitionError::Illegal);
            }
            new.ownership = Ownership::Free {
                awaiting_disclaimers: awaiting_disclaimers
                    .iter()
                    .copied()
                    .filter(|w| *w != session)
                    .collect(),
            };
            Ok(new)
        }
        (Ownership::Deleted, Transition::Assign { .. }) => Err(TransitionError::Illegal),
        (_, Transition::Assign { node, plan }) => {
            if plan < record.plan && !facts.rules.broken_by(Mutant::LowerTermAccepted) {
                return Err(TransitionError::StalePlan);
            }
            new.plan = plan;
            if node.is_some() && new.move_request == node {
                new.move_request = None;
            }
            new.assigned = node;
            Ok(new)
        }
        (Ownership::Deleted, Transition::Pin { .. }) => Err(TransitionError::Illegal),
        (_, Transition::Pin { node }) => {
            new.pin = node;
            Ok(new)
        }
        (Ownership::Deleted, Transition::RequestMove { .. } | Transition::MarkForDeletion) => {
            Err(TransitionError::Illegal)
        }
        (_, Transition::RequestMove { node }) => {
            new.move_request = node;
            Ok(new)
        }
        (_, Transition::MarkForDeletion) => {
            new.deleting = true;
            new.move_request = None;
            Ok(new)
        }
        (_, Transition::ClearQuarantine) => {
            if record.quarantine.is_none() {
                return Err(TransitionError::Illegal);
            }
            new.quarantine = None;
            new.served_since = false;
            new.failures.clear();
            Ok(new)
        }
        (
            Ownership::Free {
                awaiting_disclaimers,
            },
            Transition::Delete,
        ) if !awaiting_disclaimers.is_empty() => Err(TransitionError::AwaitingDisclaimers),
        (Ownership::Deleted, Transition::Delete) => Err(TransitionError::Illegal),
        (tenancy, Transition::Delete) => {
            if tenancy.owner().is_some_and(|by| !ended(by)) {
                return Err(TransitionError::OwnerLive);
            }
            if tenancy.owner().is_some() {
                new = edit.give_to_nobody(new, Reason::Deleted);
            }
            new.make_tombstone();
            Ok(new)
        }
        (Ownership::Deleted, Transition::Recreate { meta }) => {
            new.ownership = Ownership::FREE;
            new.assigned = None;
            new.quarantine = None;
            new.failures.clear();
            new.served_since = false;
            new.meta = meta;
            (new.pin, new.move_request, new.cost) = (None, None, None);
            Ok(new)
        }
        _ => Err(TransitionError::Illegal),
    }
}

impl ShardRecord {
    /// Makes it the tombstone of a shard that nobody has any more: of what it was, the epoch and the history stay.
    fn make_tombstone(&mut self) {
        self.ownership = Ownership::Deleted;
        (self.deleting, self.served_since) = (false, false);
        (self.assigned, self.pin, self.move_request) = (None, None, None);
        (self.quarantine, self.meta, self.cost) = (None, None, None);
        self.failures.clear();
    }
}

/// What a record keeps of such a text: its first [`TROUBLE_LEN`] bytes, in whole characters.
pub(crate) fn brief(mut said: String) -> String {
    said.truncate(said.floor_char_boundary(TROUBLE_LEN));
    said
}

/// A record for a shard whose record was lost: free, at an epoch of a generation that was raised for it, and not to be
/// claimed before each of `witnesses` has denied owning it or has ended.
pub fn restored(
    head: Head,
    generation: u32,
    awaiting_disclaimers: Vec<SessionId>,
    rules: Rules,
) -> ShardRecord {
    let mut record = ShardRecord::new(head, generation);
    if !rules.broken_by(Mutant::RestoreWithoutWitnesses) {
        record.ownership = Ownership::Free {
            awaiting_disclaimers,
        };
    }
    record
}

struct Edit<'a> {
    record: &'a ShardRecord,
    writer: &'a WriteIdentity,
    facts: &'a TransitionContext<'a>,
}

impl Edit<'_> {
    fn give_to_me(&self, mut new: ShardRecord, serving: bool, reason: Reason) -> ShardRecord {
        if !self.facts.rules.broken_by(Mutant::EpochKept) || self.record.epoch.count() == 0 {
            new.epoch = self
                .record
                .epoch
                .max(self.facts.highest_epoch)
                .next(self.facts.min_generation);
        }
        new.ownership = Ownership::Owned {
            by: self.writer.owner.clone(),
            serving,
        };
        new.trouble = None;
        new.cost = self.facts.load.or(new.cost);
        self.remember(&mut new, Some(self.writer.owner.node.clone()), reason);
        new
    }

    fn remember_failure(&self, new: &mut ShardRecord, error: String) {
        let me = &self.writer.owner;
        if std::mem::take(&mut new.served_since) {
            new.failures.clear();
        }
        new.failures.retain(|f| f.node != me.node);
        new.failures.push(LoadFailure {
            node: me.node.clone(),
            session: me.session,
            error,
        });
    }

    fn give_to_nobody(&self, mut new: ShardRecord, reason: Reason) -> ShardRecord {
        new.ownership = Ownership::FREE;
        new.trouble = None;
        new.cost = self.facts.load.or(new.cost);
        self.remember(&mut new, None, reason);
        new
    }

    fn remember(&self, new: &mut ShardRecord, to: Option<NodeName>, reason: Reason) {
        let from = self.record.owner().map(|by| by.node.clone());
        new.history.push(OwnerChange {
            epoch: new.epoch,
            from,
            to,
            reason,
            by: self.writer.owner.session,
        });
        let surplus = new.history.len().saturating_sub(HISTORY_LEN);
        new.history.drain(..surplus);
    }
}

#[cfg(test)]
mod tests;
