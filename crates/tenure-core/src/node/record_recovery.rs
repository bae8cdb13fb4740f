//! Recovery of records that must exist and are missing or corrupt.
//!
//! A missing record does not mean that a shard is free or a session ended, and neither does a corrupt one. Recovery has four steps:
//!
//! 1. The owner of the shard closes it at its next read.
//! 2. Every node observes the loss for the longest ttl plus clock drift, so that no unseen session can still be serving.
//! 3. A node draws a generation that was never used, so that the new record's epochs exceed every earlier epoch.
//! 4. The new record names every session that may be live as a witness. No node claims the shard before each witness has disclaimed it or
//!    has ended (A11).
//!
//! A missing shard record gets a placeholder at once, and the new record replaces the placeholder by compare-and-swap. A late write that
//! requires an absent key would succeed again after a second deletion, and bring an old generation back. A late placeholder contains no
//! facts. A corrupt record needs no placeholder: it has a version. A record of a newer format is never replaced.
//!
//! Generations are drawn by compare-and-swap from the cluster's record, which thereby lists all keyspaces. A listed keyspace without a
//! record was lost; a keyspace that is not listed is new.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{Epoch, KeyspaceName, SessionId, ShardId};
use crate::keys::Key;
use crate::machine::Expect;
use crate::ownership::{Transition, restored};
use crate::reason::Reason;
use crate::record::{
    ClusterRecord, Head, KeyspaceKind, KeyspaceRecord, NodeRecord, Record, RecordError, Role,
    ShardRecord, Unknown,
};
use crate::rules::Mutant;
use crate::telemetry::{NodeEvent, ShardStep};
use crate::time::Time;
use crate::view::KeyState;

use super::context::Ctx;
use super::queries::is_of;
use super::store_requests::{Pending, WriteOutcome, WritePurpose};
use super::timers::Timer;
use super::{KeyspaceConfig, Life, session_end};

/// State of the recovery of lost records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Recovery {
    /// Generations that this node has drawn and not used yet.
    pub(super) drawn: BTreeMap<KeyspaceName, ReservedGeneration>,
    /// Highest known generation of each keyspace.
    pub(super) generations: BTreeMap<KeyspaceName, u32>,
}

/// Generation that this node has drawn and not used yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReservedGeneration {
    pub(super) generation: u32,
    /// Time of the draw: the generation serves for losses before this time, not for later ones.
    pub(super) at: Time,
    confirmed: bool,
    /// `true` if no generation of this keyspace was drawn before: the keyspace is new.
    pub(super) fresh: bool,
}

impl Recovery {
    /// Handles a read that found no value for a key.
    pub(super) fn on_missing(&mut self, cx: &mut Ctx, key: &Key) {
        let ours = match key {
            Key::Shard(id) => cx.config.keyspaces.contains_key(&id.keyspace),
            Key::Keyspace(name) => cx.config.keyspaces.contains_key(name),
            Key::Node(name) => *name == cx.config.name,
            Key::Cluster => true,
            _ => false,
        };
        if !ours || !matches!(cx.life, Life::Running) {
            return;
        }
        cx.note(NodeEvent::RecordMissing { key: key.clone() });
        match key {
            Key::Node(_) => self.restore_node_record(cx),
            Key::Cluster => self.restore_cluster_record(cx),
            Key::Shard(_) => cx.timers.set_sooner(Timer::Restore, cx.now),
            _ => cx.timers.set_sooner(Timer::Restore, restore_at(cx, cx.now)),
        }
    }

    /// Restores records that have been missing for long enough.
    pub(super) fn restore_lost(&mut self, cx: &mut Ctx) {
        if cx.config.role != Role::Node || self.is_restoring(cx) {
            return;
        }
        if !cx.may_own() || !matches!(cx.life, Life::Running) {
            return cx
                .timers
                .set(Timer::Restore, cx.now + cx.config.timing.renew_interval);
        }
        for (name, config) in cx.config.keyspaces.clone() {
            if self.put_placeholders(cx, &name, config.kind) {
                continue;
            }
            match cx.view.keyspaces.cell(&name) {
                Some(KeyState::Missing { since }) => {
                    let (since, at) = (*since, restore_at(cx, *since));
                    if cx.now < at {
                        cx.timers.set_sooner(Timer::Restore, at);
                    } else if !cx.has_read_since(at) {
                        // The complete read continues the recovery when it arrives.
                    } else if let Some(generation) = self.draw_generation(
                        cx,
                        &name,
                        since,
                        WritePurpose::Generation(name.clone()),
                    ) {
                        self.put_keyspace(
                            cx,
                            &name,
                            &config,
                            generation,
                            generation,
                            WritePurpose::Keyspace,
                        );
                    }
                }
                Some(KeyState::Present(seen)) if !seen.record.deleted => {
                    self.restore_shards(cx, &name)
                }
                _ => {}
            }
        }
    }

