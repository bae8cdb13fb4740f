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
use crate::record::{
    Failure, HISTORY_LEN, Head, Move, Owner, Past, PlanMark, Quarantine, ShardRecord, Tenancy,
};
use crate::rules::{Mutant, Rules};
use crate::why::Why;

/// How many different nodes may fail to load a shard before nobody may claim it.
pub const QUARANTINE_AFTER: usize = 3;

/// How many bytes of what an application says of its trouble a record keeps.
pub const TROUBLE_LEN: usize = 200;

/// What somebody wants to do to a shard's record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Own it: because it is free, because its owner's session has ended, or anew under a raised generation.
    Claim,
    /// Say that it is loaded and admits work. By the owner.
    Serve,
    /// Begin a move. By the planner, or by the owner that sheds.
    Plan {
        /// Distinguishes the move.
        id: u64,
        /// The target incarnation.
        to: Owner,
        /// The plan that says so.
        plan: PlanMark,
        /// Why.
        why: Why,
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
    Reaffirm {
        /// The writer has watched this phase for longer than its limit.
        too_old: bool,
    },
    /// Take it from an owner whose session has ended, for nobody in particular.
    Free,
    /// Give it up. By the owner, with its gate closed and nothing in flight.
    Release {
        /// Who should have it next.
        to: Option<NodeName>,
        /// Why.
        why: Why,
    },
    /// Say what is wrong with it although it is served, or that all is well again. By the owner.
    Tell {
        /// What the application says; cut to [`TROUBLE_LEN`].
        said: Option<String>,
    },
    /// Give it up because it could not be loaded. By the owner.
    Fail {
        /// What the application said.
        error: String,
    },
    /// Say who should have it. By the planner.
    Intend {
        /// Who.
        node: Option<NodeName>,
        /// The plan that says so.
        plan: PlanMark,
    },
    /// Say where it should always be. By an operator.
    Pin {
        /// Where; nothing: anywhere.
        node: Option<NodeName>,
    },
    /// Say where it should go once. By an operator; taken back by the planner if that cannot be.
    Wish {
        /// Where; nothing: nowhere in particular.
        node: Option<NodeName>,
    },
    /// Say that it is to be deleted, once its owner has stopped. By an operator, of a named shard.
    Doom,
    /// Say that this incarnation does not own a restored shard. By itself, or by anyone once its session has ended.
    Deny {
        /// The incarnation.
        session: SessionId,
    },
    /// Let nodes claim a quarantined shard again. By an operator.
    Lift,
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
pub enum Refused {
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
    Witnesses,
    /// No node may claim it until it is repaired.
    Quarantined,
    /// A newer plan has spoken.
    StalePlan,
}

/// What the writer knows beside the record. `ended` must be stable: once true, true for ever.
pub struct Facts<'a> {
    /// Whether a session is proven to be over.
    pub ended: &'a dyn Fn(SessionId) -> bool,
    /// The highest epoch of this shard that the writer has ever seen: a record that was lost and came back may know less.
    pub highest: Epoch,
    /// The keyspace's floor: a new owner's epoch is of this generation at least.
    pub floor: u32,
    /// What the shard costs, as far as the writer knows: goes along when its owner changes.
    pub load: Option<u32>,
    /// The rules to follow.
    pub rules: Rules,
}

/// Who writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Writer {
    /// The incarnation.
    pub owner: Owner,
    /// Marks the write.
    pub nonce: Nonce,
}

