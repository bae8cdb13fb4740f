//! Every way to break the protocol is seen within the stated number of seeds, and a failing run can be made smaller.

#![cfg(feature = "mutants")]

use tenure_core::rules::{Mutant, Rules};
use tenure_sim::mutants::{SEEDS, hunt};
use tenure_sim::run_config::RunConfig;
use tenure_sim::shrink::shrink;
use tenure_sim::trace_recorder::record;
use tenure_sim::validate::{CheckKind, Validator};
use tenure_sim::world::ProtocolVariant;

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
    let under = ProtocolVariant {
        rules: Rules::broken(Mutant::NoDetachment),
        ..ProtocolVariant::default()
    };
    let (seed, shrunk) = (0..SEEDS)
        .filter(|seed| RunConfig::draw(*seed).faults.len() > 5)
        .find_map(|seed| Some((seed, shrink(seed, under)?)))
        .expect("the mutant is seen");
    assert!(
        shrunk.faults < RunConfig::draw(seed).faults.len() / 2,
        "{shrunk:?}"
    );
    assert!(shrunk.faults > 0, "{shrunk:?}");
}

/// Within how many seeds traces must show what is broken.
const LOOKED_AT: u64 = 200;

/// What is wrong with the traces of a run, beside that a sound machine would have done something else.
fn seen_in_traces(seed: u64, mutant: Mutant) -> Vec<CheckKind> {
    let under = ProtocolVariant {
        rules: Rules::broken(mutant),
        ..ProtocolVariant::default()
    };
    let (recording, _) = record(RunConfig::draw(seed), under);
    let mut validator = Validator::new();
    for (n, lines) in recording.processes().iter().enumerate() {
        let text: String = lines.iter().map(|line| line.to_json() + "\n").collect();
        let read = validator.read(&format!("p{n}"), text.as_bytes());
        read.expect("lines");
    }
    let findings = validator.finish().findings;
    let checks = findings.iter().map(|finding| finding.check);
    checks.filter(|check| *check != CheckKind::Replay).collect()
}

#[test]
fn broken_rules_are_seen_in_traces_without_running_them_again() {
    for (mutant, check) in [
        (Mutant::ImpatientJudge, CheckKind::P1),
        (Mutant::TakeoverWithoutProof, CheckKind::Record),
        (Mutant::NameIsIdentity, CheckKind::Record),
        (Mutant::EpochKept, CheckKind::Record),
        (Mutant::UnguardedWrite, CheckKind::Record),
    ] {
        let seen = |seed: &u64| seen_in_traces(*seed, mutant).contains(&check);
        let first = (0..LOOKED_AT).find(seen);
        assert!(
            first.is_some(),
            "{mutant:?} is not seen as {check} within {LOOKED_AT} seeds"
        );
    }
}
