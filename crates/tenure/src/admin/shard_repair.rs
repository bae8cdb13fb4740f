//! Repair of a shard whose record is corrupt, missing or quarantined.
//!
//! A lost record is restored by the rule that nodes follow too (A11). The key is watched unchanged for the longest ttl of the
//! cluster, so that no invisible session still serves. A generation is reserved in the cluster record, so that the new epochs
//! exceed all earlier ones (P2). The new record names every session that may be live as a witness. Each of them must disclaim
//! the shard, or end, before a node claims it (P1).

use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{ShardId, ShardName, Version};
use tenure_core::keys::Key;
use tenure_core::ownership::{self, Transition};
use tenure_core::record::{KeyspaceKind, Record, RecordError, ShardRecord};
use tenure_core::rules::Rules;
use tenure_core::view::KeyState;
use tenure_store::Expect;

use super::{AdminClient, AdminError, Snapshot};

/// Problem of a shard, found by [`AdminClient::inspect_shard`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardProblem {
    /// The record is valid, and nodes may claim the shard.
    None,
    /// Several nodes failed to load the shard, and no node may claim it.
    Quarantined {
        /// Failures as the record has them.
        reason: String,
    },
    /// The record cannot be read.
    Corrupt {
        /// Cause.
        damage: String,
    },
    /// A hashed keyspace has this shard, but no record of it.
    Missing,
}

/// A shard with its problem and the effect of a repair. [`AdminClient::repair_shard`] carries the repair out.
#[derive(Clone, Debug)]
pub struct ShardInspection {
    shard: ShardId,
    problem: ShardProblem,
    version: Option<Version>,
    quarantined: Option<Arc<ShardRecord>>,
    watch_time: Duration,
    witnesses: usize,
}

impl ShardInspection {
    /// Returns the problem of the shard.
    pub fn problem(&self) -> &ShardProblem {
        &self.problem
    }

    /// Returns how long the repair of a corrupt or missing record watches the key before it writes.
    pub fn watch_time(&self) -> Duration {
        self.watch_time
    }

    /// Returns the number of sessions that must disclaim a restored shard before a node claims it.
    pub fn witnesses(&self) -> usize {
        self.witnesses
    }
}

/// Result of [`AdminClient::repair_shard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardRepair {
    /// The shard has no problem.
    NotNeeded,
    /// Nodes may claim the shard again.
    QuarantineEnded,
    /// Another process wrote the record during the watch. Nothing was changed.
    WrittenByOther,
    /// The record was written again.
    Restored {
        /// Generation of the new epochs.
        generation: u32,
        /// Number of sessions that must disclaim the shard before a node claims it.
        witnesses: usize,
    },
}

impl AdminClient {
    /// Reads a shard's record and returns its problem. A record of a newer format is refused.
    pub async fn inspect_shard(&self, id: &ShardId) -> Result<ShardInspection, AdminError> {
        let snapshot = self.snapshot().await?;
        let kind = snapshot.keyspace(&id.keyspace)?.kind;
        check_index(id, kind)?;
        let mut inspection = ShardInspection {
            shard: id.clone(),
            problem: ShardProblem::None,
            version: None,
            quarantined: None,
            watch_time: self.proof(&snapshot),
            witnesses: snapshot.witnesses().len(),
        };
        match snapshot.view.shards.cell(id) {
            Some(KeyState::Present(seen)) => {
                inspection.version = Some(seen.version.clone());
                if let Some(quarantine) = &seen.record.quarantine {
                    let reason = quarantine.reason.clone();
                    inspection.problem = ShardProblem::Quarantined { reason };
                    inspection.quarantined = Some(seen.record.clone());
                }
            }
            Some(KeyState::Damaged {
                damage: damage @ RecordError::Newer(_),
                ..
            }) => {
                return Err(AdminError::Refused(format!(
                    "shard {id}: {damage}; the record was not changed"
                )));
            }
            Some(KeyState::Damaged {
                version, damage, ..
            }) => {
                let damage = damage.to_string();
                inspection.version = Some(version.clone());
                inspection.problem = ShardProblem::Corrupt { damage };
            }
            Some(KeyState::Missing { .. }) | None if kind == KeyspaceKind::Named => {
                return Err(AdminError::NotFound(format!(
                    "there is no record of shard {id}; in a named keyspace it may never have existed: use `tenure shard create`"
                )));
            }
            Some(KeyState::Missing { .. }) | None => inspection.problem = ShardProblem::Missing,
        }
        Ok(inspection)
    }

    /// Repairs a shard, on the condition that its record is the inspected one.
    ///
    /// Takes [`ShardInspection::watch_time`] for a corrupt or missing record.
    pub async fn repair_shard(
        &self,
        inspection: &ShardInspection,
    ) -> Result<ShardRepair, AdminError> {
        match (&inspection.problem, &inspection.quarantined) {
            (ShardProblem::None, _) => Ok(ShardRepair::NotNeeded),
            (ShardProblem::Quarantined { .. }, Some(record)) => {
                self.end_quarantine(inspection, record).await?;
                Ok(ShardRepair::QuarantineEnded)
            }
            _ => self.restore_shard(inspection).await,
        }
    }

    async fn end_quarantine(
        &self,
        inspection: &ShardInspection,
        record: &ShardRecord,
    ) -> Result<(), AdminError> {
        let id = &inspection.shard;
        let nobody = |_| false;
        let change = Transition::ClearQuarantine;
        let record = ownership::apply_as_operator(record, change, self.nonce(), &nobody);
        let record = record.map_err(|reason| {
            AdminError::Refused(format!("shard {id} cannot be released: {reason}"))
        })?;
        self.replace_shard(inspection, record).await
    }

    async fn restore_shard(&self, inspection: &ShardInspection) -> Result<ShardRepair, AdminError> {
        let id = &inspection.shard;
        let key = Key::Shard(id.clone());
        let version = inspection.version.as_ref();
        if !self.stays(&key, version, inspection.watch_time).await? {
            return Ok(ShardRepair::WrittenByOther);
        }
        let generation = self.reserve(&id.keyspace, 0).await?;
        // Read after the reservation: every possible owner is among these sessions.
        let snapshot: Snapshot = self.snapshot().await?;
        let all = snapshot.witnesses();
        let witnesses = all.len();
        let head = self.fresh_head(&snapshot, &key);
        let record = ownership::restored(head, generation, all, Rules::sound());
        self.replace_shard(inspection, record).await?;
        Ok(ShardRepair::Restored {
            generation,
            witnesses,
        })
    }

    async fn replace_shard(
        &self,
        inspection: &ShardInspection,
        record: ShardRecord,
    ) -> Result<(), AdminError> {
        let id = &inspection.shard;
        let version = inspection.version.clone();
        let expect = version.map_or(Expect::Absent, Expect::Version);
        let record = Record::Shard(Arc::new(record));
        match self.put(&Key::Shard(id.clone()), expect, &record).await? {
            true => Ok(()),
            false => Err(AdminError::Raced(format!(
                "shard {id} was changed concurrently"
            ))),
        }
    }
}

/// Rejects shards that a hashed keyspace does not have.
fn check_index(id: &ShardId, kind: KeyspaceKind) -> Result<(), AdminError> {
    let KeyspaceKind::Hashed(count) = kind else {
        return Ok(());
    };
    let index = id.shard.as_str().parse::<u32>().ok();
    match index {
        Some(index) if index < count && ShardName::index(index) == id.shard => Ok(()),
        _ => Err(AdminError::Invalid(format!(
            "there is no shard {id}: keyspace {} has the shards 0 to {}",
            id.keyspace,
            count - 1
        ))),
    }
}
