//! What operators do besides making things worse: create named shards, tell nodes to stand back, restore a store.

use std::sync::Arc;

use tenure_core::ids::{KeyspaceName, NodeName, Nonce, SessionId};
use tenure_core::keys::Key;
use tenure_core::ownership::{Transition, apply_as_operator};
use tenure_core::record::{
    ClusterRecord, Head, KeyspaceRecord, NodeMode, NodeRecord, Ownership, Record, ShardRecord,
};

use crate::check::CheckResult;
use crate::clock::MS;
use crate::event_queue::ScheduledEvent;
use crate::fault::Mode;
use crate::world::{World, named};

/// How long an operator waits before trying again.
const AGAIN: u64 = 500 * MS;

impl World {
    /// Creates a named shard, as soon as its keyspace is there.
    pub(crate) fn create(&mut self, shard: usize) -> CheckResult {
        let key = self.shards[shard].clone();
        let Key::Shard(id) = &key else { return Ok(()) };
        let there = match self.store.get(&key).map(|found| &found.record) {
            Some(Ok(Record::Shard(record))) => Some(Arc::clone(record)),
            Some(_) => return Ok(()),
            None => None,
        };
        if let Some(there) = there {
            return self.create_again(shard, key, &there);
        }
        let Some(keyspace) = self.keyspace(&id.keyspace).filter(|_| !self.is_away()) else {
            self.queue
                .push(self.now + AGAIN, ScheduledEvent::Create(shard));
            return Ok(());
        };
        let record = ShardRecord::new(Head::first(self.operators_nonce()), keyspace.generation);
        self.write(key, Record::Shard(Arc::new(record)))
    }

    /// Creates a named shard that was deleted, or that is about to be.
    fn create_again(&mut self, shard: usize, key: Key, there: &ShardRecord) -> CheckResult {
        let deleted = there.ownership == Ownership::Deleted;
        if !deleted && !there.deleting {
            return Ok(());
        }
        match self.operators(there, Transition::Recreate { meta: None }) {
            Some(again) if deleted && !self.is_away() => {
                self.coverage.created_again += 1;
                self.write(key, Record::Shard(Arc::new(again)))
            }
            _ => {
                self.queue
                    .push(self.now + AGAIN, ScheduledEvent::Create(shard));
                Ok(())
            }
        }
    }

    /// What a record becomes by an operator who vouches for nobody's death; nothing if that may not be.
    pub(crate) fn operators(
        &self,
        record: &ShardRecord,
        change: Transition,
    ) -> Option<ShardRecord> {
        let nonce = self.operators_nonce();
        apply_as_operator(record, change, nonce, &|_| false).ok()
    }

    /// Tells a node to take part or not to, if its record is there.
    pub(crate) fn tell_mode(&mut self, node: usize, mode: Mode) -> CheckResult {
        let key = self.node_key(node);
        let Some(record) = self.node_record(node).filter(|_| !self.is_away()) else {
            return Ok(());
        };
        let mode = match mode {
            Mode::Active => NodeMode::Active,
            Mode::Draining => NodeMode::Draining,
            Mode::Drained => NodeMode::Drained("operator".to_owned()),
        };
        if record.mode == mode {
            return Ok(());
        }
        self.coverage.modes_told += 1;
        let new = NodeRecord {
            head: record.head.next(self.operators_nonce()),
            mode,
            ..NodeRecord::clone(&record)
        };
        self.write(key, Record::Node(Arc::new(new)))
    }

    /// Lets some nodes take part again, when faults are over.
    pub(crate) fn activate(&mut self) -> CheckResult {
        for node in 0..self.plan.nodes {
            if self.plan.revive[node] {
                self.tell_mode(node, Mode::Active)?;
            }
        }
        Ok(())
    }

    /// Returns whether some live process may be given shards of a keyspace.
    pub(crate) fn somebody_takes(&self, keyspace: usize) -> bool {
        let takes = |record: Arc<NodeRecord>| record.mode == NodeMode::Active && !record.cordoned;
        let mut nodes = (0..self.plan.nodes).filter(|node| self.plan.serves(*node, keyspace));
        nodes.any(|node| self.newest(node).is_some() && self.node_record(node).is_none_or(takes))
    }

