//! Other ways of placing shards, for comparison only.

use tenure_core::hash::mix;
use tenure_core::plan::jump_hash;

/// A way of placing shards on nodes of equal weight.
pub(crate) trait Placer {
    fn name(&self) -> String;

    /// The node of every shard, given where they are now.
    fn place(&self, shards: u32, nodes: &[u32], now: Option<&[u32]>) -> Vec<u32>;
}

pub(crate) fn placers() -> Vec<Box<dyn Placer>> {
    vec![
        Box::new(Sticky),
        Box::new(Ring { points: 100 }),
        Box::new(Ring { points: 500 }),
        Box::new(Jump),
        Box::new(Rendezvous),
    ]
}

fn shard_hash(shard: u32) -> u64 {
    mix(u64::from(shard) + 1)
}

/// The planner itself, through its public door.
struct Sticky;

impl Placer for Sticky {
    fn name(&self) -> String {
        "sticky".to_owned()
    }

    fn place(&self, shards: u32, nodes: &[u32], now: Option<&[u32]>) -> Vec<u32> {
        super::sticky(shards, nodes, now).unwrap_or_default()
    }
}

/// A ring of hashes with several points per node; a shard belongs to the next point.
struct Ring {
    points: u32,
}

impl Placer for Ring {
    fn name(&self) -> String {
        format!("hash ring, {} points", self.points)
    }

    fn place(&self, shards: u32, nodes: &[u32], _: Option<&[u32]>) -> Vec<u32> {
        let mut ring: Vec<(u64, u32)> = nodes
            .iter()
            .flat_map(|n| (0..self.points).map(move |p| (*n, p)))
            .map(|(n, p)| (mix((u64::from(n) << 32) ^ u64::from(p) ^ (1 << 63)), n))
            .collect();
        ring.sort_unstable();
        let find = |hash: u64| {
            let at = ring.partition_point(|(point, _)| *point < hash);
            ring.get(at).or(ring.first()).map_or(0, |(_, n)| *n)
        };
        (0..shards).map(|s| find(shard_hash(s))).collect()
    }
}

/// Jump consistent hash over the nodes in their order.
struct Jump;

impl Placer for Jump {
    fn name(&self) -> String {
        "jump".to_owned()
    }

    fn place(&self, shards: u32, nodes: &[u32], _: Option<&[u32]>) -> Vec<u32> {
        let buckets = nodes.len() as u32;
        (0..shards)
            .map(|s| nodes[jump_hash(shard_hash(s), buckets) as usize])
            .collect()
    }
}

/// The highest draw has it: what weighted rendezvous comes to where all weights are equal.
struct Rendezvous;

impl Placer for Rendezvous {
    fn name(&self) -> String {
        "rendezvous".to_owned()
    }

    fn place(&self, shards: u32, nodes: &[u32], _: Option<&[u32]>) -> Vec<u32> {
        let numbers: Vec<(u64, u32)> = nodes
            .iter()
            .map(|n| (mix(u64::from(*n) ^ (1 << 62)), *n))
            .collect();
        let best = |hash: u64| {
            let drawn = numbers.iter().max_by_key(|(number, _)| mix(hash ^ number));
            drawn.map_or(0, |(_, n)| *n)
        };
        (0..shards).map(|s| best(shard_hash(s))).collect()
    }
}
