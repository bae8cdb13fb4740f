//! How a leader plans for a keyspace, as settings: what is read into a [`PlanningSettings`], and the check of the whole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::KeyspaceName;
use tenure_core::node::weight_without_effect;
use tenure_core::plan::{BalanceBy, Budgets, ZoneRule};
use tenure_core::record::{AssignedBy, KeyspaceRecord, PlanningSettings};

use super::settings_table::{KNOBS, SettingDefinition, SettingKind};
use super::{Config, SettingValue, ValueSource, settings_table};
use crate::connect;
use crate::exit::Exit;

/// The usual value of a setting that is about planning.
pub(crate) fn default_text(name: &str) -> Option<&'static str> {
    Some(match name {
        "policy" => "sticky",
        "balance_by" => "shards",
        "planning_settle_time" => "2s",
        "rejoin_after" | "cost_window" => "30s",
        "failover_after" => "0ms",
        "cool_down" => "60s",
        "band_shards" => "0",
        "band_cost_permille" => "200",
        "cost_floor" => "10",
        "budget_total" => "64",
        "budget_per_source" | "budget_per_target" => "16",
        "zones" => "any",
        _ => return None,
    })
}

pub(super) fn policy(spec: &mut PlanningSettings, text: Option<&str>) -> Result<(), String> {
    spec.policy = text.map(str::parse).transpose()?;
    Ok(())
}

pub(super) fn measure(spec: &mut PlanningSettings, text: Option<&str>) -> Result<(), String> {
    spec.balance_by = match text {
        None => None,
        Some("shards") => Some(BalanceBy::Shards),
        Some("cost") => Some(BalanceBy::Cost),
        Some(other) => {
            return Err(format!(
                "unknown value {other:?} for balance_by; use shards or cost"
            ));
        }
    };
    Ok(())
}

pub(super) fn budget(
    spec: &mut PlanningSettings,
    value: Option<u32>,
    which: fn(&mut Budgets) -> &mut u32,
) {
    let mut budgets = spec.budgets.unwrap_or_default();
    *which(&mut budgets) = value.unwrap_or_else(|| *which(&mut Budgets::default()));
    spec.budgets = (budgets != Budgets::default()).then_some(budgets);
}

pub(super) fn zones(spec: &mut PlanningSettings, text: Option<&str>) -> Result<(), String> {
    let unknown = |text: &str| {
        format!("{text:?} is not a zone rule; write any, spread:PERCENT or prefer:ZONE,ZONE")
    };
    spec.zones = match text.map(|text| (text, text.split_once(':'))) {
        None | Some(("any", _)) => None,
        Some((text, Some(("spread", percent)))) => {
            let most_percent = percent.parse().map_err(|_| unknown(text))?;
            Some(ZoneRule::Spread { most_percent })
        }
        Some((_, Some(("prefer", zones)))) => {
            let zones = zones.split(',').map(str::trim).filter(|z| !z.is_empty());
            let zones = zones.map(str::to_owned).collect();
            Some(ZoneRule::Prefer { zones })
        }
        Some((text, _)) => return Err(unknown(text)),
    };
    Ok(())
}

pub(super) fn required_labels(
    spec: &mut PlanningSettings,
    text: Option<&str>,
) -> Result<(), String> {
    spec.required_labels = text.map(labels).transpose()?.unwrap_or_default();
    Ok(())
}

/// Reads `NAME=VALUE,NAME=VALUE`.
pub(crate) fn labels(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut all = BTreeMap::new();
    for part in text.split(',').map(str::trim) {
        match part.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => {
                if all.insert(name.to_owned(), value.to_owned()).is_some() {
                    return Err(format!("label {name:?} is given twice; give it once"));
                }
            }
            _ => {
                return Err(format!(
                    "{part:?} is not a label; write NAME=VALUE, several separated by commas"
                ));
            }
        }
    }
    Ok(all)
}

/// How a spec's settings are written, by their names, as far as they are not the usual.
pub(crate) fn shown(spec: &PlanningSettings) -> Vec<(&'static str, String)> {
    let time = |time: Option<std::time::Duration>| time.map(super::duration::show);
    let count = |count: Option<u32>| count.map(|n| n.to_string());
    let usual = Budgets::default();
    let budget = |which: fn(&Budgets) -> u32| {
        let given = spec.budgets.as_ref().map(which);
        count(given.filter(|n| *n != which(&usual)))
    };
    let labels = spec.required_labels.iter().map(|(k, v)| format!("{k}={v}"));
    let labels: Vec<String> = labels.collect();
    let all = [
        ("policy", spec.policy.map(|p| p.to_string())),
        (
            "balance_by",
            spec.balance_by.map(|m| match m {
                BalanceBy::Shards => "shards".to_owned(),
                BalanceBy::Cost => "cost".to_owned(),
            }),
        ),
        ("planning_settle_time", time(spec.settle_time)),
        ("rejoin_after", time(spec.rejoin_after)),
        ("failover_after", time(spec.failover_after)),
        ("cool_down", time(spec.cool_down)),
        ("band_shards", count(spec.band_shards)),
        ("band_cost_permille", count(spec.band_cost_permille)),
        ("cost_floor", count(spec.cost_floor)),
        ("cost_window", time(spec.cost_window)),
        ("budget_total", budget(|b| b.total)),
        ("budget_per_source", budget(|b| b.per_source)),
        ("budget_per_target", budget(|b| b.per_target)),
        ("zones", spec.zones.as_ref().map(zone_text)),
        (
            "required_labels",
            (!labels.is_empty()).then(|| labels.join(",")),
        ),
    ];
    let given = all.into_iter();
    given.filter_map(|(name, v)| Some((name, v?))).collect()
}

