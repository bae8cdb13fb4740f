//! Lists, the slow look at everything, and sweeping.

use std::sync::Arc;

use crate::ids::{Revision, SessionId, Version};
use crate::keys::Key;
use crate::machine::{Connection, Reply, Request, StoreListing};
use crate::reason::Reason;
use crate::record::{KeyspaceKind, Role};
use crate::rules::Mutant;
use crate::telemetry::NodeEvent;
use crate::time::Time;
use crate::view::{KeyState, View};

use super::startup::Boot;
use super::store_requests::Pending;
use super::timers::Timer;
use super::{Life, Node};

/// How many of the node's own last writes are remembered: more than can be under way while the store is asked for its
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
    /// Number of this node's own writes since then, which are no news.
    pub(super) written: u64,
    pub(super) last_writes: Vec<u64>,
    /// Another process has written since then.
    pub(super) others_wrote: bool,
}

impl StoreProgress {
    /// Counts a write of this node's own: it is no news. One that the last list has seen already must not hide a write of
    /// somebody else's.
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

impl Node {
    /// Everything was read.
    pub(super) fn on_listed(&mut self, listed: StoreListing, asked_at: Revision, begun: Time) {
        // Compared with what was known when it was asked for: a list that was overtaken is no sign of a store that went back.
        if listed.revision < asked_at || self.ctx.store_differs(&listed.store) {
            self.on_store_replaced(format!(
                "the store is {} at revision {}, which does not continue what this node has seen",
                listed.store, listed.revision.0
            ));
        }
        self.ctx.progress.asked_at = self.ctx.progress.asked_at.max(listed.revision);
        let mut gone: std::collections::BTreeSet<Key> =
            self.ctx.view.present_keys().into_iter().collect();
        for (key, found) in listed.entries {
            gone.remove(&key);
            if self.ctx.view.knows(&key, &found) {
                continue;
            }
            self.ctx.learn(&key, found.clone());
            if !self.ctx.view.is_missing(&key) && !self.ctx.view.knows(&key, &found) {
                // Older than what is known of it: the list was overtaken, or somebody has put the record or the store back.
                gone.insert(key);
            }
        }
        self.ctx.view.revision = self.ctx.view.revision.max(listed.revision);
        (self.ctx.progress.listed_at, self.ctx.progress.listed) = (begun, listed.revision);
        (self.ctx.progress.written, self.ctx.progress.others_wrote) = (0, false);
        self.ctx.timers.set_sooner(Timer::Restore, self.ctx.now);
        self.ctx.timers.set_sooner(Timer::OwnRecord, self.ctx.now);
        for (name, keyspace) in self.ctx.view.keyspaces.iter() {
            if let KeyspaceKind::Hashed(n) = keyspace.record.kind
                && self.ctx.config.keyspaces.contains_key(name)
            {
                let expected = (0..n).map(|i| {
                    crate::ids::ShardId::new(name.clone(), crate::ids::ShardName::index(i))
                });
                gone.extend(
                    expected
                        .filter(|id| self.ctx.view.shards.cell(id).is_none())
                        .map(Key::Shard),
                );
            }
        }
        // A list may be late; of what it lacks or takes back, only a read of the key itself is believed.
        self.ctx.absent.extend(gone);
        self.ctx.scan_all = true;
        if matches!(self.ctx.life, Life::Booting) {
            self.boot_listed(listed.store);
        } else if std::mem::take(&mut self.ctx.progress.relist) {
            self.ctx.list();
        }
    }

    pub(super) fn on_list_failed(&mut self, reply: Reply) {
        if matches!(self.ctx.life, Life::Booting) {
            self.boot_list_failed(reply);
        } else {
            self.ctx.progress.relist = true;
            self.ctx.timers.set_sooner(
                Timer::Tick,
                self.ctx.later(self.ctx.config.timing.renew_interval),
            );
        }
    }

    pub(super) fn on_watch_gap(&mut self) {
        if self.ctx.config.rules.broken_by(Mutant::NeverRelist) {
            return;
        }
        // A list that is under way may have been read before what was missed; a start may be past its list.
        let under_way = self
            .ctx
            .requests
            .values()
            .any(|p| matches!(p, Pending::List { .. }));
        if under_way || matches!(self.ctx.life, Life::Booting) {
            self.ctx.progress.relist = true;
        } else {
            self.ctx.list();
        }
    }

    /// The store is not the one it was: closes everything, forgets what was seen, and waits for raised generations.
    fn on_store_replaced(&mut self, problem: String) {
        if self.ctx.store_replaced.is_some() {
            return;
        }
        self.ctx.note(NodeEvent::StoreReplaced { problem });
        let generations = self
            .ctx
            .view
            .keyspaces
            .iter()
            .map(|(name, k)| (name.clone(), k.record.generation));
        self.ctx.store_replaced = Some(generations.collect());
        self.shards.cut_all(&mut self.ctx, Reason::StoreReplaced);
        self.leader.stop_leading(&mut self.ctx);
        self.ctx.own = None;
        // Answers of the store that was there before must not get into the new view.
        self.ctx.requests.clear();
        // A generation whose draw is under way is not confirmed any more, and one that was drawn there may be drawn again here.
        self.recovery.drawn.clear();
        self.shards
            .slots
            .values_mut()
            .for_each(super::shards::ShardSlot::forget_writing);
        self.ctx.timers.clear(&Timer::Renew);
        self.ctx.timers.clear(&Timer::Lease);
        self.ctx.view = View::new(self.ctx.config.rules);
        self.ctx.progress.asked_at = Revision(0);
        if matches!(self.ctx.life, Life::Stopping) {
            return;
        }
        self.ctx.life = Life::Booting;
        self.startup.boot = Boot::default();
        self.ctx.timers.set(
            Timer::Boot,
            self.ctx.now + self.ctx.config.timing.renew_interval,
        );
    }

