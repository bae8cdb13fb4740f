//! Complete reads, periodic checks of the watch, and removal of tombstones.

use std::collections::BTreeSet;

use crate::ids::{Revision, SessionId, ShardId, ShardName, Version};
use crate::keys::Key;
use crate::machine::{Connection, Found, Reply, Request, StoreListing};
use crate::record::{KeyspaceKind, Role};
use crate::rules::Mutant;
use crate::time::Time;
use crate::view::KeyState;

use super::Life;
use super::context::Ctx;
use super::store_requests::Pending;
use super::timers::Timer;

/// Number of the node's own last writes that are remembered. It exceeds the writes that can be in progress during a request for the store's
/// revision.
const LAST_WRITES: usize = 64;

/// Progress of the store as this node knows it, and the need for a complete read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct StoreProgress {
    /// Store revision that the watch had not reached at the last tick.
    pub(super) behind: Option<Revision>,
    /// Highest revision that the store itself has reported.
    pub(super) asked_at: Revision,
    /// The next tick reads everything.
    pub(super) relist: bool,
    /// Start of the last complete read, and its revision.
    pub(super) listed_at: Time,
    pub(super) listed: Revision,
    /// Number of this node's own writes since then, which are not changes by others.
    pub(super) written: u64,
    pub(super) last_writes: Vec<u64>,
    /// Another process has written since then.
    pub(super) others_wrote: bool,
}

impl StoreProgress {
    /// Counts a write of this node, which is not a change by others.
    ///
    /// A write that the last complete read already contains is not counted, or it would hide a write of another process.
    pub(super) fn count_write(&mut self, reply: &Reply) {
        if let Reply::Won(Version::Number(n)) = reply
            && *n > self.listed.0
        {
            self.written += 1;
            self.last_writes.push(*n);
            let surplus = self.last_writes.len().saturating_sub(LAST_WRITES);
            self.last_writes.drain(..surplus);
        }
    }
}

impl Ctx {
    /// Renews each owned shard by a separate write, as some other protocols do. Used only by [`Mutant::RenewPerShard`].
    pub(super) fn renew_every_shard(&mut self) {
        for (id, seen) in self
            .view
            .shards
            .iter()
            .map(|(id, s)| (id.clone(), s.clone()))
            .collect::<Vec<_>>()
        {
            if self.session().is_some_and(|me| seen.record.is_owned_by(me)) {
                let mut record = (*seen.record).clone();
                record.head = record.head.next(self.nonce());
                let record = crate::record::Record::Shard(std::sync::Arc::new(record));
                let expect = crate::machine::Expect::Version(seen.version);
                self.put(
                    Key::Shard(id),
                    expect,
                    record,
                    super::store_requests::WritePurpose::Unimportant,
                );
            }
        }
    }
}

/// Returns the reason why a complete read does not continue what this node has seen, if there is one.
///
/// The read is compared with the state known at the time of the request: an overtaken read is no sign of a restored store.
pub(super) fn listing_problem(
    cx: &Ctx,
    listed: &StoreListing,
    asked_at: Revision,
) -> Option<String> {
    (listed.revision < asked_at || cx.store_differs(&listed.store)).then(|| {
        format!(
            "the store is {} at revision {}, which does not continue what this node has seen",
            listed.store, listed.revision.0
        )
    })
}

