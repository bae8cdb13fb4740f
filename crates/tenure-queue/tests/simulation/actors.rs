//! Processes: what producers, workers and owners do, call by call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_queue::keys::{IndexEntry, IndexKind};
use tenure_queue::task::TaskSpec;
use tenure_queue::transitions::{Transition, apply};
use tenure_queue::{ClaimId, Nonce, Payload, RetryPolicy, Task, TaskId, TaskStatus, WorkerName};
use tokio::task::JoinHandle;

use crate::store::{SimStore, Trouble, Versioned, Write};

const LEASE: Duration = Duration::from_secs(8);
const GRACE: Duration = Duration::from_secs(60);

/// One thing that is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// Writes whatever is there.
    BlindWrites,
    /// Finishes under whatever claim is there.
    AnyClaim,
    /// Takes claims back before they have run out.
    ExpiresEarly,
    /// Removes the entry of the old state before that of the new one is written.
    OldEntryFirst,
    /// Submits the task first and its entry after.
    TaskBeforeEntry,
    /// Takes a claim for won whose outcome is unknown.
    BelievesUnknown,
    /// Removes an entry without a task however young it is.
    NoGrace,
    /// Removes an entry that is ahead of its task although the write that it was made for may be under way.
    LeavesLateRetries,
}

/// A process that does one thing until it dies.
#[derive(Clone)]
pub(crate) struct Process {
    name: WorkerName,
    pub(crate) store: Arc<SimStore>,
    mutant: Option<Mutant>,
}

