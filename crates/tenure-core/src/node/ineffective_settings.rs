//! Settings that would have no effect: the node rejects them instead of ignoring them.

use crate::plan::{BalanceBy, PolicyKind};
use crate::record::{AssignedBy, PlanningSettings};

/// Planning attributes that a node is explicitly started with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExplicitNodeSettings {
    /// Weight of the node.
    pub weight: Option<u32>,
    /// `true` if a limit on the number of shards is set.
    pub capacity: bool,
    /// `true` if at least one label is set.
    pub labels: bool,
    /// `true` if a failure domain is set.
    pub zone: bool,
}

/// Returns the problem with planning settings for a keyspace of this mode, if any.
///
/// Without a leader no code reads them. Without `balance_by = "cost"` no code reads the settings about cost.
pub fn plan_without_effect(mode: AssignedBy, plan: &PlanningSettings) -> Option<String> {
    if mode != AssignedBy::Leader && *plan != PlanningSettings::default() {
        return Some(format!(
            "planning settings (policy, balance_by, zones, required labels, move limits and delays) have no effect with assigned_by = {mode}; leave them out, or use assigned_by = leader"
        ));
    }
    let of_load = [
        ("band_cost_permille", plan.band_cost_permille.is_some()),
        ("cost_floor", plan.cost_floor.is_some()),
        ("cost_window", plan.cost_window.is_some()),
    ];
    let given = of_load.into_iter().filter(|(_, given)| *given);
    let given: Vec<&str> = given.map(|(name, _)| name).collect();
    (plan.balance_by != Some(BalanceBy::Cost) && !given.is_empty()).then(|| {
        format!(
            "{} no effect without balance_by = \"cost\"; leave out {}, or set balance_by",
            match given.as_slice() {
                [one] => format!("{one} has"),
                several => format!("{} have", several.join(", ")),
            },
            if given.len() == 1 { "it" } else { "them" }
        )
    })
}

/// Returns the problem with a node's weight if every keyspace of the node is planned by `jump`, which ignores weights.
///
/// Weight 0 has an effect with every policy: the node gets no shards.
pub fn weight_without_effect<'a>(
    weight: Option<u32>,
    keyspaces: impl IntoIterator<Item = (AssignedBy, &'a PlanningSettings)>,
) -> Option<String> {
    let weight = weight.filter(|weight| ![0, 100].contains(weight))?;
    let jumps = |(mode, plan): (AssignedBy, &PlanningSettings)| {
        mode == AssignedBy::Leader && plan.policy == Some(PolicyKind::Jump)
    };
    let mut keyspaces = keyspaces.into_iter().peekable();
    (keyspaces.peek().is_some() && keyspaces.all(jumps)).then(|| {
        format!(
            "weight {weight} has no effect with policy jump, which assigns every node the same number of shards; leave it out, \
             or use policy sticky or rendezvous"
        )
    })
}

/// Lists the attributes and planning settings of a node that would have no effect in its keyspaces, one sentence each.
pub fn without_effect<'a>(
    said: ExplicitNodeSettings,
    keyspaces: impl IntoIterator<Item = (&'a str, AssignedBy, &'a PlanningSettings)>,
) -> Vec<String> {
    let mut problems = Vec::new();
    let (mut led, mut any) = (false, false);
    let keyspaces: Vec<_> = keyspaces.into_iter().collect();
    let plans = keyspaces.iter().map(|(_, mode, plan)| (*mode, *plan));
    problems.extend(weight_without_effect(said.weight, plans));
    for (name, mode, plan) in keyspaces {
        any = true;
        led |= mode == AssignedBy::Leader;
        if let Some(problem) = plan_without_effect(mode, plan) {
            problems.push(format!("keyspace {name:?}: {problem}"));
        }
        if said.capacity && mode == AssignedBy::Rendezvous {
            problems.push(format!(
                "keyspace {name:?}: capacity has no effect with assigned_by = rendezvous; use a weight, or assigned_by = leader \
                 or fair-share"
            ));
        }
    }
    for (what, given) in [("labels have", said.labels), ("zone has", said.zone)] {
        if given && any && !led {
            problems.push(format!(
                "{what} no effect: no keyspace of this node has assigned_by = leader; leave out the setting, or use assigned_by = leader"
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::AssignedBy::{FairShare, Leader, Rendezvous};

    #[test]
    fn what_would_have_no_effect_is_named() {
        let usual = PlanningSettings::default();
        let planned = PlanningSettings {
            band_shards: Some(3),
            ..PlanningSettings::default()
        };
        let all = ExplicitNodeSettings {
            weight: Some(50),
            capacity: true,
            labels: true,
            zone: true,
        };
        let problems = |said, of: &[(AssignedBy, &PlanningSettings)]| {
            let named = of.iter().map(|(mode, plan)| ("orders", *mode, *plan));
            without_effect(said, named).len()
        };
        assert_eq!(problems(all, &[(Leader, &planned)]), 0);
        assert_eq!(problems(all, &[(Leader, &usual), (FairShare, &usual)]), 0);
        assert_eq!(problems(all, &[(FairShare, &usual)]), 2);
        assert_eq!(problems(all, &[(Rendezvous, &usual)]), 3);
        assert_eq!(
            problems(ExplicitNodeSettings::default(), &[(FairShare, &planned)]),
            1
        );
        assert_eq!(
            problems(ExplicitNodeSettings::default(), &[(Rendezvous, &planned)]),
            1
        );
        let jump = PlanningSettings {
            policy: Some(PolicyKind::Jump),
            ..PlanningSettings::default()
        };
        assert_eq!(problems(all, &[(Leader, &jump)]), 1);
        assert_eq!(problems(all, &[(Leader, &jump), (FairShare, &usual)]), 0);
        for weight in [None, Some(0), Some(100)] {
            let said = ExplicitNodeSettings { weight, ..all };
            assert_eq!(problems(said, &[(Leader, &jump)]), 0);
        }
        // A router or a planner has no keyspaces.
        assert_eq!(problems(all, &[]), 0);
    }

    #[test]
    fn settings_of_load_without_its_measure_are_named() {
        let plans = [
            PlanningSettings {
                band_cost_permille: Some(50),
                ..PlanningSettings::default()
            },
            PlanningSettings {
                cost_floor: Some(5),
                ..PlanningSettings::default()
            },
            PlanningSettings {
                cost_window: Some(std::time::Duration::from_secs(5)),
                ..PlanningSettings::default()
            },
        ];
        for plan in plans {
            let problem = plan_without_effect(Leader, &plan).unwrap_or_default();
            assert!(
                problem.contains("has no effect without balance_by"),
                "{problem}"
            );
            let measured = PlanningSettings {
                balance_by: Some(BalanceBy::Cost),
                ..plan
            };
            assert_eq!(plan_without_effect(Leader, &measured), None);
        }
    }
}
