//! How a leader plans for a keyspace: what its record says, and the usual for the rest.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Unknown, millis};
use crate::plan::{BalanceBy, Budgets, PlanSettings, PolicyKind, ZoneRule};

/// The planner's settings as a keyspace's record has them: only what differs from the usual.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanningSettings {
    /// How shards are given to nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyKind>,
    /// What is evened out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance_by: Option<BalanceBy>,
    /// How long the set of nodes must be unchanged before shards are moved for balance.
    #[serde(
        rename = "settle_time_ms",
        with = "millis::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub settle_time: Option<Duration>,
    /// How long a node that has come back must stay before it is filled for balance.
    #[serde(
        rename = "rejoin_after_ms",
        with = "millis::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub rejoin_after: Option<Duration>,
    /// How many shards a node may be off its share before balance begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub band_shards: Option<u32>,
    /// How far, in thousandths, a node's load may be off its share before balance begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub band_cost_permille: Option<u32>,
    /// What every shard counts for besides its load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_floor: Option<u32>,
    /// Over which time reported load is smoothed.
    #[serde(
        rename = "cost_window_ms",
        with = "millis::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub cost_window: Option<Duration>,
    /// How long after its owner's session has ended a shard goes elsewhere.
    #[serde(
        rename = "failover_after_ms",
        with = "millis::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub failover_after: Option<Duration>,
    /// How long a shard stays after a move before it is moved for balance again.
    #[serde(
        rename = "cool_down_ms",
        with = "millis::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub cool_down: Option<Duration>,
    /// How many moves may be under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budgets: Option<Budgets>,
    /// How zones matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zones: Option<ZoneRule>,
    /// What a node must say of itself to have shards of this keyspace.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub required_labels: BTreeMap<String, String>,
    /// Settings of later versions.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl PlanningSettings {
    /// All settings, not yet checked.
    pub fn settings(&self) -> PlanSettings {
        let usual = PlanSettings::default();
        PlanSettings {
            policy: self.policy.unwrap_or(usual.policy),
            balance_by: self.balance_by.unwrap_or(usual.balance_by),
            settle_time: self.settle_time.unwrap_or(usual.settle_time),
            rejoin_after: self.rejoin_after.unwrap_or(usual.rejoin_after),
            band_shards: self.band_shards.unwrap_or(usual.band_shards),
            band_cost_permille: self.band_cost_permille.unwrap_or(usual.band_cost_permille),
            cool_down: self.cool_down.unwrap_or(usual.cool_down),
            budgets: self.budgets.unwrap_or(usual.budgets),
            zones: self.zones.clone().unwrap_or(usual.zones),
            cost_floor: self.cost_floor.unwrap_or(usual.cost_floor),
            cost_window: self.cost_window.unwrap_or(usual.cost_window),
            failover_after: self.failover_after.unwrap_or(usual.failover_after),
            required_labels: self.required_labels.clone(),
        }
    }
}
