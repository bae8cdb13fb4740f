//! The view, sorted by node: what makes a plan after a small change cheap.
//!
//! Everything here follows from the view alone. A [`super::Planner`] keeps it up to date shard by shard; a plan from nothing
//! builds it. Both then run the same phases, so that they say the same.

use std::collections::{BTreeMap, BTreeSet};

use super::input::{Pin, PlanShard, PlanView, ShardIx};

/// What one node has, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct NodeCounts {
    /// Shards that are bound for it.
    pub(crate) placed: u32,
    /// Of these, the pinned ones: they are not moved for balance.
    pub(crate) pinned: u32,
    /// Shards that it owns or that are bound for it: what it may have at the same time at worst.
    pub(crate) held: u32,
    /// The load of the shards that are bound for it.
    pub(crate) load: u64,
}

impl NodeCounts {
    pub(crate) fn put(&mut self, shard: &PlanShard) {
        self.placed += 1;
        self.pinned += u32::from(shard.pin != Pin::None);
        self.load += u64::from(shard.load);
    }

    pub(crate) fn take(&mut self, shard: &PlanShard) {
        self.placed -= 1;
        self.pinned -= u32::from(shard.pin != Pin::None);
        self.load -= u64::from(shard.load);
    }
}

/// The view, sorted by node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ViewIndex {
    /// What each node has.
    pub(crate) seats: Vec<NodeCounts>,
    /// The shards that are bound for each node, in order.
    pub(crate) lists: Vec<Vec<u32>>,
    /// The shards that need a look of their own: without a place, under way, or pinned.
    pub(crate) special: BTreeSet<u32>,
    /// The zone of each node, by number; nodes without a zone share one.
    pub(crate) zone: Vec<u32>,
    /// How many zones there are.
    pub(crate) zones: usize,
}

fn is_special(shard: &PlanShard) -> bool {
    let bound = shard.bound_for();
    bound.is_none() || bound != shard.owner || shard.pin != Pin::None
}

impl ViewIndex {
    pub(crate) fn of(view: &PlanView) -> Self {
        let mut seats = vec![NodeCounts::default(); view.nodes().len()];
        for (_, shard) in view.shards() {
            if let Some(node) = shard.bound_for() {
                seats[node.at()].put(&shard);
            }
        }
        let mut lists: Vec<Vec<u32>> = seats
            .iter()
            .map(|s| Vec::with_capacity(s.placed as usize))
            .collect();
        let mut special = Vec::new();
        for (ix, shard) in view.shards() {
            if let Some(node) = shard.bound_for() {
                lists[node.at()].push(ix.0);
                seats[node.at()].held += 1;
            }
            if is_special(&shard) {
                special.push(ix.0);
                if let Some(owner) = shard.owner.filter(|o| shard.bound_for() != Some(*o)) {
                    seats[owner.at()].held += 1;
                }
            }
        }
        let mut index = Self {
            seats,
            lists,
            special: special.into_iter().collect(),
            zone: Vec::new(),
            zones: 0,
        };
        index.number_zones(view);
        index
    }

    /// Numbers the zones in the order of their names.
    pub(crate) fn number_zones(&mut self, view: &PlanView) {
        let mut names: BTreeMap<Option<&str>, u32> = BTreeMap::new();
        for node in view.nodes() {
            names.insert(node.zone.as_deref(), 0);
        }
        for (number, slot) in (0..).zip(names.values_mut()) {
            *slot = number;
        }
        self.zones = names.len();
        self.zone = view
            .nodes()
            .iter()
            .map(|n| names[&n.zone.as_deref()])
            .collect();
    }

    /// Takes in a shard.
    pub(crate) fn add(&mut self, ix: ShardIx, shard: &PlanShard) {
        let bound = shard.bound_for();
        if let Some(node) = bound {
            self.seats[node.at()].put(shard);
            self.seats[node.at()].held += 1;
            let list = &mut self.lists[node.at()];
            if let Err(at) = list.binary_search(&ix.0) {
                list.insert(at, ix.0);
            }
        }
        if let Some(owner) = shard.owner.filter(|o| bound != Some(*o)) {
            self.seats[owner.at()].held += 1;
        }
        if is_special(shard) {
            self.special.insert(ix.0);
        }
    }

    /// Takes a shard out, as it was taken in.
    pub(crate) fn remove(&mut self, ix: ShardIx, shard: &PlanShard) {
        let bound = shard.bound_for();
        if let Some(node) = bound {
            self.seats[node.at()].take(shard);
            self.seats[node.at()].held -= 1;
            let list = &mut self.lists[node.at()];
            if let Ok(at) = list.binary_search(&ix.0) {
                list.remove(at);
            }
        }
        if let Some(owner) = shard.owner.filter(|o| bound != Some(*o)) {
            self.seats[owner.at()].held -= 1;
        }
        self.special.remove(&ix.0);
    }

    /// Bytes that the index keeps per shard and per node, roughly.
    pub(crate) fn bytes(&self) -> usize {
        let lists: usize = self.lists.iter().map(|l| l.capacity() * 4).sum();
        lists
            + self.lists.capacity() * size_of::<Vec<u32>>()
            + self.seats.capacity() * size_of::<NodeCounts>()
            + self.zone.capacity() * 4
            + self.special.len() * 8
    }
}
