//! Routers and their clients over planned moves: nothing fails, and what routers write grows with moves and routers, not with
//! their product.

use std::time::Duration;

use tenure_core::record::AssignedBy;
use tenure_core::settings::Settings;
use tenure_sim::clients::Traffic;
use tenure_sim::clock::{MS, SEC};
use tenure_sim::coverage::Coverage;
use tenure_sim::event_log::EventLog;
use tenure_sim::fault::Fault;
use tenure_sim::run::run_plan;
use tenure_sim::run_config::{Class, RunConfig};
use tenure_sim::world::ProtocolVariant;

fn run(plan: RunConfig) -> Coverage {
    let seed = plan.seed;
    let outcome = run_plan(plan, ProtocolVariant::default(), EventLog::Off);
    assert_eq!(outcome.violation, None, "seed {seed}");
    outcome.coverage
}

#[test]
fn joins_drains_and_rolling_restarts_fail_no_request() {
    let planned = (0..)
        .map(RunConfig::draw)
        .filter(|p| p.class == Class::Planned);
    let mut all = Coverage::default();
    for plan in planned.take(60) {
        let seen = run(plan);
        assert_eq!(seen.failed_requests, 0);
        all.add(&seen);
    }
    assert!(all.answered > 10_000 && all.taken() > 300, "{all:?}");
    assert!(all.held > 1_000 && all.published > 200, "{all:?}");
}

/// Seeds 8405184 and 8470232: a node exits while its answers are on their way to the router. A process that exits by itself has
/// closed its connections first, and a connection delivers what was written to it; a killed process may lose it.
#[test]
fn a_node_that_exits_by_itself_delivers_its_answers_and_a_killed_one_may_not() {
    let with = |end: Fault| {
        let timing = Settings::default().check(Duration::ZERO).unwrap();
        let mut plan = RunConfig::quiet(1, 1, 4, timing).with_routers(1);
        // There is no other node, so that the router does not hold requests before the gates close.
        plan.traffic = Traffic {
            every: 5 * MS,
            delay: (20 * MS, 100 * MS),
            ..Traffic::calm()
        };
        let again = Fault::Restart { node: 0, dir: true };
        plan.faults = vec![(20 * SEC, end), (22 * SEC, again)];
        plan.end_at = 35 * SEC;
        run(plan)
    };
    let stopped = with(Fault::Stop { node: 0 });
    assert_eq!(stopped.failed_requests, 0);
    assert!(stopped.answered > 2_000, "{stopped:?}");
    assert!(with(Fault::Kill { node: 0 }).failed_requests > 0);
}

/// 24 requests of the key are in flight on average, so that the key would never leave a queue that sends one at a time.
#[test]
fn requests_of_a_busy_key_survive_restarts_and_are_held_hardly_longer_than_these_take() {
    let timing = Settings::default().check(Duration::ZERO).unwrap();
    let mut plan = RunConfig::quiet(1, 1, 1, timing).with_routers(1);
    plan.traffic = Traffic {
        every: 5 * MS,
        work: (40 * MS, 200 * MS),
        ..Traffic::calm()
    };
    for at in [20, 40, 60] {
        let again = Fault::Restart { node: 0, dir: true };
        let stop = Fault::Stop { node: 0 };
        plan.faults
            .extend([(at * SEC, stop), ((at + 2) * SEC, again)]);
    }
    plan.end_at = 120 * SEC;
    let seen = run(plan);
    assert_eq!(seen.failed_requests, 0, "{seen:?}");
    assert!(seen.answered > 20_000, "{seen:?}");
    // Three restarts of 2 s with 280 requests per second, and a start.
    assert!(seen.held < 4_000, "{seen:?}");
}

/// Four nodes, of which the last joins when the others serve everything: a quarter of the shards moves.
fn many(shards: u32, routers: usize, until: u64) -> RunConfig {
    let settings = Settings {
        ttl: Duration::from_secs(6),
        ..Settings::default()
    };
    let timing = settings.check(Duration::ZERO).unwrap();
    let mut plan = RunConfig::quiet(1, 4, shards, timing).with_routers(routers);
    plan.mode = AssignedBy::Leader;
    plan.catches_up = true;
    plan.starts[3] = 30 * SEC;
    plan.traffic = Traffic {
        every: 20 * MS,
        burst: 0,
        ..Traffic::calm()
    };
    plan.end_at = until;
    plan
}

/// Writes that the move of a quarter of the shards takes.
struct Cost {
    moves: u64,
    shard_writes: u64,
    /// Writes of routers that say which moves they hold.
    published: u64,
}

fn cost(shards: u32, routers: usize, load: (u64, u64)) -> Cost {
    cost_of(shards, routers, load, true)
}

fn cost_of(shards: u32, routers: usize, load: (u64, u64), catches_up: bool) -> Cost {
    let with = |until| {
        let mut plan = many(shards, routers, until);
        (plan.app.load, plan.catches_up) = (load, catches_up);
        plan
    };
    let before = run(with(30 * SEC - 1));
    let after = run(with(150 * SEC));
    assert_eq!(after.failed_requests, 0);
    let cost = Cost {
        moves: after.taken() - before.taken(),
        shard_writes: after.shard_writes - before.shard_writes,
        published: after.published - before.published,
    };
    let (moves, writes, published) = (cost.moves, cost.shard_writes, cost.published);
    eprintln!("{moves} moves, {writes} writes of shards, {published} of {routers} routers");
    assert_eq!(moves, u64::from(shards / 4));
    // One that loads as its owner says so when it serves.
    let each = if catches_up { 4 } else { 5 };
    assert!(writes <= each * moves, "{writes}");
    cost
}

#[test]
fn all_moves_of_a_plan_cost_each_router_at_most_two_writes() {
    // The leader's budgets let 16 of them load at a time.
    let cost = cost(1000, 50, (MS, 10 * MS));
    assert!(cost.published <= 100, "{}", cost.published);
}

#[test]
fn plans_of_more_moves_than_freeze_at_a_time_cost_each_router_two_writes_per_256() {
    let cost = cost(4000, 10, (MS, 10 * MS));
    let batches = cost.moves.div_ceil(256);
    assert!(cost.published <= 2 * batches * 10, "{}", cost.published);
}

#[test]
fn moves_whose_loads_take_long_cost_each_router_at_most_two_writes_per_window_of_the_budget() {
    // Nobody waits for others much longer than for its own load, or the application would have more to catch up with.
    let cost = cost(1000, 10, (500 * MS, 1500 * MS));
    let windows = cost.moves.div_ceil(16);
    assert!(cost.published <= 2 * windows * 10, "{}", cost.published);
}

#[test]
fn moves_whose_loads_are_part_of_the_pause_cost_each_router_at_most_two_writes_per_window_of_the_budget()
 {
    let cost = cost_of(1000, 10, (MS, 10 * MS), false);
    let windows = cost.moves.div_ceil(16);
    assert!(cost.published <= 2 * windows * 10, "{}", cost.published);
}
