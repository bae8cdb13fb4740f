//! The table of transitions: what may become of a task, and when.
//!
//! ```text
//!            claim                 finish
//!   ready ─────────► running ───────────────► done
//!     ▲  ▲             │  │ │
//!     │  └─ reschedule ┘  │ └── fail, expire (no attempts left) ──► dead
//!     │     give back     │                                          │
//!     └── fail, expire ───┘         cancel ──► cancelled             │
//!     ▲    (with a wait)                           │                 │
//!     └──────────────────── retry ─────────────────┴─────────────────┘
//! ```
//!
//! Every transition is one conditional write of one object. Those of a worker carry its claim: whoever lost the claim can no
//! longer change anything. All times are store time, and arguments.

use std::time::Duration;

use crate::ids::{ClaimId, Nonce, WorkerName};
use crate::payload::Payload;
use crate::store_time::StoreTime;
use crate::task::{
    HISTORY_MAX, NOTE_MAX, RunningClaim, Task, TaskEvent, TaskEventKind, TaskProgress, TaskState,
    TaskStatus,
};

/// How long an attempt that has run out of time is left to its worker before others take it.
pub const DEADLINE_GRACE: Duration = Duration::from_secs(5);

/// What somebody wants to do to a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transition {
    /// A worker takes it.
    Claim {
        /// The new claim.
        claim: ClaimId,
        /// Who.
        worker: WorkerName,
    },
    /// Its worker is still at it.
    Extend {
        /// The claim.
        claim: ClaimId,
        /// How far it is; none leaves what was said before.
        progress: Option<TaskProgress>,
    },
    /// Its worker is done.
    Finish {
        /// The claim.
        claim: ClaimId,
        /// What it leaves.
        result: Payload,
    },
    /// Its worker failed.
    Fail {
        /// The claim.
        claim: ClaimId,
        /// What went wrong.
        reason: String,
        /// Whether trying again is pointless.
        for_good: bool,
        /// How long to wait; none: as its retries say.
        after: Option<Duration>,
        /// What is left to chance in the wait.
        chance: u64,
    },
    /// Its worker wants it to be tried at another time.
    Reschedule {
        /// The claim.
        claim: ClaimId,
        /// When.
        due: StoreTime,
        /// Why.
        note: Option<String>,
    },
    /// Its worker stops and has not finished it.
    GiveBack {
        /// The claim.
        claim: ClaimId,
    },
    /// Its worker has stopped because it was asked to.
    Stopped {
        /// The claim.
        claim: ClaimId,
    },
    /// Its claim has run out.
    Expire {
        /// Who saw it.
        by: WorkerName,
        /// What is left to chance in the wait.
        chance: u64,
    },
    /// Somebody calls it off.
    Cancel {
        /// Who.
        by: Option<String>,
    },
    /// Somebody wants a task that ended without a result to be tried again from the beginning.
    Retry {
        /// Who.
        by: Option<String>,
    },
}

/// Why a change does not fit a task. An answer, not an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransitionError {
    /// It is in another state than the change is for.
    #[error("the task is {0}")]
    Is(TaskStatus),
    /// Its time has not come.
    #[error("the task is not due before {0}")]
    NotDue(StoreTime),
    /// Another claim has it, or had it last.
    #[error("the claim on the task is lost")]
    ClaimLost,
    /// Its claim is still good.
    #[error("the claim on the task is valid until {0}")]
    StillClaimed(StoreTime),
}