    /// Returns the highest generation known to have been used for a keyspace; zero if there is none.
    pub(super) fn known_generation(&self, cx: &Ctx, name: &KeyspaceName) -> u32 {
        let seen = self.generations.get(name).copied().unwrap_or(0);
        let listed = cx
            .view
            .cluster
            .get(&())
            .and_then(|c| c.keyspaces.get(name).copied())
            .unwrap_or(0);
        let record = cx.view.keyspaces.get(name).map_or(0, |k| k.generation);
        seen.max(listed).max(record)
    }

    /// Returns a generation that was never used, for a loss at `since`; `None` until the draw is confirmed.
    pub(super) fn draw_generation(
        &mut self,
        cx: &mut Ctx,
        name: &KeyspaceName,
        since: Time,
        purpose: WritePurpose,
    ) -> Option<u32> {
        if cx.config.rules.broken_by(Mutant::EpochForgotten) {
            return Some(self.known_generation(cx, name).max(1));
        }
        if let Some(drawn) = self.drawn.get(name)
            && drawn.at >= since
        {
            // The drawn generation may be outdated. Other nodes may have restored the record above it, and the record may have been lost
            // again, without this node having seen either.
            let overtaken = drawn.confirmed && drawn.generation < self.known_generation(cx, name);
            if !overtaken {
                return drawn.confirmed.then_some(drawn.generation);
            }
        }
        let seen = cx.view.cluster.seen(&()).cloned()?;
        let known = self.known_generation(cx, name);
        let (generation, fresh) = (known.saturating_add(1), known == 0);
        let mut record = (*seen.record).clone();
        record.head = record.head.next(cx.nonce());
        record.keyspaces.insert(name.clone(), generation);
        self.drawn.insert(
            name.clone(),
            ReservedGeneration {
                generation,
                at: cx.now,
                confirmed: false,
                fresh,
            },
        );
        cx.put(
            Key::Cluster,
            Expect::Version(seen.version),
            Record::Cluster(Arc::new(record)),
            purpose,
        );
        None
    }

    pub(super) fn on_generation_drawn(
        &mut self,
        _cx: &mut Ctx,
        name: &KeyspaceName,
        outcome: &WriteOutcome,
    ) {
        match outcome {
            WriteOutcome::Done => {
                if let Some(drawn) = self.drawn.get_mut(name) {
                    drawn.confirmed = true;
                    let known = self.generations.entry(name.clone()).or_default();
                    *known = (*known).max(drawn.generation);
                }
            }
            _ => {
                self.drawn.remove(name);
            }
        }
    }

