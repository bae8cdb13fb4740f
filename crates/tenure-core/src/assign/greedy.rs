//! Greedy assignment: nodes take what is free, up to a fair share.
//!
//! With `S` shards and `N` nodes everyone's share is `⌊S/N⌋`, and one more for the `S mod N` best-ranked. The shares add up
//! to `S`, so that with every node at its share nothing is left over; a node above its share gives only to a named node
//! below its own, so that nothing is passed around in circles.

use super::{Member, rank};
use crate::hash::mix;
use crate::ids::{KeyspaceName, NodeName};

/// Everyone's fair share of one keyspace, in order of names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shares(Vec<(NodeName, usize)>);

impl Shares {
    /// The shares of `shards` shards. Members of weight zero get none.
    pub fn new(keyspace: &KeyspaceName, shards: usize, members: &[Member]) -> Self {
        let purpose = mix(keyspace
            .as_str()
            .bytes()
            .fold(0, |h, b| mix(h ^ u64::from(b))));
        let counted = members.iter().filter(|m| m.weight > 0);
        let mut ranked: Vec<_> = counted.map(|m| (rank(purpose, &m.name), &m.name)).collect();
        ranked.sort_unstable();
        let (each, more) = match ranked.len() {
            0 => (0, 0),
            n => (shards / n, shards % n),
        };
        let names = ranked.into_iter().map(|(_, name)| name.clone());
        let shares = names
            .zip(0..)
            .map(|(name, i)| (name, each + usize::from(i < more)));
        let mut shares: Vec<_> = shares.collect();
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
pub struct Owned<'a>(Vec<(&'a NodeName, usize)>);

impl<'a> Owned<'a> {
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
pub fn greedy_surplus(me: &NodeName, shares: &Shares, owned: &Owned<'_>) -> Vec<NodeName> {
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
    use crate::ids::SessionId;

    fn members(n: usize) -> Vec<Member> {
        let name = |i| NodeName::new(format!("n{i}")).unwrap();
        (0..n)
            .map(|i| Member {
                name: name(i),
                session: SessionId(i as u128),
                weight: 100,
            })
            .collect()
    }

    fn owned<'a>(counts: &[(&'a NodeName, usize)]) -> Owned<'a> {
        let mut owned = Owned::default();
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
            let shares = Shares::new(&keyspace(), shards, &members);
            let all: Vec<_> = members.iter().map(|m| shares.of(&m.name)).collect();
            assert_eq!(all.iter().sum::<usize>(), shards);
            assert!(
                all.iter().max().unwrap() - all.iter().min().unwrap() <= 1,
                "{all:?}"
            );
        }
        assert_eq!(Shares::new(&keyspace(), 9, &[]).of(&members(1)[0].name), 0);
    }

    #[test]
    fn a_joining_node_gets_its_share_from_those_above_theirs() {
        let members = members(3);
        let shares = Shares::new(&keyspace(), 12, &members);
        let owned = owned(&[(&members[1].name, 6), (&members[0].name, 6)]);
        assert_eq!(
            [owned.of(&members[0].name), owned.of(&members[2].name)],
            [6, 0]
        );
        let given: Vec<_> = members
            .iter()
            .map(|m| greedy_surplus(&m.name, &shares, &owned))
            .collect();
        assert_eq!(given.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 0]);
        assert!(given.iter().flatten().all(|to| *to == members[2].name));
    }

    #[test]
    fn nobody_gives_when_nobody_wants() {
        let members = members(2);
        let shares = Shares::new(&keyspace(), 4, &members);
        let owned = owned(&[(&members[0].name, 2), (&members[1].name, 2)]);
        assert!(
            members
                .iter()
                .all(|m| greedy_surplus(&m.name, &shares, &owned).is_empty())
        );
    }

    #[test]
    fn what_a_departed_node_still_has_is_given_by_nobody_else() {
        let members = members(2);
        let shares = Shares::new(&keyspace(), 4, &members);
        let gone = NodeName::new("gone").unwrap();
        let owned = owned(&[(&gone, 2), (&members[0].name, 2)]);
        assert!(greedy_surplus(&members[0].name, &shares, &owned).is_empty());
    }
}
