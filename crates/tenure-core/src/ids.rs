//! Names and numbers that identify things. Each is its own type, so that a session is never mistaken for a node.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest name that Tenure takes, in bytes of UTF-8.
pub const NAME_MAX_BYTES: usize = 200;

/// Why a name was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BadName {
    /// What kind of name it was to be.
    pub kind: &'static str,
    /// The name as given.
    pub given: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} name {:?} {}", self.kind, self.given, self.problem)
    }
}

impl std::error::Error for BadName {}

fn check_name(kind: &'static str, given: &str) -> Result<(), BadName> {
    let problem = if given.is_empty() {
        "is empty"
    } else if given.len() > NAME_MAX_BYTES {
        "is longer than 200 bytes"
    } else if given.chars().any(char::is_control) {
        "contains a control character"
    } else {
        return Ok(());
    };
    Err(BadName {
        kind,
        given: given.to_owned(),
        problem,
    })
}

/// The first eight bytes of a name as a number, filled up with zeros.
///
/// Names are compared far more often than they are made, and most differ or end within eight bytes. No name contains a
/// zero (it is a control character), so that the numbers are in the order of the texts.
fn first_bytes(name: &str) -> u64 {
    let mut bytes = [0; 8];
    let len = name.len().min(8);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    u64::from_be_bytes(bytes)
}

/// Whether the first bytes are the whole name.
#[inline]
fn is_all(first_bytes: u64) -> bool {
    first_bytes & 0xff == 0
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name {
            /// The text's first eight bytes: see [`first_bytes`].
            head: u64,
            text: Arc<str>,
        }

        impl $name {
            /// Takes a name of 1 to 200 bytes without control characters.
            pub fn new(name: impl AsRef<str>) -> Result<Self, BadName> {
                check_name($kind, name.as_ref())?;
                Ok(Self::unchecked(name.as_ref()))
            }

            pub(crate) fn unchecked(name: &str) -> Self {
                Self {
                    head: first_bytes(name),
                    text: Arc::from(name),
                }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.text
            }
        }

        impl PartialEq for $name {
            #[inline]
            fn eq(&self, other: &Self) -> bool {
                self.head == other.head && (is_all(self.head) || self.text == other.text)
            }
        }

        impl Eq for $name {}

        impl PartialOrd for $name {
            #[inline]
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $name {
            #[inline]
            fn cmp(&self, other: &Self) -> Ordering {
                match self.head.cmp(&other.head) {
                    Ordering::Equal if !is_all(self.head) => self.text.cmp(&other.text),
                    decided => decided,
                }
            }
        }

        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.text.hash(state);
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.text)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.text, f)
            }
        }

        impl FromStr for $name {
            type Err = BadName;
            fn from_str(s: &str) -> Result<Self, BadName> {
                Self::new(s)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(&self.text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = String::deserialize(d)?;
                Self::new(text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name!(
    /// A cluster: the key prefix of everything that belongs together.
    ClusterName,
    "cluster"
);
name!(
    /// A set of shards.
    KeyspaceName,
    "keyspace"
);
name!(
    /// A process that can own shards, by its stable name. Says who *may* come back, never who *is* there: that is the [`SessionId`].
    NodeName,
    "node"
);
name!(
    /// One shard within its keyspace: the decimal index in a hashed keyspace, any name in a named one.
    ShardName,
    "shard"
);

impl ShardName {
    /// The name of the shard with this index in a hashed keyspace.
    pub fn index(index: u32) -> Self {
        Self::unchecked(&index.to_string())
    }
}

/// A shard: the unit that is owned. Written `keyspace/shard`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId {
    /// The keyspace that the shard belongs to.
    pub keyspace: KeyspaceName,
    /// The shard within it.
    pub shard: ShardName,
}

impl ShardId {
    /// The shard of this name in this keyspace.
    pub fn new(keyspace: KeyspaceName, shard: ShardName) -> Self {
        Self { keyspace, shard }
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.keyspace, self.shard)
    }
}

impl fmt::Debug for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.keyspace, self.shard)
    }
}

impl FromStr for ShardId {
    type Err = BadName;

