//! Claiming what was found.

use std::sync::Arc;
use std::time::Duration;

use tenure_store::{Put, StoreError};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::attempt;
use super::context::WorkerContext;
use crate::error::QueueError;
use crate::handler::TaskHandler;
use crate::ids::{Nonce, TaskId};
use crate::keys::IndexEntry;
use crate::store_time::StoreTime;
use crate::task::{Task, TaskState};
use crate::task_store::VersionedTask;
use crate::transitions::{Transition, apply};

/// For how long a task that cannot be read is passed over.
const PASS_CORRUPT: Duration = Duration::from_secs(60);
/// For how long an entry whose task is not there yet is passed over, at least and at most.
const PASS_AHEAD: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(5));
/// For how long a task that somebody has just claimed is passed over: its worker moves the entry by itself.
const PASS_CLAIMED: Duration = Duration::from_secs(2);
/// For how long a task whose claim came to nothing is passed over.
const PASS_LOST: Duration = Duration::from_millis(200);

/// How soon a claim whose outcome is unknown is looked at again, at first and at last.
const SETTLE_FIRST: Duration = Duration::from_millis(50);
const SETTLE_LATEST: Duration = Duration::from_secs(1);

/// A claim that is about to be written.
struct Bid {
    entry: IndexEntry,
    next: Task,
    was: VersionedTask,
    permit: OwnedSemaphorePermit,
}

/// Claims tasks in one batch and starts an attempt for each that was won.
pub(super) async fn claim<H: TaskHandler>(
    engine: &Arc<WorkerContext>,
    handler: &Arc<H>,
    entries: Vec<IndexEntry>,
) {
    if entries.is_empty() {
        return;
    }
    let ids: Vec<TaskId> = entries.iter().map(|entry| entry.id.clone()).collect();
    let read = engine.shelf.read_many(&ids).await;
    // Claims are good from here on, by the store's clock and by ours.
    let sent = Instant::now();
    let Ok(now) = engine.shelf.now().await else {
        return;
    };
    let mut bids = Vec::new();
    for (entry, held) in entries.into_iter().zip(read) {
        if let Some(held) = fit(engine, &entry, held, now).await
            && let Some(bid) = bid(engine, entry, held, now)
        {
            bids.push(bid);
        }
    }
    // Asked again at the last instant: reading may have taken its time.
    let layout = &engine.shelf.layout;
    bids.retain(|bid| engine.may_claim(layout.shard_of(&bid.next.id)));
    let puts = bids
        .iter()
        .map(|bid| engine.shelf.update(&bid.next, bid.was.version.clone()));
    let written = engine.shelf.put_many(puts.collect()).await;
    for (bid, answer) in bids.into_iter().zip(written) {
        match answer {
            Ok(Put::Won(version)) => {
                let task = bid.next.clone();
                won(engine, handler, bid, VersionedTask { task, version }, sent);
            }
            // Somebody else was quicker.
            Ok(Put::Lost) => lost(engine, &bid.next.id),
            Err(StoreError::Unknown { .. }) => {
                // Nobody else's claim waits for this, and the worker does not stop before it is known.
                engine.pass_over(&bid.next.id, None);
                let (engine, handler, counted) = (engine.clone(), handler.clone(), engine.begin());
                tokio::spawn(async move {
                    tokio::select! {
                        () = settle(&engine, &handler, bid, sent) => {}
                        () = engine.vanish.cancelled() => {}
                    }
                    drop(counted);
                });
            }
            Err(_) => lost(engine, &bid.next.id),
        }
    }
}

fn won<H: TaskHandler>(
    engine: &Arc<WorkerContext>,
    handler: &Arc<H>,
    bid: Bid,
    held: VersionedTask,
    sent: Instant,
) {
    engine.shelf.metrics.claimed.one();
    engine.pass_over(&held.task.id, None);
    attempt::start(engine, handler, held, bid.entry, sent, bid.permit);
}

fn lost(engine: &WorkerContext, id: &TaskId) {
    engine.shelf.metrics.claims_lost.one();
    engine.pass_over(id, Some(engine.shelf.chance.around(PASS_LOST)));
}

