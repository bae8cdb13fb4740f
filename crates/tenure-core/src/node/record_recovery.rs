//! Records that must exist and are missing or corrupt.
//!
//! Absent is neither free nor ended, and neither is corrupt. Whoever owns the shard closes at its next read; everyone watches
//! the loss for a whole ttl, so that no session that was not seen can still be serving; then a generation is drawn that nobody
//! ever used, so that the new record's epochs exceed every epoch there ever was; and the new record names every session that
//! may be live as a witness: nobody claims the shard before each has said that it does not own it, or has ended (A11).
//!
//! A missing shard record gets a placeholder at once, and the new record replaces the placeholder by compare-and-swap. A write
//! that is to win if the key is absent would win again if it were late and the key were deleted once more, and would bring an
//! old generation back; a late placeholder says nothing. A corrupt record needs no placeholder: it has a version. One of a newer
//! format is never replaced.
//!
//! Generations are drawn by compare-and-swap from the cluster's record, which thereby remembers which keyspaces there are:
//! a keyspace that is listed there and has no record was lost, one that is not listed is new.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{KeyspaceName, SessionId, ShardId};
use crate::keys::Key;
use crate::machine::Expect;
use crate::ownership::restored;
use crate::reason::Reason;
use crate::record::{
    ClusterRecord, Damage, Head, KeyspaceKind, KeyspaceRecord, NodeRecord, Record, Role,
    ShardRecord, Unknown,
};
use crate::rules::Mutant;
use crate::telemetry::{NodeEvent, ShardStep};
use crate::time::Time;
use crate::view::KeyState;

use super::queries::is_of;
use super::store_requests::{Pending, Settled, WritePurpose};
use super::timers::Timer;
use super::{KeyspaceConfig, Life, Node};

/// State of the recovery of lost records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Recovery {
    /// Generations that this node has drawn and not used yet.
    pub(super) drawn: BTreeMap<KeyspaceName, Drawn>,
    /// Highest known generation of each keyspace.
    pub(super) generations: BTreeMap<KeyspaceName, u32>,
}

/// A generation that this node has drawn and not used yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Drawn {
    pub(super) generation: u32,
    /// When it was drawn: it serves for what was lost before, not for what is lost after.
    pub(super) at: Time,
    confirmed: bool,
    /// Nobody had drawn one for this keyspace before: it is new.
    pub(super) fresh: bool,
}

impl Node {
    /// A read said that there is no such key.
    pub(super) fn on_missing(&mut self, key: &Key) {
        let ours = match key {
            Key::Shard(id) => self.ctx.config.keyspaces.contains_key(&id.keyspace),
            Key::Keyspace(name) => self.ctx.config.keyspaces.contains_key(name),
            Key::Node(name) => *name == self.ctx.config.name,
            Key::Cluster => true,
            _ => false,
        };
        if !ours || !matches!(self.ctx.life, Life::Running) {
            return;
        }
        self.ctx.note(NodeEvent::RecordMissing { key: key.clone() });
        match key {
            Key::Node(_) => self.keep_name(),
            Key::Cluster => self.keep_cluster(),
            Key::Shard(_) => self.ctx.timers.set_sooner(Timer::Restore, self.ctx.now),
            _ => self
                .ctx
                .timers
                .set_sooner(Timer::Restore, self.ctx.restore_at(self.ctx.now)),
        }
    }

    /// Sees to it that a shard record that has become unreadable is restored in time.
    pub(super) fn restore_later(&mut self, id: &ShardId) {
        if let Some(KeyState::Damaged { since, .. }) = self.ctx.view.shards.cell(id) {
            let at = self.ctx.restore_at(*since);
            self.ctx.timers.set_sooner(Timer::Restore, at);
        }
    }

