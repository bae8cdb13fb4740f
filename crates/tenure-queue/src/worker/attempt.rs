//! One attempt: its handler, its claim, its time.
//!
//! The handler runs in a task of its own. Beside it, another one extends the claim, watches the time, and passes on that
//! the attempt is to stop. Neither waits for the other: a handler that hangs loses its attempt, not its worker.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::context::{ActiveAttempt, WorkerContext};
use super::index_writer::IndexUpdate;
use super::outcome::{self, AttemptEnd};
use crate::error::QueueError;
use crate::handler::{Job, Outcome, TaskFailure, TaskHandler};
use crate::ids::ClaimId;
use crate::keys::IndexEntry;
use crate::task::TaskProgress;
use crate::task_store::{UpdateOutcome, VersionedTask};
use crate::transitions::Transition;

/// For how long an attempt is led to by the entry that it was found by. Short ones need no other.
const INDEX_AFTER: Duration = Duration::from_secs(1);
/// How long a handler that was told to stop has for it.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// How long a handler has to stop when the worker itself has to.
const ABORT_GRACE: Duration = Duration::from_secs(1);

type Returned = Result<Result<Outcome, TaskFailure>, JoinError>;

/// An attempt under way.
pub(super) struct Attempt {
    pub(super) engine: Arc<WorkerContext>,
    pub(super) held: VersionedTask,
    pub(super) claim: ClaimId,
    /// The entry that leads to the task.
    pub(super) entry: IndexEntry,
    pub(super) cancel: CancellationToken,
    /// Whether somebody wants the task cancelled.
    pub(super) asked_to_stop: bool,
    progress: watch::Receiver<Option<TaskProgress>>,
    /// Until when the claim is good for sure.
    good_until: Instant,
    _active: ActiveAttempt,
    _permit: OwnedSemaphorePermit,
}

/// Starts an attempt. `sent` is when the claim was sent: its time is counted from there.
pub(super) fn start<H: TaskHandler>(
    engine: &Arc<WorkerContext>,
    handler: &Arc<H>,
    held: VersionedTask,
    entry: IndexEntry,
    sent: Instant,
    permit: OwnedSemaphorePermit,
) {
    let Some(running) = held.task.running() else {
        return;
    };
    let (claim, lease) = (running.claim, held.task.claim_timeout);
    let deadline = held.task.attempt_timeout.map(|timeout| sent + timeout);
    let cancel = CancellationToken::new();
    let (said, progress) = watch::channel(None);
    let job = Job {
        task: Arc::new(held.task.clone()),
        claim,
        cancel: cancel.clone(),
        progress: said,
        deadline,
    };
    let attempt = Attempt {
        engine: engine.clone(),
        claim,
        entry,
        cancel,
        asked_to_stop: false,
        progress,
        good_until: sent + lease,
        _active: engine.begin(),
        _permit: permit,
        held,
    };
    let (handler, vanish) = (handler.clone(), engine.vanish.clone());
    tokio::spawn(async move {
        let work = Work(tokio::spawn(async move { handler.handle(job).await }));
        tokio::select! {
            () = attempt.live(work, sent, deadline) => {}
            () = vanish.cancelled() => {}
        }
    });
}

