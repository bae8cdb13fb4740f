//! Broken rules, each of which the checkers must see. Built only with the `mutants` feature.

use std::time::Duration;

use serde::Serialize;
use tenure_core::record::{AssignedBy, PlanningSettings};
use tenure_core::rules::{Mutant, Rules};

use crate::clock::SEC;
use crate::event_log::EventLog;
use crate::fault::{Cut, Fault, Outage, Target};
use crate::generate_traffic;
use crate::lease_tampering::LeaseTampering;
use crate::run::run_plan;
use crate::run_config::{Class, Family, RunConfig, nanos};
use crate::world::ProtocolVariant;

/// Within how many seeds each must be seen.
pub const SEEDS: u64 = 500;

/// The seed that once failed because a rule was missing, for rules that random seeds show too rarely.
fn kept(mutant: Mutant) -> Option<RunConfig> {
    match mutant {
        Mutant::VersionNamesValue => Some(RunConfig::unmixed(8_229_025)),
        Mutant::RetriesUsedUp => Some(RunConfig::unmixed(8_486_379)),
        _ => None,
    }
}

/// What came of one mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MutantResult {
    /// Its name.
    pub name: String,
    /// Whether a checker saw it.
    pub killed: bool,
    /// How many seeds that took, or were tried.
    pub seeds: u64,
    /// What the checker said.
    pub by: Option<String>,
    /// The kept seed that showed it, where one is tried before all others.
    pub kept: Option<u64>,
}

/// What came of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MutantResults {
    /// One for each mutant.
    pub mutants: Vec<MutantResult>,
}

/// Runs a mutant until a checker sees it, for at most so many seeds.
pub fn hunt_one(mutant: Mutant, most: u64) -> MutantResult {
    let under = ProtocolVariant {
        rules: Rules::broken(mutant),
        copied_lock_is_proof: mutant == Mutant::CopiedLockIsProof,
        retries_answers: mutant == Mutant::AnswerRetried,
    };
    if let Some(plan) = kept(mutant) {
        let kept = plan.seed;
        if let Some(violation) = run_plan(plan, under, EventLog::Off).violation {
            return MutantResult {
                name: format!("{mutant:?}"),
                killed: true,
                seeds: 1,
                by: Some(violation.to_string()),
                kept: Some(kept),
            };
        }
    }
    // What only a store that keeps the time can show is looked for there alone.
    let leases = [
        Mutant::LeaseNotAsked,
        Mutant::LooseKeyIgnored,
        Mutant::RenewedByWriting,
        Mutant::CopyBelieved,
    ];
    for seed in 0..most {
        let mut plan = RunConfig::draw(seed);
        let shaped = leases.contains(&mutant)
            || [
                Mutant::LowerTermAccepted,
                Mutant::HeldAfterCancel,
                Mutant::ServesAfterResigning,
                Mutant::EndedForGood,
                Mutant::RestoreIfAbsent,
            ]
            .contains(&mutant);
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
        match mutant {
            Mutant::ServesAfterResigning => stops_in_recovery(&mut plan),
            Mutant::EndedForGood => undone_end(&mut plan),
            Mutant::CopyBelieved => edited_copies(&mut plan),
            Mutant::RestoreIfAbsent => lost_twice(&mut plan),
            _ => {}
        }
        let fair = plan.clone();
        if let Some(violation) = run_plan(plan, under, EventLog::Off).violation {
            // A run that asks too much of sound rules shows nothing.
            if shaped
                && run_plan(fair, ProtocolVariant::default(), EventLog::Off)
                    .violation
                    .is_some()
            {
                continue;
            }
            let by = Some(violation.to_string());
            return MutantResult {
                name: format!("{mutant:?}"),
                killed: true,
                seeds: seed + 1,
                by,
                kept: None,
            };
        }
    }
    MutantResult {
        name: format!("{mutant:?}"),
        killed: false,
        seeds: most,
        by: None,
        kept: None,
    }
}

/// Makes a run in which two may lead at once: the leader's record is lost again and again, and watches leave much out, so
/// that a leader may not hear that it is none any more.
fn two_leaders(plan: &mut RunConfig) {
    plan.mode = AssignedBy::Leader;
    plan.spec = PlanningSettings {
        settle_time: Some(Duration::from_millis(50)),
        rejoin_after: Some(Duration::from_millis(50)),
        cool_down: Some(Duration::from_millis(100)),
        ..PlanningSettings::default()
    };
    plan.watch.drop = plan.watch.drop.max(400);
    let mut rng = plan.rng(13);
    if plan.class == Class::Chaos {
        for _ in 0..12 {
            generate_traffic::lose_leader(plan, &mut rng);
        }
        plan.faults.sort_by_key(|(at, _)| *at);
    }
}

