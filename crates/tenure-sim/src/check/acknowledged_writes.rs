//! P3: nothing that was acknowledged is lost when a shard changes hands.
//!
//! Every shard has a resource that counts the writes it has acknowledged, and refuses those of an epoch below the highest that
//! it has seen. Who serves a shard knows a number of them; when a gate opens it must know them all.

use tenure_core::ids::Epoch;

use super::{CheckResult, Violation};
use crate::clock::Instant;
use crate::event_queue::Pid;

#[derive(Clone, Copy, Debug, Default)]
struct Resource {
    acknowledged: u64,
    highest: Epoch,
}

/// Checker of acknowledged writes, with the resources of all shards.
#[derive(Debug)]
pub(crate) struct AcknowledgedWriteChecker(Vec<Resource>, u64);

impl AcknowledgedWriteChecker {
    pub(crate) fn new(shards: usize) -> Self {
        Self(vec![Resource::default(); shards], 0)
    }

    /// Refuses from now on what carries a lower epoch.
    pub(crate) fn fence(&mut self, shard: usize, epoch: Epoch) {
        let resource = &mut self.0[shard];
        resource.highest = resource.highest.max(epoch);
    }

    /// All writes that were acknowledged.
    pub(crate) fn read(&self, shard: usize) -> u64 {
        self.0[shard].acknowledged
    }

    /// A write arrives; whether it is acknowledged.
    pub(crate) fn write(&mut self, shard: usize, epoch: Epoch) -> bool {
        let resource = &mut self.0[shard];
        let taken = epoch >= resource.highest;
        resource.acknowledged += u64::from(taken);
        resource.highest = resource.highest.max(epoch);
        taken
    }

    /// A gate opens for who knows of so many writes, in an order that does not promise that it knows all: counts the others.
    pub(crate) fn opened_unread(&mut self, shard: usize, known: u64) {
        self.1 += self.read(shard) - known;
    }

    /// How many acknowledged writes somebody served without knowing of.
    pub(crate) fn lost(&self) -> u64 {
        self.1
    }

    /// A gate opens for who knows of so many writes.
    pub(crate) fn opened(&self, at: Instant, pid: Pid, shard: usize, known: u64) -> CheckResult {
        let acknowledged = self.read(shard);
        if known == acknowledged {
            return Ok(());
        }
        let what = format!(
            "process {pid} serves shard {shard} and knows of {known} writes, but {acknowledged} were acknowledged"
        );
        Err(Violation::new("P3", at, what))
    }
}
