//! What requests read and the driver writes: which shards are here, and who has the others.

use std::any::TypeId;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, RwLock};

use tenure_core::hash::shard_index;
use tenure_core::ids::{Epoch, KeyspaceName, NodeName, SessionId, ShardId, ShardName};
use tenure_core::machine::ActivationId;
use tenure_core::record::{KeyspaceKind, Owner};

use crate::local_shard::LocalShard;

/// What the records say of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerInfo {
    pub(crate) owner: Option<Owner>,
    pub(crate) epoch: Epoch,
    pub(crate) serving: bool,
    pub(crate) rev: u64,
}

/// What is known of a shard here.
#[derive(Clone, Default)]
pub(crate) struct ShardEntry {
    pub(crate) stay: Option<Arc<LocalShard>>,
    pub(crate) seen: Option<OwnerInfo>,
}

/// The shards of one keyspace.
pub(crate) struct KeyspaceShards {
    pub(crate) name: KeyspaceName,
    pub(crate) handler: TypeId,
    slots: Slots,
}

enum Slots {
    Hashed(Box<[RwLock<ShardEntry>]>),
    Named(RwLock<HashMap<ShardName, ShardEntry>>),
}

impl KeyspaceShards {
    pub(crate) fn new(name: KeyspaceName, kind: KeyspaceKind, handler: TypeId) -> Self {
        let slots = match kind {
            KeyspaceKind::Hashed(n) => Slots::Hashed((0..n).map(|_| RwLock::default()).collect()),
            KeyspaceKind::Named => Slots::Named(RwLock::default()),
        };
        Self {
            name,
            handler,
            slots,
        }
    }

    /// The stay that serves `key`, if it is here: the fast path of every request.
    pub(crate) fn stay_of_key(&self, key: &[u8]) -> Option<Arc<LocalShard>> {
        match &self.slots {
            Slots::Hashed(slots) => {
                let slot = slots.get(shard_index(key, slots.len() as u32) as usize)?;
                read(slot).stay.clone()
            }
            Slots::Named(slots) => {
                let name = ShardName::new(std::str::from_utf8(key).ok()?).ok()?;
                read(slots).get(&name)?.stay.clone()
            }
        }
    }

    /// The name of the shard of `key`.
    pub(crate) fn shard_of_key(&self, key: &[u8]) -> Option<ShardName> {
        match &self.slots {
            Slots::Hashed(slots) => Some(ShardName::index(shard_index(key, slots.len() as u32))),
            Slots::Named(_) => ShardName::new(std::str::from_utf8(key).ok()?).ok(),
        }
    }

    /// What is known of the shard of this name, if this node has heard of it.
    pub(crate) fn look_up(&self, shard: &ShardName) -> Option<ShardEntry> {
        match &self.slots {
            Slots::Hashed(slots) => index(slots, shard).map(|slot| read(slot).clone()),
            Slots::Named(slots) => read(slots).get(shard).cloned(),
        }
    }

    fn change(&self, shard: &ShardName, change: impl FnOnce(&mut ShardEntry)) {
        match &self.slots {
            Slots::Hashed(slots) => {
                if let Some(slot) = index(slots, shard) {
                    change(&mut write(slot));
                }
            }
            Slots::Named(slots) => change(write(slots).entry(shard.clone()).or_default()),
        }
    }

    fn each_stay(&self, mut visit: impl FnMut(&Arc<LocalShard>)) {
        let mut visit = |slot: &ShardEntry| slot.stay.as_ref().map(&mut visit);
        match &self.slots {
            Slots::Hashed(slots) => slots.iter().for_each(|slot| {
                visit(&read(slot));
            }),
            Slots::Named(slots) => read(slots).values().for_each(|slot| {
                visit(slot);
            }),
        }
    }
}

/// Table of the shards of a node: read by requests, written by the driver.
pub(crate) struct ShardTable {
    pub(crate) node: NodeName,
    keyspaces: BTreeMap<KeyspaceName, KeyspaceShards>,
    addresses: RwLock<HashMap<SessionId, Arc<BTreeMap<String, String>>>>,
}

impl ShardTable {
    pub(crate) fn new(node: NodeName, keyspaces: impl IntoIterator<Item = KeyspaceShards>) -> Self {
        Self {
            node,
            keyspaces: keyspaces.into_iter().map(|k| (k.name.clone(), k)).collect(),
            addresses: RwLock::default(),
        }
    }

    pub(crate) fn keyspace(&self, name: &str) -> Option<&KeyspaceShards> {
        // Few keyspaces: comparing their names costs less than making one to look it up by.
        self.keyspaces.values().find(|k| k.name.as_str() == name)
    }

    pub(crate) fn seen(&self, shard: &ShardId, seen: OwnerInfo) {
        if let Some(keyspace) = self.keyspaces.get(&shard.keyspace) {
            keyspace.change(&shard.shard, |slot| slot.seen = Some(seen));
        }
    }

    pub(crate) fn began(&self, stay: &Arc<LocalShard>) {
        if let Some(keyspace) = self.keyspaces.get(&stay.shard.keyspace) {
            keyspace.change(&stay.shard.shard, |slot| slot.stay = Some(stay.clone()));
        }
    }

    pub(crate) fn ended(&self, shard: &ShardId, run: ActivationId) {
        if let Some(keyspace) = self.keyspaces.get(&shard.keyspace) {
            keyspace.change(&shard.shard, |slot| {
                slot.stay.take_if(|stay| stay.run == run);
            });
        }
    }

    pub(crate) fn stays(&self) -> Vec<Arc<LocalShard>> {
        let mut stays = Vec::new();
        for keyspace in self.keyspaces.values() {
            keyspace.each_stay(|stay| stays.push(stay.clone()));
        }
        stays
    }

    /// Notes where a session can be reached, or that it is over. Says whether that is news.
    pub(crate) fn addresses_of(
        &self,
        session: SessionId,
        at: Option<&BTreeMap<String, String>>,
    ) -> bool {
        let known = read(&self.addresses).contains_key(&session);
        match at {
            Some(at) if !known => {
                write(&self.addresses).insert(session, Arc::new(at.clone()));
            }
            None if known => {
                write(&self.addresses).remove(&session);
            }
            _ => return false,
        }
        true
    }

    pub(crate) fn addresses(&self, session: SessionId) -> BTreeMap<String, String> {
        read(&self.addresses)
            .get(&session)
            .map(|at| (**at).clone())
            .unwrap_or_default()
    }
}

fn index<'a>(slots: &'a [RwLock<ShardEntry>], shard: &ShardName) -> Option<&'a RwLock<ShardEntry>> {
    slots.get(shard.as_str().parse::<usize>().ok()?)
}

// Nothing panics while it holds one of these locks, so a poisoned one is as good as any.
fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(|e| e.into_inner())
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(|e| e.into_inner())
}
