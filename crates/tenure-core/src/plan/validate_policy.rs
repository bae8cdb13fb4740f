//! Whether what a policy answers makes sense.

use std::fmt;

use super::input::{NodeIx, ShardIx};
use super::policy::{Placement, PolicyInput};
use crate::ids::{NodeName, ShardName};

/// Why a policy's answer was refused as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InvalidPlacement {
    /// A node that does not exist.
    UnknownNode(u32),
    /// A shard that does not exist.
    UnknownShard(u32),
    /// A node that takes no shards: cordoned, draining, stopping, away, without a required label or of weight zero.
    ClosedNode(NodeName),
    /// More shards than the node can have.
    FullNode {
        /// The node.
        node: NodeName,
        /// How many it was given.
        given: u32,
        /// How many it can have.
        room: u32,
    },
    /// A shard without an answer.
    MissingShard(ShardName),
    /// A shard with two answers.
    DoubleShard(ShardName),
}

impl fmt::Display for InvalidPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownNode(n) => write!(f, "node number {n} does not exist"),
            Self::UnknownShard(n) => write!(f, "shard number {n} does not exist"),
            Self::ClosedNode(node) => write!(
                f,
                "node {node} accepts no shards; choose among the nodes that were passed to the policy"
            ),
            Self::FullNode { node, given, room } => {
                write!(
                    f,
                    "node {node} was assigned {given} shards but has room for {room}"
                )
            }
            Self::MissingShard(shard) => write!(f, "shard {shard} was assigned to no node"),
            Self::DoubleShard(shard) => write!(f, "shard {shard} was assigned to two nodes"),
        }
    }
}

/// The answer as one node per shard, or the first thing that is wrong with it.
pub fn check(
    input: &PolicyInput<'_>,
    answer: &[Placement],
) -> Result<Vec<Option<NodeIx>>, InvalidPlacement> {
    let view = input.view;
    let mut room: Vec<Option<u32>> = vec![None; view.nodes().len()];
    for taker in input.takers {
        room[taker.node.at()] = Some(taker.room);
    }
    let mut given = vec![0u32; view.nodes().len()];
    let mut chosen = vec![None; view.shard_count()];
    for Placement { shard, node } in answer {
        let Some(slot) = chosen.get_mut(shard.at()) else {
            return Err(InvalidPlacement::UnknownShard(shard.0));
        };
        let Some(&room) = room.get(node.at()) else {
            return Err(InvalidPlacement::UnknownNode(node.0));
        };
        if slot.is_some() {
            return Err(InvalidPlacement::DoubleShard(
                view.shard_name(*shard).clone(),
            ));
        }
        let stays = view.shard(*shard).bound_for() == Some(*node) && input.keeps(*node);
        if room.is_none() && !stays {
            return Err(InvalidPlacement::ClosedNode(view.node(*node).name.clone()));
        }
        *slot = Some(*node);
        given[node.at()] += 1;
    }
    if let Some(missing) = chosen.iter().position(Option::is_none) {
        let shard = ShardIx(missing as u32);
        return Err(InvalidPlacement::MissingShard(
            view.shard_name(shard).clone(),
        ));
    }
    for taker in input.takers {
        let given = given[taker.node.at()];
        if given > taker.room {
            return Err(InvalidPlacement::FullNode {
                node: view.node(taker.node).name.clone(),
                given,
                room: taker.room,
            });
        }
    }
    Ok(chosen)
}
