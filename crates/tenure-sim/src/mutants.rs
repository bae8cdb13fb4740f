//! Broken rules, each of which the checkers must see. Built only with the `mutants` feature.

use std::time::Duration;

use serde::Serialize;
use tenure_core::record::{KeyspaceMode, PlanSpec};
use tenure_core::rules::{Mutant, Rules};

use crate::plan::{Class, Family, Plan};
use crate::run::run_plan;
use crate::trace::Trace;
use crate::traffic;
use crate::world::Under;

/// Within how many seeds each must be seen.
pub const SEEDS: u64 = 500;

/// What came of one mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hunted {
    /// Its name.
    pub name: String,
    /// Whether a checker saw it.
    pub killed: bool,
    /// How many seeds that took, or were tried.
    pub seeds: u64,
    /// What the checker said.
    pub by: Option<String>,
}

/// What came of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hunt {
    /// One for each mutant.
    pub mutants: Vec<Hunted>,
}

/// Runs a mutant until a checker sees it, for at most so many seeds.
pub fn hunt_one(mutant: Mutant, most: u64) -> Hunted {
    let under = Under {
        rules: Rules::broken(mutant),
        copied_lock_is_proof: mutant == Mutant::CopiedLockIsProof,
        retries_answers: mutant == Mutant::AnswerRetried,
    };
    // What only a store that keeps the time can show is looked for there alone.
    let leases = [
        Mutant::LeaseNotAsked,
        Mutant::LooseKeyIgnored,
        Mutant::RenewedByWriting,
    ];
    for seed in 0..most {
        let mut plan = Plan::draw(seed);
        let shaped = leases.contains(&mutant)
            || [Mutant::LowerTermAccepted, Mutant::HeldAfterCancel].contains(&mutant);
        if leases.contains(&mutant) {
            plan.family = Family::Leased;
        }
        if mutant == Mutant::LowerTermAccepted {
            two_leaders(&mut plan);
        }
        if mutant == Mutant::HeldAfterCancel {
            // Work that does not end in time is what most often calls a move off.
            plan.app.stubborn = plan.app.stubborn.max(400);
        }
        let fair = plan.clone();
        if let Some(violation) = run_plan(plan, under, Trace::Off).violation {
            // A run that asks too much of sound rules shows nothing.
            if shaped
                && run_plan(fair, Under::default(), Trace::Off)
                    .violation
                    .is_some()
            {
                continue;
            }
            let by = Some(violation.to_string());
            return Hunted {
                name: format!("{mutant:?}"),
                killed: true,
                seeds: seed + 1,
                by,
            };
        }
    }
    Hunted {
        name: format!("{mutant:?}"),
        killed: false,
        seeds: most,
        by: None,
    }
}

/// Makes a run in which two may lead at once: the leader's record is lost again and again, and watches leave much out, so
/// that a leader may not hear that it is none any more.
fn two_leaders(plan: &mut Plan) {
    plan.mode = KeyspaceMode::Coordinated;
    plan.spec = PlanSpec {
        debounce: Some(Duration::from_millis(50)),
        rejoin_after: Some(Duration::from_millis(50)),
        cool_down: Some(Duration::from_millis(100)),
        ..PlanSpec::default()
    };
    plan.watch.drop = plan.watch.drop.max(400);
    let mut rng = plan.rng(13);
    if plan.class == Class::Chaos {
        for _ in 0..12 {
            traffic::lose_leader(plan, &mut rng);
        }
        plan.faults.sort_by_key(|(at, _)| *at);
    }
}

/// Hunts every mutant, one per core at a time.
pub fn hunt(most: u64) -> Hunt {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let found = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(mutant) =
                    Mutant::ALL.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    let hunted = hunt_one(*mutant, most);
                    if let Ok(mut found) = found.lock() {
                        found.push((*mutant, hunted));
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_default();
    found.sort_by_key(|(mutant, _)| *mutant);
    Hunt {
        mutants: found.into_iter().map(|(_, hunted)| hunted).collect(),
    }
}