    /// Reads `keyspace/shard`; what follows the first slash is the shard, further slashes included.
    fn from_str(s: &str) -> Result<Self, BadName> {
        let Some((keyspace, shard)) = s.split_once('/') else {
            return Err(BadName {
                kind: "shard",
                given: s.to_owned(),
                problem: "is not of the form KEYSPACE/SHARD",
            });
        };
        Ok(Self {
            keyspace: KeyspaceName::new(keyspace)?,
            shard: ShardName::new(shard)?,
        })
    }
}

impl Serialize for ShardId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        (&self.keyspace, &self.shard).serialize(s)
    }
}

impl<'de> Deserialize<'de> for ShardId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        <(KeyspaceName, ShardName)>::deserialize(d)
            .map(|(keyspace, shard)| Self::new(keyspace, shard))
    }
}

/// One incarnation of a node: the lease. Once ended, ended for ever; never created twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u128);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A lease that the store itself keeps the time of. Follows from the session that it belongs to, so that whoever knows of a
/// session can ask about its lease, also when the session's record is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u64);

impl LeaseId {
    /// The lease of a session: 63 bits of it, and never zero, as etcd has it.
    pub fn of(session: SessionId) -> Self {
        let folded = (session.0 ^ (session.0 >> 64)) & u128::from(u64::MAX >> 1);
        // Masked to 63 bits.
        Self(u64::try_from(folded).unwrap_or(1).max(1))
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for SessionId {
    type Err = BadName;

    fn from_str(s: &str) -> Result<Self, BadName> {
        let problem = "is not 32 hexadecimal digits";
        let bad = || BadName {
            kind: "session",
            given: s.to_owned(),
            problem,
        };
        if s.len() != 32 || !s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(bad());
        }
        u128::from_str_radix(s, 16).map(Self).map_err(|_| bad())
    }
}

impl Serialize for SessionId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// The fencing token of a shard: grows at every change of owner and is never reused (P2).
///
/// The upper half is the keyspace's generation, the lower half counts changes of owner within it. Shown as `generation.n`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch of a shard of this generation that nobody has owned yet.
    pub const fn first(generation: u32) -> Self {
        Self((generation as u64) << 32)
    }

    /// The generation that the epoch belongs to.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The count of changes of owner within its generation.
    pub const fn count(self) -> u32 {
        self.0 as u32
    }

    /// The epoch of the next owner, in the keyspace's current `generation` if that is newer.
    pub const fn next(self, generation: u32) -> Self {
        if generation > self.generation() {
            Self(Self::first(generation).0 + 1)
        } else {
            Self(self.0 + 1)
        }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation(), self.count())
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a store says of one value of one key: never repeated for another value of that key, compared for equality alone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Version {
    /// A number out of the store's own count of all writes, as in most stores.
    Number(u64),
    /// A text, such as an ETag.
    Text(Arc<str>),
}

impl Version {
    /// Its place in the store's count of writes; zero where there is none.
    pub fn count(&self) -> u64 {
        match self {
            Self::Number(n) => *n,
            Self::Text(_) => 0,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => write!(f, "{n}"),
            Self::Text(t) => f.write_str(t),
        }
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{self}")
    }
}

/// A point in the history of a whole store; later points are greater.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct Revision(pub u64);

/// Marks one write, so that its writer knows it again when the answer was lost.
///
/// Made of the random bits that every process draws once and a counter: the machines need no source of randomness.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nonce {
    /// The process that wrote: the number that its sessions count up from.
    pub writer: SessionId,
    /// The how-manieth write of that writer it was.
    pub n: u64,
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.writer, self.n)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Nonce {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Nonce {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let parse = || {
            let (writer, n) = text.split_once('-')?;
            Some(Self {
                writer: writer.parse().ok()?,
                n: n.parse().ok()?,
            })
        };
        parse().ok_or_else(|| {
            serde::de::Error::custom(format!("nonce {text:?} is not of the form SESSION-NUMBER"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ordered_and_equal_as_their_texts_are() {
        let texts = [
            "a",
            "ab",
            "b",
            "1",
            "10",
            "2",
            "abcdefg",
            "abcdefgh",
            "abcdefgi",
            "abcdefghi",
            "abcdefghj",
            "ä",
            "z",
            "zz",
        ];
        for a in texts {
            for b in texts {
                let (x, y) = (NodeName::new(a).unwrap(), NodeName::new(b).unwrap());
                assert_eq!(x.cmp(&y), a.cmp(b), "{a} {b}");
                assert_eq!(x == y, a == b, "{a} {b}");
            }
        }
    }
}
