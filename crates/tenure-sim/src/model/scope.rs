//! Scopes: how large a world, and how much misfortune.

use super::driver::TTL;
use super::sight::Sight;
use super::sight::Sight::*;

/// How often each misfortune may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Messages that come late or never: requests, answers, what the watch tells, the end of loading and of draining.
    pub delays: u8,
    /// Processes that die.
    pub crashes: u8,
    /// Processes that stand still for a while.
    pub pauses: u8,
    /// Processes that are asked to stop.
    pub stops: u8,
    /// Removals of the shard's record by an operator.
    pub removals: u8,
}

/// How a node that is gone comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Back {
    /// With its data directory, which proves its predecessor dead.
    WithDirectory,
    /// Without: it has to wait for its name.
    Without,
}

/// What is explored, to the last state.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Its name.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// How many nodes there are; they have one shard.
    pub nodes: usize,
    /// Whether the nodes have yet to start, all at once.
    pub from_start: bool,
    /// How much may go wrong.
    pub budget: Budget,
    /// In which ways a node comes back that is gone.
    pub back: &'static [Back],
    /// By how much the nodes' clocks gain, in parts per million: one choice after the other.
    pub clocks: &'static [&'static [i64]],
    /// What must be seen on the way.
    pub sights: &'static [Sight],
    /// Whether it is small enough for every run of the tests.
    pub everyday: bool,
}

const NONE: Budget = Budget {
    delays: 0,
    crashes: 0,
    pauses: 0,
    stops: 0,
    removals: 0,
};
const EITHER: &[Back] = &[Back::WithDirectory, Back::Without];

/// All scopes, the small ones first.
pub const SCOPES: &[Scope] = &[
    Scope {
        name: "rest",
        about: "two nodes, nothing goes wrong",
        nodes: 2,
        from_start: false,
        budget: NONE,
        back: &[],
        clocks: &[&[0, 0]],
        sights: &[],
        everyday: true,
    },
    Scope {
        name: "start",
        about: "two nodes start at once on an empty store",
        nodes: 2,
        from_start: true,
        budget: NONE,
        back: &[],
        clocks: &[&[0, 0]],
        sights: &[ClaimedFree, Serving, RaceLost],
        everyday: true,
    },
    Scope {
        name: "crash",
        about: "one of two nodes dies and comes back, with or without its data directory",
        nodes: 2,
        from_start: false,
        budget: Budget { crashes: 1, ..NONE },
        back: EITHER,
        clocks: &[&[0, 0]],
        sights: &[TakenAfterEnd, Expired, Replaced, WaitedForName, ReleasedForBalance],
        everyday: true,
    },
    Scope {
        name: "pause",
        about: "one of two nodes stands still for any time",
        nodes: 2,
        from_start: false,
        budget: Budget { pauses: 1, ..NONE },
        back: &[],
        clocks: &[&[0, 0]],
        sights: &[Overslept, Detached, CutLeaseLost, GateRanOut, SessionLost, Expired],
        everyday: true,
    },
    Scope {
        name: "delay",
        about: "one message is late or lost",
        nodes: 2,
        from_start: false,
        budget: Budget { delays: 1, ..NONE },
        back: &[],
        clocks: &[&[0, 0]],
        sights: &[Degraded],
        everyday: true,
    },
];

impl Scope {
    /// Times that are longer ago than this are not told apart.
    ///
    /// No machine asks whether something was longer ago than a session takes to expire, but for two: whether a list was made
    /// long enough after a loss, and whether a tombstone is ten ttl old and may be swept. Sweeping is left out.
    pub(crate) fn memory(&self) -> u64 {
        if self.budget.removals > 0 {
            5 * TTL
        } else {
            TTL + 2
        }
    }
}

/// The scope of this name.
pub fn scope(name: &str) -> Option<&'static Scope> {
    SCOPES.iter().find(|scope| scope.name == name)
}