    /// Stops everything, puts the store back by so many changes, and plans the raise that makes it safe to go on.
    pub(crate) fn restore(
        &mut self,
        back: u64,
        wait: u64,
        exchanged: bool,
        running: bool,
    ) -> CheckResult {
        let names: Vec<Key> = self
            .keyspaces
            .keys()
            .map(|name| Key::Keyspace(name.clone()))
            .chain([Key::Cluster])
            .collect();
        if !self.store.go_back(back as usize, &names, exchanged) {
            return Ok(());
        }
        self.coverage.restores += 1;
        let stopped =
            (0..self.processes.len()).filter(|pid| self.processes[*pid].alive && !running);
        for pid in stopped.collect::<Vec<_>>() {
            self.start_again.push(self.processes[pid].node);
            self.die(pid);
        }
        // Whoever was connected is not any more; what was under way is lost.
        self.queue.forget_messages();
        let told = self.store.history.len();
        for pid in 0..self.processes.len() {
            self.processes[pid].watch.told = told;
            self.break_watch(pid, 0);
        }
        let (store, shards) = (&self.store, &self.shards);
        let record = |n: usize| match &store.get(&shards[n])?.record {
            Ok(Record::Shard(record)) => Some(record),
            _ => None,
        };
        self.epochs
            .restored(|n| record(n).map_or_else(Default::default, |r| r.epoch));
        self.order.restored(|n| Some(record(n)?.owner()?.session));
        self.plans
            .restored(|n| record(n).map_or_else(Default::default, |r| r.plan));
        self.modes.restored();
        let cordoned = |node| self.node_record(node).is_some_and(|record| record.cordoned);
        let cordoned: Vec<bool> = (0..self.plan.nodes).map(cordoned).collect();
        let owners = (0..self.shards.len()).map(|n| Some(record(n)?.owner()?.node.clone()));
        let owners = owners.collect();
        self.strangers.restored(self.now, owners, &cordoned);
        if running {
            self.demand_one_owner(false);
            self.epochs.unfenced();
        }
        self.raising = true;
        self.queue.push(self.now + wait, ScheduledEvent::Raise);
        Ok(())
    }

    /// Whether two owners at once are a violation from now on.
    pub(crate) fn demand_one_owner(&mut self, demanded: bool) {
        self.gates.demand(demanded);
        self.order.demand(demanded);
    }

    /// Raises all generations above all that were ever used, and accepts the store.
    pub(crate) fn raise(&mut self) -> CheckResult {
        let cluster = match self.store.get(&Key::Cluster).map(|found| &found.record) {
            Some(Ok(Record::Cluster(record))) if !self.is_away() => ClusterRecord::clone(record),
            _ => {
                self.queue.push(self.now + AGAIN, ScheduledEvent::Raise);
                return Ok(());
            }
        };
        let listed = cluster.keyspaces.values().copied().max().unwrap_or(0);
        let names: Vec<KeyspaceName> = self.keyspaces.keys().cloned().collect();
        let known = names.iter().filter_map(|name| self.keyspace(name));
        let known = known.map(|k| k.generation).max().unwrap_or(0);
        let generation = listed.max(known).max(self.epochs.generation()) + 1;
        self.tell_world(|| format!("an operator raises all generations to {generation}"));
        let mut new = cluster;
        new.head = new.head.next(self.operators_nonce());
        for name in &names {
            new.keyspaces.insert(name.clone(), generation);
        }
        self.write(Key::Cluster, Record::Cluster(Arc::new(new.clone())))?;
        for name in names {
            let Some(old) = self.keyspace(&name) else {
                continue;
            };
            let record = KeyspaceRecord {
                head: old.head.next(self.operators_nonce()),
                generation,
                min_generation: generation,
                ..KeyspaceRecord::clone(&old)
            };
            self.write(Key::Keyspace(name), Record::Keyspace(Arc::new(record)))?;
        }
        if new.store != self.store.identity() {
            new.head = new.head.next(self.operators_nonce());
            new.store = self.store.identity().to_owned();
            self.write(Key::Cluster, Record::Cluster(Arc::new(new)))?;
        }
        self.raising = false;
        self.epochs.raised(generation);
        self.estranged
            .raised(self.now, &self.processes, &self.gates)?;
        for node in std::mem::take(&mut self.start_again) {
            self.restart(node, true)?;
        }
        for shard in self.named_shards() {
            self.queue
                .push(self.now + AGAIN, ScheduledEvent::Create(shard));
        }
        Ok(())
    }

    /// The numbers of all shards that somebody has to create.
    pub(crate) fn named_shards(&self) -> Vec<usize> {
        self.plan.named_shards()
    }

    /// Whether somebody had to create this shard.
    pub(crate) fn is_named_shard(&self, shard: usize) -> bool {
        shard >= self.plan.shards as usize && self.named_shards().contains(&shard)
    }

    /// The key of the first keyspace's record.
    pub(crate) fn first_keyspace(&self) -> Key {
        Key::Keyspace(named(KeyspaceName::new(crate::world::KEYSPACE)))
    }

    pub(crate) fn node_key(&self, node: usize) -> Key {
        Key::Node(named(NodeName::new(self.plan.name(node))))
    }

    fn node_record(&self, node: usize) -> Option<Arc<NodeRecord>> {
        match &self.store.get(&self.node_key(node))?.record {
            Ok(Record::Node(record)) => Some(Arc::clone(record)),
            _ => None,
        }
    }

    fn keyspace(&self, name: &KeyspaceName) -> Option<Arc<KeyspaceRecord>> {
        match &self.store.get(&Key::Keyspace(name.clone()))?.record {
            Ok(Record::Keyspace(record)) => Some(Arc::clone(record)),
            _ => None,
        }
    }

    /// Whether the store answers nobody just now.
    pub(crate) fn is_away(&self) -> bool {
        self.outage.is_some_and(|(_, until)| until > self.now)
    }

    pub(crate) fn write(&mut self, key: Key, record: Record) -> CheckResult {
        self.store.overwrite(key.clone(), record);
        self.changed(&key)
    }

    /// Marks a write of an operator's.
    pub(crate) fn operators_nonce(&self) -> Nonce {
        Nonce {
            writer: SessionId(u128::MAX),
            n: self.store.revision().0,
        }
    }
}