/// The handler's task, which does not outlive whoever waits for it.
struct Work(JoinHandle<Result<Outcome, TaskFailure>>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How an extension ended.
enum Extension {
    Made(Box<VersionedTask>, Instant),
    Lost,
    Failed(QueueError),
}

impl Attempt {
    async fn live(mut self, mut work: Work, sent: Instant, deadline: Option<Instant>) {
        let end = self.see_through(&mut work, sent, deadline).await;
        drop(work);
        outcome::record(self, end).await;
    }

    /// Keeps the claim until the handler has ended, one way or another.
    async fn see_through(
        &mut self,
        work: &mut Work,
        sent: Instant,
        deadline: Option<Instant>,
    ) -> AttemptEnd {
        let third = self.held.task.claim_timeout / 3;
        let (mut extend_at, mut index_at) = (sent + third, Some(sent + INDEX_AFTER));
        let mut extending: Option<JoinHandle<Extension>> = None;
        let mut stop_by: Option<Instant> = None;
        let abort = self.engine.abort.clone();
        loop {
            tokio::select! {
                biased;
                returned = &mut work.0 => return AttemptEnd::of(returned),
                () = at(deadline) => return self.hurry(work, AttemptEnd::TimedOut).await,
                () = abort.cancelled() => return self.hurry(work, AttemptEnd::Stopping).await,
                () = at(stop_by) => return AttemptEnd::Stopped,
                extension = joined(&mut extending) => {
                    extending = None;
                    match extension {
                        Extension::Made(held, asked) => {
                            self.extended(*held, asked);
                            extend_at = asked + third;
                        }
                        Extension::Lost => return self.hurry(work, AttemptEnd::ClaimLost).await,
                        Extension::Failed(error) => {
                            tracing::debug!(task = %self.held.task.id, %error, "renewing the claim on a task failed, retrying");
                            extend_at = Instant::now() + third / 5;
                        }
                    }
                    if self.asked_to_stop && stop_by.is_none() {
                        self.cancel.cancel();
                        stop_by = Some(Instant::now() + STOP_GRACE);
                    }
                }
                () = tokio::time::sleep_until(extend_at), if extending.is_none() => {
                    extending = Some(self.extend());
                }
                // Others may have it by now.
                () = tokio::time::sleep_until(self.good_until) => {
                    return self.hurry(work, AttemptEnd::ClaimLost).await;
                }
                () = at(index_at) => {
                    index_at = None;
                    self.stand_in_lease_index();
                }
            }
        }
    }

    /// Tells the handler to stop, and gives it a moment. What it returns in time counts, unless the claim is lost.
    async fn hurry(&mut self, work: &mut Work, end: AttemptEnd) -> AttemptEnd {
        self.cancel.cancel();
        match tokio::time::timeout(ABORT_GRACE, &mut work.0).await {
            Ok(returned) if !matches!(end, AttemptEnd::ClaimLost | AttemptEnd::TimedOut) => {
                match returned {
                    Ok(Err(_)) if matches!(end, AttemptEnd::Stopping) => end,
                    returned => AttemptEnd::of(returned),
                }
            }
            _ => end,
        }
    }

    /// Asks for more time, in a task of its own.
    fn extend(&mut self) -> JoinHandle<Extension> {
        let change = Transition::Extend {
            claim: self.claim,
            progress: self.progress.borrow_and_update().clone(),
        };
        let (shelf, held) = (self.engine.shelf.clone(), self.held.clone());
        tokio::spawn(async move {
            let (asked, id) = (Instant::now(), held.task.id.clone());
            let altered = shelf.alter(&id, Some(held), &change, shelf.nonce()).await;
            match altered {
                Ok(UpdateOutcome::Made { now, .. }) => Extension::Made(now, asked),
                Ok(UpdateOutcome::Refused(..) | UpdateOutcome::Gone) => Extension::Lost,
                Err(e) => Extension::Failed(e),
            }
        })
    }

    fn extended(&mut self, held: VersionedTask, asked: Instant) {
        self.engine.shelf.metrics.extended.one();
        self.good_until = asked + held.task.claim_timeout;
        self.asked_to_stop = held.task.running().is_some_and(|running| running.cancel);
        self.held = held;
    }

    /// An attempt that lasts is no longer led to by the ready index, but by the lease index.
    fn stand_in_lease_index(&mut self) {
        let right = IndexEntry::of(&self.held.task);
        let was = std::mem::replace(&mut self.entry, right.clone());
        self.engine.clerk.file(IndexUpdate {
            put: right,
            remove: vec![was],
            let_in: None,
        });
    }
}

/// Waits until an instant, if there is one.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Waits for a task, if there is one. One that broke off has told nothing.
async fn joined(task: &mut Option<JoinHandle<Extension>>) -> Extension {
    match task {
        Some(task) => task.await.unwrap_or_else(|e| {
            Extension::Failed(QueueError::invalid(format!(
                "the renewal of the claim failed: {e}"
            )))
        }),
        None => std::future::pending().await,
    }
}

impl AttemptEnd {
    fn of(returned: Returned) -> Self {
        match returned {
            Ok(Ok(outcome)) => AttemptEnd::Returned(outcome),
            Ok(Err(failure)) => AttemptEnd::Failed(failure),
            Err(broken) => AttemptEnd::Panicked(panic_message(broken)),
        }
    }
}

fn panic_message(broken: JoinError) -> String {
    let Ok(panic) = broken.try_into_panic() else {
        return "the handler was aborted".to_owned();
    };
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!(
        "the handler panicked: {}",
        text.unwrap_or_else(|| "no message".to_owned())
    )
}
