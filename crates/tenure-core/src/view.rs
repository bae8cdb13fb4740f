//! What one participant knows of the records, and since when.
//!
//! A view never goes back: a value is applied only if its `rev` exceeds the last one applied for its key, so that a late
//! list, a repeated watch event or an old read changes nothing (A14). Where the store counts its writes, a count above all that
//! were seen of the key is as good: a store that was put back, or an operator's hand, may leave a record with a rev that is
//! far behind. A version alone does not name a value: a store that was put back counts the same numbers again. Two values
//! under one version are told apart by their nonces, and which of them counts is read. The marks outlive the value. Ages are measured from the moment *this* participant first saw a value, on its own
//! clock; time stamps of others prove nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{KeyspaceName, NodeName, Nonce, Revision, SessionId, ShardId, Version};
use crate::keys::Key;
use crate::machine::Found;
use crate::record::{
    ClusterRecord, KeyspaceRecord, LeaderRecord, NodeRecord, Record, RecordError, Role,
    SessionRecord, ShardRecord,
};
use crate::rules::{Mutant, Rules};
use crate::time::Time;

/// A value that was seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Versioned<R> {
    /// The version to name when replacing it.
    pub version: Version,
    /// The value.
    pub record: Arc<R>,
    /// When this participant first saw it.
    pub since: Time,
}

/// What is known of one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyState<R> {
    /// A value.
    Present(Versioned<R>),
    /// A value that cannot be read.
    Damaged {
        /// Its version.
        version: Version,
        /// What is wrong with it.
        damage: RecordError,
        /// When it was first seen so.
        since: Time,
    },
    /// A read said that there is no such key.
    Missing {
        /// When that was first known.
        since: Time,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry<R> {
    cell: KeyState<R>,
    /// The highest rev that was applied, or more: it grows with every value that the store wrote later.
    high: u64,
    /// The highest version that was applied, where versions are counted.
    count: u64,
}

/// All slots of one kind of key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KnownRecords<K: Ord, R>(BTreeMap<K, Entry<R>>);

impl<K: Ord, R> Default for KnownRecords<K, R> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone, R> KnownRecords<K, R> {
    /// What is known of a key; nothing if it was never heard of.
    pub fn cell(&self, key: &K) -> Option<&KeyState<R>> {
        self.0.get(key).map(|slot| &slot.cell)
    }

    /// The value of a key, if there is one that can be read.
    pub fn seen(&self, key: &K) -> Option<&Versioned<R>> {
        match self.cell(key) {
            Some(KeyState::Present(seen)) => Some(seen),
            _ => None,
        }
    }

    /// The value of a key, if there is one that can be read.
    pub fn get(&self, key: &K) -> Option<&R> {
        self.seen(key).map(|seen| &*seen.record)
    }

    /// How many keys were ever heard of.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// All keys that were ever heard of.
    pub fn cells(&self) -> impl Iterator<Item = (&K, &KeyState<R>)> {
        self.0.iter().map(|(key, slot)| (key, &slot.cell))
    }

    /// All keys with a value that can be read.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &Versioned<R>)> + Clone {
        self.0.iter().filter_map(|(key, slot)| match &slot.cell {
            KeyState::Present(seen) => Some((key, seen)),
            _ => None,
        })
    }

    fn high(&self, key: &K) -> u64 {
        self.0.get(key).map_or(0, |slot| slot.high)
    }

    /// Takes a value unless it is old news; says whether anything changed. `replaces` is told of a value that can be read what
    /// it was before, if that could be, too.
    fn put(&mut self, key: &K, told: Told<R>, rules: Rules, replaces: impl FnOnce(&R, &R)) -> bool
    where
        R: Written,
    {
        let Told {
            now,
            version,
            value,
            read,
        } = told;
        let slot = self.0.get_mut(key);
        let count = version.count();
        match value {
            Value::Good { record, rev } => {
                let cell = KeyState::Present(Versioned {
                    version,
                    record,
                    since: now,
                });
                let Some(slot) = slot else {
                    let high = rev;
                    self.0.insert(key.clone(), Entry { cell, high, count });
                    return true;
                };
                let same = is_same(&slot.cell, &cell, rules);
                let later = rev > slot.high || count > slot.count;
                let news = read || later || rules.broken_by(Mutant::ViewGoesBack);
                if same || !news {
                    return false;
                }
                // A mark that stood still would tell whoever reads meanwhile that nothing has come.
                slot.high = rev.max(slot.high.saturating_add(u64::from(count > slot.count)));
                slot.count = count.max(slot.count);
                let before = std::mem::replace(&mut slot.cell, cell);
                if let (KeyState::Present(before), KeyState::Present(after)) = (&before, &slot.cell)
                {
                    replaces(&before.record, &after.record);
                }
                true
            }
            Value::Bad(damage) => {
                if matches!(slot.as_ref().map(|s| &s.cell), Some(KeyState::Damaged { version: v, .. }) if *v == version)
                {
                    return false;
                }
                let (high, before) = slot.map_or((0, 0), |slot| (slot.high, slot.count));
                let cell = KeyState::Damaged {
                    version,
                    damage,
                    since: now,
                };
                let count = count.max(before);
                self.0.insert(key.clone(), Entry { cell, high, count });
                true
            }
        }
    }

    fn miss(&mut self, key: &K, now: Time) -> bool {
        if matches!(self.cell(key), Some(KeyState::Missing { .. })) {
            return false;
        }
        let (high, count) = self.0.get(key).map_or((0, 0), |s| (s.high, s.count));
        let cell = KeyState::Missing { since: now };
        self.0.insert(key.clone(), Entry { cell, high, count });
        true
    }
}