    /// Makes anew what has been missing for long enough.
    pub(super) fn restore_lost(&mut self) {
        if self.ctx.config.role != Role::Node || self.is_restoring() {
            return;
        }
        if !self.ctx.may_own() || !matches!(self.ctx.life, Life::Running) {
            return self.ctx.timers.set(
                Timer::Restore,
                self.ctx.now + self.ctx.config.timing.renew_interval,
            );
        }
        for (name, config) in self.ctx.config.keyspaces.clone() {
            if self.put_placeholders(&name, config.kind) {
                continue;
            }
            match self.ctx.view.keyspaces.cell(&name) {
                Some(KeyState::Missing { since }) => {
                    let (since, at) = (*since, self.ctx.restore_at(*since));
                    if self.ctx.now < at {
                        self.ctx.timers.set_sooner(Timer::Restore, at);
                    } else if !self.ctx.has_read_since(at) {
                        // The list sees to it that this goes on.
                    } else if let Some(generation) =
                        self.draw_generation(&name, since, WritePurpose::Generation(name.clone()))
                    {
                        self.put_keyspace(
                            &name,
                            &config,
                            generation,
                            generation,
                            WritePurpose::Keyspace,
                        );
                    }
                }
                Some(KeyState::Present(seen)) if !seen.record.deleted => self.restore_shards(&name),
                _ => {}
            }
        }
    }

    /// The highest generation that is known to have been used for a keyspace; zero if it never was.
    pub(super) fn known_generation(&self, name: &KeyspaceName) -> u32 {
        let seen = self.recovery.generations.get(name).copied().unwrap_or(0);
        let listed = self
            .ctx
            .view
            .cluster
            .get(&())
            .and_then(|c| c.keyspaces.get(name).copied())
            .unwrap_or(0);
        let record = self
            .ctx
            .view
            .keyspaces
            .get(name)
            .map_or(0, |k| k.generation);
        seen.max(listed).max(record)
    }

    /// A generation that nobody ever used, for what was lost at `since`; nothing until the draw is confirmed.
    pub(super) fn draw_generation(
        &mut self,
        name: &KeyspaceName,
        since: Time,
        purpose: WritePurpose,
    ) -> Option<u32> {
        if self.ctx.config.rules.broken_by(Mutant::EpochForgotten) {
            return Some(self.known_generation(name).max(1));
        }
        if let Some(drawn) = self.recovery.drawn.get(name)
            && drawn.at >= since
        {
            // What was drawn for a loss may be overtaken: others have made the record anew above it, and it was lost again
            // without this node having seen either.
            let overtaken = drawn.confirmed && drawn.generation < self.known_generation(name);
            if !overtaken {
                return drawn.confirmed.then_some(drawn.generation);
            }
        }
        let seen = self.ctx.view.cluster.seen(&()).cloned()?;
        let known = self.known_generation(name);
        let (generation, fresh) = (known.saturating_add(1), known == 0);
        let mut record = (*seen.record).clone();
        record.head = record.head.next(self.ctx.nonce());
        record.keyspaces.insert(name.clone(), generation);
        self.recovery.drawn.insert(
            name.clone(),
            Drawn {
                generation,
                at: self.ctx.now,
                confirmed: false,
                fresh,
            },
        );
        self.ctx.put(
            Key::Cluster,
            Expect::Version(seen.version),
            Record::Cluster(Arc::new(record)),
            purpose,
        );
        None
    }

    pub(super) fn on_generation_drawn(&mut self, name: &KeyspaceName, outcome: &Settled) {
        match outcome {
            Settled::Done => {
                if let Some(drawn) = self.recovery.drawn.get_mut(name) {
                    drawn.confirmed = true;
                    let known = self.recovery.generations.entry(name.clone()).or_default();
                    *known = (*known).max(drawn.generation);
                }
            }
            _ => {
                self.recovery.drawn.remove(name);
            }
        }
    }

    /// Writes a keyspace's record, whatever was there before.
    pub(super) fn put_keyspace(
        &mut self,
        name: &KeyspaceName,
        config: &KeyspaceConfig,
        generation: u32,
        floor: u32,
        purpose: WritePurpose,
    ) {
        let key = Key::Keyspace(name.clone());
        let nonce = self.ctx.nonce();
        let old = self.ctx.view.keyspaces.seen(name).cloned();
        let head = match &old {
            Some(old) => old.record.head.next(nonce),
            None => Head {
                rev: self.ctx.view.fresh_rev(&key),
                ..Head::first(nonce)
            },
        };
        let unknown = old
            .as_ref()
            .map(|o| o.record.unknown.clone())
            .unwrap_or_default();
        let (kind, mode, plan) = (config.kind, config.mode, config.plan.clone());
        let record = KeyspaceRecord {
            head,
            kind,
            assigned_by: mode,
            planning: plan,
            generation,
            min_generation: floor,
            deleted: false,
            rebalance: false,
            unknown,
        };
        let expect = old.map_or(Expect::Absent, |old| Expect::Version(old.version));
        self.recovery.drawn.remove(name);
        self.ctx
            .put(key, expect, Record::Keyspace(Arc::new(record)), purpose);
    }

