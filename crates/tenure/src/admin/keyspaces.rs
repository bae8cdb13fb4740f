//! Keyspaces: planning settings, and deletion.

use std::sync::Arc;

use tenure_core::ids::{KeyspaceName, Version};
use tenure_core::keys::Key;
use tenure_core::node::plan_without_effect;
use tenure_core::record::{KeyspaceRecord, PlanningSettings, Record};
use tenure_store::Expect;

use super::client::Change;
use super::{AdminClient, AdminError, Snapshot};

/// Result of [`AdminClient::update_planning`].
#[derive(Clone, Debug, PartialEq)]
pub struct PlanningUpdate {
    /// The settings after the operation.
    pub planning: PlanningSettings,
    /// False if the keyspace already had these settings.
    pub changed: bool,
}

/// Treatment of shards that are still owned when their keyspace is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnedShards {
    /// The deletion is refused.
    Refuse,
    /// Their nodes stop serving them immediately and release them.
    Release,
}

/// A deletion that was checked. [`AdminClient::delete_keyspace`] carries it out.
#[derive(Clone, Debug)]
pub struct KeyspaceDeletion {
    name: KeyspaceName,
    version: Version,
    record: Arc<KeyspaceRecord>,
    owned: usize,
}

impl KeyspaceDeletion {
    /// Returns the number of shards that sessions own which may be live.
    pub fn owned(&self) -> usize {
        self.owned
    }
}

impl AdminClient {
    /// Reads the record of one keyspace. Returns `None` if there is no record.
    pub async fn keyspace(
        &self,
        name: &KeyspaceName,
    ) -> Result<Option<Arc<KeyspaceRecord>>, AdminError> {
        let key = Key::Keyspace(name.clone());
        let Some(entry) = self.get(&key).await? else {
            return Ok(None);
        };
        match Record::decode(&key, &entry.value) {
            Ok(Record::Keyspace(record)) => Ok(Some(record)),
            Ok(_) => Err(AdminError::Refused(format!(
                "keyspace {name}: the record has the wrong type"
            ))),
            Err(damage) => Err(AdminError::Refused(format!(
                "keyspace {name}: {damage}; see `tenure status`"
            ))),
        }
    }

    /// Changes the planning settings of a keyspace. The leader applies them immediately.
    ///
    /// `change` makes the new settings of the present ones. It is called again after a concurrent change. Settings that are
    /// invalid, or that have no effect in this keyspace, are rejected as a whole.
    pub async fn update_planning(
        &self,
        name: &KeyspaceName,
        mut change: impl FnMut(PlanningSettings) -> Result<PlanningSettings, AdminError>,
    ) -> Result<PlanningUpdate, AdminError> {
        let change = |snapshot: &Snapshot| {
            let seen = snapshot.keyspace_version(name)?;
            let planning = change(seen.record.planning.clone())?;
            if let Some(problem) = plan_without_effect(seen.record.assigned_by, &planning) {
                return Err(AdminError::Invalid(format!("keyspace {name}: {problem}")));
            }
            if planning == seen.record.planning {
                return Ok(Change::Keep(planning));
            }
            check(name, &planning)?;
            let record = KeyspaceRecord {
                head: seen.record.head.next(self.nonce()),
                planning: planning.clone(),
                ..(*seen.record).clone()
            };
            let expect = Expect::Version(seen.version.clone());
            let record = Record::Keyspace(Arc::new(record));
            Ok(Change::Write(expect, record, planning))
        };
        let what = format!("keyspace {name}");
        let key = Key::Keyspace(name.clone());
        let updated = self.update(&key, &what, change).await?;
        Ok(PlanningUpdate {
            planning: updated.answer,
            changed: updated.changed,
        })
    }

    /// Checks that a keyspace can be deleted, and returns the deletion with its effect.
    pub async fn check_keyspace_deletion(
        &self,
        name: &KeyspaceName,
        owned_shards: OwnedShards,
    ) -> Result<KeyspaceDeletion, AdminError> {
        let snapshot = self.snapshot().await?;
        let seen = snapshot.keyspace_version(name)?;
        let owned = snapshot.owned(name);
        if owned > 0 && owned_shards == OwnedShards::Refuse {
            return Err(AdminError::Refused(format!(
                "{owned} shards of keyspace {name} are owned by sessions that may be live; stop their nodes first, or \
                 pass --force"
            )));
        }
        Ok(KeyspaceDeletion {
            name: name.clone(),
            version: seen.version.clone(),
            record: seen.record.clone(),
            owned,
        })
    }

    /// Marks a keyspace as deleted: nodes release its shards and claim none. Its records stay, because their epochs must not
    /// be used again.
    ///
    /// The write is conditional on the version that was checked: a concurrent change wins, as [`AdminError::Raced`].
    pub async fn delete_keyspace(&self, deletion: KeyspaceDeletion) -> Result<(), AdminError> {
        let name = deletion.name;
        let record = KeyspaceRecord {
            head: deletion.record.head.next(self.nonce()),
            deleted: true,
            ..(*deletion.record).clone()
        };
        let record = Record::Keyspace(Arc::new(record));
        let expect = Expect::Version(deletion.version);
        let key = Key::Keyspace(name.clone());
        match self.put(&key, expect, &record).await? {
            true => Ok(()),
            false => Err(AdminError::Raced(format!(
                "keyspace {name} was changed concurrently"
            ))),
        }
    }
}

/// Rejects planning settings that contradict each other.
pub(super) fn check(name: &KeyspaceName, planning: &PlanningSettings) -> Result<(), AdminError> {
    let Err(problems) = planning.settings().check() else {
        return Ok(());
    };
    let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
    Err(AdminError::Invalid(format!(
        "keyspace {name}: {}",
        all.join("; ")
    )))
}