/// The task after a change, or why it cannot be made. `nonce` is the writer's, the same for every try at one change.
pub fn apply(
    task: &Task,
    change: &Transition,
    now: StoreTime,
    nonce: Nonce,
) -> Result<Task, TransitionError> {
    let mut next = task.clone();
    next.rev += 1;
    next.nonce = nonce;
    let noted = match change {
        Transition::Claim { claim, worker } => next.claim(*claim, worker, now)?,
        Transition::Extend { claim, progress } => {
            next.extend(*claim, progress.clone(), now)?;
            return Ok(next);
        }
        Transition::Finish { claim, result } => next.finish(*claim, result.clone(), now)?,
        Transition::Fail {
            claim,
            reason,
            for_good,
            after,
            chance,
        } => {
            let running = next.held_by(*claim)?;
            let about = About::of(TaskEventKind::Failed, &running, next.attempts).noting(reason);
            next.failed(&running, reason, *for_good, *after, *chance, now);
            about
        }
        Transition::Reschedule { claim, due, note } => {
            let running = next.held_by(*claim)?;
            let about = About::of(TaskEventKind::Rescheduled, &running, next.attempts);
            next.attempts = next.attempts.saturating_sub(1);
            next.free(&running, (*due).max(now), now);
            about.noting(note.as_deref().unwrap_or_default())
        }
        Transition::GiveBack { claim } => {
            let running = next.held_by(*claim)?;
            let about = About::of(TaskEventKind::Released, &running, next.attempts);
            next.attempts = next.attempts.saturating_sub(1);
            next.free(&running, now, now);
            about
        }
        Transition::Stopped { claim } => {
            let running = next.held_by(*claim)?;
            let about = About::of(TaskEventKind::Cancelled, &running, next.attempts);
            next.enter(TaskState::Cancelled { at: now });
            about
        }
        Transition::Expire { by, chance } => next.expire(by, *chance, now)?,
        Transition::Cancel { by } => next.cancel(by.as_deref(), now)?,
        Transition::Retry { by } => next.retry(by.as_deref(), now)?,
    };
    next.note(noted, now, nonce);
    Ok(next)
}

/// What an event is about.
struct About {
    what: TaskEventKind,
    by: Option<String>,
    claim: Option<ClaimId>,
    attempt: Option<u32>,
    note: Option<String>,
}

impl About {
    fn of(what: TaskEventKind, running: &RunningClaim, attempt: u32) -> Self {
        Self {
            what,
            by: Some(running.worker.to_string()),
            claim: Some(running.claim),
            attempt: Some(attempt),
            note: None,
        }
    }

    fn by(what: TaskEventKind, by: Option<&str>) -> Self {
        Self {
            what,
            by: by.map(ToOwned::to_owned),
            claim: None,
            attempt: None,
            note: None,
        }
    }

    fn noting(mut self, note: &str) -> Self {
        self.note = (!note.is_empty()).then(|| shortened(note));
        self
    }
}

impl Task {
    fn claim(
        &mut self,
        claim: ClaimId,
        worker: &WorkerName,
        now: StoreTime,
    ) -> Result<About, TransitionError> {
        let TaskState::Ready { due } = self.state else {
            return Err(TransitionError::Is(self.status()));
        };
        if due > now {
            return Err(TransitionError::NotDue(due));
        }
        self.attempts = self.attempts.saturating_add(1);
        let deadline = self.attempt_timeout.map(|timeout| now.plus(timeout));
        let running = RunningClaim {
            claim,
            worker: worker.clone(),
            since: now,
            expires: expiry(self.claim_timeout, deadline, now),
            deadline,
            progress: None,
            cancel: false,
        };
        let about = About::of(TaskEventKind::Claimed, &running, self.attempts);
        self.enter(TaskState::Running(running));
        Ok(about)
    }

    fn extend(
        &mut self,
        claim: ClaimId,
        progress: Option<TaskProgress>,
        now: StoreTime,
    ) -> Result<(), TransitionError> {
        let lease = self.claim_timeout;
        match &mut self.state {
            TaskState::Running(running) if running.claim == claim => {
                let until = expiry(lease, running.deadline, now);
                running.expires = running.expires.max(until);
                if let Some(mut progress) = progress {
                    progress.note = shortened(&progress.note);
                    running.progress = Some(progress);
                }
                Ok(())
            }
            _ => Err(TransitionError::ClaimLost),
        }
    }

    fn finish(
        &mut self,
        claim: ClaimId,
        result: Payload,
        now: StoreTime,
    ) -> Result<About, TransitionError> {
        let running = self.held_by(claim)?;
        let about = About::of(TaskEventKind::Finished, &running, self.attempts);
        self.enter(TaskState::Done {
            at: now,
            claim,
            result,
        });
        Ok(about)
    }

