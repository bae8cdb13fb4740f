//! Greedy assignment: nodes take what is free, up to a fair share.
//!
//! A share is a node's part by weight, rounded so that the shares add up to the number of shards; of equal fractions the
//! best-ranked nodes are rounded up. A node gets no more than it can hold; what it cannot hold is divided among the others. With
//! every node at its share nothing is left over, unless all together can hold less. A node above its share gives only to a named
//! node below its own, so that nothing is passed around in circles.

use super::rank;
use crate::hash::mix;
use crate::ids::{KeyspaceName, NodeName};
use crate::plan::target_counts::{NodeShare, divide};

/// A node among which a keyspace is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairShareNode<'a> {
    /// Name of the node.
    pub node: &'a NodeName,
    /// Share of the node in relation to others.
    pub weight: u32,
    /// Bound on the node's share.
    pub limit: ShardLimit,
}

/// Bound on the number of shards of one keyspace that a node can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardLimit {
    /// At most so many.
    Most(usize),
    /// Exactly what the node has: it keeps that, and gets nothing.
    Fixed(usize),
}

/// Everyone's fair share of one keyspace, in order of names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FairShares(Vec<(NodeName, usize)>);

impl FairShares {
    /// The shares of `shards` shards. Nodes of weight zero get none.
    pub fn new<'a>(
        keyspace: &KeyspaceName,
        shards: usize,
        sharers: impl IntoIterator<Item = FairShareNode<'a>>,
    ) -> Self {
        let purpose = mix(keyspace
            .as_str()
            .bytes()
            .fold(0, |h, b| mix(h ^ u64::from(b))));
        let (mut ranked, mut shares, mut rest) = (Vec::new(), Vec::new(), shards);
        for FairShareNode {
            node,
            weight,
            limit,
        } in sharers
        {
            match limit {
                ShardLimit::Fixed(has) => {
                    shares.push((node.clone(), has));
                    rest = rest.saturating_sub(has);
                }
                ShardLimit::Most(_) if weight == 0 => {}
                ShardLimit::Most(most) => ranked.push((rank(purpose, node), node, weight, most)),
            }
        }
        ranked.sort_unstable();
        let part = |(_, _, weight, most): &(u64, &NodeName, u32, usize)| NodeShare {
            weight: *weight,
            low: 0,
            high: *most as u64,
            has: 0,
            reluctant: false,
            share: 0,
        };
        let mut parts: Vec<NodeShare> = ranked.iter().map(part).collect();
        divide(rest as u64, &mut parts);
        let whole = |part: &NodeShare| usize::try_from(part.share).unwrap_or(usize::MAX);
        let divided = ranked.iter().zip(&parts);
        shares.extend(divided.map(|((_, node, ..), part)| ((*node).clone(), whole(part))));
        shares.sort_unstable();
        Self(shares)
    }

    /// A node's share.
    pub fn of(&self, node: &NodeName) -> usize {
        let place = self.0.binary_search_by(|(name, _)| name.cmp(node));
        place.map_or(0, |place| self.0[place].1)
    }
}

/// How many shards each node has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OwnedCounts<'a>(Vec<(&'a NodeName, usize)>);

impl<'a> OwnedCounts<'a> {
    /// The count of a node.
    pub fn of(&self, node: &NodeName) -> usize {
        let place = self.0.binary_search_by(|(name, _)| (*name).cmp(node));
        place.map_or(0, |place| self.0[place].1)
    }

    /// A node has one more.
    pub fn add(&mut self, node: &'a NodeName) {
        match self.0.binary_search_by(|(name, _)| (*name).cmp(node)) {
            Ok(place) => self.0[place].1 += 1,
            Err(place) => self.0.insert(place, (node, 1)),
        }
    }
}