    /// Writes placeholders for the missing shard records of a keyspace; returns whether there are any.
    fn put_placeholders(&mut self, name: &KeyspaceName, kind: KeyspaceKind) -> bool {
        let removed = self.ctx.view.keyspaces.get(name).is_some_and(|k| k.deleted);
        if removed || self.ctx.config.rules.broken_by(Mutant::RestoreIfAbsent) {
            return false;
        }
        let shards = self.ctx.view.shards.cells();
        let missing = shards.filter(|(id, cell)| {
            id.keyspace == *name && matches!(cell, KeyState::Missing { .. }) && is_of(kind, id)
        });
        let missing: Vec<Key> = missing.map(|(id, _)| Key::Shard(id.clone())).collect();
        let any = !missing.is_empty();
        for key in missing {
            self.put_placeholder(key, WritePurpose::Restore);
        }
        any
    }

    /// Time since which a shard record is lost, time from which it may be replaced, and the value to replace.
    fn lost(&self, cell: &KeyState<ShardRecord>) -> Option<(Time, Time, Expect)> {
        let rules = self.ctx.config.rules;
        match cell {
            KeyState::Damaged {
                damage: damage @ Damage::Corrupt(_),
                since,
                version,
            } => {
                let at_once = rules.broken_by(Mutant::CorruptWithoutWitnesses);
                let at = match at_once && !damage.is_placeholder() {
                    true => *since,
                    false => self.ctx.restore_at(*since),
                };
                Some((*since, at, Expect::Version(version.clone())))
            }
            KeyState::Missing { since } if rules.broken_by(Mutant::RestoreIfAbsent) => {
                Some((*since, self.ctx.restore_at(*since), Expect::Absent))
            }
            _ => None,
        }
    }

    fn restore_shards(&mut self, name: &KeyspaceName) {
        let (mut due, mut last, mut wake) = (Vec::new(), Time::ZERO, Time::NEVER);
        for (id, cell) in self.ctx.view.shards.cells() {
            if id.keyspace == *name
                && let Some((since, at, expect)) = self.lost(cell)
                && self.ctx.belongs(id)
            {
                if self.ctx.now >= at {
                    due.push((id.clone(), expect));
                    last = last.max(since);
                } else {
                    wake = wake.min(at);
                }
            }
        }
        if wake < Time::NEVER {
            self.ctx.timers.set_sooner(Timer::Restore, wake);
        }
        if due.is_empty() {
            self.recovery.drawn.remove(name);
            return;
        }
        if !self
            .ctx
            .has_read_since(self.ctx.restore_at(last).min(self.ctx.now))
        {
            return;
        }
        let Some(generation) =
            self.draw_generation(name, last, WritePurpose::Generation(name.clone()))
        else {
            return;
        };
        self.recovery.drawn.remove(name);
        let rules = self.ctx.config.rules;
        let witnesses = match rules.broken_by(Mutant::CorruptWithoutWitnesses) {
            true => Vec::new(),
            false => self.ctx.possible_owners(),
        };
        for (id, expect) in due {
            let purpose = WritePurpose::Restore;
            self.put_restored(id, expect, generation, witnesses.clone(), purpose);
        }
    }

    pub(super) fn on_restore_settled(&mut self, outcome: Settled) {
        let at = match outcome {
            Settled::Done => self.ctx.now,
            _ => self.ctx.later(self.ctx.config.timing.renew_retry_interval),
        };
        self.ctx.timers.set(Timer::Restore, at);
    }

