//! Three orders in which a shard can change hands, side by side: how long requests wait, and what is lost.
//!
//! All run the same machines, routers, clients and store; what differs is what the application is asked to do, and when.
//!
//! | order | load | tail |
//! |---|---|---|
//! | ours | while the old owner serves | read after the old owner has sealed |
//! | freeze, then warm | after the old owner has stopped: requests wait for all of it | there is none |
//! | warm, then switch | while the old owner serves | not read: what was written meanwhile is lost |

use std::time::Duration;

use serde::Serialize;
use tenure_core::record::AssignedBy;
use tenure_core::settings::Settings;

use crate::check::Violation;
use crate::clients::Traffic;
use crate::clock::{MS, SEC};
use crate::event_log::EventLog;
use crate::generate::checked;
use crate::run_config::{RunConfig, nanos};
use crate::world::{ProtocolVariant, World};

/// An order in which a shard changes hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveOrder {
    /// Load while the owner serves, seal, read the tail, take.
    Ours,
    /// Stop the owner first, then load.
    FreezeThenWarm,
    /// Load while the owner serves, then switch at once.
    WarmThenSwitch,
}

/// What became of requests while shards moved in one of the orders. Times are virtual.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MoveOrderResults {
    /// The order.
    pub arm: MoveOrder,
    /// How long the application takes to load a shard.
    pub load: Duration,
    /// How many shards moved.
    pub moves: u64,
    /// How many requests were answered meanwhile.
    pub answered: u64,
    /// How many of them were held.
    pub held: u64,
    /// How long half of those were held at most.
    pub held_p50: Duration,
    /// How long 99 of 100 of those were held at most.
    pub held_p99: Duration,
    /// How long any was held at most.
    pub held_max: Duration,
    /// How many requests failed.
    pub failed: u64,
    /// How many writes that a client was told of are not there any more.
    pub lost: u64,
}

/// Shards that there are; half of them move.
const SHARDS: u32 = 16;
/// Runs for each arm; each has its own chance.
const RUNS: u64 = 4;

/// Moves shards to a node that joins, in each of the three orders, with loads that take so long.
///
/// Ends at the first broken promise; the orders that are not ours are not held to the ones that they break by design.
pub fn compare(load: Duration) -> Result<Vec<MoveOrderResults>, Violation> {
    [
        MoveOrder::Ours,
        MoveOrder::FreezeThenWarm,
        MoveOrder::WarmThenSwitch,
    ]
    .into_iter()
    .map(|arm| figures(arm, load))
    .collect()
}

fn figures(arm: MoveOrder, load: Duration) -> Result<MoveOrderResults, Violation> {
    let mut all = MoveOrderResults {
        arm,
        load,
        moves: 0,
        answered: 0,
        held: 0,
        held_p50: Duration::ZERO,
        held_p99: Duration::ZERO,
        held_max: Duration::ZERO,
        failed: 0,
        lost: 0,
    };
    let mut holds = Vec::new();
    for seed in 1..=RUNS {
        let plan = plan(arm, load, seed);
        let (from, end) = (plan.starts[1], plan.end_at);
        let mut world = World::new(plan, ProtocolVariant::default(), EventLog::Off);
        world.requests.listen_from(from);
        world.run_until(end)?;
        let heard = world.requests.holds();
        all.answered += heard.len() as u64;
        holds.extend(heard.iter().copied().filter(|held| *held > 0));
        all.moves += world.coverage.taken();
        all.failed += world.coverage.failed_requests;
        all.lost += world.journal.lost();
    }
    holds.sort_unstable();
    let at = |permille: usize| {
        let last = holds.len().saturating_sub(1);
        let n = (holds.len() * permille / 1000).min(last);
        Duration::from_nanos(holds.get(n).copied().unwrap_or(0))
    };
    all.held = holds.len() as u64;
    (all.held_p50, all.held_p99, all.held_max) = (at(500), at(990), at(1000));
    Ok(all)
}

/// Two nodes, of which the second joins when the first serves everything; two routers, and clients that never pause.
fn plan(arm: MoveOrder, load: Duration, seed: u64) -> RunConfig {
    let timing = checked(&Settings {
        load_timeout: load * 3 + Duration::from_secs(30),
        ..Settings::default()
    });
    let load = nanos(load);
    let mut plan = RunConfig::quiet(seed, 2, SHARDS, timing).with_routers(2);
    plan.mode = AssignedBy::Leader;
    plan.spec.settle_time = Some(Duration::from_millis(300));
    plan.spec.rejoin_after = Some(Duration::from_millis(300));
    plan.spec.cool_down = Some(Duration::from_millis(500));
    plan.catches_up = arm != MoveOrder::FreezeThenWarm;
    plan.reads_tail = arm != MoveOrder::WarmThenSwitch;
    plan.app.load = (load, load);
    plan.starts[1] = 10 * SEC + 2 * load;
    plan.traffic = Traffic {
        every: 2 * MS,
        burst: 0,
        ..Traffic::calm()
    };
    // Each move loads once, and not all are allowed at once.
    let moves = u64::from(SHARDS / 2);
    plan.end_at = plan.starts[1] + 30 * SEC + (moves + 2) * load;
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arms(load: Duration) -> [MoveOrderResults; 3] {
        compare(load).unwrap().try_into().unwrap()
    }

    #[test]
    fn only_our_order_neither_waits_for_the_load_nor_loses_a_write() {
        let short = arms(Duration::from_millis(1));
        let long = arms(Duration::from_secs(10));
        for figures in short.iter().chain(&long) {
            assert_eq!(figures.failed, 0, "{figures:?}");
            assert!(
                figures.moves >= 4 * 8 && figures.answered > 1000,
                "{figures:?}"
            );
        }
        for [ours, freeze_then_warm, warm_then_switch] in [&short, &long] {
            assert_eq!((ours.lost, freeze_then_warm.lost), (0, 0));
            assert!(ours.held > 0, "{ours:?}");
            assert!(warm_then_switch.held_p99 < Duration::from_secs(1));
        }
        assert!(long[2].lost > 0, "{:?}", long[2]);
        // Requests wait for the load in one of them alone, and in ours for the same time whatever it takes (D3).
        assert!(long[1].held_max >= Duration::from_secs(10), "{:?}", long[1]);
        let apart = long[0].held_p99.abs_diff(short[0].held_p99);
        assert!(apart < Duration::from_millis(20), "{short:?} {long:?}");
    }
}
