//! A store of tasks and entries that takes its time, refuses, and forgets to answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::hash::mix;
use tenure_queue::keys::IndexEntry;
use tenure_queue::{ClaimId, StoreTime, Task, TaskId};
use tokio::time::Instant;

use crate::check::Checker;

/// What went wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nothing was done.
    Refused,
    /// Perhaps it was, perhaps it will be.
    Unknown,
}

/// A task with its version.
pub(crate) type Versioned = (Task, u64);

#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) tasks: BTreeMap<TaskId, Versioned>,
    pub(crate) entries: BTreeSet<IndexEntry>,
    versions: u64,
}

pub(crate) struct SimStore {
    pub(crate) contents: Mutex<Contents>,
    pub(crate) checker: Arc<Checker>,
    /// Writes of the dead that have not arrived yet.
    pub(crate) on_their_way: AtomicUsize,
    rng: Mutex<u64>,
    healed: AtomicBool,
    begun: Instant,
}

/// A write of a task.
pub(crate) struct Write {
    pub(crate) task: Task,
    /// The version that it expects; none: that there is no such task.
    pub(crate) expect: Option<u64>,
    /// Whether it does not care.
    pub(crate) blind: bool,
    /// The claim that its writer holds, or believes to hold.
    pub(crate) holds: Option<ClaimId>,
}

impl SimStore {
    pub(crate) fn new(seed: u64, checker: Arc<Checker>) -> Self {
        Self {
            contents: Mutex::default(),
            checker,
            on_their_way: AtomicUsize::new(0),
            rng: Mutex::new(mix(seed + 1)),
            healed: AtomicBool::new(false),
            begun: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> StoreTime {
        StoreTime::from_millis(1_800_000_000_000).plus(self.begun.elapsed())
    }

    pub(crate) fn draw(&self) -> u64 {
        let mut state = self.rng.lock().unwrap();
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(*state)
    }

    pub(crate) fn below(&self, end: u64) -> u64 {
        self.draw() % end
    }

    /// Happens so many times in a thousand.
    pub(crate) fn chance(&self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// From now on nothing goes wrong.
    pub(crate) fn heal(&self) {
        self.healed.store(true, Ordering::SeqCst);
    }

    /// Whether every task has ended, and nothing is to come.
    pub(crate) fn is_at_rest(&self) -> bool {
        if self.on_their_way.load(Ordering::SeqCst) > 0 {
            return false;
        }
        let contents = self.contents.lock().unwrap();
        let mut tasks = contents.tasks.values();
        tasks.all(|(task, _)| task.status().is_final())
    }

    /// Takes a call to the store and its answer back. What is under way goes on though its caller dies.
    async fn call<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, Trouble> {
        let store = self.clone();
        let faulty = !self.healed.load(Ordering::SeqCst);
        let (refuse, lose) = (faulty && self.chance(50), faulty && self.chance(60));
        let slow = faulty && self.chance(40);
        let wait = Duration::from_millis(self.below(if slow { 12_000 } else { 25 }));
        let back = Duration::from_millis(self.below(15));
        let landed = tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            work(&store)
        });
        if refuse {
            landed.abort();
            return Err(Trouble::Refused);
        }
        // Nobody waits without end.
        let answer = tokio::time::timeout(Duration::from_secs(3), landed).await;
        tokio::time::sleep(back).await;
        match answer {
            Ok(Ok(answer)) if !lose => Ok(answer),
            _ => Err(Trouble::Unknown),
        }
    }

    pub(crate) async fn read(self: &Arc<Self>, id: &TaskId) -> Result<Option<Versioned>, Trouble> {
        let id = id.clone();
        let read = move |store: &Self| store.contents.lock().unwrap().tasks.get(&id).cloned();
        self.call(read).await
    }

    /// Writes a task if it is as expected; says whether it was.
    pub(crate) async fn write(self: &Arc<Self>, write: Write) -> Result<bool, Trouble> {
        self.call(move |store| {
            let now = store.now();
            let mut contents = store.contents.lock().unwrap();
            let there = contents.tasks.get(&write.task.id).cloned();
            let version = there.as_ref().map(|(_, version)| *version);
            if version != write.expect && !(write.blind && there.is_some()) {
                return false;
            }
            let before = there.map(|(task, _)| task);
            store.checker.wrote(before.as_ref(), &write, now);
            contents.versions += 1;
            let version = contents.versions;
            contents
                .tasks
                .insert(write.task.id.clone(), (write.task, version));
            true
        })
        .await
    }

    pub(crate) async fn put(self: &Arc<Self>, entry: IndexEntry) -> Result<(), Trouble> {
        self.call(move |store| {
            store.contents.lock().unwrap().entries.insert(entry);
        })
        .await
    }

    pub(crate) async fn discard(self: &Arc<Self>, entry: IndexEntry) -> Result<(), Trouble> {
        self.call(move |store| {
            store.contents.lock().unwrap().entries.remove(&entry);
        })
        .await
    }

    pub(crate) async fn entries(self: &Arc<Self>) -> Result<Vec<IndexEntry>, Trouble> {
        self.call(|store| {
            let contents = store.contents.lock().unwrap();
            contents.entries.iter().cloned().collect()
        })
        .await
    }
}
