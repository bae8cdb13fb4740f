//! What must be true of every write, and in the end. Knows tasks as records, and nothing of how they come about.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tenure_queue::task::TaskEventKind;
use tenure_queue::{ClaimId, StoreTime, Task, TaskId, TaskState, TaskStatus};

use crate::store::{SimStore, Write};

#[derive(Default)]
pub(crate) struct Checker {
    broken: Mutex<Option<String>>,
    /// Tasks that a producer was told are there.
    told: Mutex<Vec<TaskId>>,
    /// Handlers that ran, by task and claim.
    ran: Mutex<BTreeMap<TaskId, Vec<ClaimId>>>,
    /// Who was told that it has finished a task.
    finished: Mutex<BTreeMap<TaskId, ClaimId>>,
}

impl Checker {
    pub(crate) fn broken(&self) -> Result<(), String> {
        match &*self.broken.lock().unwrap() {
            Some(reason) => Err(reason.clone()),
            None => Ok(()),
        }
    }

    fn demand(&self, holds: bool, what: impl FnOnce() -> String) {
        let mut broken = self.broken.lock().unwrap();
        if !holds && broken.is_none() {
            *broken = Some(what());
        }
    }

    pub(crate) fn told(&self, id: &TaskId) {
        self.told.lock().unwrap().push(id.clone());
    }

    /// A handler begins to run. Nobody runs without having the claim, or having had it.
    pub(crate) fn runs(&self, store: &SimStore, id: &TaskId, claim: ClaimId) {
        let contents = store.contents.lock().unwrap();
        let claimed = contents
            .tasks
            .get(id)
            .is_some_and(|(task, _)| task.history.iter().any(|e| e.claim == Some(claim)));
        self.demand(claimed, || {
            format!("{id} runs under {claim}, which nobody has")
        });
        let mut ran = self.ran.lock().unwrap();
        ran.entry(id.clone()).or_default().push(claim);
    }

    pub(crate) fn told_finished(&self, id: &TaskId, claim: ClaimId) {
        let mut finished = self.finished.lock().unwrap();
        let first = *finished.entry(id.clone()).or_insert(claim);
        self.demand(first == claim, || {
            format!("{id} was finished by {first} and by {claim}")
        });
    }

    /// A task is about to become another value.
    pub(crate) fn wrote(&self, before: Option<&Task>, write: &Write, now: StoreTime) {
        let after = &write.task;
        let Some(before) = before else {
            self.demand(after.rev == 1, || {
                format!("{} begins with {}", after.id, after.rev)
            });
            return;
        };
        let id = &after.id;
        self.demand(after.rev == before.rev + 1, || {
            format!("{id} goes from {} to {}", before.rev, after.rev)
        });
        self.demand(
            !matches!(before.status(), TaskStatus::Done | TaskStatus::Dead),
            || format!("{id} was {} and is {}", before.status(), after.status()),
        );
        self.demand(after.history.len() >= before.history.len(), || {
            format!("{id} forgets what happened")
        });
        if let TaskState::Running(running) = &before.state {
            let still = after.running().is_some_and(|r| r.claim == running.claim);
            let by_holder = write.holds == Some(running.claim);
            self.demand(still || by_holder || running.expires <= now, || {
                format!("{id} was taken from {} before its time", running.claim)
            });
            self.demand(!still || by_holder, || {
                format!("{id} was extended by somebody else")
            });
        }
        if let TaskState::Done { claim, .. } = &after.state {
            self.demand(write.holds == Some(*claim), || {
                format!("{id} is finished under {claim} by somebody else")
            });
        }
    }

    /// All is over: everything has ended, once, and is accounted for.
    pub(crate) fn finally(&self, store: &SimStore, tasks: u64) -> Result<(), String> {
        let contents = store.contents.lock().unwrap();
        let told = self.told.lock().unwrap();
        let ran = self.ran.lock().unwrap();
        for id in told.iter() {
            if !contents.tasks.contains_key(id) {
                return Err(format!("{id} is lost"));
            }
        }
        if (contents.tasks.len() as u64) < tasks {
            return Err(format!("there are only {} tasks", contents.tasks.len()));
        }
        for (id, (task, _)) in &contents.tasks {
            // Who retries begins to count anew.
            let retried = task
                .history
                .iter()
                .rposition(|e| e.event == TaskEventKind::Retried);
            let since = &task.history[retried.unwrap_or(0)..];
            let count = |what: TaskEventKind| since.iter().filter(|e| e.event == what).count();
            if !task.status().is_final() {
                return Err(format!(
                    "{id} is still {}, and nobody comes by: {task:?}",
                    task.status()
                ));
            }
            if count(TaskEventKind::Finished) != usize::from(task.status() == TaskStatus::Done) {
                return Err(format!(
                    "{id} was finished {} times",
                    count(TaskEventKind::Finished)
                ));
            }
            let over = count(TaskEventKind::Failed)
                + count(TaskEventKind::Expired)
                + count(TaskEventKind::Finished);
            if task.attempts as usize != count(TaskEventKind::Claimed)
                || over != count(TaskEventKind::Claimed)
            {
                return Err(format!("attempts of {id} are not accounted for: {task:?}"));
            }
            if let TaskState::Done { claim, .. } = &task.state
                && !ran.get(id).is_some_and(|claims| claims.contains(claim))
            {
                return Err(format!("{id} was finished by {claim}, which never ran"));
            }
        }
        Ok(())
    }
}