/// Whether two values of one session's record say the same of its part in assignment.
fn same_standing(before: &SessionRecord, after: &SessionRecord) -> bool {
    let standing = |r: &SessionRecord| (r.is_live(), r.stopping, r.role, r.weight, r.capacity);
    standing(before) == standing(after)
        && before.node == after.node
        && before.keyspaces == after.keyspaces
}

/// True if two cells have the same version of the same write.
fn is_same<R: Written>(before: &KeyState<R>, after: &KeyState<R>, rules: Rules) -> bool {
    match (before, after) {
        (KeyState::Present(before), KeyState::Present(after)) => {
            let one_write = before.record.nonce() == after.record.nonce();
            before.version == after.version
                && (one_write || rules.broken_by(Mutant::VersionNamesValue))
        }
        _ => false,
    }
}

/// A record that says which write it was.
trait Written {
    fn nonce(&self) -> Nonce;
}

macro_rules! written {
    ($($record:ty),*) => {$(
        impl Written for $record {
            fn nonce(&self) -> Nonce {
                self.head.nonce
            }
        }
    )*};
}

written!(
    ClusterRecord,
    KeyspaceRecord,
    LeaderRecord,
    NodeRecord,
    SessionRecord,
    ShardRecord
);

/// A value as somebody tells it. `read`: it is what a read found that was begun when the mark was as it is now, so that nothing
/// is newer.
struct Told<R> {
    now: Time,
    version: Version,
    value: Value<R>,
    read: bool,
}

enum Value<R> {
    Good { record: Arc<R>, rev: u64 },
    Bad(RecordError),
}

/// Everything that a participant knows of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    /// The cluster's own record.
    pub cluster: KnownRecords<(), ClusterRecord>,
    /// The elected planner.
    pub leader: KnownRecords<(), LeaderRecord>,
    /// Keyspaces.
    pub keyspaces: KnownRecords<KeyspaceName, KeyspaceRecord>,
    /// Nodes.
    pub nodes: KnownRecords<NodeName, NodeRecord>,
    /// Sessions and their tombstones.
    pub sessions: KnownRecords<SessionId, SessionRecord>,
    /// Shards.
    pub shards: KnownRecords<ShardId, ShardRecord>,
    /// How far in the store's history this view has come.
    pub revision: Revision,
    /// The highest version that was seen of any key.
    newest: u64,
    /// Something that the set of members follows from has changed since it was asked.
    members_moved: bool,
    rules: Rules,
}

impl View {
    /// Whether a session may own shards. One whose record says that it is not there for that counts all the same unless the name
    /// in it has this session: somebody may have written another's record there.
    pub fn may_own_shards(&self, id: SessionId, record: &SessionRecord) -> bool {
        let registered = self.nodes.get(&record.node);
        let is_named = registered.is_some_and(|node| node.session == id);
        record.role == Role::Node || !is_named
    }

    /// The highest boot number that any record names.
    pub fn highest_boot(&self) -> u64 {
        let nodes = self.nodes.iter().filter_map(|(_, n)| n.record.boot);
        let cluster = self.cluster.get(&()).map(|c| c.boot);
        nodes.chain(cluster).max().unwrap_or(0)
    }

