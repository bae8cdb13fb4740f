//! The handler of a pipe: tasks go out to the client, and what it makes of them comes back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tenure_queue::{ClaimId, Job, Outcome, RetryAt, TaskFailure, TaskHandler};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::Out;
use super::messages::Operation;

type Answer = Result<Outcome, TaskFailure>;

/// The tasks that the client has. Cheap to clone.
#[derive(Clone)]
pub(super) struct ClientTasks(Arc<Inner>);

struct Inner {
    open: Mutex<HashMap<ClaimId, (Job, oneshot::Sender<Answer>)>>,
    hurry: CancellationToken,
    out: Out,
}

impl ClientTasks {
    pub(super) fn new(out: Out) -> Self {
        Self(Arc::new(Inner {
            open: Mutex::default(),
            hurry: CancellationToken::new(),
            out,
        }))
    }

    /// Gives everything back: the client is gone.
    pub(super) fn hurry(&self) {
        self.0.hurry.cancel();
    }

    /// Takes what the client says of a task. What it says of one that it no longer has is of no use.
    pub(super) fn take(&self, order: Operation) {
        let (claim, answer) = match order {
            Operation::Progress {
                claim,
                percent,
                note,
            } => {
                if let Some((job, _)) = self.0.open().get(&claim) {
                    let permille = percent.map(|p| (p.clamp(0.0, 100.0) * 10.0).round() as u16);
                    job.report(permille, note);
                }
                return;
            }
            Operation::Done { claim, result } => match result.payload() {
                Ok(payload) => (claim, Ok(Outcome::Done(payload))),
                Err(reason) => (
                    claim,
                    Err(TaskFailure::for_good(format!("invalid result: {reason}"))),
                ),
            },
            Operation::Fail {
                claim,
                reason,
                permanent: for_good,
                after_ms,
            } => (claim, Err(failure(reason, for_good, after_ms))),
            Operation::Reschedule {
                claim,
                in_ms,
                at,
                note,
            } => {
                let wait = Duration::from_millis(in_ms.unwrap_or(0));
                let at = at.map_or(RetryAt::In(wait), RetryAt::At);
                (claim, Ok(Outcome::Reschedule { at, note }))
            }
            _ => return,
        };
        if let Some((_, waiting)) = self.0.open().remove(&claim) {
            let _ = waiting.send(answer);
        }
    }
}

fn failure(reason: String, for_good: bool, after_ms: Option<u64>) -> TaskFailure {
    let failure = match for_good {
        true => TaskFailure::for_good(reason),
        false => TaskFailure::new(reason),
    };
    match after_ms {
        Some(after) => failure.again_after(Duration::from_millis(after)),
        None => failure,
    }
}

impl Inner {
    fn open(&self) -> MutexGuard<'_, HashMap<ClaimId, (Job, oneshot::Sender<Answer>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand_out(&self, job: &Job) {
        let left = job.time_left().map(|left| left.as_millis() as u64);
        self.out.send(&json!({
            "event": "task", "claim": job.claim(), "task": job.id(), "attempt": job.attempt(),
            "payload": job.payload(), "meta": job.metadata(), "time_left_ms": left,
        }));
    }
}

/// Takes a task off the desk, also if its attempt is dropped.
struct Away<'a>(&'a Inner, ClaimId);

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.0.open().remove(&self.1);
    }
}

impl TaskHandler for ClientTasks {
    async fn handle(&self, job: Job) -> Answer {
        let (sender, mut answer) = oneshot::channel();
        let claim = job.claim();
        self.0.open().insert(claim, (job.clone(), sender));
        let _away = Away(&self.0, claim);
        self.0.hand_out(&job);
        let mut told = false;
        loop {
            tokio::select! {
                answer = &mut answer => {
                    let none = || Err(TaskFailure::new("the client gave no reason"));
                    return answer.unwrap_or_else(|_| none());
                }
                () = job.cancelled(), if !told => {
                    told = true;
                    self.0.out.send(&json!({ "event": "cancel", "claim": claim, "task": job.id() }));
                }
                // Its client has gone.
                () = self.0.hurry.cancelled() => return Ok(Outcome::GiveBack),
            }
        }
    }
}
