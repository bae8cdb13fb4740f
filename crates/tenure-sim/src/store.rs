//! The simulated store: single keys, compare-and-swap, one history. Each request takes effect at one instant.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use tenure_core::ids::{Revision, Version};
use tenure_core::keys::Key;
use tenure_core::machine::{Expect, Found, Reply, Request, StoreFailure, StoreListing};
use tenure_core::record::{Record, RecordError};

/// One change in the store's history; its position there is its revision less one.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) key: Key,
    pub(crate) now: Option<Found>,
}

/// What a request did, besides its answer.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) reply: Reply,
    /// The value before, if the request changed one.
    pub(crate) changed: Option<Option<Found>>,
}

/// All keys and everything that ever happened to them.
#[derive(Debug)]
pub(crate) struct Store {
    keys: BTreeMap<Key, Found>,
    pub(crate) history: Vec<Change>,
    /// Versions are a hash of the value, as an object store's ETags are: writing the same value twice repeats one.
    hashed_versions: bool,
    identity: String,
}

impl Store {
    pub(crate) fn new(hashed_versions: bool) -> Self {
        Self {
            keys: BTreeMap::new(),
            history: Vec::new(),
            hashed_versions,
            identity: "simulated".to_owned(),
        }
    }

    /// How far the history has come.
    pub(crate) fn revision(&self) -> Revision {
        Revision(self.history.len() as u64)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Found> {
        self.keys.get(key)
    }

    /// The value of a key that has just changed.
    pub(crate) fn newest(&self, key: &Key) -> Option<&Found> {
        match self.history.last() {
            Some(change) if change.key == *key => change.now.as_ref(),
            _ => self.get(key),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Found)> {
        self.keys.iter()
    }

    /// Carries a request out.
    pub(crate) fn apply(&mut self, request: Request) -> Applied {
        let unchanged = |reply| Applied {
            reply,
            changed: None,
        };
        match request {
            Request::Get(key) => unchanged(Reply::Got(self.keys.get(&key).cloned())),
            Request::Revision => unchanged(Reply::Revision(self.revision())),
            Request::List => unchanged(Reply::Listed(StoreListing {
                entries: self
                    .keys
                    .iter()
                    .map(|(k, f)| (k.clone(), f.clone()))
                    .collect(),
                revision: self.revision(),
                store: self.identity.clone(),
            })),
            Request::Put {
                key,
                expect,
                record,
            } => {
                let fits = match (&expect, self.keys.get(&key)) {
                    (Expect::Absent, None) => true,
                    (Expect::Version(v), Some(found)) => found.version == *v,
                    _ => false,
                };
                if !fits {
                    return unchanged(Reply::Lost);
                }
                let version = self.version_of(&record);
                let found = Found {
                    version: version.clone(),
                    record: record.stored(),
                };
                let before = self.set(key, Some(found));
                Applied {
                    reply: Reply::Won(version),
                    changed: Some(before),
                }
            }
            Request::CreateLease { .. } | Request::KeepAlive(_) | Request::CheckLease(_) => {
                let reason = "this store has no leases of its own".to_owned();
                unchanged(Reply::Failed(StoreFailure::Denied(reason)))
            }
            Request::Delete { key, version } => {
                if self
                    .keys
                    .get(&key)
                    .is_none_or(|found| found.version != version)
                {
                    return unchanged(Reply::Lost);
                }
                let before = self.set(key, None);
                Applied {
                    reply: Reply::Won(version),
                    changed: Some(before),
                }
            }
        }
    }

    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Undoes the last changes, but none that would leave one of `needed` without a value; says whether it undid any.
    /// Revisions and versions count on from there, as they do in a store that was restored from a backup.
    pub(crate) fn go_back(&mut self, changes: usize, needed: &[Key], exchanged: bool) -> bool {
        let first = |key: &Key| self.history.iter().position(|change| change.key == *key);
        let Some(least) = needed
            .iter()
            .map(first)
            .try_fold(0, |most, at| Some(most.max(at? + 1)))
        else {
            return false;
        };
        let keep = self.history.len().saturating_sub(changes).max(least);
        if keep == self.history.len() {
            return false;
        }
        self.history.truncate(keep);
        self.keys.clear();
        for change in &self.history {
            match &change.now {
                Some(found) => self.keys.insert(change.key.clone(), found.clone()),
                None => self.keys.remove(&change.key),
            };
        }
        if exchanged {
            self.identity = "another".to_owned();
        }
        true
    }

    /// Removes a key whatever it holds, as an operator may.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Found> {
        self.keys
            .contains_key(&key)
            .then(|| self.set(key, None))
            .flatten()
    }

    /// Writes the first value that a key ever had, if it has none; says whether it did.
    pub(crate) fn make_again(&mut self, key: &Key) -> bool {
        let made = self.history.iter().find(|change| change.key == *key);
        let record = made.and_then(|change| change.now.as_ref()?.record.clone().ok());
        match record {
            Some(record) if !self.keys.contains_key(key) => {
                self.overwrite(key.clone(), record);
                true
            }
            _ => false,
        }
    }

    /// Makes a value unreadable.
    pub(crate) fn corrupt(&mut self, key: Key) -> Option<Found> {
        if !self.keys.contains_key(&key) {
            return None;
        }
        let version = Version::Number(self.history.len() as u64 + 1);
        let record = Err(RecordError::Corrupt("made unreadable".to_owned()));
        self.set(key, Some(Found { version, record }))
    }

    /// Writes a value whatever the key holds, as an operator may.
    pub(crate) fn overwrite(&mut self, key: Key, record: Record) -> Option<Found> {
        let version = self.version_of(&record);
        self.set(
            key,
            Some(Found {
                version,
                record: Ok(record),
            }),
        )
    }

    fn set(&mut self, key: Key, now: Option<Found>) -> Option<Found> {
        let before = match &now {
            None => self.keys.remove(&key),
            Some(found) => match self.keys.get_mut(&key) {
                Some(known) => Some(std::mem::replace(known, found.clone())),
                None => self.keys.insert(key.clone(), found.clone()),
            },
        };
        self.history.push(Change { key, now });
        before
    }

    fn version_of(&self, record: &Record) -> Version {
        if !self.hashed_versions {
            return Version::Number(self.history.len() as u64 + 1);
        }
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        record.hash(&mut hasher);
        Version::Text(Arc::from(format!("{:016x}", hasher.finish())))
    }
}

/// FNV-1a: the same on every run and every machine, which the standard hasher does not promise.
#[derive(Clone, Debug)]
pub(crate) struct Fnv(pub(crate) u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::ids::{Nonce, SessionId};
    use tenure_core::record::{Head, LeaderRecord, Unknown};

    use super::*;

    fn leader(n: u64) -> Record {
        let head = Head::first(Nonce {
            writer: SessionId(1),
            n,
        });
        let session = SessionId(1);
        Record::Leader(Arc::new(LeaderRecord {
            head,
            term: 1,
            session,
            node: tenure_core::ids::NodeName::new("n").unwrap(),
            resigned: false,
            unknown: Unknown::new(),
        }))
    }

    fn put(expect: Expect, n: u64) -> Request {
        Request::Put {
            key: Key::Leader,
            expect,
            record: leader(n),
        }
    }

    #[test]
    fn a_write_happens_only_if_the_key_is_as_expected() {
        for hashed in [false, true] {
            let mut store = Store::new(hashed);
            let Reply::Won(first) = store.apply(put(Expect::Absent, 1)).reply else {
                panic!("refused")
            };
            assert_eq!(store.apply(put(Expect::Absent, 2)).reply, Reply::Lost);
            let guarded = put(Expect::Version(first.clone()), 3);
            assert!(matches!(store.apply(guarded.clone()).reply, Reply::Won(_)));
            assert_eq!(store.apply(guarded).reply, Reply::Lost);
            assert_eq!(
                store
                    .apply(Request::Delete {
                        key: Key::Leader,
                        version: first
                    })
                    .reply,
                Reply::Lost
            );
            assert_eq!(store.revision(), Revision(2));
        }
    }

    #[test]
    fn equal_values_have_equal_versions_where_versions_are_hashes() {
        let mut store = Store::new(true);
        let first = store.apply(put(Expect::Absent, 1)).reply;
        store.remove(Key::Leader);
        assert_eq!(store.apply(put(Expect::Absent, 1)).reply, first);
    }
}