    fn expire(
        &mut self,
        by: &WorkerName,
        chance: u64,
        now: StoreTime,
    ) -> Result<About, TransitionError> {
        let TaskState::Running(running) = self.state.clone() else {
            return Err(TransitionError::Is(self.status()));
        };
        if running.expires > now {
            return Err(TransitionError::StillClaimed(running.expires));
        }
        let reason = match running.deadline {
            Some(deadline) if deadline <= now => {
                format!("the attempt on {} timed out", running.worker)
            }
            _ => format!("worker {} stopped renewing its claim", running.worker),
        };
        let mut about = About::of(TaskEventKind::Expired, &running, self.attempts).noting(&reason);
        about.by = Some(by.to_string());
        self.failed(&running, &reason, false, None, chance, now);
        Ok(about)
    }

    fn cancel(&mut self, by: Option<&str>, now: StoreTime) -> Result<About, TransitionError> {
        match &mut self.state {
            TaskState::Ready { .. } => {
                self.enter(TaskState::Cancelled { at: now });
                Ok(About::by(TaskEventKind::Cancelled, by))
            }
            TaskState::Running(running) if !running.cancel => {
                running.cancel = true;
                Ok(About::by(TaskEventKind::CancelRequested, by))
            }
            // Asked for already, or too late.
            state => Err(TransitionError::Is(state.status())),
        }
    }

    fn retry(&mut self, by: Option<&str>, now: StoreTime) -> Result<About, TransitionError> {
        match self.state {
            TaskState::Dead { .. } | TaskState::Cancelled { .. } => {
                self.attempts = 0;
                self.enter(TaskState::Ready { due: now });
                Ok(About::by(TaskEventKind::Retried, by))
            }
            _ => Err(TransitionError::Is(self.status())),
        }
    }

    /// What follows a failure: a wait, or the end.
    fn failed(
        &mut self,
        running: &RunningClaim,
        reason: &str,
        for_good: bool,
        after: Option<Duration>,
        chance: u64,
        now: StoreTime,
    ) {
        if for_good || self.attempts >= self.retry.max_attempts {
            let reason = shortened(reason);
            self.enter(match running.cancel {
                true => TaskState::Cancelled { at: now },
                false => TaskState::Dead { at: now, reason },
            });
            return;
        }
        let wait = after.unwrap_or_else(|| self.retry.wait(self.attempts, chance));
        self.free(running, now.plus(wait), now);
    }

    /// Ready again, unless somebody has called it off meanwhile.
    fn free(&mut self, running: &RunningClaim, due: StoreTime, now: StoreTime) {
        self.enter(match running.cancel {
            true => TaskState::Cancelled { at: now },
            false => TaskState::Ready { due },
        });
    }

    fn held_by(&self, claim: ClaimId) -> Result<RunningClaim, TransitionError> {
        match self.running() {
            Some(running) if running.claim == claim => Ok(running.clone()),
            _ => Err(TransitionError::ClaimLost),
        }
    }

    fn enter(&mut self, state: TaskState) {
        self.state = state;
        self.entered = self.rev;
    }

    fn note(&mut self, about: About, at: StoreTime, nonce: Nonce) {
        if self.history.len() >= HISTORY_MAX {
            self.history.remove(1);
            self.dropped_events += 1;
        }
        self.history.push(TaskEvent {
            at,
            event: about.what,
            nonce,
            by: about.by,
            claim: about.claim,
            attempt: about.attempt,
            note: about.note,
        });
    }
}

/// Until when a claim is good. Never for much longer than the attempt may take: who hangs cannot hold on to it.
fn expiry(lease: Duration, deadline: Option<StoreTime>, now: StoreTime) -> StoreTime {
    let until = now.plus(lease);
    match deadline {
        Some(deadline) => until.min(deadline.plus(DEADLINE_GRACE)),
        None => until,
    }
}

/// A text that is not too long for a task.
pub(crate) fn shortened(text: &str) -> String {
    if text.len() <= NOTE_MAX {
        return text.to_owned();
    }
    let mut end = NOTE_MAX;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests;
