//! Who should own what. Pure functions of the members and the records, the same for every participant.

mod greedy;
mod rendezvous;

pub use greedy::{FairShareNode, FairShares, OwnedCounts, ShardLimit, greedy_surplus};
pub use rendezvous::{Ranking, rank};

use crate::ids::{NodeName, SessionId};

/// A node that takes part in assignment: live, active, and the current holder of its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// Its name.
    pub name: NodeName,
    /// Its incarnation.
    pub session: SessionId,
    /// Its part in relation to others.
    pub weight: u32,
}
