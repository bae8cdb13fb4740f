//! What an opened store knows of the bucket, and the count of changes that it has seen: its revision.
//!
//! S3 counts nothing itself. So an opened store compares lists: what differs from the last one is a change, and gets the next number.
//! These numbers mean something to this opened store alone, and to all that is [dedicated](crate::Store::dedicated) from it. They are
//! microseconds of the store's clock, or one more than the last where that is greater, so that no record has been written more
//! often than the number says.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tenure_core::ids::{Revision, Version};
use tokio::sync::watch;

use crate::store::Entry;
use crate::watch::{Change, ChangeBatch, TOMBSTONES_KEPT, WatchEnd};

/// How many prefixes that were listed are kept an eye on, besides those that are watched.
const LISTED_KEPT: usize = 16;

/// What one page or read says of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenObject {
    pub(super) etag: Arc<str>,
    /// Nothing: it is there, but was not read.
    pub(super) value: Option<Arc<[u8]>>,
    pub(super) deleted: bool,
}

#[derive(Debug)]
struct Slot {
    seen: SeenObject,
    /// When it last changed.
    revision: u64,
}

/// What was written through this store.
#[derive(Debug)]
struct Written {
    etag: Arc<str>,
    value: Arc<[u8]>,
    /// Whether a list has ended since that began before it, or did not show it.
    passed: bool,
}

#[derive(Debug, Default)]
pub(super) struct BucketState {
    /// What is there, marks of deletions included.
    slots: BTreeMap<String, Slot>,
    /// Which key was last changed at which revision.
    changed: BTreeMap<u64, String>,
    /// Keys that are gone, and since when.
    gone: BTreeMap<String, u64>,
    revision: u64,
    /// Watches from before this revision may have missed something.
    gap: u64,
    /// Prefixes that were listed or watched, and since when all under them is known; the one last used comes last.
    known: Vec<(String, u64)>,
    /// Since when the whole store is known, where nobody has named a prefix yet.
    whole: Option<u64>,
    /// Prefixes that somebody watches, and how many do.
    watched: BTreeMap<String, usize>,
    /// What was written through this store, is watched, and was not seen in a list yet.
    written: HashMap<String, Written>,
    pub(super) polling: bool,
}

/// One for all who share an opened store.
#[derive(Debug)]
pub(super) struct SharedBucket {
    state: Mutex<BucketState>,
    pub(super) moved: watch::Sender<()>,
    /// Whether old deletions are being removed.
    pub(super) collecting: AtomicBool,
    /// Held by who compares: lists must not overtake each other.
    pub(super) walking: tokio::sync::Mutex<()>,
}

impl SharedBucket {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
            moved: watch::Sender::new(()),
            collecting: AtomicBool::new(false),
            walking: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BucketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a write of this store's own, so that nobody need read it.
    pub(super) fn wrote(&self, key: &str, etag: &Arc<str>, value: &Arc<[u8]>) {
        let mut state = self.lock();
        if state.is_watched(key) {
            let written = Written {
                etag: etag.clone(),
                value: value.clone(),
                passed: false,
            };
            state.written.insert(key.to_owned(), written);
        }
    }
}

impl BucketState {
    pub(super) fn revision(&self) -> Revision {
        Revision(self.revision)
    }

    /// What a list says of a key, completed by what is known of it. Nothing is missing if a value is there or it was deleted.
    pub(super) fn complete(&self, key: &str, etag: Arc<str>, deleted: bool) -> SeenObject {
        let known = self.slots.get(key).map(|slot| &slot.seen);
        let value = match known {
            _ if deleted => None,
            Some(seen) if seen.etag == etag && seen.value.is_some() => seen.value.clone(),
            _ => self
                .written
                .get(key)
                .filter(|own| own.etag == etag)
                .map(|own| own.value.clone()),
        };
        SeenObject {
            etag,
            value,
            deleted,
        }
    }

