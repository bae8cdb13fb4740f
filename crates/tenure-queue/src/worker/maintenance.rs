//! What an owner does for its shards beside looking for tasks.
//!
//! Claims that have run out are taken back; tasks that no index leads to are found; those that ended long ago are removed;
//! schedules are kept. Whoever owns a shard does this for it, so that nobody has to look at everything. Without leasing,
//! each worker does it for a random shard now and then. All of it is right whoever does it, and however many.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::context::WorkerContext;
use crate::error::QueueError;
use crate::ids::TaskId;
use crate::keys::{IndexEntry, IndexKind};
use crate::repair::Purge;
use crate::task::{TaskState, TaskStatus};
use crate::task_store::{UpdateOutcome, VersionedTask};
use crate::transitions::Transition;

/// How often the queue's record is read.
const RECORD_EVERY: Duration = Duration::from_secs(5);
/// How often schedules are looked at, at most and at least.
const TICK_SOONEST: Duration = Duration::from_millis(20);
const TICK_LATEST: Duration = Duration::from_secs(10);
/// How many claims are looked at at once.
const PAGE: usize = 500;
/// The shard whose owner keeps the schedules.
const SCHEDULES: u32 = 0;

/// When something is done next for a shard.
struct Round {
    leases: Instant,
    rescan: Instant,
}

/// Tends the worker's shards until it stops.
pub(super) async fn run(engine: Arc<WorkerContext>) {
    let mut rounds: BTreeMap<u32, Round> = BTreeMap::new();
    let mut changed = engine.changed.subscribe();
    let (mut record_at, mut tick_at) = (Instant::now(), Instant::now());
    while !engine.stop.is_cancelled() {
        let now = Instant::now();
        if record_at <= now {
            record_at = now + engine.shelf.chance.around(RECORD_EVERY);
            let read = engine.queue.refresh().await;
            engine.heard(!matches!(read, Err(QueueError::Store(_))));
            if let Err(error) = read {
                tracing::debug!(%error, "reading the queue record failed");
            }
        }
        if engine.queue.is_deleted() {
            tracing::warn!(queue = %engine.queue.name(), "queue deleted, worker stops claiming tasks");
            return;
        }
        sync(&engine, &mut rounds);
        glance(&engine, &mut rounds).await;
        for (shard, round) in &mut rounds {
            tend(&engine, *shard, round).await;
        }
        let keeps = !engine.leasing.enabled || rounds.contains_key(&SCHEDULES);
        if keeps && tick_at <= Instant::now() {
            tick_at = Instant::now() + tick(&engine).await;
        }
        let due = rounds.values().map(|r| r.leases.min(r.rescan)).min();
        let mut next = due.map_or(record_at, |due| due.min(record_at));
        if keeps {
            next = next.min(tick_at);
        }
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            // A new shard may have claims that ran out long ago.
            _ = changed.changed() => {}
            () = engine.stop.cancelled() => {}
        }
        if !engine.leasing.enabled {
            rounds.retain(|_, round| round.leases > Instant::now());
        }
    }
}

fn sync(engine: &WorkerContext, rounds: &mut BTreeMap<u32, Round>) {
    let chance = &engine.shelf.chance;
    // The first look at everything comes at any time within the interval, so that many shards are not looked at at once.
    let rescan_in = || {
        let micros = engine.settings.rescan_every.as_micros() as u64;
        Duration::from_micros(chance.below(micros))
    };
    let fresh = || Round {
        leases: Instant::now(),
        rescan: Instant::now() + rescan_in(),
    };
    if engine.leasing.enabled {
        let owned = engine.owned_shards();
        rounds.retain(|shard, _| owned.contains(shard));
        for shard in owned {
            rounds.entry(shard).or_insert_with(fresh);
        }
    } else if rounds.is_empty() {
        let shards = u64::from(engine.queue.layout().shards());
        let mut round = fresh();
        // One in so many looks at a random shard is one at everything in it.
        let looks = engine.settings.rescan_every.as_secs() / lease_pause(engine).as_secs().max(1);
        if chance.below(looks.max(1)) == 0 {
            round.rescan = round.leases;
        }
        rounds.insert(chance.below(shards) as u32, round);
    }
}

/// How often claims that may have run out are looked at.
fn lease_pause(engine: &WorkerContext) -> Duration {
    let quarter = engine.queue.settings().claim_timeout / 4;
    quarter.clamp(Duration::from_millis(100), Duration::from_secs(15))
}

/// Does for all shards at once what is due for one, if there is little to see.
async fn glance(engine: &WorkerContext, rounds: &mut BTreeMap<u32, Round>) {
    let now = Instant::now();
    if rounds.len() < 2 || rounds.values().all(|round| round.leases > now) {
        return;
    }
    match recover_all(engine, rounds).await {
        Ok(true) => {
            let next = Instant::now() + engine.shelf.chance.around(lease_pause(engine));
            rounds.values_mut().for_each(|round| round.leases = next);
        }
        Ok(false) => {}
        Err(error) => tracing::debug!(%error, "scan for expired claims failed"),
    }
}

