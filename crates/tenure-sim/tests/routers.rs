//! Routers and their clients over planned moves: nothing fails, and what routers write grows with moves and routers, not with
//! their product.

use std::time::Duration;

use tenure_core::record::KeyspaceMode;
use tenure_core::settings::Settings;
use tenure_sim::clients::Traffic;
use tenure_sim::clock::{MS, SEC};
use tenure_sim::coverage::Coverage;
use tenure_sim::plan::{Class, Plan};
use tenure_sim::run::run_plan;
use tenure_sim::trace::Trace;
use tenure_sim::world::Under;

fn run(plan: Plan) -> Coverage {
    let seed = plan.seed;
    let outcome = run_plan(plan, Under::default(), Trace::Off);
    assert_eq!(outcome.violation, None, "seed {seed}");
    outcome.coverage
}

#[test]
fn joins_drains_and_rolling_restarts_fail_no_request() {
    let planned = (0..).map(Plan::draw).filter(|p| p.class == Class::Planned);
    let mut all = Coverage::default();
    for plan in planned.take(60) {
        let seen = run(plan);
        assert_eq!(seen.failed_requests, 0);
        all.add(&seen);
    }
    assert!(all.answered > 10_000 && all.taken() > 300, "{all:?}");
    assert!(all.held > 1_000 && all.published > 200, "{all:?}");
}

/// Four nodes, of which the last joins when the others serve everything: a quarter of the shards moves.
fn many(shards: u32, routers: usize, until: u64) -> Plan {
    let settings = Settings {
        ttl: Duration::from_secs(6),
        ..Settings::default()
    };
    let timing = settings.check(Duration::ZERO).unwrap();
    let mut plan = Plan::quiet(1, 4, shards, timing).with_routers(routers);
    plan.mode = KeyspaceMode::Coordinated;
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

#[test]
fn a_batch_of_moves_costs_at_most_two_writes_of_each_router() {
    let (shards, routers) = (1000, 50);
    let before = run(many(shards, routers, 30 * SEC - 1));
    let after = run(many(shards, routers, 150 * SEC));
    let moves = after.taken() - before.taken();
    let shard_writes = after.shard_writes - before.shard_writes;
    let published = after.published - before.published;
    eprintln!("{moves} moves, {shard_writes} writes of shards, {published} of {routers} routers");
    assert_eq!(moves, u64::from(shards / 4));
    assert!(shard_writes <= 4 * moves, "{shard_writes}");
    // A leader lets so many move at once; each such batch is told of once or twice, as its shards come to be held.
    let batches = moves.div_ceil(16);
    assert!(published <= 2 * batches * routers as u64, "{published}");
    assert_eq!(after.failed_requests, 0);
}
