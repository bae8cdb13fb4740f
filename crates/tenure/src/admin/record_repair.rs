//! Repair of a corrupt record that is not a shard's: its deletion, so that nodes write it again.
//!
//! Exactly the inspected version is deleted, and only if it is corrupt: never a readable record, and never one of a newer
//! format. A deleted record no longer shows which generations were used. Therefore a generation is reserved for a keyspace
//! before its record is deleted, and the cluster record is never left missing (P2).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tenure_core::ids::{KeyspaceName, NodeName, Version};
use tenure_core::keys::Key;
use tenure_core::record::{Record, RecordError};
use tenure_store::Expect;

use super::{AdminClient, AdminError};

/// A record that can be repaired by its deletion. Written `cluster`, `leader`, `keyspaces/NAME` or `nodes/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairableRecord {
    /// The record of the cluster.
    Cluster,
    /// The record of the leader.
    Leader,
    /// The record of a keyspace.
    Keyspace(KeyspaceName),
    /// The record of a node.
    Node(NodeName),
}

/// A record with its damage. [`AdminClient::repair_record`] carries the repair out.
#[derive(Clone, Debug)]
pub struct RecordInspection {
    record: RepairableRecord,
    version: Version,
    damage: Option<String>,
}

/// Result of [`AdminClient::repair_record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordRepair {
    /// The record is valid.
    NotNeeded,
    /// The record was deleted. [`RepairableRecord::consequence`] names its next writer.
    Deleted,
    /// The record was deleted, and a node has written it again.
    WrittenByNode,
    /// The cluster record was deleted and written again from the other records, because no running node knew its content.
    /// All generations must be raised before any node starts ([`AdminClient::bump_all_generations`]).
    Rebuilt,
}

impl RepairableRecord {
    /// Returns what happens after the deletion of the record, as a clause for messages.
    pub fn consequence(&self) -> String {
        match self {
            Self::Keyspace(name) => format!(
                "nodes that serve the keyspace write the record again after a ttl; if none runs, use `tenure keyspace \
                 create {name}`"
            ),
            Self::Node(_) => {
                "the node writes the record again, immediately or at its next start".to_owned()
            }
            Self::Cluster => {
                "a running node writes the record again from the records that it knows".to_owned()
            }
            Self::Leader => "the next process that needs the record writes it again".to_owned(),
        }
    }

    fn key(&self) -> Key {
        match self {
            Self::Cluster => Key::Cluster,
            Self::Leader => Key::Leader,
            Self::Keyspace(name) => Key::Keyspace(name.clone()),
            Self::Node(name) => Key::Node(name.clone()),
        }
    }
}

impl fmt::Display for RepairableRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key().fmt(f)
    }
}

impl FromStr for RepairableRecord {
    type Err = AdminError;

    fn from_str(text: &str) -> Result<Self, AdminError> {
        match text.split_once('/') {
            None if text == "cluster" => Ok(Self::Cluster),
            None if text == "leader" => Ok(Self::Leader),
            Some(("keyspaces", rest)) => Ok(Self::Keyspace(KeyspaceName::new(rest)?)),
            Some(("nodes", rest)) => Ok(Self::Node(NodeName::new(rest)?)),
            Some(("shards", rest)) => Err(AdminError::Invalid(format!(
                "repair-record does not delete shard records; run `tenure shard repair {rest}`"
            ))),
            Some(("sessions", _)) => Err(AdminError::Invalid(
                "session records need no repair: nodes expire an unreadable session after its ttl"
                    .to_owned(),
            )),
            _ => Err(AdminError::Invalid(
                "expected cluster, leader, keyspaces/NAME or nodes/NAME".to_owned(),
            )),
        }
    }
}

impl RecordInspection {
    /// Returns why the record cannot be read. `None` for a valid record.
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }
}

impl AdminClient {
    /// Reads a record and returns its damage. A record of a newer format is refused.
    pub async fn inspect_record(
        &self,
        record: &RepairableRecord,
    ) -> Result<RecordInspection, AdminError> {
        let key = record.key();
        let Some(entry) = self.get(&key).await? else {
            return Err(AdminError::NotFound(format!(
                "there is no record {key}; {}",
                record.consequence()
            )));
        };
        let damage = match Record::decode(&key, &entry.value) {
            Ok(_) => None,
            Err(newer @ RecordError::Newer(_)) => {
                return Err(AdminError::Refused(format!(
                    "record {key}: {newer}; the record was not changed"
                )));
            }
            Err(corrupt) => Some(corrupt.to_string()),
        };
        Ok(RecordInspection {
            record: record.clone(),
            version: entry.version,
            damage,
        })
    }

    /// Deletes a corrupt record, on the condition that it is the inspected one, and calls `deleted` when that is done.
    ///
    /// For the cluster record, waits then until a node has written it again, or rebuilds it if no node does.
    pub async fn repair_record(
        &self,
        inspection: &RecordInspection,
        deleted: impl FnOnce(),
    ) -> Result<RecordRepair, AdminError> {
        if inspection.damage.is_none() {
            return Ok(RecordRepair::NotNeeded);
        }
        let key = inspection.record.key();
        if let Key::Keyspace(name) = &key {
            // The keyspace counts as lost from here on. It is restored above all epochs that it ever had.
            self.reserve(name, 0).await?;
        }
        if !self.delete(&key, inspection.version.clone()).await? {
            return Err(AdminError::Raced(format!(
                "record {key} was changed concurrently"
            )));
        }
        deleted();
        match inspection.record {
            RepairableRecord::Cluster => self.rebuild_cluster_record().await,
            _ => Ok(RecordRepair::Deleted),
        }
    }

    async fn rebuild_cluster_record(&self) -> Result<RecordRepair, AdminError> {
        let snapshot = self.snapshot().await?;
        if !snapshot.witnesses().is_empty() && self.comes_back(&Key::Cluster).await? {
            return Ok(RecordRepair::WrittenByNode);
        }
        let record = self.rebuilt_cluster_record(&self.snapshot().await?);
        let record = Record::Cluster(Arc::new(record));
        match self.put(&Key::Cluster, Expect::Absent, &record).await? {
            true => Ok(RecordRepair::Rebuilt),
            false => Ok(RecordRepair::WrittenByNode),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_that_may_be_deleted_are_read() {
        let read = |text: &str| text.parse::<RepairableRecord>();
        assert_eq!(read("cluster"), Ok(RepairableRecord::Cluster));
        let odd = RepairableRecord::Node(NodeName::new("eu/n 1").unwrap());
        assert_eq!(read("nodes/eu/n 1"), Ok(odd));
        let refused = |text: &str| read(text).unwrap_err().to_string();
        assert!(refused("shards/orders/1").contains("tenure shard repair orders/1"));
        assert!(refused("sessions/00").contains("need no repair"));
        for bad in ["", "keyspaces", "keyspaces/", "clusters", "nodes"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
