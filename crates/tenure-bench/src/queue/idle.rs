//! Cost of idle workers.

use std::time::Duration;

use tenure_queue::{OwnershipSettings, WorkerSettings};

use super::super::measure::ReportRow;
use super::setup::{self, BenchQueue};
use crate::exit::Exit;

/// How often leases are renewed: there each shard's, here each worker's.
const RENEWAL: Duration = Duration::from_secs(10);
/// How long they are good.
const LEASE: Duration = Duration::from_secs(30);

/// What another design would ask of the store in a minute, by its description.
struct Theirs {
    writes: f64,
    reads: f64,
    /// What the design before that asked: every worker lists every shard.
    pulled: f64,
}

impl Theirs {
    fn of(workers: u32, shards: u32, look_every: Duration) -> Self {
        let (workers, shards) = (f64::from(workers), f64::from(shards));
        let renewals = 60.0 / RENEWAL.as_secs_f64();
        let looks = 60.0 / look_every.as_secs_f64();
        Self {
            writes: shards * renewals,
            // The time is asked for at each renewal, and each shard listed at each look.
            reads: shards * renewals + shards * looks,
            pulled: workers * shards * looks,
        }
    }
}

/// Watches idle workers for a while; requests per minute of all of them together.
pub(crate) async fn measure(
    store: Option<&str>,
    workers: u32,
    shards: u32,
    watched: Duration,
) -> Result<Vec<ReportRow>, Exit> {
    let field = BenchQueue::new(store, shards).await?;
    let leasing = OwnershipSettings {
        ttl_secs: Some(LEASE.as_secs_f64()),
        renew_interval_secs: Some(RENEWAL.as_secs_f64()),
        ..OwnershipSettings::default()
    };
    let crew = field.workers(workers, 1, &leasing).await?;
    let settings = WorkerSettings::for_store(field.queue.store().info().kind);
    // Until every shard is looked into as seldom as it gets.
    tokio::time::sleep(settings.poll_latest * 4).await;
    let before = field.requests();
    tokio::time::sleep(watched).await;
    let counted = field.requests().since(before);
    setup::stop(crew).await?;
    field.remove().await;
    let minute = |count: u64| count as f64 * 60.0 / watched.as_secs_f64();
    let (writes, reads) = (minute(counted.writes), minute(counted.reads));
    let theirs = Theirs::of(workers, shards, settings.poll_latest);
    let area = "queue at rest, requests per minute of all workers";
    let case = |what: &str| format!("{workers} × {shards}: {what}");
    let beside = |what: &str, name, ours, theirs| {
        ReportRow::beside(area, case(what), "", name, vec![(ours, theirs)])
    };
    Ok(vec![
        beside(
            "writes",
            "a lease per shard (computed)",
            writes,
            theirs.writes,
        ),
        beside("reads", "a lease per shard (computed)", reads, theirs.reads),
        beside(
            "all",
            "every worker lists every shard (computed)",
            writes + reads,
            theirs.pulled,
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_other_designs_cost_is_what_their_descriptions_say() {
        let theirs = Theirs::of(16, 256, Duration::from_secs(5));
        assert_eq!(theirs.writes, 256.0 * 6.0);
        assert_eq!(theirs.reads, 256.0 * 6.0 + 256.0 * 12.0);
        assert_eq!(theirs.pulled, 16.0 * 256.0 * 12.0);
    }
}