    /// Writes a keyspace's record and replaces an earlier one.
    pub(super) fn put_keyspace(
        &mut self,
        cx: &mut Ctx,
        name: &KeyspaceName,
        config: &KeyspaceConfig,
        generation: u32,
        floor: u32,
        purpose: WritePurpose,
    ) {
        let key = Key::Keyspace(name.clone());
        let nonce = cx.nonce();
        let old = cx.view.keyspaces.seen(name).cloned();
        let head = match &old {
            Some(old) => old.record.head.next(nonce),
            None => Head {
                rev: cx.view.fresh_rev(&key),
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
        self.drawn.remove(name);
        cx.put(key, expect, Record::Keyspace(Arc::new(record)), purpose);
    }

    /// Writes placeholders for the missing shard records of a keyspace; returns `true` if there are any.
    fn put_placeholders(&mut self, cx: &mut Ctx, name: &KeyspaceName, kind: KeyspaceKind) -> bool {
        let removed = cx.view.keyspaces.get(name).is_some_and(|k| k.deleted);
        if removed || cx.config.rules.broken_by(Mutant::RestoreIfAbsent) {
            return false;
        }
        let shards = cx.view.shards.cells();
        let missing = shards.filter(|(id, cell)| {
            id.keyspace == *name && matches!(cell, KeyState::Missing { .. }) && is_of(kind, id)
        });
        let missing: Vec<Key> = missing.map(|(id, _)| Key::Shard(id.clone())).collect();
        let any = !missing.is_empty();
        for key in missing {
            self.put_placeholder(cx, key, WritePurpose::Restore);
        }
        any
    }

    fn restore_shards(&mut self, cx: &mut Ctx, name: &KeyspaceName) {
        let (mut due, mut last, mut wake) = (Vec::new(), Time::ZERO, Time::NEVER);
        for (id, cell) in cx.view.shards.cells() {
            if id.keyspace == *name
                && let Some((since, at, expect)) = lost(cx, cell)
                && cx.view.belongs(id)
            {
                if cx.now >= at {
                    due.push((id.clone(), expect));
                    last = last.max(since);
                } else {
                    wake = wake.min(at);
                }
            }
        }
        if wake < Time::NEVER {
            cx.timers.set_sooner(Timer::Restore, wake);
        }
        if due.is_empty() {
            self.drawn.remove(name);
            return;
        }
        if !cx.has_read_since(restore_at(cx, last).min(cx.now)) {
            return;
        }
        let Some(generation) =
            self.draw_generation(cx, name, last, WritePurpose::Generation(name.clone()))
        else {
            return;
        };
        self.drawn.remove(name);
        let rules = cx.config.rules;
        let witnesses = match rules.broken_by(Mutant::CorruptWithoutWitnesses) {
            true => Vec::new(),
            false => possible_owners(cx),
        };
        for (id, expect) in due {
            let purpose = WritePurpose::Restore;
            self.put_restored(cx, id, expect, generation, witnesses.clone(), purpose);
        }
    }

    pub(super) fn on_restore_settled(&mut self, cx: &mut Ctx, outcome: WriteOutcome) {
        let at = match outcome {
            WriteOutcome::Done => cx.now,
            _ => cx.later(cx.config.timing.renew_retry_interval),
        };
        cx.timers.set(Timer::Restore, at);
    }

    /// Restores the node's own record if it was lost, or if another session took the name then and has ended. Without the record no node
    /// counts on this node, not even the node itself.
    pub(super) fn restore_node_record(&mut self, cx: &mut Ctx) {
        let key = Key::Node(cx.config.name.clone());
        let Some(session) = cx.my_session().map(|h| h.id) else {
            return;
        };
        if !matches!(cx.life, Life::Running) {
            return;
        }
        let nonce = cx.nonce();
        let (expect, head) = match cx.view.nodes.cell(&cx.config.name) {
            Some(KeyState::Missing { .. }) => (
                Expect::Absent,
                Head {
                    rev: cx.view.fresh_rev(&key),
                    ..Head::first(nonce)
                },
            ),
            Some(KeyState::Present(seen))
                if seen.record.session != session && cx.ended(seen.record.session) =>
            {
                (
                    Expect::Version(seen.version.clone()),
                    seen.record.head.next(nonce),
                )
            }
            Some(KeyState::Present(seen)) if seen.record.session != session => {
                return session_end::check_expired(cx, seen.record.session);
            }
            _ => return,
        };
        let record = NodeRecord {
            head,
            session,
            mode: cx.own_node.mode.clone(),
            cordoned: cx.own_node.cordoned,
            boot: cx.view.cluster.get(&()).map(|c| c.boot),
            unsure: false,
            ephemeral: cx.config.ephemeral,
            stop_session: None,
            unknown: Unknown::new(),
        };
        cx.put(
            key,
            expect,
            Record::Node(Arc::new(record)),
            WritePurpose::Unimportant,
        );
    }

    /// Raises the generations in the cluster's record to those that this node has seen.
    pub(super) fn raise_listed(&self, cluster: &mut ClusterRecord) {
        for (name, generation) in &self.generations {
            let listed = cluster.keyspaces.entry(name.clone()).or_default();
            *listed = (*listed).max(*generation);
        }
    }

    /// Restores the cluster's record with all that this node remembers of it.
    pub(super) fn restore_cluster_record(&mut self, cx: &mut Ctx) {
        if !matches!(cx.life, Life::Running) || !cx.view.is_missing(&Key::Cluster) || !cx.may_own()
        {
            return;
        }
        let Some(mut record) = cx.pause.cluster().cloned() else {
            return;
        };
        record.head = Head {
            rev: cx.view.fresh_rev(&Key::Cluster),
            ..Head::first(cx.nonce())
        };
        record.longest_ttl = cx.longest_ttl();
        self.raise_listed(&mut record);
        cx.put(
            Key::Cluster,
            Expect::Absent,
            Record::Cluster(Arc::new(record)),
            WritePurpose::Unimportant,
        );
    }

    /// Remembers the highest generation of a keyspace's record.
    pub(super) fn note_keyspace(&mut self, cx: &Ctx, name: &KeyspaceName) {
        if let Some(record) = cx.view.keyspaces.get(name) {
            let known = self.generations.entry(name.clone()).or_default();
            *known = (*known).max(record.generation);
        }
    }

    /// Remembers the highest generation in the epochs of a keyspace's shards.
    pub(super) fn note_epoch(&mut self, id: &ShardId, epoch: Epoch) {
        let generation = epoch.generation();
        match self.generations.get_mut(&id.keyspace) {
            Some(known) => *known = (*known).max(generation),
            None => {
                self.generations.insert(id.keyspace.clone(), generation);
            }
        }
    }
}

impl Recovery {
    fn is_restoring(&self, cx: &Ctx) -> bool {
        let mut writes = cx.requests.values().filter_map(Pending::as_write);
        writes.any(|write| {
            matches!(
                write.purpose,
                WritePurpose::Generation(_) | WritePurpose::Keyspace | WritePurpose::Restore
            )
        })
    }

    /// Writes a placeholder for a lost record.
    pub(super) fn put_placeholder(&mut self, cx: &mut Ctx, key: Key, purpose: WritePurpose) {
        let head = Head {
            rev: cx.view.fresh_rev(&key),
            ..Head::first(cx.nonce())
        };
        cx.put(key, Expect::Absent, Record::Placeholder(head), purpose);
    }

    /// Writes a restored shard record.
    pub(super) fn put_restored(
        &mut self,
        cx: &mut Ctx,
        id: ShardId,
        expect: Expect,
        generation: u32,
        witnesses: Vec<SessionId>,
        purpose: WritePurpose,
    ) {
        let key = Key::Shard(id.clone());
        let head = Head {
            rev: cx.view.fresh_rev(&key),
            ..Head::first(cx.nonce())
        };
        let witnesses_empty = witnesses.is_empty();
        let record = restored(head, generation, witnesses, cx.config.rules);
        if purpose == WritePurpose::Restore || !witnesses_empty {
            cx.report_step(
                &id,
                ShardStep::Restored,
                record.epoch,
                Reason::Restored,
                None,
            );
        }
        cx.put(key, expect, Record::Shard(Arc::new(record)), purpose);
    }
}

/// Returns the time from which a record that has been missing since `since` may be restored.
pub(super) fn restore_at(cx: &Ctx, since: Time) -> Time {
    if cx.config.rules.broken_by(Mutant::RestoreWithoutWitnesses) {
        return since;
    }
    since + cx.config.timing.proof_of(cx.longest_ttl())
}

/// Returns every session that may be serving a shard: all that are not proven to have ended.
pub(super) fn possible_owners(cx: &Ctx) -> Vec<SessionId> {
    let cells = cx.view.sessions.cells();
    let possible = cells.filter(|(id, cell)| match cell {
        KeyState::Present(seen) => cx.view.may_own_shards(**id, &seen.record) && !cx.ended(**id),
        KeyState::Damaged { .. } => true,
        KeyState::Missing { since } => cx.now < restore_at(cx, *since),
    });
    possible.map(|(id, _)| *id).collect()
}

/// Returns the disclaimer that this node can write for a restored shard, if any.
pub(super) fn disclaimer(cx: &Ctx, witnesses: &[SessionId]) -> Option<Transition> {
    let me = cx.session()?;
    // A process that owns nothing disclaims only for its own session, and only if that session is listed. Its record may have been
    // taken for that of a node.
    let speaks = |of: SessionId| cx.config.role == Role::Node && cx.ended(of);
    let session = witnesses.iter().copied().find(|w| *w == me || speaks(*w))?;
    Some(Transition::DisclaimOwnership { session })
}

/// Schedules the restore of a shard record that has become unreadable.
pub(super) fn restore_later(cx: &mut Ctx, id: &ShardId) {
    if let Some(KeyState::Damaged { since, .. }) = cx.view.shards.cell(id) {
        let at = restore_at(cx, *since);
        cx.timers.set_sooner(Timer::Restore, at);
    }
}

/// Returns the time since which a shard record is lost, the time from which it may be replaced, and the value to replace.
pub(super) fn lost(cx: &Ctx, cell: &KeyState<ShardRecord>) -> Option<(Time, Time, Expect)> {
    let rules = cx.config.rules;
    match cell {
        KeyState::Damaged {
            damage: damage @ RecordError::Corrupt(_),
            since,
            version,
        } => {
            let at_once = rules.broken_by(Mutant::CorruptWithoutWitnesses);
            let at = match at_once && !damage.is_placeholder() {
                true => *since,
                false => restore_at(cx, *since),
            };
            Some((*since, at, Expect::Version(version.clone())))
        }
        KeyState::Missing { since } if rules.broken_by(Mutant::RestoreIfAbsent) => {
            Some((*since, restore_at(cx, *since), Expect::Absent))
        }
        _ => None,
    }
}
