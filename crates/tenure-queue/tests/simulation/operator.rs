//! An operator who calls tasks off and has them tried again, and whose last words may be long in coming.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_queue::keys::IndexEntry;
use tenure_queue::transitions::{Transition, apply};
use tenure_queue::{Nonce, Task, TaskId, TaskStatus};
use tokio::task::JoinHandle;

use crate::actors::Process;
use crate::store::{SimStore, Trouble, Versioned, Write};

/// How long a write is under way after its sender is dead, at least and at most, in milliseconds. Entries without a task are
/// left alone for a time in between.
const LATE: (u64, u64) = (50_000, 100_000);

impl Process {
    /// Calls off and retries tasks of a producer's, so many times.
    pub(crate) fn operate(self, tasks: u64, times: u64) -> JoinHandle<()> {
        tokio::spawn(async move {
            for _ in 0..times {
                self.pause(8000).await;
                let n = self.store.below(tasks);
                let id = TaskId::of_key(&format!("{n}")).unwrap();
                // What did not work is left as it is.
                let _ = self.call_off(&id).await;
                self.pause(3000).await;
                if self.retry(&id).await == Ok(false) {
                    return;
                }
            }
        })
    }

    async fn call_off(&self, id: &TaskId) -> Result<(), Trouble> {
        let Some(held) = self.in_state(id, TaskStatus::Ready).await? else {
            return Ok(());
        };
        let Some(next) = self.after(&held, &Transition::Cancel { by: None }) else {
            return Ok(());
        };
        if self.write(&held, next.clone(), None).await? {
            self.move_entry(IndexEntry::of(&next), IndexEntry::of(&held.0))
                .await?;
        }
        Ok(())
    }

    /// Lets a task be tried again: entry first, then the task. False if it died meanwhile.
    async fn retry(&self, id: &TaskId) -> Result<bool, Trouble> {
        let Some(held) = self.in_state(id, TaskStatus::Cancelled).await? else {
            return Ok(true);
        };
        let Some(next) = self.after(&held, &Transition::Retry { by: None }) else {
            return Ok(true);
        };
        self.store.put(IndexEntry::of(&next)).await?;
        if self.store.chance(400) {
            self.last_words(held, next);
            return Ok(false);
        }
        if self.write(&held, next.clone(), None).await? {
            self.move_entry(IndexEntry::of(&next), IndexEntry::of(&held.0))
                .await?;
        }
        Ok(true)
    }

    /// Sends a write that arrives when nobody waits for it any more.
    fn last_words(&self, held: Versioned, next: Task) {
        let (sender, on_its_way) = (self.clone(), OnItsWay::new(&self.store));
        let (soonest, latest) = LATE;
        let wait = Duration::from_millis(soonest + self.store.below(latest - soonest));
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            let write = Write {
                task: next,
                expect: Some(held.1),
                blind: false,
                holds: None,
            };
            let _ = sender.store.write(write).await;
            drop(on_its_way);
        });
    }

    async fn in_state(&self, id: &TaskId, is: TaskStatus) -> Result<Option<Versioned>, Trouble> {
        let held = self.store.read(id).await?;
        Ok(held.filter(|(task, _)| task.status() == is))
    }

    fn after(&self, held: &Versioned, change: &Transition) -> Option<Task> {
        let nonce = Nonce(self.store.draw());
        apply(&held.0, change, self.store.now(), nonce).ok()
    }
}

/// A write that has not arrived yet.
struct OnItsWay(Arc<SimStore>);

impl OnItsWay {
    fn new(store: &Arc<SimStore>) -> Self {
        store.on_their_way.fetch_add(1, Ordering::SeqCst);
        Self(store.clone())
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.0.on_their_way.fetch_sub(1, Ordering::SeqCst);
    }
}
