//! Weighted rendezvous: every node draws a number for every shard, and the best one has it.
//!
//! A node that joins or leaves moves only what it gains or had. With weights, a node's draw `u` in (0, 1] counts as
//! `−log(u) / weight`, the least wins, and its share is exactly in proportion to its weight. The logarithm is computed
//! with integers: floating point differs between platforms in the last digit, and two nodes that disagree on a digit
//! would pass a shard to and fro.

use super::Member;
use crate::hash::{draw, node_number, shard_number};
use crate::ids::{NodeName, ShardId};

/// The members of a cluster, ready to be ranked for any shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ranking {
    entries: Vec<(NodeName, u64, u32)>,
}

impl Ranking {
    /// Members of weight zero take nothing.
    pub fn new<'a>(members: impl IntoIterator<Item = &'a Member>) -> Self {
        let entries = members
            .into_iter()
            .filter(|m| m.weight > 0)
            .map(|m| (m.name.clone(), node_number(&m.name), m.weight))
            .collect();
        Self { entries }
    }

    /// The node that should own the shard, among those for which `allowed` holds; if it holds for none, among all.
    pub fn winner(
        &self,
        shard: &ShardId,
        allowed: impl Fn(&NodeName) -> bool,
    ) -> Option<&NodeName> {
        let number = shard_number(shard);
        self.best(number, &allowed)
            .or_else(|| self.best(number, &|_| true))
    }

    fn best(&self, number: u64, allowed: &dyn Fn(&NodeName) -> bool) -> Option<&NodeName> {
        let drawn = || {
            let entries = self.entries.iter().filter(|(name, ..)| allowed(name));
            entries.map(|(name, node, weight)| (draw(number, *node), *weight, name))
        };
        let (highest, weight, name) = drawn().max()?;
        // Among equals the highest draw has the least cost, unless another is so near that both may cost the same.
        let near = highest - (highest >> 16);
        let clear = drawn().all(|(drawn, w, other)| w == weight && (drawn < near || other == name));
        if clear {
            return Some(name);
        }
        // The cost is much work: once for each node, not once for each comparison.
        let scored = drawn().map(|(drawn, weight, name)| (cost(drawn, weight), name));
        scored.min().map(|(_, name)| name)
    }
}

/// A node's rank for some purpose: the same for everyone, different for each purpose.
pub fn rank(purpose: u64, node: &NodeName) -> u64 {
    draw(purpose, node_number(node))
}

/// `−log2(u) / weight` in fixed point, for a node's draw `u` for a shard. Lower is better.
fn cost(drawn: u64, weight: u32) -> u64 {
    minus_log2(drawn) / u64::from(weight)
}

/// `−log2((h + 1) / 2^64)` with 56 fractional bits.
fn minus_log2(h: u64) -> u64 {
    const FRACTION_BITS: u32 = 40;
    let x = u128::from(h) + 1;
    if x == 1 << 64 {
        return 0;
    }
    let x = x as u64;
    let whole = 63 - x.leading_zeros();
    // The mantissa in [1, 2) with 63 fractional bits; squaring it yields one bit of the logarithm at a time.
    let mut mantissa = u128::from(x) << (63 - whole);
    let mut fraction: u64 = 0;
    for _ in 0..FRACTION_BITS {
        mantissa = (mantissa * mantissa) >> 63;
        fraction <<= 1;
        if mantissa >= 1 << 64 {
            mantissa >>= 1;
            fraction |= 1;
        }
    }
    let log2 = (u64::from(whole) << 56) | (fraction << (56 - FRACTION_BITS));
    (64u64 << 56) - log2
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::ids::{KeyspaceName, SessionId, ShardName};

    fn member(name: &str, weight: u32) -> Member {
        Member {
            name: NodeName::new(name).unwrap(),
            session: SessionId(1),
            weight,
        }
    }

    fn assignment(members: &[Member], shards: u32) -> Vec<NodeName> {
        let ranking = Ranking::new(members);
        let keyspace = KeyspaceName::new("orders").unwrap();
        (0..shards)
            .map(|i| {
                ranking
                    .winner(&ShardId::new(keyspace.clone(), ShardName::index(i)), |_| {
                        true
                    })
                    .unwrap()
                    .clone()
            })
            .collect()
    }

    #[test]
    fn the_logarithm_is_right_to_nine_digits() {
        for h in [
            0,
            1,
            7,
            12_345,
            1 << 40,
            (1 << 62) + 5,
            u64::MAX / 3,
            u64::MAX / 2,
            u64::MAX - 1,
        ] {
            let exact = 64.0 - ((h as f64) + 1.0).log2();
            let ours = minus_log2(h) as f64 / (1u64 << 56) as f64;
            assert!((exact - ours).abs() < 1e-9, "{h}: {exact} {ours}");
        }
        assert_eq!(minus_log2(u64::MAX), 0);
    }

    #[test]
    fn shares_follow_the_weights() {
        let members = [member("a", 100), member("b", 100), member("c", 200)];
        let mut counts = BTreeMap::new();
        for node in assignment(&members, 8000) {
            *counts.entry(node.to_string()).or_insert(0) += 1;
        }
        assert!((1850..2150).contains(&counts["a"]), "{counts:?}");
        assert!((1850..2150).contains(&counts["b"]), "{counts:?}");
        assert!((3850..4150).contains(&counts["c"]), "{counts:?}");
    }

    #[test]
    fn a_node_that_leaves_moves_only_what_it_had() {
        let members = [member("a", 100), member("b", 150), member("c", 70)];
        let before = assignment(&members, 1000);
        let after = assignment(&members[..2], 1000);
        for (b, a) in before.iter().zip(&after) {
            assert!(b == a || b.as_str() == "c");
        }
    }

    #[test]
    fn a_node_without_weight_gets_nothing_and_a_failed_one_only_if_all_have() {
        let members = [member("a", 0), member("b", 1)];
        assert!(assignment(&members, 100).iter().all(|n| n.as_str() == "b"));
        let ranking = Ranking::new(&members);
        let shard: ShardId = "orders/1".parse().unwrap();
        assert_eq!(
            ranking
                .winner(&shard, |n| n.as_str() != "b")
                .map(NodeName::as_str),
            Some("b")
        );
        assert_eq!(Ranking::new(&members[..1]).winner(&shard, |_| true), None);
    }
}
