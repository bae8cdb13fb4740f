//! For model checkers: a node whose counters begin where they can be told from everything else.

use std::sync::Arc;

use super::{Node, NodeConfig};

/// Where the counters of a node begin. They name requests, stays and writes; only their order means anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counters {
    /// Requests to the store.
    pub ops: u64,
    /// Stays of shards.
    pub runs: u64,
    /// Marks of writes.
    pub nonces: u64,
}

impl Node {
    /// A node that has not begun and counts from here on. What it does is the same from any beginning, but for the
    /// fraction by which it stretches some waits.
    ///
    /// A model checker has to see that two states differ in nothing but how much was counted on the way: with beginnings
    /// far from every other number it finds the counters in the node's hash.
    pub fn counting_from(config: Arc<NodeConfig>, from: Counters) -> Self {
        Self {
            ops: from.ops,
            run_count: from.runs,
            nonces: from.nonces,
            ..Self::new(config)
        }
    }
}
