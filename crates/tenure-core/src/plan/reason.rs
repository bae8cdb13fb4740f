//! Why the planner decided as it did. Every decision has one of these, also each decision to leave a shard alone (P8).

use std::fmt;

use crate::reason::Reason;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident, $word:literal, $text:literal;)*) => {
        /// Why a shard is to be somewhere, or stays.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum PlanReason { $($(#[$doc])* $name,)* }

        impl PlanReason {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The reason as one word, for metrics and `--json`.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// The reason as half a sentence.
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// Nobody has it.
    Free, "free", "it has no owner";
    /// The owner's session has ended.
    OwnerEnded, "owner_ended", "its owner's session has ended";
    /// The owner is draining.
    NodeDraining, "node_draining", "its owner is draining";
    /// The owner is stopping.
    NodeStopping, "node_stopping", "its owner is stopping";
    /// The owner lacks a label that the keyspace requires.
    LabelsMissing, "labels_missing", "its owner lacks a required label";
    /// It is pinned.
    Pinned, "pinned", "it is pinned there";
    /// The owner has more than it can take.
    OverCapacity, "over_capacity", "its owner has more shards than its capacity";
    /// Its zone has more than its part.
    ZoneSpread, "zone_spread", "its zone has more shards than the keyspace allows";
    /// There is room in a zone that is preferred.
    ZonePreference, "zone_preference", "a preferred zone has room for it";
    /// The owner has more than its share, another less.
    Balance, "balance", "its owner is above its target number of shards";
    /// The owner has more load than its share, another less.
    CostBalance, "cost_balance", "its owner is above its target cost";
    /// The policy wants it elsewhere.
    PolicyChoice, "policy_choice", "the policy assigns it there";
    /// The target's session has ended.
    TargetEnded, "target_ended", "the target's session has ended";
    /// The target is draining or stopping.
    TargetDraining, "target_draining", "the target is draining or stopping";
    /// The target may not have it any more.
    TargetUnfit, "target_unfit", "the target lacks a required label";
    /// All is well.
    Settled, "settled", "it is assigned to its owner";
    /// It is on its way.
    UnderWay, "under_way", "it is already moving";
    /// The target of a sealed move is gone, and only the last owner can take it back.
    AwaitsOwner, "awaits_owner", "the target's session has ended and the last owner reclaims it";
    /// The owner has not been away for long, and may return.
    OwnerMayReturn, "owner_may_return", "its owner ended recently and may return";
    /// It was moved not long ago.
    CoolDown, "cool_down", "it was moved recently";
    /// Nodes come and go; what is not urgent waits.
    SettleTime, "settle_time", "the membership changed recently";
    /// Another node is being drained, which comes first.
    DrainFirst, "drain_first", "a node is being drained, which comes first";
    /// The node that would get it has come back not long ago.
    Probation, "probation", "the only nodes below their target returned recently";
    /// The imbalance is small.
    WithinBand, "within_band", "the imbalance is within the band";
    /// As many moves as allowed are under way.
    BudgetTotal, "budget_total", "the budget of concurrent moves is used up";
    /// As many moves as allowed are leaving this node.
    BudgetSource, "budget_source", "the move budget of its owner is used up";
    /// As many moves as allowed are going to that node.
    BudgetTarget, "budget_target", "the move budget of the target is used up";
    /// No node may take shards.
    NoNode, "no_node", "no node accepts shards";
    /// All nodes that may take shards are full.
    NoRoom, "no_room", "all nodes that accept shards are at capacity";
    /// It is pinned to a node that is not known.
    PinUnknown, "pin_unknown", "it is pinned to an unknown node";
    /// It is pinned to a node that cannot take it now.
    PinWaits, "pin_waits", "it is pinned to a node that cannot take it now";
    /// What the policy said made no sense.
    PolicyRejected, "policy_rejected", "the policy's plan was rejected";
}

impl PlanReason {
    /// The reason that the shard's record carries.
    pub fn reason(self) -> Reason {
        match self {
            Self::Free => Reason::Free,
            Self::OwnerEnded => Reason::OwnerEnded,
            Self::NodeDraining => Reason::NodeDraining,
            Self::NodeStopping => Reason::NodeStopping,
            Self::Balance | Self::CostBalance | Self::ZoneSpread | Self::ZonePreference => {
                Reason::Rebalance
            }
            Self::TargetEnded | Self::TargetDraining | Self::TargetUnfit => Reason::TargetGone,
            _ => Reason::Planned,
        }
    }
}

impl fmt::Display for PlanReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}
