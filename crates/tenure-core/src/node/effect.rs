//! Settings that would have no effect: they are rejected, never accepted and ignored.

use crate::record::{KeyspaceMode, PlanSpec};

/// Planning attributes that a node is started with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// A bound on the number of shards is given.
    pub capacity: bool,
    /// At least one label is given.
    pub labels: bool,
    /// A failure domain is given.
    pub zone: bool,
}

/// Returns the problem with planning settings for a keyspace of this mode, if any: without a leader nobody reads them.
pub fn plan_without_effect(mode: KeyspaceMode, plan: &PlanSpec) -> Option<String> {
    let ignored = mode != KeyspaceMode::Coordinated && *plan != PlanSpec::default();
    ignored.then(|| {
        format!(
            "planning settings (policy, measure, zones, required labels, budgets and waits of a leader) have no effect in mode \
             {mode}, in which no leader plans; leave them out, or use mode coordinated"
        )
    })
}

/// Lists the attributes and planning settings of a node that would have no effect in its keyspaces, one sentence each.
pub fn without_effect<'a>(
    said: Said,
    keyspaces: impl IntoIterator<Item = (&'a str, KeyspaceMode, &'a PlanSpec)>,
) -> Vec<String> {
    let mut problems = Vec::new();
    let (mut led, mut any) = (false, false);
    for (name, mode, plan) in keyspaces {
        any = true;
        led |= mode == KeyspaceMode::Coordinated;
        if let Some(problem) = plan_without_effect(mode, plan) {
            problems.push(format!("keyspace {name:?}: {problem}"));
        }
        if said.capacity && mode == KeyspaceMode::Symmetric {
            problems.push(format!(
                "keyspace {name:?}: capacity has no effect in mode symmetric; use a weight, or mode coordinated or greedy"
            ));
        }
    }
    for (what, given) in [("labels have", said.labels), ("zone has", said.zone)] {
        if given && any && !led {
            problems.push(format!(
                "{what} no effect: no keyspace of this node is in mode coordinated, in which a leader plans by it"
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::KeyspaceMode::{Coordinated, Greedy, Symmetric};

    #[test]
    fn what_would_have_no_effect_is_named() {
        let usual = PlanSpec::default();
        let planned = PlanSpec {
            band_shards: Some(3),
            ..PlanSpec::default()
        };
        let all = Said {
            capacity: true,
            labels: true,
            zone: true,
        };
        let problems = |said, of: &[(KeyspaceMode, &PlanSpec)]| {
            let named = of.iter().map(|(mode, plan)| ("orders", *mode, *plan));
            without_effect(said, named).len()
        };
        assert_eq!(problems(all, &[(Coordinated, &planned)]), 0);
        assert_eq!(problems(all, &[(Coordinated, &usual), (Greedy, &usual)]), 0);
        assert_eq!(problems(all, &[(Greedy, &usual)]), 2);
        assert_eq!(problems(all, &[(Symmetric, &usual)]), 3);
        assert_eq!(problems(Said::default(), &[(Greedy, &planned)]), 1);
        assert_eq!(problems(Said::default(), &[(Symmetric, &planned)]), 1);
        // A router or a planner has no keyspaces of its own.
        assert_eq!(problems(all, &[]), 0);
    }
}
