//! P2: each epoch of a shard has one owner for ever, epochs only grow, and none is shown before its write is confirmed.

use std::collections::BTreeMap;

use tenure_core::ids::{Epoch, SessionId};
use tenure_core::record::ShardRecord;

use super::{CheckResult, Violation};
use crate::clock::Instant;
use crate::event_queue::Pid;

/// Checker of epochs: everything that was ever written or shown of them.
#[derive(Debug)]
pub(crate) struct EpochChecker {
    owners: BTreeMap<(usize, Epoch), SessionId>,
    highest: Vec<Epoch>,
    shown: BTreeMap<(Pid, usize), Epoch>,
    seen: BTreeMap<(Pid, usize), Epoch>,
    /// The store was put back: records, and what processes say of them, may go back once. Epochs given out may not.
    restored: bool,
    /// Epochs of generations below this are not asked for: the store was put back under whoever gave them out.
    fenced_from: u32,
    /// The resource that keeps the maximum: what it has accepted, and how often it refused an older one.
    resource: Vec<Epoch>,
    pub(crate) refused: u64,
}

impl EpochChecker {
    pub(crate) fn new(shards: usize) -> Self {
        Self {
            owners: BTreeMap::new(),
            highest: vec![Epoch(0); shards],
            shown: BTreeMap::new(),
            seen: BTreeMap::new(),
            restored: false,
            fenced_from: 0,
            resource: vec![Epoch(0); shards],
            refused: 0,
        }
    }

    /// A shard's record was written.
    pub(crate) fn written(
        &mut self,
        at: Instant,
        shard: usize,
        record: &ShardRecord,
    ) -> CheckResult {
        let epoch = record.epoch;
        if epoch < self.highest[shard] {
            let highest = self.highest[shard];
            let what =
                format!("the record of shard {shard} went back from epoch {highest} to {epoch}");
            return Err(Violation::new("P2", at, what));
        }
        self.highest[shard] = epoch;
        let Some(owner) = record.owner() else {
            return Ok(());
        };
        if epoch.generation() < self.fenced_from {
            self.owners.insert((shard, epoch), owner.session);
            return Ok(());
        }
        let first = *self.owners.entry((shard, epoch)).or_insert(owner.session);
        if first != owner.session {
            let what = format!(
                "epoch {epoch} of shard {shard} belongs to session {first} and to {}",
                owner.session
            );
            return Err(Violation::new("P2", at, what));
        }
        Ok(())
    }

    /// The store was put back under running processes: no epoch fences until generations are raised.
    pub(crate) fn unfenced(&mut self) {
        self.fenced_from = u32::MAX;
    }

    /// Generations were raised to this one: epochs fence from here on, as before.
    pub(crate) fn raised(&mut self, generation: u32) {
        self.fenced_from = self.fenced_from.min(generation);
    }

    /// The store was put back; `now` tells the epoch that each record has now.
    pub(crate) fn restored(&mut self, now: impl Fn(usize) -> Epoch) {
        self.restored = true;
        for (shard, highest) in self.highest.iter_mut().enumerate() {
            *highest = now(shard);
        }
    }

    /// The highest generation of any epoch that was ever given out.
    pub(crate) fn generation(&self) -> u32 {
        let all = self.owners.keys().map(|(_, epoch)| epoch.generation());
        all.max().unwrap_or(0)
    }

    /// An epoch was handed to the application.
    pub(crate) fn shown(
        &mut self,
        at: Instant,
        pid: Pid,
        shard: usize,
        epoch: Epoch,
        session: SessionId,
    ) -> CheckResult {
        if epoch.generation() < self.fenced_from {
            return Ok(());
        }
        match self.owners.get(&(shard, epoch)) {
            Some(owner) if *owner == session => {}
            Some(owner) => {
                let what = format!(
                    "session {session} shows epoch {epoch} of shard {shard}, which belongs to {owner}"
                );
                return Err(Violation::new("P2", at, what));
            }
            None => {
                let what = format!(
                    "session {session} shows epoch {epoch} of shard {shard} before any record has it"
                );
                return Err(Violation::new("P2", at, what));
            }
        }
        let last = self.shown.entry((pid, shard)).or_insert(epoch);
        if epoch < *last {
            let what =
                format!("process {pid} goes back from epoch {last} of shard {shard} to {epoch}");
            return Err(Violation::new("P2", at, what));
        }
        *last = epoch;
        Ok(())
    }

    /// A process says what a shard's record holds: it never goes back to an older one (A14).
    pub(crate) fn seen(
        &mut self,
        at: Instant,
        pid: Pid,
        shard: usize,
        epoch: Epoch,
    ) -> CheckResult {
        let last = self.seen.entry((pid, shard)).or_insert(epoch);
        if epoch < *last && !self.restored {
            let what = format!(
                "process {pid} took shard {shard} back from epoch {last} to {epoch} in its view"
            );
            return Err(Violation::new("A14", at, what));
        }
        *last = epoch;
        Ok(())
    }

    /// Work with this epoch reaches the resource.
    pub(crate) fn effect(&mut self, shard: usize, epoch: Epoch) {
        if epoch < self.resource[shard] {
            self.refused += 1;
        } else {
            self.resource[shard] = epoch;
        }
    }
}
