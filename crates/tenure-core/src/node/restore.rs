//! Records that must exist and do not.
//!
//! Absent is neither free nor ended. Whoever owns the shard closes at its next read; everyone watches the absence for a
//! whole ttl, so that no session that was not seen can still be serving; then the keyspace's generation is raised, so that
//! the new record's epochs exceed every epoch there ever was; and the new record names every session that is live as a
//! witness: nobody claims the shard before each has said that it does not own it, or has ended (A11).

use std::sync::Arc;

use crate::ids::{KeyspaceName, SessionId, ShardId, ShardName};
use crate::layout::Key;
use crate::machine::Expect;
use crate::note::{Note, ShardStep};
use crate::record::{Head, KeyspaceKind, KeyspaceRecord, Record, Role, Unknown};
use crate::rules::Mutant;
use crate::shard::{Change, restored};
use crate::time::Time;
use crate::view::Cell;
use crate::why::Why;

use super::ops::{Pending, Purpose, Settled};
use super::timers::Timer;
use super::{Life, Node};

impl Node {
    /// A read said that there is no such key.
    pub(super) fn on_missing(&mut self, key: &Key) {
        let ours = match key {
            Key::Shard(id) => self.config.keyspaces.contains_key(&id.keyspace),
            Key::Keyspace(name) => self.config.keyspaces.contains_key(name),
            _ => false,
        };
        if ours && matches!(self.life, Life::Running) {
            self.note(Note::Missing { key: key.clone() });
            self.timers
                .set_sooner(Timer::Restore, self.restore_at(self.now));
        }
    }

    /// When something that is missing since then may be made anew.
    fn restore_at(&self, since: Time) -> Time {
        if self.config.rules.broken_by(Mutant::RestoreWithoutWitnesses) {
            return since;
        }
        since + self.config.timing.proof_of(self.longest_ttl())
    }

    fn is_restoring(&self) -> bool {
        self.pending.values().any(|p| {
            matches!(p, Pending::Put { purpose, .. } | Pending::ReadBack { purpose, .. }
                if matches!(purpose, Purpose::Keyspace(_) | Purpose::Restore(_)))
        })
    }

    /// Makes anew what has been missing for long enough.
    pub(super) fn restore_lost(&mut self) {
        if self.config.role != Role::Node || self.is_restoring() {
            return;
        }
        if !self.may_own() || !matches!(self.life, Life::Running) {
            return self
                .timers
                .set(Timer::Restore, self.now + self.config.timing.renew_interval);
        }
        for (name, config) in self.config.keyspaces.clone() {
            match self.view.keyspaces.cell(&name) {
                Some(Cell::Missing { since }) => {
                    let at = self.restore_at(*since);
                    if self.now < at {
                        self.timers.set_sooner(Timer::Restore, at);
                    } else {
                        self.restore_keyspace(&name, config.kind, config.mode);
                    }
                }
                Some(Cell::Present(seen)) if !seen.record.removed => self.restore_shards(&name),
                _ => {}
            }
        }
    }

    fn restore_keyspace(
        &mut self,
        name: &KeyspaceName,
        kind: KeyspaceKind,
        mode: crate::record::KeyspaceMode,
    ) {
        let shards = self
            .view
            .shards
            .iter()
            .filter(|(id, _)| id.keyspace == *name);
        let generation = shards
            .map(|(_, seen)| seen.record.epoch.generation())
            .max()
            .unwrap_or(0);
        let generation = generation.max(self.wants_generation(name)) + 1;
        let key = Key::Keyspace(name.clone());
        let head = Head {
            rev: self.view.fresh_rev(&key),
            ..Head::first(self.nonce())
        };
        let record = KeyspaceRecord {
            head,
            kind,
            mode,
            generation,
            floor: generation,
            removed: false,
            unknown: Unknown::new(),
        };
        let purpose = Purpose::Keyspace(name.clone());
        self.put(
            key,
            Expect::Absent,
            Record::Keyspace(Arc::new(record)),
            purpose,
        );
    }

    /// The highest generation that this node has seen in use.
    fn wants_generation(&self, name: &KeyspaceName) -> u32 {
        self.generations.get(name).copied().unwrap_or(0)
    }

    fn restore_shards(&mut self, name: &KeyspaceName) {
        let mut due = Vec::new();
        for (id, cell) in self
            .view
            .shards
            .cells()
            .filter(|(id, _)| id.keyspace == *name)
        {
            if let Cell::Missing { since } = cell
                && self.belongs(id)
            {
                let at = self.restore_at(*since);
                if self.now >= at {
                    due.push(id.clone());
                } else {
                    self.timers.set_sooner(Timer::Restore, at);
                }
            }
        }
        let Some(seen) = self
            .view
            .keyspaces
            .seen(name)
            .cloned()
            .filter(|_| !due.is_empty())
        else {
            return;
        };
        let raised = self.raised.get(name).copied();
        if raised != Some(seen.record.generation)
            && !self.config.rules.broken_by(Mutant::EpochForgotten)
        {
            let mut record = (*seen.record).clone();
            record.head = record.head.next(self.nonce());
            record.generation += 1;
            self.raised.insert(name.clone(), record.generation);
            let purpose = Purpose::Keyspace(name.clone());
            let key = Key::Keyspace(name.clone());
            return self.put(
                key,
                Expect::Version(seen.version),
                Record::Keyspace(Arc::new(record)),
                purpose,
            );
        }
        let witnesses: Vec<SessionId> = self
            .view
            .sessions
            .iter()
            .filter(|(_, s)| s.record.is_live() && s.record.role == Role::Node)
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let key = Key::Shard(id.clone());
            let head = Head {
                rev: self.view.fresh_rev(&key),
                ..Head::first(self.nonce())
            };
            let record = restored(
                head,
                seen.record.generation,
                witnesses.clone(),
                self.config.rules,
            );
            self.tell(&id, ShardStep::Restored, record.epoch, Why::Restored, None);
            self.put(
                key,
                Expect::Absent,
                Record::Shard(Arc::new(record)),
                Purpose::Restore(id),
            );
        }
        self.raised.remove(name);
    }

    /// Whether a shard must exist: in a named keyspace only those that were seen.
    fn belongs(&self, id: &ShardId) -> bool {
        match self.view.keyspaces.get(&id.keyspace).map(|k| k.kind) {
            Some(KeyspaceKind::Hashed(n)) => id
                .shard
                .as_str()
                .parse::<u32>()
                .is_ok_and(|i| i < n && ShardName::index(i) == id.shard),
            Some(KeyspaceKind::Named) => true,
            None => false,
        }
    }

    pub(super) fn on_restore_settled(&mut self, _outcome: Settled) {
        self.timers.set(
            Timer::Restore,
            self.later(self.config.timing.renew_retry_interval),
        );
    }

    /// What this node has to say about a restored shard.
    pub(super) fn deny(&self, witnesses: &[SessionId]) -> Option<Change> {
        let me = self.session()?;
        if self.config.role != Role::Node {
            return None;
        }
        let session = witnesses
            .iter()
            .copied()
            .find(|w| *w == me || self.ended(*w))?;
        Some(Change::Deny { session })
    }
}