    /// A view that has seen nothing.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            members_moved: true,
            ..Self::default()
        }
    }

    /// Applies a value unless it is old news; says whether anything changed.
    pub fn apply(&mut self, now: Time, key: &Key, found: Found) -> bool {
        self.take(now, key, found, false)
    }

    /// Applies what a read found that was begun at `mark`. If nothing was applied since, it is the truth, whatever its rev
    /// says: somebody may have edited or restored the record by hand.
    pub fn apply_read(&mut self, now: Time, key: &Key, found: Found, mark: u64) -> bool {
        let read = self.mark(key) == mark;
        self.take(now, key, found, read)
    }

    fn take(&mut self, now: Time, key: &Key, found: Found, read: bool) -> bool {
        let Found { version, record } = found;
        if let Version::Number(n) = version {
            self.newest = self.newest.max(n);
        }
        let rules = self.rules;
        macro_rules! put {
            ($table:expr, $key:expr, $kind:ident) => {
                put!($table, $key, $kind, |_, _| ())
            };
            ($table:expr, $key:expr, $kind:ident, $replaces:expr) => {{
                let value = match record {
                    Ok(Record::$kind(record)) => Value::Good {
                        rev: record.head.rev,
                        record,
                    },
                    Ok(Record::Placeholder(_)) => Value::Bad(RecordError::placeholder()),
                    Ok(_) => Value::Bad(RecordError::Corrupt(
                        "the type of the record does not match its key".to_owned(),
                    )),
                    Err(damage) => Value::Bad(damage),
                };
                let told = Told {
                    now,
                    version,
                    value,
                    read,
                };
                $table.put($key, told, rules, $replaces)
            }};
        }
        match key {
            Key::Cluster => put!(self.cluster, &(), Cluster),
            Key::Leader => put!(self.leader, &(), Leader),
            Key::Keyspace(name) => put!(self.keyspaces, name, Keyspace),
            Key::Node(name) => {
                let news = put!(self.nodes, name, Node);
                self.members_moved |= news;
                news
            }
            Key::Session(id) => {
                let mut same = false;
                let news = put!(self.sessions, id, Session, |before, after| {
                    same = same_standing(before, after);
                });
                self.members_moved |= news && !same;
                news
            }
            Key::Shard(id) => put!(self.shards, id, Shard),
        }
    }

    /// Notes that a read found no such key, if nothing was applied to it since `mark`; says whether anything changed.
    pub fn miss(&mut self, now: Time, key: &Key, mark: u64) -> bool {
        if self.mark(key) != mark {
            return false;
        }
        self.members_moved |= matches!(key, Key::Node(_) | Key::Session(_));
        match key {
            Key::Cluster => self.cluster.miss(&(), now),
            Key::Leader => self.leader.miss(&(), now),
            Key::Keyspace(name) => self.keyspaces.miss(name, now),
            Key::Node(name) => self.nodes.miss(name, now),
            Key::Session(id) => self.sessions.miss(id, now),
            Key::Shard(id) => self.shards.miss(id, now),
        }
    }

    /// Forgets a session that is proven to have ended and whose tombstone is gone: nothing can come of it any more.
    pub fn forget_session(&mut self, id: SessionId) {
        self.sessions.0.remove(&id);
        self.members_moved = true;
    }

    /// Whether the members may be others than when this was asked last. A renewal, the most frequent of all news, says
    /// nothing about them.
    pub fn take_members_moved(&mut self) -> bool {
        std::mem::take(&mut self.members_moved)
    }

    /// The highest rev that was applied to a key, or more if values with lower revs came after it.
    pub fn mark(&self, key: &Key) -> u64 {
        match key {
            Key::Cluster => self.cluster.high(&()),
            Key::Leader => self.leader.high(&()),
            Key::Keyspace(name) => self.keyspaces.high(name),
            Key::Node(name) => self.nodes.high(name),
            Key::Session(id) => self.sessions.high(id),
            Key::Shard(id) => self.shards.high(id),
        }
    }

    /// The version of a key's value, readable or not.
    pub fn version(&self, key: &Key) -> Option<Version> {
        fn of<K: Ord + Clone, R>(table: &KnownRecords<K, R>, key: &K) -> Option<Version> {
            match table.cell(key)? {
                KeyState::Present(seen) => Some(seen.version.clone()),
                KeyState::Damaged { version, .. } => Some(version.clone()),
                KeyState::Missing { .. } => None,
            }
        }
        match key {
            Key::Cluster => of(&self.cluster, &()),
            Key::Leader => of(&self.leader, &()),
            Key::Keyspace(name) => of(&self.keyspaces, name),
            Key::Node(name) => of(&self.nodes, name),
            Key::Session(id) => of(&self.sessions, id),
            Key::Shard(id) => of(&self.shards, id),
        }
    }

    /// True if a value has the version and the nonce of the value that is known of its key.
    pub fn knows(&self, key: &Key, found: &Found) -> bool {
        self.is_same_write(key, found) == Some(true)
    }

    /// True if a value has the version of the known value and another nonce. Only a store that was put back shows that.
    pub fn contradicts(&self, key: &Key, found: &Found) -> bool {
        self.is_same_write(key, found) == Some(false)
    }

    /// Compares the nonces of a value and of the known value with the same version; `None` if the versions differ.
    fn is_same_write(&self, key: &Key, found: &Found) -> Option<bool> {
        fn of<K: Ord + Clone, R: Written>(
            table: &KnownRecords<K, R>,
            key: &K,
            found: &Found,
            rules: Rules,
        ) -> Option<bool> {
            let (version, known) = match table.cell(key)? {
                KeyState::Present(seen) => (&seen.version, Some(seen.record.nonce())),
                KeyState::Damaged { version, .. } => (version, None),
                KeyState::Missing { .. } => return None,
            };
            let nonce = found.record.as_ref().ok().map(|r| r.head().nonce);
            (*version == found.version)
                .then(|| known == nonce || rules.broken_by(Mutant::VersionNamesValue))
        }
        let rules = self.rules;
        match key {
            Key::Cluster => of(&self.cluster, &(), found, rules),
            Key::Leader => of(&self.leader, &(), found, rules),
            Key::Keyspace(name) => of(&self.keyspaces, name, found, rules),
            Key::Node(name) => of(&self.nodes, name, found, rules),
            Key::Session(id) => of(&self.sessions, id, found, rules),
            Key::Shard(id) => of(&self.shards, id, found, rules),
        }
    }

    /// Whether a read said that there is no such key, and nothing has been seen of it since.
    pub fn is_missing(&self, key: &Key) -> bool {
        fn of<K: Ord + Clone, R>(table: &KnownRecords<K, R>, key: &K) -> bool {
            matches!(table.cell(key), Some(KeyState::Missing { .. }))
        }
        match key {
            Key::Cluster => of(&self.cluster, &()),
            Key::Leader => of(&self.leader, &()),
            Key::Keyspace(name) => of(&self.keyspaces, name),
            Key::Node(name) => of(&self.nodes, name),
            Key::Session(id) => of(&self.sessions, id),
            Key::Shard(id) => of(&self.shards, id),
        }
    }

    /// Every key that this view takes to have a value.
    pub fn present_keys(&self) -> Vec<Key> {
        fn there<R>(cell: &KeyState<R>) -> bool {
            !matches!(cell, KeyState::Missing { .. })
        }
        let mut keys = Vec::new();
        keys.extend(
            self.cluster
                .cells()
                .filter(|(_, c)| there(c))
                .map(|_| Key::Cluster),
        );
        keys.extend(
            self.leader
                .cells()
                .filter(|(_, c)| there(c))
                .map(|_| Key::Leader),
        );
        keys.extend(
            self.keyspaces
                .cells()
                .filter(|(_, c)| there(c))
                .map(|(k, _)| Key::Keyspace(k.clone())),
        );
        keys.extend(
            self.nodes
                .cells()
                .filter(|(_, c)| there(c))
                .map(|(k, _)| Key::Node(k.clone())),
        );
        keys.extend(
            self.sessions
                .cells()
                .filter(|(_, c)| there(c))
                .map(|(k, _)| Key::Session(*k)),
        );
        keys.extend(
            self.shards
                .cells()
                .filter(|(_, c)| there(c))
                .map(|(k, _)| Key::Shard(k.clone())),
        );
        keys
    }

    /// A rev that no value of the key has had: for making a lost record anew.
    ///
    /// Every write moves the store's history by one at least and takes its version from there, so no key can have been
    /// written more often than the newest version says. Whoever makes a record anew has written something else since it
    /// learned of the loss, and so has seen a version newer than the loss.
    pub fn fresh_rev(&self, key: &Key) -> u64 {
        self.mark(key)
            .max(self.revision.0)
            .max(self.newest)
            .saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Nonce, ShardName};
    use crate::record::Head;

    fn key() -> Key {
        Key::Shard(id())
    }

    fn id() -> ShardId {
        ShardId::new(KeyspaceName::new("k").unwrap(), ShardName::index(0))
    }

    fn at(rev: u64) -> Found {
        let head = Head {
            format: 1,
            rev,
            nonce: Nonce {
                writer: SessionId(1),
                n: rev,
            },
        };
        let record = Ok(Record::Shard(Arc::new(ShardRecord::new(head, 1))));
        Found {
            version: Version::Number(rev),
            record,
        }
    }

    fn rev(view: &View) -> Option<u64> {
        view.shards.get(&id()).map(|r| r.head.rev)
    }

    #[test]
    fn a_late_value_does_not_take_the_view_back() {
        let mut view = View::new(Rules::sound());
        assert!(view.apply(Time(1), &key(), at(5)));
        assert!(!view.apply(Time(2), &key(), at(4)));
        assert!(
            !view.apply(Time(3), &key(), at(5)),
            "and a repeated one does not make it younger"
        );
        assert_eq!(view.shards.seen(&id()).unwrap().since, Time(1));
        assert!(view.apply(Time(4), &key(), at(6)));
        assert_eq!(rev(&view), Some(6));
    }

    #[test]
    fn the_mark_outlives_the_value() {
        let mut view = View::new(Rules::sound());
        view.apply(Time(1), &key(), at(5));
        assert!(view.miss(Time(2), &key(), 5));
        assert!(!view.apply(Time(3), &key(), at(4)));
        assert_eq!(rev(&view), None);
        assert!(view.apply(Time(3), &key(), at(view.fresh_rev(&key()))));
    }

    #[test]
    fn a_read_is_believed_whatever_its_rev_unless_something_came_in_between() {
        let mut view = View::new(Rules::sound());
        view.apply(Time(1), &key(), at(5));
        let mut edited = at(5);
        edited.version = Version::Text("edited".into());
        assert!(!view.apply(Time(2), &key(), edited.clone()));
        assert!(!view.apply_read(Time(2), &key(), edited.clone(), 4));
        assert!(view.apply_read(Time(2), &key(), edited, 5));
        assert_eq!(view.version(&key()), Some(Version::Text("edited".into())));
    }

    #[test]
    fn what_the_store_wrote_later_is_news_whatever_its_rev_and_a_repeated_value_from_before_is_not()
    {
        let mut view = View::new(Rules::sound());
        view.apply(Time(1), &key(), at(50));
        let put_back = |rev, version| Found {
            version: Version::Number(version),
            ..at(rev)
        };
        assert!(view.apply(Time(2), &key(), put_back(7, 60)));
        assert_eq!(rev(&view), Some(7));
        assert!(!view.apply(Time(3), &key(), at(50)), "a watch that repeats");
        assert!(!view.apply(Time(3), &key(), put_back(6, 59)));
        let mark = view.mark(&key());
        assert!(view.apply(Time(4), &key(), put_back(8, 61)));
        assert_eq!(rev(&view), Some(8));
        assert!(
            !view.apply_read(Time(5), &key(), put_back(7, 60), mark),
            "a read that was begun before"
        );
    }

    #[test]
    fn another_write_under_the_same_version_is_told_apart_and_believed_of_a_read_alone() {
        let mut view = View::new(Rules::sound());
        view.apply(Time(1), &key(), at(5));
        let mut other = at(5);
        let Ok(Record::Shard(record)) = &mut other.record else {
            panic!()
        };
        Arc::make_mut(record).head.nonce.n = 99;
        assert!(view.knows(&key(), &at(5)) && !view.contradicts(&key(), &at(5)));
        assert!(view.contradicts(&key(), &other) && !view.knows(&key(), &other));
        assert!(!view.contradicts(&key(), &at(6)), "another version");
        assert!(!view.apply(Time(2), &key(), other.clone()));
        assert!(view.apply_read(Time(3), &key(), other.clone(), 5));
        assert!(view.knows(&key(), &other));
        assert_eq!(view.shards.seen(&id()).unwrap().since, Time(3));
    }

    #[test]
    fn absence_that_was_asked_for_before_the_last_value_came_says_nothing() {
        let mut view = View::new(Rules::sound());
        let mark = view.mark(&key());
        view.apply(Time(1), &key(), at(1));
        assert!(!view.miss(Time(2), &key(), mark));
        assert_eq!(rev(&view), Some(1));
    }

    #[test]
    fn a_damaged_value_is_seen_once_and_replaced_by_a_newer_good_one() {
        let mut view = View::new(Rules::sound());
        view.apply(Time(1), &key(), at(5));
        let bad = || Found {
            version: Version::Number(6),
            record: Err(RecordError::Corrupt("x".to_owned())),
        };
        assert!(view.apply(Time(2), &key(), bad()));
        assert!(!view.apply(Time(3), &key(), bad()));
        assert_eq!(rev(&view), None);
        assert_eq!(view.version(&key()), Some(Version::Number(6)));
        assert!(view.apply(Time(4), &key(), at(7)));
    }
}
