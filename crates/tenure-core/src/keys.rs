//! Every key that Tenure writes, in one place, and the escaping rule for names in keys.
//!
//! | key | value | written by |
//! |---|---|---|
//! | `CLUSTER/cluster` | [`ClusterRecord`](crate::record::ClusterRecord) | the first node; whoever draws a generation or has a longer ttl |
//! | `CLUSTER/keyspaces/KEYSPACE` | [`KeyspaceRecord`](crate::record::KeyspaceRecord) | whoever creates, raises or removes it |
//! | `CLUSTER/nodes/NODE` | [`NodeRecord`](crate::record::NodeRecord) | the node at its start; operators |
//! | `CLUSTER/sessions/SESSION` | [`SessionRecord`](crate::record::SessionRecord) | its holder; who proves its end |
//! | `CLUSTER/shards/KEYSPACE/SHARD` | [`ShardRecord`](crate::record::ShardRecord) | see [`crate::ownership`] |
//! | `CLUSTER/leader` | [`LeaderRecord`](crate::record::LeaderRecord) | the elected planner |
//!
//! Names are escaped so that one rule serves every store: ASCII letters, digits, `.`, `_` and `-` stand for themselves
//! (but for a leading `.`, which several stores give a meaning); every other byte is `=` and two lower-case
//! hexadecimal digits. The rule is injective, keeps `/` free as the separator, and yields keys that S3, NATS subjects,
//! etcd and file systems all take.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::ids::{ClusterName, KeyspaceName, NodeName, SessionId, ShardId, ShardName};

/// One key below a cluster's prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Key {
    /// The cluster's own record.
    Cluster,
    /// The elected planner.
    Leader,
    /// A keyspace.
    Keyspace(KeyspaceName),
    /// A node, by its stable name.
    Node(NodeName),
    /// A session, or its tombstone.
    Session(SessionId),
    /// A shard.
    Shard(ShardId),
}

impl Key {
    /// The key as it stands in the store.
    pub fn path(&self, cluster: &ClusterName) -> String {
        let mut path = prefix(cluster);
        match self {
            Self::Cluster => path.push_str("cluster"),
            Self::Leader => path.push_str("leader"),
            Self::Keyspace(name) => join(&mut path, "keyspaces/", name.as_str()),
            Self::Node(name) => join(&mut path, "nodes/", name.as_str()),
            Self::Session(id) => {
                let _ = write!(path, "sessions/{id}");
            }
            Self::Shard(id) => {
                join(&mut path, "shards/", id.keyspace.as_str());
                join(&mut path, "/", id.shard.as_str());
            }
        }
        path
    }

    /// Reads a path that [`Key::path`] made for this cluster; `None` for anything else, which is not ours to touch.
    pub fn parse(cluster: &ClusterName, path: &str) -> Option<Self> {
        let rest = path.strip_prefix(&prefix(cluster))?;
        let key = match rest.split_once('/') {
            None if rest == "cluster" => Self::Cluster,
            None if rest == "leader" => Self::Leader,
            Some(("keyspaces", name)) => Self::Keyspace(KeyspaceName::new(unescape(name)?).ok()?),
            Some(("nodes", name)) => Self::Node(NodeName::new(unescape(name)?).ok()?),
            Some(("sessions", id)) => Self::Session(id.parse().ok()?),
            Some(("shards", rest)) => {
                let (keyspace, shard) = rest.split_once('/')?;
                let keyspace = KeyspaceName::new(unescape(keyspace)?).ok()?;
                Self::Shard(ShardId::new(
                    keyspace,
                    ShardName::new(unescape(shard)?).ok()?,
                ))
            }
            _ => return None,
        };
        Some(key)
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cluster => f.write_str("cluster"),
            Self::Leader => f.write_str("leader"),
            Self::Keyspace(name) => write!(f, "keyspaces/{name}"),
            Self::Node(name) => write!(f, "nodes/{name}"),
            Self::Session(id) => write!(f, "sessions/{id}"),
            Self::Shard(id) => write!(f, "shards/{id}"),
        }
    }
}

/// What every key of a cluster begins with.
pub fn prefix(cluster: &ClusterName) -> String {
    let mut prefix = String::new();
    join(&mut prefix, "", cluster.as_str());
    prefix.push('/');
    prefix
}

/// The cluster that a path belongs to, whatever else it is.
pub fn cluster_of(path: &str) -> Option<ClusterName> {
    ClusterName::new(unescape(path.split_once('/')?.0)?).ok()
}

fn join(path: &mut String, before: &str, name: &str) {
    path.push_str(before);
    path.push_str(&escape(name));
}

/// Escapes a name for use as one segment of a key.
///
/// ```
/// assert_eq!(tenure_core::keys::escape("eu/payments=1"), "eu=2fpayments=3d1");
/// ```
pub fn escape(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for (i, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => out.push(char::from(byte)),
            b'.' if i > 0 => out.push('.'),
            _ => {
                let _ = write!(out, "={byte:02x}");
            }
        }
    }
    out
}

/// Undoes [`escape`]; `None` if the text is not one that [`escape`] makes.
pub fn unescape(text: &str) -> Option<String> {
    let name = undo_escapes(text, b'=')?;
    (escape(&name) == text).then_some(name)
}

/// Puts the bytes back that stand as `mark` and two hexadecimal digits, as in URLs with `%`; `None` if a mark is followed by
/// anything else, or if the bytes are no UTF-8.
pub fn undo_escapes(text: &str, mark: u8) -> Option<String> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == mark {
            let (&[high, low], tail) = tail.split_first_chunk()?;
            bytes.push((digit(high)? * 16 + digit(low)?) as u8);
            rest = tail;
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shop() -> ClusterName {
        ClusterName::new("shop").unwrap()
    }

    proptest! {
        #[test]
        fn escaping_is_undone_by_unescaping(name in "\\PC{1,40}") {
            prop_assert_eq!(unescape(&escape(&name)), Some(name));
        }

        #[test]
        fn two_names_never_share_a_key(a in "\\PC{1,20}", b in "\\PC{1,20}") {
            prop_assert_eq!(escape(&a) == escape(&b), a == b);
        }

        #[test]
        fn every_key_reads_back_as_itself(ks in "[^\\p{Cc}]{1,20}", shard in "[^\\p{Cc}]{1,20}") {
            let keyspace = KeyspaceName::new(ks).unwrap();
            let shard = ShardId::new(keyspace.clone(), ShardName::new(shard).unwrap());
            for key in [Key::Shard(shard), Key::Keyspace(keyspace), Key::Cluster, Key::Leader, Key::Session(SessionId(7))] {
                prop_assert_eq!(Key::parse(&shop(), &key.path(&shop())), Some(key));
            }
        }
    }

    #[test]
    fn keys_of_others_are_not_ours() {
        for path in [
            "shopping/cluster",
            "shop/other",
            "shop/shards/a",
            "shop/keyspaces/=2F",
            "shop/sessions/1",
            "shop",
        ] {
            assert_eq!(Key::parse(&shop(), path), None, "{path}");
        }
    }
}
