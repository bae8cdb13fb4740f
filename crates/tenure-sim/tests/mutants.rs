//! Every way to break the protocol is seen within the stated number of seeds, and a failing run can be made smaller.

#![cfg(feature = "mutants")]

use tenure_core::rules::{Mutant, Rules};
use tenure_sim::mutants::{SEEDS, hunt};
use tenure_sim::plan::Plan;
use tenure_sim::shrink::shrink;
use tenure_sim::world::Under;

#[test]
fn every_mutant_is_seen_within_the_stated_number_of_seeds() {
    let hunt = hunt(SEEDS);
    let alive: Vec<&str> = hunt
        .mutants
        .iter()
        .filter(|m| !m.killed)
        .map(|m| m.name.as_str())
        .collect();
    assert!(
        alive.is_empty(),
        "not seen within {SEEDS} seeds: {}",
        alive.join(", ")
    );
    assert_eq!(hunt.mutants.len(), Mutant::ALL.len());
}

#[test]
fn a_failing_run_is_made_smaller() {
    let under = Under {
        rules: Rules::broken(Mutant::NoDetachment),
        ..Under::default()
    };
    let (seed, shrunk) = (0..SEEDS)
        .filter(|seed| Plan::draw(*seed).faults.len() > 5)
        .find_map(|seed| Some((seed, shrink(seed, under)?)))
        .expect("the mutant is seen");
    assert!(
        shrunk.faults < Plan::draw(seed).faults.len() / 2,
        "{shrunk:?}"
    );
    assert!(shrunk.faults > 0, "{shrunk:?}");
}