/// Makes a run in which nodes stop while their leases recover: the store is away until every node is detached, and slow
/// afterwards.
fn stops_in_recovery(plan: &mut RunConfig) {
    if plan.class != Class::Chaos {
        return;
    }
    let mut rng = plan.rng(14);
    let (ttl, window) = (
        nanos(plan.timing.ttl),
        nanos(plan.timing.detachment_recover_window),
    );
    for _ in 0..3 {
        let from = rng.between(10 * SEC, plan.heal_at - SEC);
        let how = Outage::Refuse;
        plan.faults.push((from, Fault::Outage { how, span: ttl }));
        for node in 0..plan.nodes {
            let by = plan.timing.request_timeout.as_nanos() as u64 / 2;
            let slow = Fault::Slow {
                node,
                by,
                span: ttl,
            };
            let stop = from + ttl + rng.between(0, window * 3 / 2);
            plan.faults.push((from + ttl, slow));
            plan.faults.push((stop, Fault::Stop { node }));
            let dir = rng.permille(500);
            plan.faults.push((stop + ttl, Fault::Restart { node, dir }));
        }
    }
    plan.faults.retain(|(at, _)| *at < plan.heal_at);
    plan.faults.sort_by_key(|(at, _)| *at);
}

/// Adds faults to a run in which anything may happen.
fn add(plan: &mut RunConfig, faults: impl IntoIterator<Item = (u64, Fault)>) {
    plan.faults.extend(faults);
    plan.faults.sort_by_key(|(at, _)| *at);
}

/// Makes a run in which a node is cut off until others have ended its session, and the store is then put back under the running
/// processes, so that the session is live again.
fn undone_end(plan: &mut RunConfig) {
    if plan.class != Class::Chaos || plan.family == Family::Leased {
        return;
    }
    let mut rng = plan.rng(21);
    if plan.routers == 0 {
        generate_traffic::add_routers(plan, &mut rng);
    }
    let ttl = nanos(plan.timing.ttl);
    let (node, at) = (rng.below(plan.nodes as u64) as usize, 50 * SEC);
    plan.faults.clear();
    let cut = Fault::Cut {
        node,
        how: Cut::Replies,
        span: 3 * ttl,
    };
    let restore = Fault::Restore {
        back: rng.between(5, 60),
        wait: ttl / 2,
        exchanged: false,
        running: true,
    };
    let after = rng.between(ttl, 5 * ttl / 2);
    add(plan, [(at - 3 * ttl, cut), (at - 3 * ttl + after, restore)]);
}

/// Makes a run in which renewals' answers are lost, and somebody edits copies of what was written.
fn edited_copies(plan: &mut RunConfig) {
    if plan.class != Class::Chaos {
        return;
    }
    let mut rng = plan.rng(22);
    let ttl = nanos(plan.timing.ttl);
    plan.net.lose_reply = plan.net.lose_reply.max(300);
    for _ in 0..12 {
        let at = rng.between(5 * SEC, plan.heal_at - SEC);
        let node = rng.below(plan.nodes as u64) as usize;
        let soon = at + rng.between(ttl / 12, ttl / 2);
        let (copy, bare) = (LeaseTampering::Copy, LeaseTampering::Bare);
        add(
            plan,
            [
                (at, Fault::Hand { node, hand: copy }),
                (soon, Fault::Hand { node, hand: bare }),
            ],
        );
    }
}

/// Makes a run in which a shard's record is deleted, a node is stopped in the middle of restoring it, and the record is deleted
/// again once others have restored it.
fn lost_twice(plan: &mut RunConfig) {
    if plan.class != Class::Chaos || plan.nodes < 2 {
        return;
    }
    let mut rng = plan.rng(23);
    let ttl = nanos(plan.timing.ttl);
    let target = Target::Shard(rng.below(u64::from(plan.shards)) as usize);
    let delete = Fault::Delete { target };
    let mut at = 8 * SEC;
    while at + 6 * ttl < plan.heal_at {
        let node = rng.below(plan.nodes as u64) as usize;
        let midway = at + rng.between(ttl, ttl + ttl / 10);
        let pause = Fault::PauseMidway {
            node,
            after: rng.below(3) as u32,
            span: rng.between(3 * ttl, 5 * ttl),
        };
        let again = at + rng.between(3 * ttl, 4 * ttl);
        add(plan, [(at, delete), (midway, pause), (again, delete)]);
        at += 8 * ttl;
    }
}

/// Hunts every mutant, one per core at a time.
pub fn hunt(most: u64) -> MutantResults {
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
    MutantResults {
        mutants: found.into_iter().map(|(_, hunted)| hunted).collect(),
    }
}
