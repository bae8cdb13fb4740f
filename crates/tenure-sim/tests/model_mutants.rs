//! Broken rules that the model must find, each in the smallest scope that shows it.

#![cfg(feature = "mutants")]

use tenure_core::rules::{Mutant, Rules};
use tenure_sim::model::{Options, SCOPES, check};

#[test]
fn survey() {
    for mutant in Mutant::ALL {
        let mut found = false;
        for scope in SCOPES.iter().filter(|s| s.everyday) {
            let options = Options {
                threads: 1,
                rules: Rules::broken(*mutant),
                most_states: Some(150_000),
            };
            let checked = check(scope, &options, |_| {});
            if let Some(v) = checked.violation {
                eprintln!("{mutant:?} {} states {} depth {} story {}: {v}", scope.name, checked.states, checked.depth, checked.story.len());
                found = true;
                break;
            }
        }
        if !found {
            eprintln!("{mutant:?} not found");
        }
    }
}
