#![cfg(feature = "mutants")]
use tenure_core::rules::{Mutant, Rules};
use tenure_sim::model::{Options, check, scope};

#[test]
fn survey() {
    use Mutant::*;
    let all: &[(Mutant, &[&str])] = &[
        (RenewalGivesUp, &["delay"]),
        (NoRecovery, &["pause"]),
        (EndBeforeRelease, &["stop"]),
        (EpochForgotten, &["removal"]),
        (RestoreWithoutWitnesses, &["removal"]),
        (
            UnknownClaimAssumed,
            &["join", "start", "stop-delay", "crash-delay"],
        ),
        (ReopenAfterUnknownRelease, &["join", "stop-delay"]),
        (NeverRelist, &["delay", "join", "stop-delay"]),
        (
            ViewGoesBack,
            &["delay", "join", "stop-delay", "crash-delay"],
        ),
        (ClaimWhileBusy, &["join", "stop-delay", "pause", "removal"]),
        (JudgeOverslept, &["crash-delay", "pause"]),
        (RenewPerShard, &["crash", "stop"]),
    ];
    for (mutant, scopes) in all {
        for name in *scopes {
            let options = Options {
                threads: 1,
                rules: Rules::broken(*mutant),
                most_states: Some(600_000),
            };
            let checked = check(scope(name).unwrap(), &options, |_| {});
            eprintln!(
                "{mutant:?} {name} states {} depth {} story {} exhausted {} secs {:.1}: {:?}",
                checked.states,
                checked.depth,
                checked.story.len(),
                checked.exhausted,
                checked.seconds,
                checked.violation
            );
            if checked.violation.is_some() {
                if *mutant == ReopenAfterUnknownRelease {
                    for l in checked.story {
                        eprintln!("{l}");
                    }
                }
                break;
            }
        }
    }
}