    /// Writes the node's own record anew if it was lost, or if somebody took the name then and is gone: without it nobody,
    /// not even the node itself, counts on this node.
    pub(super) fn keep_name(&mut self) {
        let key = Key::Node(self.ctx.config.name.clone());
        let Some(session) = self.ctx.my_session().map(|h| h.id) else {
            return;
        };
        if !matches!(self.ctx.life, Life::Running) {
            return;
        }
        let nonce = self.ctx.nonce();
        let (expect, head) = match self.ctx.view.nodes.cell(&self.ctx.config.name) {
            Some(KeyState::Missing { .. }) => (
                Expect::Absent,
                Head {
                    rev: self.ctx.view.fresh_rev(&key),
                    ..Head::first(nonce)
                },
            ),
            Some(KeyState::Present(seen))
                if seen.record.session != session && self.ctx.ended(seen.record.session) =>
            {
                (
                    Expect::Version(seen.version.clone()),
                    seen.record.head.next(nonce),
                )
            }
            Some(KeyState::Present(seen)) if seen.record.session != session => {
                return self.ctx.check_expired(seen.record.session);
            }
            _ => return,
        };
        let record = NodeRecord {
            head,
            session,
            mode: self.ctx.own_node.mode.clone(),
            cordoned: self.ctx.own_node.cordoned,
            boot: self.ctx.view.cluster.get(&()).map(|c| c.boot),
            unsure: false,
            ephemeral: self.ctx.config.ephemeral,
            stop_session: None,
            unknown: Unknown::new(),
        };
        self.ctx.put(
            key,
            expect,
            Record::Node(Arc::new(record)),
            WritePurpose::Unimportant,
        );
    }

    /// Raises the generations that the cluster's record lists to those that this node has seen.
    pub(super) fn raise_listed(&self, cluster: &mut ClusterRecord) {
        for (name, generation) in &self.recovery.generations {
            let listed = cluster.keyspaces.entry(name.clone()).or_default();
            *listed = (*listed).max(*generation);
        }
    }

    /// Writes the cluster's record anew, with all that this node remembers of it.
    pub(super) fn keep_cluster(&mut self) {
        if !matches!(self.ctx.life, Life::Running)
            || !self.ctx.view.is_missing(&Key::Cluster)
            || !self.ctx.may_own()
        {
            return;
        }
        let Some(mut record) = self.ctx.pause.cluster().cloned() else {
            return;
        };
        record.head = Head {
            rev: self.ctx.view.fresh_rev(&Key::Cluster),
            ..Head::first(self.ctx.nonce())
        };
        record.longest_ttl = self.ctx.longest_ttl();
        self.raise_listed(&mut record);
        self.ctx.put(
            Key::Cluster,
            Expect::Absent,
            Record::Cluster(Arc::new(record)),
            WritePurpose::Unimportant,
        );
    }
}

impl Node {
    fn is_restoring(&self) -> bool {
        self.ctx.requests.values().any(|p| {
            matches!(p, Pending::Put { purpose, .. } | Pending::ReadBack { purpose, .. }
                if matches!(purpose, WritePurpose::Generation(_) | WritePurpose::Keyspace | WritePurpose::Restore))
        })
    }

    /// Marks a key as that of a lost record.
    pub(super) fn put_placeholder(&mut self, key: Key, purpose: WritePurpose) {
        let head = Head {
            rev: self.ctx.view.fresh_rev(&key),
            ..Head::first(self.ctx.nonce())
        };
        self.ctx
            .put(key, Expect::Absent, Record::Placeholder(head), purpose);
    }

    /// Makes a shard's record anew.
    pub(super) fn put_restored(
        &mut self,
        id: ShardId,
        expect: Expect,
        generation: u32,
        witnesses: Vec<SessionId>,
        purpose: WritePurpose,
    ) {
        let key = Key::Shard(id.clone());
        let head = Head {
            rev: self.ctx.view.fresh_rev(&key),
            ..Head::first(self.ctx.nonce())
        };
        let witnesses_empty = witnesses.is_empty();
        let record = restored(head, generation, witnesses, self.ctx.config.rules);
        if purpose == WritePurpose::Restore || !witnesses_empty {
            self.ctx.report_step(
                &id,
                ShardStep::Restored,
                record.epoch,
                Reason::Restored,
                None,
            );
        }
        self.ctx
            .put(key, expect, Record::Shard(Arc::new(record)), purpose);
    }
}