/// The task that an entry leads to, if it may be claimed. Otherwise the entry is put right.
async fn fit(
    engine: &WorkerContext,
    entry: &IndexEntry,
    held: Result<Option<VersionedTask>, QueueError>,
    now: StoreTime,
) -> Option<VersionedTask> {
    match held {
        Ok(Some(held)) if IndexEntry::of(&held.task) == *entry => Some(held),
        Ok(held)
            if engine
                .shelf
                .is_ahead(entry, held.as_ref().map(|h| &h.task), now) =>
        {
            await_task(engine, entry, now);
            None
        }
        Ok(Some(held)) if is_fresh(&held.task, now) => {
            engine.pass_over(&entry.id, Some(PASS_CLAIMED));
            None
        }
        Ok(Some(held)) => {
            engine.shelf.set_straight(entry, &held).await;
            None
        }
        Ok(None) => {
            engine.shelf.metrics.strays.one();
            engine.shelf.remove_entries(vec![entry.clone()]).await;
            None
        }
        Err(error) => {
            engine.shelf.note_corrupt(&error);
            if !matches!(error, QueueError::Store(_)) {
                engine.pass_over(&entry.id, Some(PASS_CORRUPT));
            }
            None
        }
    }
}

/// Comes back to an entry whose task is about to be written: soon at first, later if it is long in coming.
fn await_task(engine: &WorkerContext, entry: &IndexEntry, now: StoreTime) {
    let (soonest, latest) = PASS_AHEAD;
    let wait = now.since(entry.at).clamp(soonest, latest);
    engine.pass_over(&entry.id, Some(wait));
    let shard = engine.shelf.layout.shard_of(&entry.id);
    engine.wakes.wake(shard, now.plus(wait));
}

/// Whether a task was claimed a moment ago.
fn is_fresh(task: &Task, now: StoreTime) -> bool {
    let running = task.running();
    running.is_some_and(|running| now.since(running.since) < PASS_CLAIMED)
}

fn bid(
    engine: &WorkerContext,
    entry: IndexEntry,
    was: VersionedTask,
    now: StoreTime,
) -> Option<Bid> {
    let permit = engine.permits.clone().try_acquire_owned().ok()?;
    let change = Transition::Claim {
        claim: engine.shelf.claim_id(),
        worker: engine.name.clone(),
    };
    let next = apply(&was.task, &change, now, engine.shelf.nonce()).ok()?;
    Some(Bid {
        entry,
        next,
        was,
        permit,
    })
}

/// Finds out what became of a claim whose outcome is unknown, for as long as it would be good: a claim that stands there and
/// that nobody works under would count as a failed attempt. Where it is not there, it is written again under the same
/// condition: one of the two comes too late.
async fn settle<H: TaskHandler>(
    engine: &Arc<WorkerContext>,
    handler: &Arc<H>,
    bid: Bid,
    sent: Instant,
) {
    let (shelf, id) = (&engine.shelf, &bid.next.id);
    let until = sent + bid.next.claim_timeout;
    let mut pause = SETTLE_FIRST;
    while Instant::now() < until {
        match shelf.read(id).await {
            Ok(Some(held)) if is_ours(&held.task, bid.next.nonce) => {
                return won(engine, handler, bid, held, sent);
            }
            Ok(Some(held)) if held.version == bid.was.version => {
                let put = vec![shelf.update(&bid.next, held.version)];
                if let Some(Ok(Put::Won(version))) = shelf.put_many(put).await.pop() {
                    let task = bid.next.clone();
                    return won(engine, handler, bid, VersionedTask { task, version }, sent);
                }
            }
            Ok(_) => break,
            Err(e) if e.is_unreadable() => break,
            Err(_) => {}
        }
        tokio::time::sleep(shelf.chance.around(pause)).await;
        pause = (pause * 2).min(SETTLE_LATEST);
    }
    lost(engine, id);
}

/// Whether the claim with this nonce is the one that holds.
fn is_ours(task: &Task, nonce: Nonce) -> bool {
    let claimed = task.history.iter().find(|event| event.nonce == nonce);
    match (&task.state, claimed) {
        (TaskState::Running(running), Some(event)) => event.claim == Some(running.claim),
        _ => false,
    }
}