async fn tend(engine: &WorkerContext, shard: u32, round: &mut Round) {
    if round.leases <= Instant::now() {
        if let Err(error) = recover(engine, shard).await {
            tracing::debug!(shard, %error, "scan for expired claims failed");
        }
        round.leases = Instant::now() + engine.shelf.chance.around(lease_pause(engine));
    }
    if round.rescan <= Instant::now() {
        if let Err(error) = look_after(engine, shard).await {
            tracing::debug!(shard, %error, "scan of a shard of the queue for unindexed tasks failed");
        }
        round.rescan = Instant::now() + engine.shelf.chance.around(engine.settings.rescan_every);
    }
}

/// Finds tasks that no index leads to, and removes those that are old.
async fn look_after(engine: &WorkerContext, shard: u32) -> Result<(), QueueError> {
    let found = engine.shelf.rescan_shard(shard).await?;
    if found > 0 {
        tracing::warn!(
            shard,
            count = found,
            "tasks without an index entry found and indexed"
        );
    }
    let purge = Purge::by(&engine.queue.settings());
    engine.shelf.purge_shard(shard, &purge).await?;
    Ok(())
}

/// Looks at the claims of all the worker's shards at once; false if there are too many for one look.
async fn recover_all(
    engine: &WorkerContext,
    rounds: &BTreeMap<u32, Round>,
) -> Result<bool, QueueError> {
    let (shelf, layout) = (&engine.shelf, &engine.shelf.layout);
    let prefix = layout.whole_index(IndexKind::Lease);
    let page = shelf.keys(&prefix, None, PAGE).await?;
    if page.more {
        return Ok(false);
    }
    let now = shelf.now().await?;
    let mut entries: Vec<IndexEntry> = page
        .keys
        .iter()
        .filter_map(|k| layout.entry_of(k))
        .collect();
    entries.retain(|e| e.at <= now && rounds.contains_key(&layout.shard_of(&e.id)));
    look_at_all(engine, &entries).await;
    Ok(true)
}

/// Looks at the claims of a shard whose time has come: takes back those that ran out, and moves on those that were extended.
async fn recover(engine: &WorkerContext, shard: u32) -> Result<(), QueueError> {
    let shelf = &engine.shelf;
    let (prefix, mut after) = (shelf.prefix(IndexKind::Lease, shard), None::<String>);
    let now = shelf.now().await?;
    loop {
        let page = shelf.keys(&prefix, after.as_deref(), PAGE).await?;
        let parsed = page.keys.iter().filter_map(|k| shelf.layout.entry_of(k));
        let (due, later): (Vec<IndexEntry>, Vec<IndexEntry>) =
            parsed.partition(|entry| entry.at <= now);
        look_at_all(engine, &due).await;
        after = page.keys.last().cloned();
        if !later.is_empty() || !page.more {
            return Ok(());
        }
    }
}

async fn look_at_all(engine: &WorkerContext, entries: &[IndexEntry]) {
    let shelf = &engine.shelf;
    let ids: Vec<TaskId> = entries.iter().map(|entry| entry.id.clone()).collect();
    for (entry, held) in entries.iter().zip(shelf.read_many(&ids).await) {
        match held {
            Ok(Some(held)) => {
                // The others are not to wait for one that cannot be written.
                if let Err(error) = look_at(engine, entry, held).await {
                    tracing::warn!(task = %entry.id, %error, "releasing the expired claim on a task failed");
                }
            }
            // A claimed task was there: it has been removed since.
            Ok(None) => shelf.remove_entries(vec![entry.clone()]).await,
            Err(error) => shelf.note_corrupt(&error),
        }
    }
}

async fn look_at(
    engine: &WorkerContext,
    entry: &IndexEntry,
    held: VersionedTask,
) -> Result<(), QueueError> {
    let shelf = &engine.shelf;
    let right = IndexEntry::of(&held.task);
    let ran_out = match &held.task.state {
        TaskState::Running(running) if entry.fits(&held.task) => {
            running.expires <= shelf.now().await?
        }
        _ => {
            shelf.set_straight(entry, &held).await;
            return Ok(());
        }
    };
    if !ran_out {
        shelf.index(vec![right], vec![entry.clone()]).await;
        return Ok(());
    }
    let change = Transition::Expire {
        by: engine.name.clone(),
        chance: shelf.chance.draw(),
    };
    let id = held.task.id.clone();
    if let UpdateOutcome::Made { now, .. } =
        shelf.alter(&id, Some(held), &change, shelf.nonce()).await?
    {
        shelf.metrics.expired.one();
        tracing::info!(task = %id, status = %now.task.status(), "expired claim on a task released");
        match now.task.status() {
            TaskStatus::Dead => shelf.metrics.dead.one(),
            TaskStatus::Cancelled => shelf.metrics.cancelled.one(),
            _ => {}
        }
        let right = IndexEntry::of(&now.task);
        shelf.index(vec![right.clone()], vec![entry.clone()]).await;
        let shard = shelf.layout.shard_of(&id);
        engine.queue.0.workers.wake(shard, right.at);
    }
    Ok(())
}

/// Looks after the schedules, and says how long to wait before the next look.
async fn tick(engine: &WorkerContext) -> Duration {
    let next = match engine.queue.tick().await {
        Ok(next) => next,
        Err(error) => {
            tracing::debug!(%error, "scan of the queue's schedules failed");
            None
        }
    };
    match (next, engine.shelf.now().await) {
        (Some(next), Ok(now)) => next.since(now).clamp(TICK_SOONEST, TICK_LATEST),
        _ => TICK_LATEST,
    }
}
