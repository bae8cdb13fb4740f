//! A shard: who owns it, at which epoch, and the move that it may be in.

use serde::{Deserialize, Serialize};

use super::{Head, Unknown};
use crate::ids::{Epoch, NodeName, SessionId};
use crate::reason::Reason;

/// How many past changes of owner a record remembers.
pub const HISTORY_LEN: usize = 5;

/// An incarnation of a node. Identity is the session; the name is there for people and for taking back what was one's own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// The node's stable name.
    pub node: NodeName,
    /// Which incarnation of it.
    pub session: SessionId,
}

/// How far a move has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MovePhase {
    /// The target loads while the owner serves.
    Warming,
    /// Routers hold new requests; the owner finishes requests in flight.
    Freezing,
    /// The owner has stopped and said where its state ends.
    Sealed,
}

/// A planned change of owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Move {
    /// Distinguishes this move from every other one of the shard.
    pub id: u64,
    /// The incarnation that is to own the shard. Another incarnation of the same node is another target.
    pub to: Owner,
    /// Why the shard moves.
    pub reason: Reason,
    /// True if the plan has further moves to the same node that its budgets do not allow yet.
    #[serde(default, skip_serializing_if = "is_default")]
    pub more: bool,
}

/// Who has the shard. A state holds what is true in it, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ownership {
    /// Nobody.
    Free {
        /// Incarnations that were live when this record had to be made anew and have not yet said that they do not own
        /// the shard. Nobody claims it before the list is empty.
        awaiting_disclaimers: Vec<SessionId>,
    },
    /// One owner.
    Owned {
        /// Who.
        by: Owner,
        /// Whether it has loaded the shard's state and admits work.
        serving: bool,
    },
    /// One owner, serving; another loads.
    Warming {
        /// Who owns it.
        by: Owner,
        /// The move.
        mv: Move,
    },
    /// One owner that is about to stop.
    Freezing {
        /// Who owns it.
        by: Owner,
        /// The move.
        mv: Move,
    },
    /// The last owner has stopped; the target takes over from `seal`.
    Sealed {
        /// Who owned it.
        by: Owner,
        /// The move.
        mv: Move,
        /// The position, opaque to Tenure, up to which the last owner wrote.
        seal: String,
    },
    /// A named shard that was deleted. The record stays so that its epoch is not forgotten.
    Deleted,
}

impl Ownership {
    /// Free, with nobody to wait for.
    pub const FREE: Self = Self::Free {
        awaiting_disclaimers: Vec::new(),
    };

    /// Who owns the shard (or, when it is sealed, owned it last).
    pub fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Free { .. } | Self::Deleted => None,
            Self::Owned { by, .. }
            | Self::Warming { by, .. }
            | Self::Freezing { by, .. }
            | Self::Sealed { by, .. } => Some(by),
        }
    }

    /// The move that the shard is in, and how far it has come.
    pub fn moving(&self) -> Option<(&Move, MovePhase)> {
        match self {
            Self::Warming { mv, .. } => Some((mv, MovePhase::Warming)),
            Self::Freezing { mv, .. } => Some((mv, MovePhase::Freezing)),
            Self::Sealed { mv, .. } => Some((mv, MovePhase::Sealed)),
            _ => None,
        }
    }

    /// The state's name, as `status` shows it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Free {
                awaiting_disclaimers,
            } if awaiting_disclaimers.is_empty() => "free",
            Self::Free { .. } => "restored",
            Self::Owned { serving: false, .. } => "loading",
            Self::Owned { serving: true, .. } => "serving",
            Self::Warming { .. } => "warming",
            Self::Freezing { .. } => "freezing",
            Self::Sealed { .. } => "sealed",
            Self::Deleted => "deleted",
        }
    }
}

/// Which plan last spoke about the shard.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct PlanId {
    /// The leader's term.
    pub term: u64,
    /// The plan within it.
    pub seq: u64,
}

