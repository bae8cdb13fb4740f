//! How an attempt ends, and writing that down.

use std::time::Duration;

use super::attempt::Attempt;
use super::context::WorkerContext;
use super::index_writer::Filed;
use crate::handler::{Failure, Outcome, RetryAt};
use crate::keys::Entry;
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
pub(super) enum End {
    /// The handler said what came of it.
    Returned(Outcome),
    /// The handler failed.
    Failed(Failure),
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
pub(super) async fn record(attempt: Attempt, end: End) {
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
                engine.clerk.file(Filed {
                    put: Entry::of(&now.task),
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
async fn change(attempt: &Attempt, end: End) -> Option<Transition> {
    let (claim, task) = (attempt.claim, &attempt.held.task);
    let chance = attempt.engine.shelf.chance.draw();
    let failed = |failure: Failure| Transition::Fail {
        claim,
        reason: failure.reason,
        for_good: failure.for_good,
        after: failure.after,
        chance,
    };
    Some(match end {
        End::ClaimLost => return None,
        End::Returned(Outcome::Done(result)) => {
            let (size, most) = (result.size(), attempt.engine.queue.settings().result_max);
            if size > most {
                return Some(failed(Failure::for_good(format!(
                    "the result has {size} bytes, but the queue's limit is {most}; store it elsewhere and return a reference"
                ))));
            }
            Transition::Finish { claim, result }
        }
        End::Returned(Outcome::Reschedule { at, note }) => Transition::Reschedule {
            claim,
            due: when(&attempt.engine, at, task).await,
            note,
        },
        End::Returned(Outcome::GiveBack) => Transition::GiveBack { claim },
        // Whoever was told to stop and failed has stopped.
        End::Failed(_) | End::Stopped if attempt.asked_to_stop => Transition::Stopped { claim },
        End::Failed(failure) => failed(failure),
        End::Panicked(reason) => failed(Failure::new(reason)),
        End::TimedOut => {
            let limit = task.attempt_timeout.unwrap_or_default();
            failed(Failure::new(format!(
                "the attempt took longer than {limit:?}"
            )))
        }
        End::Stopped | End::Stopping => Transition::GiveBack { claim },
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

fn count(metrics: &Metrics, end: &End) {
    match end {
        End::Failed(_) => metrics.failed.one(),
        End::Panicked(_) => {
            metrics.failed.one();
            metrics.panicked.one();
        }
        End::TimedOut => {
            metrics.failed.one();
            metrics.timed_out.one();
        }
        End::Returned(_) | End::Stopped | End::Stopping | End::ClaimLost => {}
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
            engine.queue.0.workers.wake(shard, Entry::of(task).at);
        }
        TaskStatus::Running | TaskStatus::Done => {}
    }
}
