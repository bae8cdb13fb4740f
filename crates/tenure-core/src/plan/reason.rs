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
    Free, "free", "nobody has it";
    /// The owner's session has ended.
    OwnerAway, "owner_away", "its owner's session has ended";
    /// The owner is draining.
    NodeDraining, "node_draining", "its owner is draining";
    /// The owner is stopping.
    NodeLeaving, "node_leaving", "its owner is stopping";
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
    Balance, "balance", "its owner has more than its share of shards";
    /// The owner has more load than its share, another less.
    LoadBalance, "load_balance", "its owner has more than its share of load";
    /// The policy wants it elsewhere.
    PolicyChoice, "policy_choice", "the policy wants it there";
    /// The target's session has ended.
    TargetAway, "target_away", "the target's session has ended";
    /// The target is draining or stopping.
    TargetDraining, "target_draining", "the target is draining or stopping";
    /// The target may not have it any more.
    TargetUnfit, "target_unfit", "the target lacks a required label";
    /// All is well.
    Settled, "settled", "it is where it should be";
    /// It is on its way.
    UnderWay, "under_way", "it is already on its way";
    /// The target of a sealed move is gone, and only the last owner can take it back.
    AwaitsOwner, "awaits_owner", "the target is gone and the last owner takes it back";
    /// The owner has not been away for long, and may return.
    OwnerMayReturn, "owner_may_return", "its owner has not been away for long";
    /// It was moved not long ago.
    CoolDown, "cool_down", "it was moved not long ago";
    /// Nodes come and go; what is not urgent waits.
    Debounce, "debounce", "the nodes have changed not long ago";
    /// Another node is being drained, which comes first.
    DrainFirst, "drain_first", "a node is being drained, which comes first";
    /// The node that would get it has come back not long ago.
    Probation, "probation", "the only nodes below their share have come back not long ago";
    /// The imbalance is small.
    WithinBand, "within_band", "the imbalance is within the band";
    /// As many moves as allowed are under way.
    BudgetTotal, "budget_total", "as many moves as allowed are under way";
    /// As many moves as allowed are leaving this node.
    BudgetSource, "budget_source", "as many moves as allowed are leaving its owner";
    /// As many moves as allowed are going to that node.
    BudgetTarget, "budget_target", "as many moves as allowed are going to the target";
    /// No node may take shards.
    NoNode, "no_node", "no node takes shards";
    /// All nodes that may take shards are full.
    NoRoom, "no_room", "all nodes that take shards are at capacity";
    /// It is pinned to a node that is not known.
    PinUnknown, "pin_unknown", "it is pinned to a node that is not known";
    /// It is pinned to a node that cannot take it now.
    PinWaits, "pin_waits", "it is pinned to a node that cannot take it now";
    /// What the policy said made no sense.
    PolicyRefused, "policy_refused", "the policy's answer was refused";
}

impl PlanReason {
    /// The reason that the shard's record carries.
    pub fn reason(self) -> Reason {
        match self {
            Self::Free => Reason::Free,
            Self::OwnerAway => Reason::OwnerEnded,
            Self::NodeDraining => Reason::NodeDraining,
            Self::NodeLeaving => Reason::NodeStopping,
            Self::Balance | Self::LoadBalance | Self::ZoneSpread | Self::ZonePreference => {
                Reason::Rebalance
            }
            Self::TargetAway | Self::TargetDraining | Self::TargetUnfit => Reason::TargetGone,
            _ => Reason::Planned,
        }
    }
}

impl fmt::Display for PlanReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}