/// A past change of owner. The record carries the last few, so that history cannot be lost between two writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OwnerChange {
    /// The epoch after the change.
    pub epoch: Epoch,
    /// Who had it before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<NodeName>,
    /// Who had it after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<NodeName>,
    /// Why it changed.
    pub reason: Reason,
    /// The session that wrote it.
    pub by: SessionId,
}

/// A node that could not load the shard, and what it said.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LoadFailure {
    /// The node.
    pub node: NodeName,
    /// Which incarnation of it: another one may try again.
    pub session: SessionId,
    /// Its error.
    pub error: String,
}

/// A shard that no node may claim until an operator repairs it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Quarantine {
    /// Why.
    pub reason: String,
}

/// A shard's record: one key, one small machine (see [`crate::ownership`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub struct ShardRecord {
    /// Format, rev and nonce.
    pub head: Head,
    /// The fencing token.
    pub epoch: Epoch,
    /// Who has it.
    pub ownership: Ownership,
    /// Who should have it. Advice: only the tenancy is law.
    pub assigned: Option<NodeName>,
    /// The plan that said so.
    pub plan: PlanId,
    /// Where an operator wants it always to be.
    pub pin: Option<NodeName>,
    /// Where an operator wants it to go once. The plan that begins the move takes it away.
    pub move_request: Option<NodeName>,
    /// An operator wants it to be deleted: its owner stops and seals, and nobody claims it any more.
    pub deleting: bool,
    /// What it cost its last owner, where that said so. A present owner's word is in its session.
    pub cost: Option<u32>,
    /// Nodes that could not load it.
    pub failures: Vec<LoadFailure>,
    /// It has been served since the last of them: the next failure begins a new count.
    pub served_since: bool,
    /// Set when too many nodes could not load it.
    pub quarantine: Option<Quarantine>,
    /// What the owner's application says is wrong although it serves. Gone with the owner.
    pub trouble: Option<String>,
    /// What the creator of a named shard attached to it.
    pub meta: Option<String>,
    /// The last few changes of owner, oldest first.
    pub history: Vec<OwnerChange>,
    /// Fields of later versions.
    pub unknown: Unknown,
}

impl ShardRecord {
    /// A shard that nobody has owned yet.
    pub fn new(head: Head, generation: u32) -> Self {
        Self {
            head,
            epoch: Epoch::first(generation),
            ownership: Ownership::FREE,
            assigned: None,
            plan: PlanId::default(),
            pin: None,
            move_request: None,
            deleting: false,
            cost: None,
            failures: Vec::new(),
            served_since: false,
            quarantine: None,
            trouble: None,
            meta: None,
            history: Vec::new(),
            unknown: Unknown::new(),
        }
    }

    /// Who owns the shard.
    pub fn owner(&self) -> Option<&Owner> {
        self.ownership.owner()
    }

    /// Whether this incarnation could not load the shard.
    pub fn was_failed_by(&self, session: SessionId) -> bool {
        self.failures.iter().any(|f| f.session == session)
    }

    /// Whether it says that its owner serves it, and nothing of a move.
    pub fn says_served(&self) -> bool {
        matches!(self.ownership, Ownership::Owned { serving: true, .. })
    }

    /// Whether this incarnation owns the shard.
    pub fn is_owned_by(&self, session: SessionId) -> bool {
        self.owner().is_some_and(|owner| owner.session == session)
    }
}

/// The record as it is written: flat, with the names that a person expects.
#[derive(Clone, Serialize, Deserialize)]
struct Wire {
    #[serde(flatten)]
    head: Head,
    epoch: Epoch,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<Owner>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    serving: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    assigned: Option<NodeName>,
    #[serde(default, rename = "move", skip_serializing_if = "Option::is_none")]
    mv: Option<WireMove>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    awaiting_disclaimers: Vec<SessionId>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    deleted: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    plan: PlanId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pin: Option<NodeName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    move_request: Option<NodeName>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    deleting: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cost: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    failures: Vec<LoadFailure>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    served_since: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    quarantine: Option<Quarantine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    meta: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    history: Vec<OwnerChange>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Clone, Serialize, Deserialize)]