fn zone_text(rule: &ZoneRule) -> String {
    match rule {
        ZoneRule::Any => "any".to_owned(),
        ZoneRule::Spread { most_percent } => format!("spread:{most_percent}"),
        ZoneRule::Prefer { zones } => format!("prefer:{}", zones.join(",")),
    }
}

/// Makes a setting of the spec the usual again; `None` if there is none of that name.
pub(crate) fn unset(spec: &mut PlanningSettings, name: &str) -> Option<()> {
    let knob = settings_table::find(name).filter(|knob| knob.is_plan())?;
    match knob.kind {
        SettingKind::PlanTime(set) => set(spec, None),
        SettingKind::PlanCount(set) => set(spec, None),
        // Taking something back is never wrong.
        SettingKind::PlanText(set) => drop(set(spec, None)),
        _ => {}
    }
    Some(())
}

fn set(knob: &SettingDefinition, spec: &mut PlanningSettings, value: &SettingValue) {
    match (&knob.kind, value) {
        (SettingKind::PlanTime(set), SettingValue::Time(time)) => set(spec, Some(*time)),
        (SettingKind::PlanCount(set), SettingValue::Count(count)) => set(spec, Some(*count)),
        // It was checked when it was read.
        (SettingKind::PlanText(set), SettingValue::Text(text)) => drop(set(spec, Some(text))),
        _ => {}
    }
}

/// Bound for reading the record of a keyspace before a node is started.
const READ: Duration = Duration::from_secs(5);

/// Reads the record of a keyspace, if the store answers and has one.
async fn existing(config: &Config, name: &KeyspaceName) -> Option<Arc<KeyspaceRecord>> {
    let client = connect::open(config).await.ok()?;
    client.keyspace(name).await.ok()?
}

/// Warns on standard error that only handlers in Rust report costs, if a keyspace is balanced by cost.
pub(crate) fn warn_of_load(plan: &PlanningSettings) {
    if plan.balance_by == Some(BalanceBy::Cost) {
        eprintln!(
            "warning: balance_by = \"cost\": only handlers in Rust report costs (`Grant::report_cost`); `tenure exec` and `tenure \
             sidecar` do not start with this setting"
        );
    }
}

impl Config {
    /// How a leader is to plan for a keyspace that is created now, checked as a whole.
    pub(crate) fn plan(&self) -> Result<PlanningSettings, Vec<String>> {
        self.plan_from(PlanningSettings::default(), |_| true)
    }

    /// The same for a process whose application has no way to report what its shards cost.
    pub(crate) fn plan_without_load(&self, command: &str) -> Result<PlanningSettings, Vec<String>> {
        let plan = self.plan()?;
        match plan.balance_by {
            Some(BalanceBy::Cost) => Err(vec![format!(
                "balance_by = \"cost\" requires reported costs, and applications of `tenure {command}` cannot report them; \
                 use balance_by = \"shards\", or the library (`Grant::report_cost`)"
            )]),
            _ => Ok(plan),
        }
    }

    /// Rejects the start of a command whose application cannot report load, or whose weight would be ignored, by the record of a
    /// keyspace that exists. A store that does not answer is left to the start of the node.
    pub(crate) async fn fits_existing(
        &self,
        name: &KeyspaceName,
        command: &str,
    ) -> Result<(), Exit> {
        let Ok(Some(record)) = tokio::time::timeout(READ, existing(self, name)).await else {
            return Ok(());
        };
        if record.assigned_by == AssignedBy::Leader
            && record.planning.balance_by == Some(BalanceBy::Cost)
        {
            return Err(Exit::usage(format!(
                "keyspace {name} has balance_by = \"cost\", and applications of `tenure {command}` cannot report costs; run \
                 `tenure keyspace update {name} --balance-by shards`, or use the library (`Grant::report_cost`)"
            )));
        }
        let weight = match self.value("weight") {
            Some(SettingValue::Count(weight)) => Some(*weight),
            _ => None,
        };
        match weight_without_effect(weight, [(record.assigned_by, &record.planning)]) {
            Some(problem) => Err(Exit::usage(format!("keyspace {name}: {problem}"))),
            None => Ok(()),
        }
    }

    /// What flags alone make of the settings that a keyspace has, checked as a whole.
    pub(crate) fn plan_by_flags(
        &self,
        base: PlanningSettings,
    ) -> Result<PlanningSettings, Vec<String>> {
        self.plan_from(base, |source| *source == ValueSource::Flag)
    }

    fn plan_from(
        &self,
        mut spec: PlanningSettings,
        counts: impl Fn(&ValueSource) -> bool,
    ) -> Result<PlanningSettings, Vec<String>> {
        for knob in KNOBS.iter().filter(|knob| knob.is_plan()) {
            if let Some((value, source)) = self.given.get(knob.name)
                && counts(source)
            {
                set(knob, &mut spec, value);
            }
        }
        match spec.settings().check() {
            Ok(_) => Ok(spec),
            Err(problems) => Err(problems.iter().map(|p| self.told(p)).collect()),
        }
    }
}