impl Process {
    pub(crate) fn new(
        name: impl Into<String>,
        store: &Arc<SimStore>,
        mutant: Option<Mutant>,
    ) -> Self {
        Self {
            name: WorkerName::new(name).unwrap(),
            store: store.clone(),
            mutant,
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Submits so many tasks, each under a key, and goes on where a predecessor died.
    pub(crate) fn produce(self, tasks: u64) -> JoinHandle<()> {
        tokio::spawn(async move {
            for n in 0..tasks {
                let id = TaskId::of_key(&format!("{n}")).unwrap();
                while self.submit(&id).await.is_err() {
                    self.pause(200).await;
                }
                self.store.checker.told(&id);
                self.pause(3000).await;
            }
        })
    }

    async fn submit(&self, id: &TaskId) -> Result<(), Trouble> {
        if self.store.read(id).await?.is_some() {
            return Ok(());
        }
        let (now, nonce) = (self.store.now(), Nonce(self.store.draw()));
        let task = Task::submitted(id.clone(), spec(), now, now, nonce);
        let entry = IndexEntry::of(&task);
        if self.is(Mutant::TaskBeforeEntry) {
            self.create(task).await?;
            return self.store.put(entry).await;
        }
        self.store.put(entry.clone()).await?;
        let created = self.create(task).await;
        // So long in coming that its entry may have been taken for a stray: written again.
        if self.store.now().since(now) > GRACE / 2 {
            self.store.put(entry).await?;
        }
        created
    }

    async fn create(&self, task: Task) -> Result<(), Trouble> {
        let write = Write {
            task,
            expect: None,
            blind: false,
            holds: None,
        };
        self.store.write(write).await.map(drop)
    }

    /// Works on what is due, and tends claims that ran out.
    pub(crate) fn work(self) -> JoinHandle<()> {
        tokio::spawn(async move {
            loop {
                // Trouble is met by looking again.
                let _ = self.look().await;
                self.pause(400).await;
            }
        })
    }

    async fn look(&self) -> Result<(), Trouble> {
        let mut entries = self.store.entries().await?;
        let now = self.store.now();
        entries.retain(|entry| entry.at <= now || self.is(Mutant::ExpiresEarly));
        entries.retain(|entry| !entry.index.is_final());
        if entries.is_empty() {
            return Ok(());
        }
        let n = self.store.below(entries.len() as u64) as usize;
        let entry = entries.swap_remove(n);
        let held = self.store.read(&entry.id).await?;
        let ahead = held.as_ref().is_none_or(|(t, _)| entry.entered > t.rev);
        if ahead && entry.at.plus(GRACE) >= now && !self.is(Mutant::NoGrace) {
            return Ok(());
        }
        let Some(held) = held else {
            return self.store.discard(entry).await;
        };
        match (entry.index, held.0.status()) {
            (IndexKind::Ready, TaskStatus::Ready) if entry == IndexEntry::of(&held.0) => {
                self.attempt(entry, held).await
            }
            (IndexKind::Lease, TaskStatus::Running) if entry.fits(&held.0) => {
                self.tend(entry, held).await
            }
            _ => {
                if entry.entered > held.0.rev && !self.overtakes(&held).await? {
                    return Ok(());
                }
                self.move_entry(IndexEntry::of(&held.0), entry).await
            }
        }
    }

    /// Writes a task anew as it is, so that whatever is under way comes too late.
    async fn overtakes(&self, held: &Versioned) -> Result<bool, Trouble> {
        if self.is(Mutant::LeavesLateRetries) {
            return Ok(true);
        }
        let mut next = held.0.clone();
        (next.rev, next.nonce) = (next.rev + 1, Nonce(self.store.draw()));
        self.write(held, next, None).await
    }

    pub(crate) async fn move_entry(
        &self,
        right: IndexEntry,
        old: IndexEntry,
    ) -> Result<(), Trouble> {
        if self.is(Mutant::OldEntryFirst) {
            self.store.discard(old).await?;
            return self.store.put(right).await;
        }
        self.store.put(right).await?;
        self.store.discard(old).await
    }

    async fn tend(&self, entry: IndexEntry, held: Versioned) -> Result<(), Trouble> {
        let expire = Transition::Expire {
            by: self.name.clone(),
            chance: self.store.draw(),
        };
        let mut now = self.store.now();
        if self.is(Mutant::ExpiresEarly) {
            now = now.plus(LEASE);
        }
        let nonce = Nonce(self.store.draw());
        match apply(&held.0, &expire, now, nonce) {
            Ok(next) => {
                if self.write(&held, next.clone(), None).await? {
                    self.move_entry(IndexEntry::of(&next), entry).await?;
                }
                Ok(())
            }
            Err(_) => self.move_entry(IndexEntry::of(&held.0), entry).await,
        }
    }

    pub(crate) async fn write(
        &self,
        held: &Versioned,
        task: Task,
        holds: Option<ClaimId>,
    ) -> Result<bool, Trouble> {
        let write = Write {
            task,
            expect: Some(held.1),
            blind: self.is(Mutant::BlindWrites),
            holds,
        };
        self.store.write(write).await
    }

    /// Claims a task, works on it, and writes down what came of it.
    async fn attempt(&self, entry: IndexEntry, held: Versioned) -> Result<(), Trouble> {
        let (claim, nonce) = (ClaimId(self.store.draw()), Nonce(self.store.draw()));
        let change = Transition::Claim {
            claim,
            worker: self.name.clone(),
        };
        let Ok(next) = apply(&held.0, &change, self.store.now(), nonce) else {
            return Ok(());
        };
        let won = self.write(&held, next, None).await;
        let mut known = None;
        if won != Ok(true) && !(won.is_err() && self.is(Mutant::BelievesUnknown)) {
            // Lost may be one's own write: read back.
            let (task, version) = self.store.read(&entry.id).await?.ok_or(Trouble::Refused)?;
            if task.running().is_none_or(|running| running.claim != claim) {
                return Ok(());
            }
            known = Some((task, version));
        }
        self.store.checker.runs(&self.store, &entry.id, claim);
        let mut standing = entry;
        if self.store.chance(500) {
            // A long one: it moves to the lease index and is extended meanwhile.
            if let Some((task, _)) = self.reread(&standing.id, claim, known).await? {
                self.move_entry(IndexEntry::of(&task), standing).await?;
                standing = IndexEntry::of(&task);
            }
            for _ in 0..self.store.below(5) {
                self.pause(4000).await;
                let extend = Transition::Extend {
                    claim,
                    progress: None,
                };
                let _ = self.alter(&standing.id, claim, &extend).await;
            }
        }
        self.pause(2000).await;
        if self.store.chance(100) {
            // Stopped for longer than a claim is good.
            self.pause(30_000).await;
        }
        let end = self.end(claim);
        let changed = loop {
            match self.alter(&standing.id, claim, &end).await {
                Ok(changed) => break changed,
                Err(_) => self.pause(800).await,
            }
        };
        match changed {
            Some(task) => {
                if matches!(end, Transition::Finish { .. }) {
                    self.store.checker.told_finished(&task.id, claim);
                }
                self.move_entry(IndexEntry::of(&task), standing).await
            }
            None => Ok(()),
        }
    }

    fn end(&self, claim: ClaimId) -> Transition {
        if self.store.chance(250) {
            return Transition::Fail {
                claim,
                reason: "by chance".to_owned(),
                for_good: false,
                after: None,
                chance: self.store.draw(),
            };
        }
        Transition::Finish {
            claim,
            result: Payload::none(),
        }
    }

    async fn reread(
        &self,
        id: &TaskId,
        claim: ClaimId,
        known: Option<Versioned>,
    ) -> Result<Option<Versioned>, Trouble> {
        let held = match known {
            Some(held) => Some(held),
            None => self.store.read(id).await?,
        };
        let ours = |t: &Task| t.running().is_some_and(|r| r.claim == claim);
        Ok(held.filter(|(task, _)| ours(task)))
    }

    /// Makes a change under a claim, reading as often as it takes. None if the claim is lost.
    async fn alter(
        &self,
        id: &TaskId,
        claim: ClaimId,
        change: &Transition,
    ) -> Result<Option<Task>, Trouble> {
        let nonce = Nonce(self.store.draw());
        loop {
            let Some(held) = self.store.read(id).await? else {
                return Ok(None);
            };
            if held.0.contains(nonce) || is_end_of(&held.0, change, claim) {
                return Ok(Some(held.0));
            }
            let (mut change, mut holds) = (change.clone(), claim);
            if let (Transition::Finish { claim: c, .. }, Some(running)) =
                (&mut change, held.0.running())
                && self.is(Mutant::AnyClaim)
            {
                (*c, holds) = (running.claim, claim);
            }
            let Ok(next) = apply(&held.0, &change, self.store.now(), nonce) else {
                return Ok(None);
            };
            match self.write(&held, next.clone(), Some(holds)).await {
                Ok(true) => return Ok(Some(next)),
                Ok(false) | Err(Trouble::Unknown) => {}
                Err(e) => return Err(e),
            }
        }
    }

    pub(crate) async fn pause(&self, most: u64) {
        tokio::time::sleep(Duration::from_millis(1 + self.store.below(most))).await;
    }
}

/// Whether an earlier try at this change has come through: the outcome is there, under this claim.
fn is_end_of(task: &Task, change: &Transition, claim: ClaimId) -> bool {
    let told = |e: &tenure_queue::task::TaskEvent| {
        use tenure_queue::task::TaskEventKind::{Failed, Finished};
        let wanted = match change {
            Transition::Finish { .. } => Finished,
            Transition::Fail { .. } => Failed,
            _ => return false,
        };
        e.event == wanted && e.claim == Some(claim)
    };
    task.history.iter().any(told)
}

fn spec() -> TaskSpec {
    TaskSpec {
        payload: Payload::none(),
        priority: 5,
        attempt_timeout: None,
        claim_timeout: LEASE,
        retry: RetryPolicy {
            max_attempts: 40,
            delay: Duration::from_millis(500),
            delay_max: Duration::from_secs(5),
        },
        metadata: BTreeMap::new(),
        key: None,
    }
}
