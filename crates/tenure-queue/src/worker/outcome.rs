//! How an attempt ends, and writing that down.

use std::time::Duration;

use super::attempt::Attempt;
use super::context::WorkerContext;
use super::index_writer::IndexUpdate;
use crate::handler::{Outcome, RetryAt, TaskFailure};
use crate::keys::IndexEntry;
use crate::metrics::Metrics;
use crate::store_time::StoreTime;
use crate::task::{Task, TaskStatus};
use crate::task_store::UpdateOutcome;
use crate::transitions::{Transition, TransitionError};

/// How soon an outcome that could not be written is written again, at first and at last.
const AGAIN_FIRST: Duration = Duration::from_millis(100);
const AGAIN_LATEST: Duration = Duration::from_secs(5);

/// How an attempt came to its end.
#[derive(Debug)]
pub(super) enum AttemptEnd {
    /// The handler said what came of it.
    Returned(Outcome),
    /// The handler failed.
    Failed(TaskFailure),
    /// The handler panicked.
    Panicked(String),
    /// It took too long.
    TimedOut,
    /// The handler did not stop although the task was cancelled, and was dropped.
    Stopped,
    /// The worker stops, and the handler was not done.
    Stopping,
    /// The claim is lost, or could not be extended in time.
    ClaimLost,
}

/// Writes the outcome down, however long that takes: until it stands there, or the claim turns out to be lost.
pub(super) async fn record(attempt: Attempt, end: AttemptEnd) {
    let engine = attempt.engine.clone();
    let shelf = &engine.shelf;
    let id = attempt.held.task.id.clone();
    count(&shelf.metrics, &end);
    let Some(change) = change(&attempt, end).await else {
        shelf.metrics.taken_away.one();
        tracing::info!(task = %id, "claim on a task lost, attempt cancelled");
        engine.let_in(&id);
        return;
    };
    let (nonce, mut known, mut pause) = (shelf.nonce(), Some(attempt.held.clone()), AGAIN_FIRST);
    loop {
        match shelf.alter(&id, known.take(), &change, nonce).await {
            Ok(UpdateOutcome::Made { now, .. }) => {
                made(&engine, &change, &now.task);
                engine.clerk.file(IndexUpdate {
                    put: IndexEntry::of(&now.task),
                    remove: vec![attempt.entry.clone()],
                    let_in: Some(id),
                });
                return;
            }
            Ok(UpdateOutcome::Refused(reason, held)) => {
                debug_assert_eq!(reason, TransitionError::ClaimLost);
                shelf.metrics.taken_away.one();
                tracing::info!(task = %id, status = %held.task.status(), "claim on a task lost, outcome of the attempt discarded");
                break;
            }
            Ok(UpdateOutcome::Gone) => break,
            Err(error) => {
                tracing::warn!(task = %id, %error, "writing the outcome of an attempt failed, retrying");
                tokio::time::sleep(shelf.chance.around(pause)).await;
                pause = (pause * 2).min(AGAIN_LATEST);
            }
        }
    }
    engine.let_in(&id);
}

/// The change that an end asks for; none if there is no claim to make it with.
async fn change(attempt: &Attempt, end: AttemptEnd) -> Option<Transition> {
    let (claim, task) = (attempt.claim, &attempt.held.task);
    let chance = attempt.engine.shelf.chance.draw();
    let failed = |failure: TaskFailure| Transition::Fail {
        claim,
        reason: failure.reason,
        for_good: failure.for_good,
        after: failure.after,
        chance,
    };
    Some(match end {
        AttemptEnd::ClaimLost => return None,
        AttemptEnd::Returned(Outcome::Done(result)) => {
            let (size, most) = (result.size(), attempt.engine.queue.settings().result_max);
            if size > most {
                return Some(failed(TaskFailure::for_good(format!(
                    "the result has {size} bytes, but the queue's limit is {most}; store it elsewhere and return a reference"
                ))));
            }
            Transition::Finish { claim, result }
        }
        AttemptEnd::Returned(Outcome::Reschedule { at, note }) => Transition::Reschedule {
            claim,
            due: when(&attempt.engine, at, task).await,
            note,
        },
        AttemptEnd::Returned(Outcome::GiveBack) => Transition::GiveBack { claim },
        // Whoever was told to stop and failed has stopped.
        AttemptEnd::Failed(_) | AttemptEnd::Stopped if attempt.asked_to_stop => {
            Transition::Stopped { claim }
        }
        AttemptEnd::Failed(failure) => failed(failure),
        AttemptEnd::Panicked(reason) => failed(TaskFailure::new(reason)),
        AttemptEnd::TimedOut => {
            let limit = task.attempt_timeout.unwrap_or_default();
            failed(TaskFailure::new(format!(
                "the attempt took longer than {limit:?}"
            )))
        }
        AttemptEnd::Stopped | AttemptEnd::Stopping => Transition::GiveBack { claim },
    })
}

async fn when(engine: &WorkerContext, at: RetryAt, task: &Task) -> StoreTime {
    match at {
        RetryAt::At(moment) => moment,
        // Without any time from the store the time of the claim has to do: it is a little early.
        RetryAt::In(wait) => {
            let now = engine.shelf.now().await;
            let since = task.running().map(|running| running.since);
            now.unwrap_or(since.unwrap_or_default()).plus(wait)
        }
    }
}

fn count(metrics: &Metrics, end: &AttemptEnd) {
    match end {
        AttemptEnd::Failed(_) => metrics.failed.one(),
        AttemptEnd::Panicked(_) => {
            metrics.failed.one();
            metrics.panicked.one();
        }
        AttemptEnd::TimedOut => {
            metrics.failed.one();
            metrics.timed_out.one();
        }
        AttemptEnd::Returned(_)
        | AttemptEnd::Stopped
        | AttemptEnd::Stopping
        | AttemptEnd::ClaimLost => {}
    }
}

fn made(engine: &WorkerContext, change: &Transition, task: &Task) {
    let metrics = &engine.shelf.metrics;
    match change {
        Transition::Finish { .. } => metrics.finished.one(),
        Transition::Reschedule { .. } => metrics.rescheduled.one(),
        Transition::GiveBack { .. } => metrics.given_back.one(),
        _ => {}
    }
    match task.status() {
        TaskStatus::Dead => {
            metrics.dead.one();
            tracing::warn!(task = %task.id, attempts = task.attempts, "task became a dead letter");
        }
        TaskStatus::Cancelled => metrics.cancelled.one(),
        TaskStatus::Ready => {
            let shard = engine.shelf.layout.shard_of(&task.id);
            engine.queue.0.workers.wake(shard, IndexEntry::of(task).at);
        }
        TaskStatus::Running | TaskStatus::Done => {}
    }
}
