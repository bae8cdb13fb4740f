//! Garbage collection: references to departed nodes and tombstones of sessions that no record refers to.
//!
//! Running nodes and the leader do the same continuously.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{SessionId, ShardId, Version};
use tenure_core::keys::Key;
use tenure_core::ownership::Transition;
use tenure_core::plan::{StaleReason, StaleRecord};
use tenure_core::record::Record;
use tenure_store::Expect;

use super::{AdminClient, AdminError, Snapshot};

/// A stale record with its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcRecord {
    /// The record and the reason why it is stale.
    pub stale: StaleRecord,
    /// Outcome.
    pub outcome: GcOutcome,
}

/// Outcome of the garbage collection for one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GcOutcome {
    /// The reference or the tombstone was removed.
    Removed,
    /// Only nodes or the leader may remove it.
    LeftToNodes,
    /// The record changed concurrently and was skipped.
    Changed,
    /// The write failed.
    Failed(AdminError),
}

/// A tombstone without references.
struct Unused {
    stale: StaleRecord,
    session: SessionId,
    version: Version,
}

impl AdminClient {
    /// Removes assignments to departed nodes, and deletes tombstones of sessions that no record refers to.
    ///
    /// A tombstone is deleted after it was unchanged for the longest ttl. Before this wait, `watching` is called with the
    /// number of tombstones and the duration. Records are independent: the operation continues after a failed write.
    /// [`Snapshot::stale`] lists the same records without changing them.
    pub async fn gc(
        &self,
        watching: impl FnOnce(usize, Duration),
    ) -> Result<Vec<GcRecord>, AdminError> {
        let snapshot = self.snapshot().await?;
        let mut done = Vec::new();
        let mut unused = Vec::new();
        for stale in snapshot.stale() {
            let outcome = match (&stale.key, stale.reason) {
                (Key::Shard(id), StaleReason::IntendedGone) => {
                    outcome(self.unassign(&snapshot, id).await)
                }
                (Key::Session(id), StaleReason::SessionUnused) => {
                    if let Some(seen) = snapshot.view.sessions.seen(id) {
                        unused.push(Unused {
                            session: *id,
                            version: seen.version.clone(),
                            stale,
                        });
                    }
                    continue;
                }
                _ => GcOutcome::LeftToNodes,
            };
            done.push(GcRecord { stale, outcome });
        }
        if !unused.is_empty() {
            let proof = self.proof(&snapshot);
            watching(unused.len(), proof);
            self.clock.sleep(proof).await;
            self.delete_unused(unused, &mut done).await;
        }
        Ok(done)
    }

    /// Removes an assignment with the plan number it was made with, so that the write is rejected after a newer plan.
    async fn unassign(&self, snapshot: &Snapshot, id: &ShardId) -> Result<bool, AdminError> {
        let seen = snapshot.shard(id)?;
        let change = Transition::Assign {
            node: None,
            plan: seen.record.plan,
        };
        let record = self.transition(snapshot, &seen.record, change);
        let record = record.map_err(|reason| {
            AdminError::Raced(format!(
                "shard {id}: the stale assignment cannot be removed ({reason})"
            ))
        })?;
        let expect = Expect::Version(seen.version.clone());
        let record = Record::Shard(Arc::new(record));
        self.put(&Key::Shard(id.clone()), expect, &record).await
    }

    /// Deletes the tombstones that have not changed and that still no record refers to.
    async fn delete_unused(&self, unused: Vec<Unused>, done: &mut Vec<GcRecord>) {
        let now = self.snapshot().await;
        for Unused {
            stale,
            session,
            version,
        } in unused
        {
            let outcome = match &now {
                Err(error) => GcOutcome::Failed(error.clone()),
                Ok(now) if is_unused(now, session, &version) => {
                    outcome(self.delete(&stale.key, version).await)
                }
                Ok(_) => GcOutcome::Changed,
            };
            done.push(GcRecord { stale, outcome });
        }
    }
}

fn is_unused(now: &Snapshot, session: SessionId, version: &Version) -> bool {
    let seen = now.view.sessions.seen(&session);
    seen.is_some_and(|seen| seen.version == *version)
        && !now.live(|live| live.is_referred_to(session))
}

fn outcome(written: Result<bool, AdminError>) -> GcOutcome {
    match written {
        Ok(true) => GcOutcome::Removed,
        Ok(false) => GcOutcome::Changed,
        Err(error) => GcOutcome::Failed(error),
    }
}
