//! Every participant of a move, struck in every phase of it: one owner at a time, nothing acknowledged lost, and in the end
//! every shard is served. A table of phase × participant × blow, all cells, in every family of stores.

use std::time::Duration;

use tenure_core::record::{AssignedBy, MovePhase};
use tenure_core::settings::Settings;
use tenure_sim::clock::SEC;
use tenure_sim::event_log::EventLog;
use tenure_sim::phase_faults::{FaultEffect, FaultPhase, PhaseFault, Victim};
use tenure_sim::run::run_plan;
use tenure_sim::run_config::{Family, RunConfig};
use tenure_sim::world::ProtocolVariant;

const PLACES: [FaultPhase; 4] = [
    FaultPhase::Phase(MovePhase::Warming),
    FaultPhase::Phase(MovePhase::Freezing),
    FaultPhase::Phase(MovePhase::Sealed),
    FaultPhase::Taken,
];

const VICTIMS: [Victim; 4] = [
    Victim::Owner,
    Victim::Target,
    Victim::Leader,
    Victim::Router,
];

const BLOWS: [FaultEffect; 7] = [
    FaultEffect::Kill,
    FaultEffect::Restart,
    FaultEffect::Pause(40),
    FaultEffect::Pause(300),
    FaultEffect::Cut(40),
    FaultEffect::Cut(300),
    FaultEffect::Stop,
];

/// Three nodes, of which the last joins late, so that shards move to it; two routers, with clients.
fn plan(
    seed: u64,
    family: Family,
    mode: AssignedBy,
    catches_up: bool,
    ambush: PhaseFault,
) -> RunConfig {
    let settings = Settings {
        ttl: Duration::from_millis(2500),
        drain_timeout: Duration::from_secs(1),
        move_retry_max: Duration::from_secs(2),
        ..Settings::default()
    };
    let timing = settings.check(Duration::ZERO).unwrap();
    let mut plan = RunConfig::quiet(seed, 3, 6, timing).with_routers(2);
    plan.family = family;
    plan.mode = mode;
    plan.catches_up = catches_up;
    plan.spec.settle_time = Some(Duration::from_millis(300));
    plan.spec.rejoin_after = Some(Duration::from_millis(300));
    plan.spec.cool_down = Some(Duration::from_millis(500));
    plan.app.load = (1_000_000, 200_000_000);
    plan.app.drain = (1_000_000, 100_000_000);
    plan.starts[2] = 8 * SEC;
    plan.ambush = Some(ambush);
    plan.heal_at = 40 * SEC;
    plan.end_at = plan.heal_at + plan.heal_bound() + plan.rest_window();
    plan
}

fn strike(family: Family, mode: AssignedBy) {
    let mut struck = 0;
    for at in PLACES {
        for victim in VICTIMS {
            for blow in BLOWS {
                for (seed, catches_up) in [(1, true), (2, false), (3, true)] {
                    let ambush = PhaseFault {
                        at,
                        victim,
                        blow,
                        times: 1 + (seed % 2) as u32,
                    };
                    let plan = plan(seed, family, mode, catches_up, ambush);
                    let outcome = run_plan(plan, ProtocolVariant::default(), EventLog::Off);
                    let cell = format!("{ambush:?}, seed {seed}, {mode}, {family:?}");
                    assert_eq!(outcome.violation, None, "{cell}");
                    assert!(outcome.coverage.answered > 100, "{cell}");
                    struck += u32::from(outcome.coverage.ambushes > 0);
                    // There is no leader to strike where nobody leads.
                    let nobody = victim == Victim::Leader && mode == AssignedBy::Rendezvous;
                    assert!(
                        outcome.coverage.ambushes > 0 || nobody,
                        "never sprung: {cell}"
                    );
                }
            }
        }
    }
    assert!(struck > 200, "{struck}");
}

#[test]
fn a_planned_move_survives_every_blow_in_every_phase() {
    strike(Family::Watched, AssignedBy::Leader);
}

#[test]
fn an_owners_own_move_survives_every_blow_in_every_phase() {
    strike(Family::Watched, AssignedBy::Rendezvous);
}

#[test]
fn a_move_on_leases_of_the_store_survives_every_blow_in_every_phase() {
    strike(Family::Leased, AssignedBy::Leader);
}

#[test]
fn a_move_on_a_polled_store_survives_every_blow_in_every_phase() {
    strike(Family::Polled, AssignedBy::Leader);
}
