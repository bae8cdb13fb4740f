//! What the planner is told to do: given as data, checked once, as a whole.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::settings::SettingProblem;

/// How shards are given to nodes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// The fewest moves that give every node its share.
    #[default]
    Sticky,
    /// Weighted rendezvous: every node draws a number for every shard, the best has it.
    Rendezvous,
    /// Jump consistent hash over the nodes in the order of their names. Knows no weights.
    Jump,
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sticky => "sticky",
            Self::Rendezvous => "rendezvous",
            Self::Jump => "jump",
        })
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "sticky" => Ok(Self::Sticky),
            "rendezvous" => Ok(Self::Rendezvous),
            "jump" => Ok(Self::Jump),
            other => Err(format!(
                "unknown policy {other:?}; use sticky, rendezvous or jump"
            )),
        }
    }
}

/// What the sticky policy evens out.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum BalanceBy {
    /// The number of shards: within one of each node's share.
    #[default]
    Shards,
    /// The cost that shards report.
    Cost,
}

/// How zones matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZoneRule {
    /// Not at all.
    #[default]
    Any,
    /// No zone has more than so many percent of the shards, so that losing one loses no more. If the zones that are left
    /// cannot hold everything that way, the limit gives way to serving.
    Spread {
        /// The percentage.
        most_percent: u32,
    },
    /// Shards are in the first of these zones that has room; in others only if none has.
    Prefer {
        /// The zones, best first.
        zones: Vec<String>,
    },
}

impl ZoneRule {
    /// What is wrong with the rule by itself.
    fn problem(&self) -> Option<&'static str> {
        match self {
            Self::Spread { most_percent } if *most_percent == 0 || *most_percent > 100 => {
                Some("the zone limit must be between 1 and 100 percent")
            }
            Self::Prefer { zones } if zones.is_empty() => {
                Some("a zone preference needs at least one zone; use any for none")
            }
            Self::Prefer { zones } if zones.len() > 200 => {
                Some("more than 200 zones are preferred; name at most 200")
            }
            Self::Prefer { zones } => {
                let twice = |(i, zone): (usize, &String)| zones[..i].contains(zone);
                let twice = zones.iter().enumerate().any(twice);
                twice.then_some("a preferred zone is named twice; name each once")
            }
            Self::Any | Self::Spread { .. } => None,
        }
    }
}

/// How many moves may be under way at the same time. Shards without a live owner are not moves and do not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Budgets {
    /// In all.
    pub total: u32,
    /// Away from one node.
    pub per_source: u32,
    /// Towards one node.
    pub per_target: u32,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            total: 64,
            per_source: 16,
            per_target: 16,
        }
    }
}

impl Budgets {
    /// As many as there are.
    pub const UNLIMITED: Self = Self {
        total: u32::MAX,
        per_source: u32::MAX,
        per_target: u32::MAX,
    };
}

/// The settings of the planner for one keyspace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanSettings {
    /// How shards are given to nodes.
    pub policy: PolicyKind,
    /// What the sticky policy evens out.
    pub balance_by: BalanceBy,
    /// How long the set of nodes must be unchanged before shards are moved for balance.
    pub settle_time: Duration,
    /// How long a node that has come back must stay before it is filled for balance. Doubles with each further absence.
    pub rejoin_after: Duration,
    /// How long after its owner's session has ended a shard goes elsewhere.
    pub failover_after: Duration,
    /// How many shards a node may be off its share before balance begins.
    pub band_shards: u32,
    /// How far, in thousandths, a node's load may be off its share before balance begins.
    pub band_cost_permille: u32,
    /// What every shard counts for besides its load, in the same unit. Loads far below it are as good as none.
    pub cost_floor: u32,
    /// Over which time the load that applications report is smoothed.
    pub cost_window: Duration,
    /// How long a shard stays after a move before it is moved for balance again.
    pub cool_down: Duration,
    /// How many moves may be under way.
    pub budgets: Budgets,
    /// How zones matter.
    pub zones: ZoneRule,
    /// What a node must say of itself to have shards of this keyspace.
    pub required_labels: BTreeMap<String, String>,
}

impl Default for PlanSettings {
    fn default() -> Self {
        Self {
            policy: PolicyKind::Sticky,
            balance_by: BalanceBy::Shards,
            settle_time: Duration::from_secs(2),
            rejoin_after: Duration::from_secs(30),
            failover_after: Duration::ZERO,
            band_shards: 0,
            band_cost_permille: 200,
            cost_floor: 10,
            cost_window: Duration::from_secs(30),
            cool_down: Duration::from_secs(60),
            budgets: Budgets::default(),
            zones: ZoneRule::Any,
            required_labels: BTreeMap::new(),
        }
    }
}

/// Checked settings. Only [`PlanSettings::check`] makes them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanRules(PlanSettings);

impl std::ops::Deref for PlanRules {
    type Target = PlanSettings;

    fn deref(&self) -> &PlanSettings {
        &self.0
    }
}

impl PlanRules {
    /// The same but for a change that keeps what was checked.
    pub(crate) fn with(&self, change: impl FnOnce(&mut PlanSettings)) -> Self {
        let mut settings = self.0.clone();
        change(&mut settings);
        Self(settings)
    }

    /// The same without anything that spreads changes over time: for asking what it will come to in the end.
    #[must_use]
    pub fn at_once(&self) -> Self {
        Self(PlanSettings {
            settle_time: Duration::ZERO,
            rejoin_after: Duration::ZERO,
            failover_after: Duration::ZERO,
            cool_down: Duration::ZERO,
            budgets: Budgets::UNLIMITED,
            ..self.0.clone()
        })
    }
}

impl PlanSettings {
    /// Checks all settings; reports every problem at once.
    pub fn check(self) -> Result<PlanRules, Vec<SettingProblem>> {
        let mut problems = Vec::new();
        let mut say = |wrong: bool, setting: &'static str, problem: &str| {
            if wrong {
                let problem = problem.to_owned();
                problems.push(SettingProblem { setting, problem });
            }
        };
        let budgets = self.budgets;
        for (setting, budget) in [
            ("budget_total", budgets.total),
            ("budget_per_source", budgets.per_source),
            ("budget_per_target", budgets.per_target),
        ] {
            say(
                budget == 0,
                setting,
                "0 would block all moves, even those from a draining node; use at least 1",
            );
        }
        say(
            self.band_cost_permille == 0 || self.band_cost_permille > 1000,
            "band_cost_permille",
            "must be between 1 and 1000; 200 tolerates a cost difference of 20 %",
        );
        say(
            self.cost_floor == 0,
            "cost_floor",
            "must be at least 1, or shards without cost would be ignored",
        );
        say(
            self.balance_by == BalanceBy::Cost && self.policy != PolicyKind::Sticky,
            "balance_by",
            "only the sticky policy balances cost; use policy sticky or balance_by = shards",
        );
        if let Some(problem) = self.zones.problem() {
            say(true, "zones", problem);
        }
        say(
            self.zones != ZoneRule::Any && self.policy != PolicyKind::Sticky,
            "zones",
            "only the sticky policy supports zones; use policy sticky or zones any",
        );
        if problems.is_empty() {
            Ok(PlanRules(self))
        } else {
            Err(problems)
        }
    }
}
