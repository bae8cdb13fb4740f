//! Every value that Tenure writes: readable JSON with a format number.
//!
//! Three fields stand in every record: `format`, `rev` (one more with every write of the key, on every backend) and
//! `nonce` (which write it was, so that a writer whose answer was lost knows its own value again). Fields that this
//! version does not know are kept and written back. A record of a newer format is refused whole, never rewritten.

mod cluster;
mod keyspace;
mod leader;
mod node;
mod plan_settings;
mod session;
mod shard;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use cluster::{ClusterRecord, MovesPaused};
pub use keyspace::{AssignedBy, KeyspaceKind, KeyspaceRecord};
pub use leader::LeaderRecord;
pub use node::{NodeMode, NodeRecord, RejoinMode};
pub use plan_settings::PlanningSettings;
pub use session::{
    BootClock, Costs, EndReason, Ended, HeldByRouter, Role, SessionRecord, UnservedCount,
    UnservedShards,
};
pub use shard::{
    HISTORY_LEN, LoadFailure, Move, MovePhase, Owner, OwnerChange, Ownership, PlanId, Quarantine,
    ShardRecord,
};

use crate::ids::{LeaseId, Nonce};
use crate::keys::Key;

/// The newest record format that this version reads, and the one that it writes.
pub const FORMAT: u32 = 1;

/// Fields of a record that this version does not know, kept as they came.
pub type Unknown = BTreeMap<String, serde_json::Value>;

/// What stands at the head of every record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Head {
    /// The record format.
    pub format: u32,
    /// One more with every write of this key.
    pub rev: u64,
    /// Which write this was.
    pub nonce: Nonce,
}

impl Head {
    /// The head of a key's first value.
    pub fn first(nonce: Nonce) -> Self {
        Self {
            format: FORMAT,
            rev: 1,
            nonce,
        }
    }

    /// The head of the value that replaces one with this head.
    #[must_use]
    pub fn next(&self, nonce: Nonce) -> Self {
        Self {
            format: FORMAT,
            rev: self.rev.saturating_add(1),
            nonce,
        }
    }
}

#[derive(Serialize)]
struct Placeholder<'a> {
    #[serde(flatten)]
    head: &'a Head,
    placeholder: bool,
}

/// A value of any key. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the variants are the records of the same name")]
pub enum Record {
    Cluster(Arc<ClusterRecord>),
    Keyspace(Arc<KeyspaceRecord>),
    Node(Arc<NodeRecord>),
    Session(Arc<SessionRecord>),
    Shard(Arc<ShardRecord>),
    Leader(Arc<LeaderRecord>),
    /// Placeholder of a lost shard record until it is restored. Readers find it unreadable.
    Placeholder(Head),
}

/// Text that a placeholder shows to people.
const PLACEHOLDER: &str = "placeholder of a lost record, which the nodes restore";

/// Reason why a stored value cannot be used. It is reported with its key and never rewritten by the way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordError {
    /// It is not a record of its kind.
    Corrupt(String),
    /// It was written by a newer version.
    Newer(u32),
}

impl RecordError {
    /// The error of a placeholder.
    pub fn placeholder() -> Self {
        Self::Corrupt(PLACEHOLDER.to_owned())
    }

    /// Returns `true` for a placeholder: the record was lost, and nothing is wrong with the value itself.
    pub fn is_placeholder(&self) -> bool {
        matches!(self, Self::Corrupt(problem) if problem == PLACEHOLDER)
    }
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt(problem) => write!(f, "corrupt record: {problem}"),
            Self::Newer(format) => {
                write!(
                    f,
                    "the record has format {format}, but this program reads formats up to {FORMAT}; upgrade this program"
                )
            }
        }
    }
}

impl Record {
    /// What stands at the head of the record.
    pub fn head(&self) -> &Head {
        match self {
            Self::Cluster(r) => &r.head,
            Self::Keyspace(r) => &r.head,
            Self::Node(r) => &r.head,
            Self::Session(r) => &r.head,
            Self::Shard(r) => &r.head,
            Self::Leader(r) => &r.head,
            Self::Placeholder(head) => head,
        }
    }

    /// The value as readers of the store find it.
    pub fn stored(self) -> Result<Self, RecordError> {
        match self {
            Self::Placeholder(_) => Err(RecordError::placeholder()),
            record => Ok(record),
        }
    }

    /// The lease that the record is to be stored under: that of a session whose time the store keeps, until its end.
    pub fn lease(&self, key: &Key) -> Option<LeaseId> {
        match (self, key) {
            (Self::Session(r), Key::Session(id)) if r.leased.is_some() && r.is_live() => {
                Some(LeaseId::of(*id))
            }
            _ => None,
        }
    }

    /// The record as the bytes that are stored.
    pub fn encode(&self) -> Vec<u8> {
        let json = match self {
            Self::Cluster(r) => serde_json::to_vec(&**r),
            Self::Keyspace(r) => serde_json::to_vec(&**r),
            Self::Node(r) => serde_json::to_vec(&**r),
            Self::Session(r) => serde_json::to_vec(&**r),
            Self::Shard(r) => serde_json::to_vec(&**r),
            Self::Leader(r) => serde_json::to_vec(&**r),
            Self::Placeholder(head) => serde_json::to_vec(&Placeholder {
                head,
                placeholder: true,
            }),
        };
        // Records are trees of strings and integers: there is nothing in them that JSON cannot hold.
        json.unwrap_or_default()
    }

    /// Reads what is stored at `key`.
    pub fn decode(key: &Key, bytes: &[u8]) -> Result<Self, RecordError> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
            #[serde(default)]
            placeholder: serde_json::Value,
        }
        let corrupt = |e: serde_json::Error| RecordError::Corrupt(e.to_string());
        let Format {
            format,
            placeholder,
        } = serde_json::from_slice(bytes).map_err(corrupt)?;
        if format > FORMAT {
            return Err(RecordError::Newer(format));
        }
        if placeholder == true && matches!(key, Key::Shard(_)) {
            return Err(RecordError::placeholder());
        }
        Ok(match key {
            Key::Cluster => {
                Self::Cluster(Arc::new(serde_json::from_slice(bytes).map_err(corrupt)?))
            }
            Key::Keyspace(_) => {
                Self::Keyspace(Arc::new(serde_json::from_slice(bytes).map_err(corrupt)?))
            }
            Key::Node(_) => Self::Node(Arc::new(serde_json::from_slice(bytes).map_err(corrupt)?)),
            Key::Session(_) => {
                Self::Session(Arc::new(serde_json::from_slice(bytes).map_err(corrupt)?))
            }
            Key::Shard(_) => Self::Shard(Arc::new(serde_json::from_slice(bytes).map_err(corrupt)?)),
            Key::Leader => Self::Leader(Arc::new(serde_json::from_slice(bytes).map_err(corrupt)?)),
        })
    }
}

/// Durations in records are whole milliseconds, so that a person can read them.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        u64::deserialize(d).map(Duration::from_millis)
    }

    pub(crate) mod option {
        use super::{Deserialize, Deserializer, Duration, Serializer};

        pub(crate) fn serialize<S: Serializer>(
            d: &Option<Duration>,
            s: S,
        ) -> Result<S::Ok, S::Error> {
            match d {
                Some(d) => super::serialize(d, s),
                None => s.serialize_none(),
            }
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            d: D,
        ) -> Result<Option<Duration>, D::Error> {
            Ok(Option::<u64>::deserialize(d)?.map(Duration::from_millis))
        }
    }
}

#[cfg(test)]
mod tests;