    /// The slow look at everything: nothing waits for a message that may have been lost.
    pub(super) fn on_tick(&mut self) {
        self.ctx.timers.set(
            Timer::Tick,
            self.ctx.now + self.ctx.config.timing.tick_interval,
        );
        if !matches!(self.ctx.life, Life::Running | Life::Stopping) {
            return;
        }
        let missed = self
            .ctx
            .progress
            .behind
            .take()
            .is_some_and(|revision| self.ctx.view.revision < revision);
        // A watch may leave things out without a trace; now and then everything is read although nothing seems amiss.
        let due = self.ctx.progress.others_wrote
            && self.ctx.now >= self.ctx.progress.listed_at + self.ctx.config.timing.relist_interval;
        if (missed || due || self.ctx.progress.relist)
            && !self.ctx.config.rules.broken_by(Mutant::NeverRelist)
        {
            self.ctx.progress.relist = false;
            self.ctx.list();
        } else {
            let asked_at = self.ctx.progress.asked_at;
            self.ctx.ask(
                Connection::Default,
                Request::Revision,
                Pending::Revision { asked_at },
            );
        }
        self.recovery.keep_name(&mut self.ctx);
        self.recovery.keep_cluster(&mut self.ctx);
        self.ask_after_neighbours();
        self.leader.look_at_leader(&mut self.ctx, &self.membership);
        self.leader.plan_soon(&mut self.ctx);
        self.ctx.read(Key::Node(self.ctx.config.name.clone()));
        let config = Arc::clone(&self.ctx.config);
        for name in config.keyspaces.keys() {
            self.ctx.read(Key::Keyspace(name.clone()));
        }
        let view = &self.ctx.view;
        self.shards
            .doubtful
            .retain(|id, mark| view.mark(&Key::Shard(id.clone())) == *mark);
        for id in self.shards.doubtful.keys().cloned().collect::<Vec<_>>() {
            self.ctx.read(Key::Shard(id));
        }
        self.assignment.all_stale();
        self.shards.retries.renew_retries(&mut self.ctx);
        self.ctx.timers.set_sooner(Timer::Restore, self.ctx.now);
        self.ctx.timers.set_sooner(Timer::OwnRecord, self.ctx.now);
        self.sweep();
        self.ctx.scan_all = true;
    }

    /// How far the store has come: if the watch has not come as far by the next tick, it has lost something.
    pub(super) fn on_revision(&mut self, revision: Revision, asked_at: Revision) {
        if revision < asked_at {
            return self.on_store_replaced(format!(
                "the store's revision decreased from {} to {}",
                asked_at.0, revision.0
            ));
        }
        self.ctx.progress.asked_at = self.ctx.progress.asked_at.max(revision);
        let later = self
            .ctx
            .progress
            .last_writes
            .iter()
            .filter(|n| **n > revision.0)
            .count() as u64;
        self.ctx.progress.others_wrote |= revision.0
            > self.ctx.progress.listed.0 + self.ctx.progress.written.saturating_sub(later);
        self.ctx.progress.behind = Some(revision);
    }

    /// Removes tombstones that nothing refers to any more. One node does it, and takes its time.
    fn sweep(&mut self) {
        if !self.membership.is_first_member(&self.ctx)
            || !self.ctx.may_own()
            || self.ctx.config.role != Role::Node
        {
            return;
        }
        let old: Vec<(SessionId, Version)> = self
            .ctx
            .view
            .sessions
            .cells()
            .filter_map(|(id, cell)| match cell {
                KeyState::Present(seen)
                    if self.ctx.ended(*id) && self.ctx.now >= seen.since + seen.record.ttl * 10 =>
                {
                    Some((*id, seen.version.clone()))
                }
                _ => None,
            })
            .filter(|(id, _)| !self.ctx.is_referred_to(*id))
            .collect();
        for (id, version) in old {
            self.ctx.delete(Key::Session(id), version);
        }
        self.sweep_nodes();
    }

    /// A protocol as others have it: one renewal per shard.
    pub(super) fn renew_every_shard(&mut self) {
        for (id, seen) in self
            .ctx
            .view
            .shards
            .iter()
            .map(|(id, s)| (id.clone(), s.clone()))
            .collect::<Vec<_>>()
        {
            if self
                .ctx
                .session()
                .is_some_and(|me| seen.record.is_owned_by(me))
            {
                let mut record = (*seen.record).clone();
                record.head = record.head.next(self.ctx.nonce());
                let record = crate::record::Record::Shard(std::sync::Arc::new(record));
                let expect = crate::machine::Expect::Version(seen.version);
                self.ctx.put(
                    Key::Shard(id),
                    expect,
                    record,
                    super::store_requests::WritePurpose::Unimportant,
                );
            }
        }
    }
}
