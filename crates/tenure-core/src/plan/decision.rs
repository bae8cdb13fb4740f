//! What the planner says: decisions, each with its reason, and how things stand before and after.

use std::fmt;

use super::input::{NodeIx, PlanView, ShardIx};
use super::reason::PlanReason;
use super::validate_policy::InvalidPlacement;
use crate::ids::{NodeName, ShardId};
use crate::time::Time;

/// What is to happen to one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Nobody live owns it: this node should claim it.
    Intend {
        /// The shard.
        shard: ShardIx,
        /// Who should have it.
        to: NodeIx,
        /// Why it is without an owner.
        reason: PlanReason,
    },
    /// Its owner should hand it over.
    Move {
        /// The shard.
        shard: ShardIx,
        /// Who has it.
        from: NodeIx,
        /// Who should have it.
        to: NodeIx,
        /// Why.
        reason: PlanReason,
    },
    /// It should stay with its owner after all: the move or intention is withdrawn.
    Cancel {
        /// The shard.
        shard: ShardIx,
        /// Why.
        reason: PlanReason,
    },
    /// It would go elsewhere, or be put right, but not now. Shards that are simply where they should be, or on their way
    /// there, get no entry: a million of them would drown the rest. [`Plan::reason`] answers for them, too.
    Stay {
        /// The shard.
        shard: ShardIx,
        /// Why not.
        reason: PlanReason,
    },
}

impl Decision {
    /// The shard that it is about.
    pub fn shard(&self) -> ShardIx {
        match *self {
            Self::Intend { shard, .. }
            | Self::Move { shard, .. }
            | Self::Cancel { shard, .. }
            | Self::Stay { shard, .. } => shard,
        }
    }

    /// Its reason.
    pub fn reason(&self) -> PlanReason {
        match *self {
            Self::Intend { reason, .. }
            | Self::Move { reason, .. }
            | Self::Cancel { reason, .. }
            | Self::Stay { reason, .. } => reason,
        }
    }

    /// Whether anything is to be written.
    pub fn acts(&self) -> bool {
        !matches!(self, Self::Stay { .. })
    }
}

/// How evenly things are spread over the nodes that take shards. What is under way counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Balance {
    /// How many nodes take shards.
    pub nodes: u32,
    /// The most shards that one of them has.
    pub most: u32,
    /// The fewest.
    pub least: u32,
    /// Shards of the node that has the most for its weight, over its share, in thousandths.
    pub shards_permille: u32,
    /// The same for load.
    pub load_permille: u32,
    /// Shards that no node has or is to have.
    pub homeless: u32,
}

/// Moves that would be made for balance, and are put off together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeferredMoves {
    /// Why.
    pub reason: PlanReason,
    /// How many shards, at the least.
    pub shards: u32,
}

/// Something that the planner had to work around and that somebody should put right.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PlanProblem {
    /// A node of weight zero.
    ZeroWeight(NodeName),
    /// The zones that there are cannot hold everything within the limit.
    ZoneLimitGivesWay {
        /// The limit as set, in percent.
        asked_percent: u32,
        /// The most shards that a zone may have instead.
        most: u32,
    },
    /// No node takes shards.
    NoNode,
    /// The nodes together cannot hold all shards.
    NoRoom {
        /// For how many there is no room.
        shards: u32,
    },
    /// Shards are pinned to nodes that are not known.
    PinUnknown {
        /// One of them.
        first: ShardId,
        /// How many there are.
        shards: usize,
    },
    /// The policy's answer made no sense.
    PolicyRefused(InvalidPlacement),
}

impl fmt::Display for PlanProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroWeight(node) => write!(
                f,
                "node {node} has weight 0 and is assigned no shards; give it a weight of at least 1, or drain it"
            ),
            Self::ZoneLimitGivesWay {
                asked_percent,
                most,
            } => write!(
                f,
                "too few zones for the zone limit of {asked_percent} %, so up to {most} shards per zone are allowed; \
                 add zones or raise the limit"
            ),
            Self::NoNode => f.write_str(
                "no node accepts shards; resume or start a node that has the required labels and a weight above 0",
            ),
            Self::NoRoom { shards } => write!(
                f,
                "{shards} shards exceed the capacity of the nodes; raise capacities or add nodes"
            ),
            Self::PinUnknown { first, shards: 1 } => write!(
                f,
                "shard {first} is pinned to an unknown node; start that node, or run `tenure shard unpin {first}`"
            ),
            Self::PinUnknown { first, shards } => write!(
                f,
                "{shards} shards, among them {first}, are pinned to unknown nodes; start those nodes, or run `tenure shard \
                 unpin` for the shards"
            ),
            Self::PolicyRefused(nonsense) => {
                write!(f, "the policy's plan was rejected and the previous plan stays in effect: {nonsense}")
            }
        }
    }
}

/// What is to be done, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The decisions: cancellations, then shards without an owner, then moves in the order of their urgency, then stays.
    pub decisions: Vec<Decision>,
    /// How many moves there would be without budgets.
    pub moves_wanted: u32,
    /// How many of them the budgets allow now.
    pub moves_allowed: u32,
    /// The nodes to which the budgets allow a part of the wanted moves only, in order.
    pub more_to: Vec<NodeIx>,
    /// How things stand.
    pub before: Balance,
    /// How they will stand when all decisions have been carried out.
    pub after: Balance,
    /// What is put off for the sake of calm.
    pub put_off: Option<DeferredMoves>,
    /// When to look again although nothing has changed.
    pub look_again: Option<Time>,
    /// What somebody should put right.
    pub problems: Vec<PlanProblem>,
}

impl Plan {
    /// Whether there is nothing to write.
    pub fn is_quiet(&self) -> bool {
        !self.decisions.iter().any(Decision::acts)
    }

    /// Why a shard is treated as it is. Also answers for those that no decision is about.
    pub fn reason(&self, view: &PlanView, shard: ShardIx) -> PlanReason {
        if let Some(d) = self.decisions.iter().find(|d| d.shard() == shard) {
            return d.reason();
        }
        let state = view.shard(shard);
        if state.owner == state.bound_for() {
            PlanReason::Settled
        } else {
            PlanReason::UnderWay
        }
    }

    /// The decisions that change something.
    pub fn actions(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.iter().filter(|d| d.acts())
    }
}
