//! Times of the model, and its shard.

use std::time::Duration;

use tenure_core::ids::{KeyspaceName, ShardId, ShardName};
use tenure_core::settings::{Settings, Timing};

use crate::world::{KEYSPACE, named};

/// The ttl, in the model's unit of time.
pub(crate) const TTL: u64 = 20;

/// How long a process waits for an answer.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_nanos(2);

/// The times of the model. Its unit is a nanosecond: so the shares of a wait by which nodes get out of step are less than
/// one unit and vanish, and all times lie on a grid.
pub(crate) fn timing() -> Timing {
    let units = Duration::from_nanos;
    let settings = Settings {
        ttl: units(TTL),
        renew_interval: Some(units(4)),
        renew_retry_interval: Some(units(1)),
        request_timeout: Some(REQUEST_TIMEOUT),
        lease_detach_margin: Some(units(5)),
        kill_grace: Some(units(2)),
        clock_drift_max_permille: 50,
        detachment_recover_window: Some(units(4)),
        claim_retry_interval: units(4),
        claim_retry_window: units(0),
        assignment_settle_time: units(2),
        drain_timeout: units(4),
        router_hold_timeout: units(4),
        take_timeout: units(8),
        move_retry_max: units(4),
        tick_interval: Some(units(8)),
        relist_interval: Some(units(8)),
        stall_limit: Some(units(TTL)),
        load_timeout: units(TTL),
        load_retry_min: units(1),
        load_retry_max: units(4),
        ..Settings::default()
    };
    settings
        .check(Duration::ZERO)
        .expect("the model's settings fit together")
}

pub(crate) fn shard() -> ShardId {
    ShardId::new(named(KeyspaceName::new(KEYSPACE)), ShardName::index(0))
}