/// To whom `me` should give shards: one name per shard to give, given how many shards each node has.
///
/// Everyone computes the same pairing of surplus and want, and acts on its own part of it.
pub fn greedy_surplus(
    me: &NodeName,
    shares: &FairShares,
    owned: &OwnedCounts<'_>,
) -> Vec<NodeName> {
    let has = |node: &NodeName| owned.of(node);
    let mut wants = shares
        .0
        .iter()
        .flat_map(|(node, share)| std::iter::repeat_n(node, share.saturating_sub(has(node))));
    let mut mine = Vec::new();
    for (node, count) in &owned.0 {
        for _ in shares.of(node)..*count {
            let Some(to) = wants.next() else { return mine };
            if *node == me {
                mine.push(to.clone());
            }
        }
    }
    mine
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(n: usize) -> Vec<NodeName> {
        let name = |i| NodeName::new(format!("n{i}")).unwrap();
        (0..n).map(name).collect()
    }

    fn sharer(node: &NodeName, weight: u32, limit: ShardLimit) -> FairShareNode<'_> {
        FairShareNode {
            node,
            weight,
            limit,
        }
    }

    fn shares(shards: usize, members: &[NodeName]) -> FairShares {
        let all = ShardLimit::Most(usize::MAX);
        let each = members.iter().map(|m| sharer(m, 100, all));
        FairShares::new(&keyspace(), shards, each)
    }

    fn owned<'a>(counts: &[(&'a NodeName, usize)]) -> OwnedCounts<'a> {
        let mut owned = OwnedCounts::default();
        for (name, count) in counts {
            (0..*count).for_each(|_| owned.add(name));
        }
        owned
    }

    fn keyspace() -> KeyspaceName {
        KeyspaceName::new("q").unwrap()
    }

    #[test]
    fn shares_differ_by_one_at_most_and_add_up() {
        for (shards, nodes) in [(256, 17), (16, 1), (3, 5), (0, 4), (16, 16)] {
            let members = members(nodes);
            let shares = shares(shards, &members);
            let all: Vec<_> = members.iter().map(|m| shares.of(m)).collect();
            assert_eq!(all.iter().sum::<usize>(), shards);
            assert!(
                all.iter().max().unwrap() - all.iter().min().unwrap() <= 1,
                "{all:?}"
            );
        }
        assert_eq!(shares(9, &[]).of(&members(1)[0]), 0);
    }

    #[test]
    fn a_joining_node_gets_its_share_from_those_above_theirs() {
        let members = members(3);
        let shares = shares(12, &members);
        let owned = owned(&[(&members[1], 6), (&members[0], 6)]);
        assert_eq!([owned.of(&members[0]), owned.of(&members[2])], [6, 0]);
        let given: Vec<_> = members
            .iter()
            .map(|m| greedy_surplus(m, &shares, &owned))
            .collect();
        assert_eq!(given.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 0]);
        assert!(given.iter().flatten().all(|to| *to == members[2]));
    }

    #[test]
    fn nobody_gives_when_nobody_wants() {
        let members = members(2);
        let shares = shares(4, &members);
        let owned = owned(&[(&members[0], 2), (&members[1], 2)]);
        assert!(
            members
                .iter()
                .all(|m| greedy_surplus(m, &shares, &owned).is_empty())
        );
    }

    #[test]
    fn what_a_departed_node_still_has_is_given_by_nobody_else() {
        let members = members(2);
        let shares = shares(4, &members);
        let gone = NodeName::new("gone").unwrap();
        let owned = owned(&[(&gone, 2), (&members[0], 2)]);
        assert!(greedy_surplus(&members[0], &shares, &owned).is_empty());
    }

    #[test]
    fn shares_follow_weights_and_keep_to_limits() {
        let members = members(4);
        let limits = [
            (100, ShardLimit::Most(usize::MAX)),
            (300, ShardLimit::Most(usize::MAX)),
            (400, ShardLimit::Most(5)),
            (0, ShardLimit::Most(usize::MAX)),
        ];
        let divided = |shards: usize, limits: &[(u32, ShardLimit)]| {
            let each = members.iter().zip(limits);
            let each = each.map(|(m, (weight, limit))| sharer(m, *weight, *limit));
            let shares = FairShares::new(&keyspace(), shards, each);
            members.iter().map(|m| shares.of(m)).collect::<Vec<_>>()
        };
        assert_eq!(divided(8, &limits), [1, 3, 4, 0]);
        assert_eq!(divided(45, &limits), [10, 30, 5, 0]);
        // One that keeps what it has takes no part in dividing the rest.
        let kept = [limits[0], limits[1], (400, ShardLimit::Fixed(7)), limits[3]];
        assert_eq!(divided(47, &kept), [10, 30, 7, 0]);
        let small = [
            (100, ShardLimit::Most(1)),
            (100, ShardLimit::Most(2)),
            limits[3],
            limits[3],
        ];
        assert_eq!(divided(9, &small), [1, 2, 0, 0], "the rest has no place");
    }
}