/// The record that `change` by `writer` makes of `record`.
pub fn apply(
    record: &ShardRecord,
    writer: &Writer,
    change: Change,
    facts: &Facts<'_>,
) -> Result<ShardRecord, Refused> {
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
    match (&record.tenancy, change) {
        (_, Change::Claim) if record.quarantine.is_some() => Err(Refused::Quarantined),
        (tenancy, Change::Claim) if record.doomed && !tenancy.owner().is_some_and(is_me) => {
            Err(Refused::Illegal)
        }
        (Tenancy::Free { witnesses }, Change::Claim) if !witnesses.is_empty() => {
            Err(Refused::Witnesses)
        }
        (Tenancy::Free { .. }, Change::Claim) => Ok(edit.give_to_me(new, false, Why::Free)),
        (Tenancy::Deleted, Change::Claim) => Err(Refused::Illegal),
        (tenancy, Change::Claim) => match tenancy.owner() {
            Some(by) if is_me(by) && record.epoch.generation() < facts.floor => {
                Ok(edit.give_to_me(new, false, Why::GenerationRaised))
            }
            Some(by) if ended(by) => Ok(edit.give_to_me(new, false, Why::OwnerEnded)),
            _ => Err(Refused::OwnerLive),
        },

        (Tenancy::Held { by, serving: false }, Change::Serve) => {
            if !is_me(by) {
                return Err(Refused::NotYours);
            }
            new.tenancy = Tenancy::Held {
                by: by.clone(),
                serving: true,
            };
            new.served_since = !new.failures.is_empty();
            Ok(new)
        }

        (
            Tenancy::Held { by, serving: true },
            Change::Plan {
                id,
                to,
                plan,
                why,
                more,
            },
        ) => {
            if plan < record.plan && !facts.rules.broken_by(Mutant::LowerTermAccepted) {
                return Err(Refused::StalePlan);
            }
            if to.session == by.session {
                return Err(Refused::Illegal);
            }
            if (facts.ended)(to.session) {
                return Err(Refused::TargetEnded);
            }
            new.plan = plan;
            new.wish = None;
            new.intended = Some(to.node.clone());
            new.tenancy = Tenancy::Warming {
                by: by.clone(),
                mv: Move { id, to, why, more },
            };
            Ok(new)
        }
        (Tenancy::Warming { by, mv }, Change::Warmed) => {
            if !is_me(&mv.to) {
                return Err(Refused::NotYours);
            }
            new.tenancy = Tenancy::Freezing {
                by: by.clone(),
                mv: mv.clone(),
            };
            Ok(new)
        }
        (Tenancy::Freezing { by, mv }, Change::Seal { seal }) => {
            if !is_me(by) {
                return Err(Refused::NotYours);
            }
            new.load = facts.load.or(new.load);
            new.tenancy = Tenancy::Sealed {
                by: by.clone(),
                mv: mv.clone(),
                seal,
            };
            Ok(new)
        }
        (Tenancy::Sealed { mv, .. }, Change::Take { serving }) => {
            if !is_me(&mv.to) {
                return Err(Refused::NotYours);
            }
            new.served_since |= serving && !new.failures.is_empty();
            Ok(edit.give_to_me(new, serving, Why::Taken))
        }
        (Tenancy::Warming { by, mv } | Tenancy::Freezing { by, mv }, Change::Cancel { failed }) => {
            if let Some(error) = failed {
                if !is_me(&mv.to) {
                    return Err(Refused::NotYours);
                }
                edit.remember_failure(&mut new, brief(error));
            }
            new.intended = Some(by.node.clone());
            new.tenancy = Tenancy::Held {
                by: by.clone(),
                serving: true,
            };
            Ok(new)
        }
        (Tenancy::Sealed { by, mv, .. }, Change::Reaffirm { too_old }) => {
            if !is_me(by) {
                return Err(Refused::NotYours);
            }
            if !too_old && !(facts.ended)(mv.to.session) {
                return Err(Refused::TargetLive);
            }
            Ok(edit.give_to_me(new, false, Why::TargetGone))
        }

        (Tenancy::Free { .. } | Tenancy::Deleted, Change::Free) => Err(Refused::Illegal),
        (tenancy, Change::Free) => match tenancy.owner() {
            Some(by) if ended(by) => Ok(edit.give_to_nobody(new, Why::Unclaimed)),
            _ => Err(Refused::OwnerLive),
        },
        (Tenancy::Held { by, .. }, Change::Release { to, why }) => {
            if !is_me(by) {
                return Err(Refused::NotYours);
            }
            new.intended = to;
            let mut new = edit.give_to_nobody(new, why);
            if record.doomed {
                new.bury();
            }
            Ok(new)
        }
        (Tenancy::Held { by, .. }, Change::Tell { said }) => {
            if !is_me(by) {
                return Err(Refused::NotYours);
            }
            new.trouble = said.map(brief);
            Ok(new)
        }
        (Tenancy::Held { by, .. }, Change::Fail { error }) => {
            if !is_me(by) {
                return Err(Refused::NotYours);
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
            new.intended = None;
            Ok(edit.give_to_nobody(new, Why::LoadFailed))
        }

        (Tenancy::Free { witnesses }, Change::Deny { session }) => {
            if session != me.session && !(facts.ended)(session) {
                return Err(Refused::NotYours);
            }
            if !witnesses.contains(&session) {
                return Err(Refused::Illegal);
            }
            new.tenancy = Tenancy::Free {
                witnesses: witnesses
                    .iter()
                    .copied()
                    .filter(|w| *w != session)
                    .collect(),
            };
            Ok(new)
        }
        (Tenancy::Deleted, Change::Intend { .. }) => Err(Refused::Illegal),
        (_, Change::Intend { node, plan }) => {
            if plan < record.plan && !facts.rules.broken_by(Mutant::LowerTermAccepted) {
                return Err(Refused::StalePlan);
            }
            new.plan = plan;
            if node.is_some() && new.wish == node {
                new.wish = None;
            }
            new.intended = node;
            Ok(new)
        }
        (Tenancy::Deleted, Change::Pin { .. }) => Err(Refused::Illegal),
        (_, Change::Pin { node }) => {
            new.pin = node;
            Ok(new)
        }
        (Tenancy::Deleted, Change::Wish { .. } | Change::Doom) => Err(Refused::Illegal),
        (_, Change::Wish { node }) => {
            new.wish = node;
            Ok(new)
        }
        (_, Change::Doom) => {
            new.doomed = true;
            new.wish = None;
            Ok(new)
        }
        (_, Change::Lift) => {
            if record.quarantine.is_none() {
                return Err(Refused::Illegal);
            }
            new.quarantine = None;
            new.served_since = false;
            new.failures.clear();
            Ok(new)
        }
        (Tenancy::Free { witnesses }, Change::Delete) if !witnesses.is_empty() => {
            Err(Refused::Witnesses)
        }
        (Tenancy::Deleted, Change::Delete) => Err(Refused::Illegal),
        (tenancy, Change::Delete) => {
            if tenancy.owner().is_some_and(|by| !ended(by)) {
                return Err(Refused::OwnerLive);
            }
            if tenancy.owner().is_some() {
                new = edit.give_to_nobody(new, Why::Deleted);
            }
            new.bury();
            Ok(new)
        }
        (Tenancy::Deleted, Change::Recreate { meta }) => {
            new.tenancy = Tenancy::FREE;
            new.intended = None;
            new.quarantine = None;
            new.failures.clear();
            new.served_since = false;
            new.meta = meta;
            (new.pin, new.wish, new.load) = (None, None, None);
            Ok(new)
        }
        _ => Err(Refused::Illegal),
    }
}

impl ShardRecord {
    /// Makes it the tombstone of a shard that nobody has any more: of what it was, the epoch and the history stay.
    fn bury(&mut self) {
        self.tenancy = Tenancy::Deleted;
        (self.doomed, self.served_since) = (false, false);
        (self.intended, self.pin, self.wish) = (None, None, None);
        (self.quarantine, self.meta, self.load) = (None, None, None);
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
    witnesses: Vec<SessionId>,
    rules: Rules,
) -> ShardRecord {
    let mut record = ShardRecord::new(head, generation);
    if !rules.broken_by(Mutant::RestoreWithoutWitnesses) {
        record.tenancy = Tenancy::Free { witnesses };
    }
    record
}

struct Edit<'a> {
    record: &'a ShardRecord,
    writer: &'a Writer,
    facts: &'a Facts<'a>,
}

impl Edit<'_> {
    fn give_to_me(&self, mut new: ShardRecord, serving: bool, why: Why) -> ShardRecord {
        if !self.facts.rules.broken_by(Mutant::EpochKept) || self.record.epoch.count() == 0 {
            new.epoch = self
                .record
                .epoch
                .max(self.facts.highest)
                .next(self.facts.floor);
        }
        new.tenancy = Tenancy::Held {
            by: self.writer.owner.clone(),
            serving,
        };
        new.trouble = None;
        new.load = self.facts.load.or(new.load);
        self.remember(&mut new, Some(self.writer.owner.node.clone()), why);
        new
    }

    fn remember_failure(&self, new: &mut ShardRecord, error: String) {
        let me = &self.writer.owner;
        if std::mem::take(&mut new.served_since) {
            new.failures.clear();
        }
        new.failures.retain(|f| f.node != me.node);
        new.failures.push(Failure {
            node: me.node.clone(),
            session: me.session,
            error,
        });
    }

    fn give_to_nobody(&self, mut new: ShardRecord, why: Why) -> ShardRecord {
        new.tenancy = Tenancy::FREE;
        new.trouble = None;
        new.load = self.facts.load.or(new.load);
        self.remember(&mut new, None, why);
        new
    }

    fn remember(&self, new: &mut ShardRecord, to: Option<NodeName>, why: Why) {
        let from = self.record.owner().map(|by| by.node.clone());
        new.history.push(Past {
            epoch: new.epoch,
            from,
            to,
            why,
            by: self.writer.owner.session,
        });
        let surplus = new.history.len().saturating_sub(HISTORY_LEN);
        new.history.drain(..surplus);
    }
}

#[cfg(test)]
mod tests;
