//! How a leader plans for a keyspace: what its record says, and the usual for the rest.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Unknown, millis};
use crate::plan::{Budgets, Measure, PlanSettings, PolicyKind, ZoneRule};

/// The planner's settings as a keyspace's record has them: only what differs from the usual.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanningSettings {
    /// How shards are given to nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyKind>,
    /// What is evened out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measure: Option<Measure>,
    /// How long the set of nodes must be unchanged before shards are moved for balance.
    #[serde(
        rename = "debounce_ms",
        with = "millis::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub debounce: Option<Duration>,
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
    pub band_load_permille: Option<u32>,
    /// What every shard counts for besides its load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_floor: Option<u32>,
    /// Over which time reported load is smoothed.
    #[serde(
        rename = "load_window_ms",
        with = "millis::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub load_window: Option<Duration>,
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
            measure: self.measure.unwrap_or(usual.measure),
            debounce: self.debounce.unwrap_or(usual.debounce),
            rejoin_after: self.rejoin_after.unwrap_or(usual.rejoin_after),
            band_shards: self.band_shards.unwrap_or(usual.band_shards),
            band_load_permille: self.band_load_permille.unwrap_or(usual.band_load_permille),
            cool_down: self.cool_down.unwrap_or(usual.cool_down),
            budgets: self.budgets.unwrap_or(usual.budgets),
            zones: self.zones.clone().unwrap_or(usual.zones),
            load_floor: self.load_floor.unwrap_or(usual.load_floor),
            load_window: self.load_window.unwrap_or(usual.load_window),
            failover_after: self.failover_after.unwrap_or(usual.failover_after),
            required_labels: self.required_labels.clone(),
        }
    }
}