/// Applies a complete read to the view. Keys that are missing or older in the read are read individually.
pub(super) fn apply_listing(
    cx: &mut Ctx,
    revision: Revision,
    entries: Vec<(Key, Found)>,
    begun: Time,
) {
    cx.progress.asked_at = cx.progress.asked_at.max(revision);
    let mut gone: BTreeSet<Key> = cx.view.present_keys().into_iter().collect();
    for (key, found) in entries {
        gone.remove(&key);
        if cx.view.knows(&key, &found) {
            continue;
        }
        cx.learn(&key, found.clone());
        if !cx.view.is_missing(&key) && !cx.view.knows(&key, &found) {
            // Older than the known value: the read was overtaken, or the record or the store was restored.
            gone.insert(key);
        }
    }
    cx.view.revision = cx.view.revision.max(revision);
    let progress = &mut cx.progress;
    (progress.listed_at, progress.listed) = (begun, revision);
    (progress.written, progress.others_wrote) = (0, false);
    cx.timers.set_sooner(Timer::Restore, cx.now);
    cx.timers.set_sooner(Timer::OwnRecord, cx.now);
    for (name, keyspace) in cx.view.keyspaces.iter() {
        if let KeyspaceKind::Hashed(n) = keyspace.record.kind
            && cx.config.keyspaces.contains_key(name)
        {
            let expected = (0..n).map(|i| ShardId::new(name.clone(), ShardName::index(i)));
            let unknown = expected.filter(|id| cx.view.shards.cell(id).is_none());
            gone.extend(unknown.map(Key::Shard));
        }
    }
    // A list may be late. Only a read of the key itself proves that the key is missing.
    cx.absent.extend(gone);
    cx.scan_all = true;
}

/// Requests a complete read after the watch has lost changes.
pub(super) fn on_watch_gap(cx: &mut Ctx) {
    if cx.broken_by(Mutant::NeverRelist) {
        return;
    }
    // A list in progress may be older than the lost changes. A start may be past its list.
    let lists = |p: &Pending| matches!(p, Pending::List { .. });
    if cx.requests.values().any(lists) || matches!(cx.life, Life::Booting) {
        cx.progress.relist = true;
    } else {
        cx.list();
    }
}

/// Reads everything if changes may have been lost, otherwise asks for the revision of the store.
pub(super) fn check_progress(cx: &mut Ctx) {
    let behind = cx.progress.behind.take();
    let missed = behind.is_some_and(|revision| cx.view.revision < revision);
    // A watch may miss changes without any sign, so the node reads everything from time to time.
    let due = cx.progress.others_wrote
        && cx.now >= cx.progress.listed_at + cx.config.timing.relist_interval;
    if (missed || due || cx.progress.relist) && !cx.broken_by(Mutant::NeverRelist) {
        cx.progress.relist = false;
        cx.list();
    } else {
        let asked_at = cx.progress.asked_at;
        let pending = Pending::Revision { asked_at };
        cx.ask(Connection::Default, Request::Revision, pending);
    }
}

impl StoreProgress {
    /// Takes the revision of the store. If the watch has not reached it by the next tick, the watch has lost changes.
    ///
    /// Returns an error text if the revision shows that the store was restored.
    pub(super) fn on_revision(&mut self, revision: Revision, asked_at: Revision) -> Option<String> {
        if revision < asked_at {
            return Some(format!(
                "the store's revision decreased from {} to {}",
                asked_at.0, revision.0
            ));
        }
        self.asked_at = self.asked_at.max(revision);
        let later = self.last_writes.iter().filter(|n| **n > revision.0).count() as u64;
        self.others_wrote |= revision.0 > self.listed.0 + self.written.saturating_sub(later);
        self.behind = Some(revision);
        None
    }
}

/// Removes tombstones that no record refers to. Only one node of the cluster calls this.
pub(super) fn sweep(cx: &mut Ctx) {
    if !cx.may_own() || cx.config.role != Role::Node {
        return;
    }
    let cells = cx.view.sessions.cells();
    let old = cells.filter_map(|(id, cell)| match cell {
        KeyState::Present(seen)
            if cx.ended(*id)
                && cx.now >= seen.since + seen.record.ttl * 10
                && !cx.view.is_referred_to(*id) =>
        {
            Some((*id, seen.version.clone()))
        }
        _ => None,
    });
    let old: Vec<(SessionId, Version)> = old.collect();
    for (id, version) in old {
        cx.delete(Key::Session(id), version);
    }
    cx.sweep_nodes();
}