struct WireMove {
    id: u64,
    to: Owner,
    phase: MovePhase,
    reason: Reason,
    #[serde(default, skip_serializing_if = "is_default")]
    more: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seal: Option<String>,
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl From<ShardRecord> for Wire {
    fn from(r: ShardRecord) -> Self {
        let owner = r.ownership.owner().cloned();
        let serving = match &r.ownership {
            Ownership::Owned { serving, .. } => *serving,
            Ownership::Warming { .. } | Ownership::Freezing { .. } => true,
            _ => false,
        };
        let mv = r.ownership.moving().map(|(mv, phase)| WireMove {
            id: mv.id,
            to: mv.to.clone(),
            phase,
            reason: mv.reason,
            more: mv.more,
            seal: match &r.ownership {
                Ownership::Sealed { seal, .. } => Some(seal.clone()),
                _ => None,
            },
        });
        let deleted = r.ownership == Ownership::Deleted;
        let awaiting_disclaimers = match r.ownership {
            Ownership::Free {
                awaiting_disclaimers,
            } => awaiting_disclaimers,
            _ => Vec::new(),
        };
        Self {
            head: r.head,
            epoch: r.epoch,
            owner,
            serving,
            assigned: r.assigned,
            mv,
            awaiting_disclaimers,
            deleted,
            plan: r.plan,
            pin: r.pin,
            move_request: r.move_request,
            deleting: r.deleting,
            cost: r.cost,
            failures: r.failures,
            served_since: r.served_since,
            quarantine: r.quarantine,
            trouble: r.trouble,
            meta: r.meta,
            history: r.history,
            unknown: r.unknown,
        }
    }
}

impl TryFrom<Wire> for ShardRecord {
    type Error = &'static str;

    /// Refuses every combination of fields that no transition makes.
    fn try_from(w: Wire) -> Result<Self, &'static str> {
        if w.deleted && (w.owner.is_some() || w.mv.is_some()) {
            return Err("a deleted shard has an owner or a move");
        }
        if !w.awaiting_disclaimers.is_empty() && w.owner.is_some() {
            return Err("awaiting_disclaimers is set, but the shard has an owner");
        }
        let tenancy = match (w.owner, w.mv) {
            (None, None) if w.deleted => Ownership::Deleted,
            (None, None) if w.serving => return Err("serving is true, but the shard has no owner"),
            (None, None) => Ownership::Free {
                awaiting_disclaimers: w.awaiting_disclaimers,
            },
            (None, Some(_)) => return Err("the shard has a move, but no owner"),
            (Some(by), None) => Ownership::Owned {
                by,
                serving: w.serving,
            },
            (
                Some(by),
                Some(WireMove {
                    id,
                    to,
                    phase,
                    reason,
                    more,
                    seal,
                }),
            ) => {
                let mv = Move {
                    id,
                    to,
                    reason,
                    more,
                };
                match (phase, w.serving, seal) {
                    (MovePhase::Warming, true, None) => Ownership::Warming { by, mv },
                    (MovePhase::Freezing, true, None) => Ownership::Freezing { by, mv },
                    (MovePhase::Sealed, false, Some(seal)) => Ownership::Sealed { by, mv, seal },
                    _ => {
                        return Err(
                            "a warming or freezing move needs serving = true and no seal; a sealed move needs \
                        serving = false and a seal",
                        );
                    }
                }
            }
        };
        Ok(Self {
            head: w.head,
            epoch: w.epoch,
            ownership: tenancy,
            assigned: w.assigned,
            plan: w.plan,
            pin: w.pin,
            move_request: w.move_request,
            deleting: w.deleting,
            cost: w.cost,
            failures: w.failures,
            served_since: w.served_since,
            quarantine: w.quarantine,
            trouble: w.trouble,
            meta: w.meta,
            history: w.history,
            unknown: w.unknown,
        })
    }
}
