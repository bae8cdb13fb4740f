//! Broken rules that the model finds, each in a scope that shows it, with the way there.

#![cfg(feature = "mutants")]

use tenure_core::rules::Mutant::{self, *};
use tenure_core::rules::Rules;
use tenure_sim::model::{ModelOptions, ModelResult, check, scope};

/// What is found, where, and which promise it breaks.
const FOUND: &[(Mutant, &str, &str)] = &[
    (DeadlineFromReply, "pause", "P1"),
    (MissingMargin, "pause", "P1"),
    (NoDetachment, "pause", "P1"),
    (ReleaseBeforeStop, "rest", "A9"),
    (EndBeforeRelease, "stop-delay", "A9"),
    (TakeoverWithoutProof, "join", "P1"),
    (ImpatientJudge, "pause", "P1"),
    (NameIsIdentity, "crash", "P2"),
    (UnguardedWrite, "join", "record"),
    (UnknownClaimAssumed, "join", "P2"),
    (ClaimWhileBusy, "join", "A9"),
    (EpochKept, "rest", "record"),
    // The walk without faults from an earlier state restores the record before the search does.
    (
        EpochForgotten,
        "removal",
        "P6: after 18 steps without faults: P2",
    ),
    (NoRecovery, "pause", "P6"),
    (StrangersCounted, "stranger", "P6"),
    (StrangersCounted, "elsewhere", "P6"),
    (CordonIgnored, "cordon", "cordon"),
];

fn broken(mutant: Mutant, name: &str) -> ModelResult {
    let options = ModelOptions {
        threads: 1,
        rules: Rules::broken(mutant),
        ..ModelOptions::default()
    };
    check(
        scope(name).expect("there is such a scope"),
        &options,
        |_| {},
    )
}

#[test]
fn the_model_finds_these_mutants_and_tells_how() {
    for (mutant, name, promise) in FOUND {
        let checked = broken(*mutant, name);
        let violation = checked.violation.clone().unwrap_or_default();
        assert!(
            violation.starts_with(promise),
            "{mutant:?} in {name}: {violation:?}"
        );
        assert!(!checked.holds() && !checked.exhausted, "{mutant:?}");
        assert!(checked.story.len() > 10, "{mutant:?}: {:?}", checked.story);
        println!(
            "{mutant:?} {name}: {} states, {} steps, {violation}",
            checked.states, checked.depth
        );
    }
}

#[test]
fn a_story_tells_every_step_in_plain_words_and_small_numbers() {
    let story = broken(MissingMargin, "pause").story;
    let told = |words: &str| story.iter().any(|line| line.contains(words));
    assert!(told("fault: n") && told("stands still"), "{story:#?}");
    assert!(told("claimed orders/0") && told("-- "), "{story:#?}");
    assert!(
        story
            .last()
            .is_some_and(|line| line.contains("VIOLATION P1: two gates are open")),
        "{story:#?}"
    );
    let long = |line: &&String| {
        line.split(|c: char| !c.is_ascii_digit())
            .any(|n| n.len() > 9)
    };
    assert_eq!(story.iter().find(long), None);
}
