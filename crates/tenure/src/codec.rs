//! Between what machines say and what stores take: keys and paths, records and bytes, failures.

use tenure_core::ids::ClusterName;
use tenure_core::layout::Key;
use tenure_core::machine::{Expect, Found, StoreFailure};
use tenure_core::record::Record;
use tenure_store::{Change, Entry, PutIf, StoreError};

/// What was found at a key of the cluster; `None` for a key that is not ours.
pub(crate) fn found(cluster: &ClusterName, entry: &Entry) -> Option<(Key, Found)> {
    let key = Key::parse(cluster, &entry.key)?;
    let record = Record::decode(&key, &entry.value);
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

/// A write as the store takes it.
pub(crate) fn put(cluster: &ClusterName, key: &Key, expect: Expect, record: &Record) -> PutIf {
    PutIf {
        key: key.path(cluster),
        value: record.encode().into(),
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
        StoreError::Unavailable { why } => StoreFailure::Unavailable(why),
        StoreError::Unknown { why } => StoreFailure::Unknown(why),
        StoreError::Denied { why } => StoreFailure::Denied(why),
        corrupt @ StoreError::Corrupt { .. } => StoreFailure::Denied(corrupt.to_string()),
    }
}