    /// Takes over what was seen of a key.
    pub(super) fn apply(&mut self, key: &str, seen: SeenObject, date: Option<SystemTime>) {
        if self
            .written
            .get(key)
            .is_some_and(|own| own.etag == seen.etag)
        {
            self.written.remove(key);
        }
        let mut revision = 0;
        let differs = match self.slots.get_mut(key) {
            Some(slot) if slot.seen.etag == seen.etag => {
                if seen.value.is_some() {
                    slot.seen.value = seen.value;
                }
                return;
            }
            Some(slot) => {
                revision = slot.revision;
                !(slot.seen.deleted && seen.deleted)
            }
            None => !seen.deleted,
        };
        if differs {
            revision = self.next(key, date);
        }
        self.slots.insert(key.to_owned(), Slot { seen, revision });
    }

    /// Forgets all under the prefix that is no longer there.
    pub(super) fn retain(
        &mut self,
        prefix: &str,
        there: &BTreeSet<String>,
        date: Option<SystemTime>,
    ) {
        let missing: Vec<(String, bool)> = self
            .under(prefix)
            .filter(|(key, _)| !there.contains(*key))
            .map(|(key, slot)| (key.clone(), slot.seen.deleted))
            .collect();
        for (key, was_deleted) in missing {
            let revision = match was_deleted {
                // That it was deleted is no news.
                true => self.slots.get(&key).map_or(0, |slot| slot.revision),
                false => self.next(&key, date),
            };
            self.slots.remove(&key);
            if revision > 0 {
                self.gone.insert(key, revision);
            }
        }
        self.purge(TOMBSTONES_KEPT);
        // What two lists have not shown was overwritten or deleted since: no list will.
        self.written.retain(|key, own| {
            !key.starts_with(prefix) || !std::mem::replace(&mut own.passed, true)
        });
    }

    /// The next number, for a change of this key.
    fn next(&mut self, key: &str, date: Option<SystemTime>) -> u64 {
        self.raise(date);
        let last = self.slots.get(key).map(|slot| slot.revision);
        for old in last.into_iter().chain(self.gone.remove(key)) {
            self.changed.remove(&old);
        }
        self.changed.insert(self.revision, key.to_owned());
        self.revision
    }

    fn raise(&mut self, date: Option<SystemTime>) {
        let since = date.and_then(|date| date.duration_since(UNIX_EPOCH).ok());
        let micros = since.map_or(0, |since| since.as_micros() as u64);
        self.revision = micros.max(self.revision + 1);
    }

    /// Forgets the oldest of the keys that are gone.
    fn purge(&mut self, keep: usize) {
        if self.gone.len() <= keep {
            return;
        }
        let mut old: Vec<(u64, String)> = self
            .gone
            .iter()
            .map(|(key, at)| (*at, key.clone()))
            .collect();
        old.sort_unstable();
        old.truncate(self.gone.len() - keep / 2);
        for (at, key) in old {
            self.gone.remove(&key);
            self.changed.remove(&at);
            self.gap = self.gap.max(at);
        }
    }

    fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a String, &'a Slot)> {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        self.slots
            .range::<str, _>(from)
            .take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// What is there under a prefix, in order.
    pub(super) fn entries(&self, prefix: &str) -> Vec<Entry> {
        self.under(prefix)
            .filter_map(|(key, slot)| entry(key, slot))
            .collect()
    }

    /// What has changed since, if anything.
    pub(super) fn changes(
        &self,
        prefix: &str,
        after: Revision,
    ) -> Result<Option<ChangeBatch>, WatchEnd> {
        if after.0 < self.gap || after.0 > self.revision {
            return Err(WatchEnd::Gap);
        }
        let changes: Vec<Change> = self
            .changed
            .range((Bound::Excluded(after.0), Bound::Unbounded))
            .filter(|(_, key)| key.starts_with(prefix))
            .map(|(_, key)| {
                let slot = self.slots.get(key);
                match slot.and_then(|slot| entry(key, slot)) {
                    Some(entry) => Change::Put(entry),
                    None => Change::Deleted { key: key.clone() },
                }
            })
            .collect();
        Ok((!changes.is_empty()).then_some(ChangeBatch {
            changes,
            upto: self.revision(),
        }))
    }

