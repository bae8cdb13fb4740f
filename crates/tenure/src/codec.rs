//! Between what machines say and what stores take: keys and paths, records and bytes, failures.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::ids::ClusterName;
use tenure_core::keys::Key;
use tenure_core::machine::{Expect, Found, StoreFailure};
use tenure_core::record::{Record, ShardRecord};
use tenure_store::{Change, Entry, PutIf, StoreError};

/// What was found at a key of the cluster; `None` for a key that is not ours.
pub(crate) fn found(cluster: &ClusterName, entry: &Entry) -> Option<(Key, Found)> {
    let key = Key::parse(cluster, &entry.key)?;
    let mut record = Record::decode(&key, &entry.value);
    if let Ok(Record::Shard(shard)) = &mut record {
        // For people alone: what machines see, and what they write down of it, does not have it.
        Arc::make_mut(shard).unknown.remove(WRITTEN);
    }
    let version = entry.version.clone();
    Some((key, Found { version, record }))
}

/// A change that a watch brought; `None` for a key that is not ours.
pub(crate) fn changed(cluster: &ClusterName, change: &Change) -> Option<(Key, Option<Found>)> {
    match change {
        Change::Put(entry) => found(cluster, entry).map(|(key, found)| (key, Some(found))),
        Change::Deleted { key } => Some((Key::parse(cluster, key)?, None)),
    }
}

/// The field of a shard's record that says when it was written, in milliseconds of the Unix epoch by its writer's wall clock.
const WRITTEN: &str = "written_ms";

/// When a shard's record was written, by the wall clock of whoever wrote it: since when a move is in its phase. To be shown to
/// people; nothing is ever decided by it.
pub fn written_at(record: &ShardRecord) -> Option<SystemTime> {
    let ms = record.unknown.get(WRITTEN)?.as_u64()?;
    UNIX_EPOCH.checked_add(Duration::from_millis(ms))
}

/// The record with the time of this write, if it is that of a shard.
fn stamped(record: &Record) -> Vec<u8> {
    let (Record::Shard(shard), Ok(now)) = (record, SystemTime::now().duration_since(UNIX_EPOCH))
    else {
        return record.encode();
    };
    let mut shard = (**shard).clone();
    let ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    shard.unknown.insert(WRITTEN.to_owned(), ms.into());
    Record::Shard(Arc::new(shard)).encode()
}

/// A write as the store takes it.
pub(crate) fn put(cluster: &ClusterName, key: &Key, expect: Expect, record: &Record) -> PutIf {
    PutIf {
        key: key.path(cluster),
        value: stamped(record).into(),
        expect: match expect {
            Expect::Absent => tenure_store::Expect::Absent,
            Expect::Version(version) => tenure_store::Expect::Version(version),
        },
        lease: record.lease(key),
    }
}

/// What a store's error means to a machine.
pub(crate) fn failure(error: StoreError) -> StoreFailure {
    match error {
        StoreError::Unavailable { reason } => StoreFailure::Unavailable(reason),
        StoreError::Unknown { reason } => StoreFailure::Unknown(reason),
        StoreError::Denied { reason } => StoreFailure::Denied(reason),
        corrupt @ StoreError::Corrupt { .. } => StoreFailure::Denied(corrupt.to_string()),
    }
}