    /// Since when everything under this prefix is known, if it is.
    pub(super) fn known_since(&self, prefix: &str) -> Option<u64> {
        let covers = self
            .known
            .iter()
            .filter(|(known, _)| prefix.starts_with(known.as_str()));
        covers.map(|(_, since)| *since).chain(self.whole).min()
    }

    /// The whole store has been looked at, and nobody has named a part of it.
    pub(super) fn learned_whole(&mut self, date: Option<SystemTime>) {
        if self.revision == 0 {
            self.raise(date);
        }
        self.whole.get_or_insert(self.revision);
    }

    /// Everything under this prefix has been looked at, and is looked at from now on.
    pub(super) fn learned(&mut self, prefix: &str, date: Option<SystemTime>) {
        if self.revision == 0 {
            self.raise(date);
        }
        let since = self.known_since(prefix).unwrap_or(self.revision);
        self.known.retain(|(known, _)| known != prefix);
        self.known.push((prefix.to_owned(), since));
        // From now on it is known what matters.
        if self.whole.take().is_some() {
            self.forget("");
        }
        let spare = self
            .known
            .iter()
            .filter(|k| !self.watched.contains_key(&k.0));
        if spare.count() > LISTED_KEPT {
            let unused = |(known, _): &(String, u64)| !self.watched.contains_key(known);
            if let Some(at) = self.known.iter().position(unused) {
                let (oldest, _) = self.known.remove(at);
                self.forget(&oldest);
                // Whoever has listed it cannot rely on the revision any more.
                self.raise(date);
            }
        }
    }

    /// Forgets all under a prefix that no other prefix speaks of.
    fn forget(&mut self, prefix: &str) {
        let known = &self.known;
        let covered = |key: &str| known.iter().any(|(k, _)| key.starts_with(k.as_str()));
        let lost = |key: &str| key.starts_with(prefix) && !covered(key);
        self.slots.retain(|key, _| !lost(key));
        self.gone.retain(|key, _| !lost(key));
        self.changed.retain(|_, key| !lost(key));
    }

    /// The prefixes that a revision speaks of: none of them begins with another one.
    pub(super) fn to_compare(&self) -> Vec<String> {
        let known = self.known.iter().map(|(known, _)| known.as_str());
        shortest(known.chain(self.watched.keys().map(String::as_str)))
    }

    /// The prefixes that are watched.
    pub(super) fn to_poll(&self) -> Vec<String> {
        shortest(self.watched.keys().map(String::as_str))
    }

    pub(super) fn is_watched(&self, key: &str) -> bool {
        self.watched
            .keys()
            .any(|prefix| key.starts_with(prefix.as_str()))
    }

    pub(super) fn watch(&mut self, prefix: &str) {
        *self.watched.entry(prefix.to_owned()).or_default() += 1;
    }

    pub(super) fn unwatch(&mut self, prefix: &str) {
        if let Some(count) = self.watched.get_mut(prefix) {
            *count -= 1;
            if *count == 0 {
                self.watched.remove(prefix);
                let watched: Vec<&String> = self.watched.keys().collect();
                let of = |key: &str| {
                    watched
                        .iter()
                        .any(|prefix| key.starts_with(prefix.as_str()))
                };
                self.written.retain(|key, _| of(key));
            }
        }
    }
}

fn entry(key: &str, slot: &Slot) -> Option<Entry> {
    let SeenObject {
        etag,
        value,
        deleted,
    } = &slot.seen;
    if *deleted {
        return None;
    }
    Some(Entry {
        key: key.to_owned(),
        value: value.clone()?,
        version: Version::Text(etag.clone()),
    })
}

fn shortest<'a>(prefixes: impl Iterator<Item = &'a str>) -> Vec<String> {
    let all: BTreeSet<&str> = prefixes.collect();
    let mut kept: Vec<String> = Vec::new();
    // In order, whatever begins with another prefix comes right behind it.
    for prefix in all {
        if !kept
            .last()
            .is_some_and(|last| prefix.starts_with(last.as_str()))
        {
            kept.push(prefix.to_owned());
        }
    }
    kept
}

#[cfg(test)]
#[path = "bucket_state_tests.rs"]
mod tests;
