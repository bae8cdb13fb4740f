//! Scopes: how large a world, and how much misfortune.

use super::sight::Sight;
use super::sight::Sight::*;
use super::world::TTL;

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

/// How a scope begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Begin {
    /// All nodes start at once on an empty store.
    Empty,
    /// All nodes are there and the shard is served; in so many ways out of step with one another.
    Rest {
        /// The last node started so many units of time later than the others, less one.
        phases: u64,
    },
    /// All but one are there, each in turn; that one starts at any time.
    Joining,
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
    /// How it begins.
    pub begin: Begin,
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

const TWO: &[&[i64]] = &[&[0, 0]];
const THREE: &[&[i64]] = &[&[0, 0, 0]];
const REST: Begin = Begin::Rest { phases: 4 };

/// All scopes, the small ones first.
pub const SCOPES: &[Scope] = &[
    Scope {
        name: "rest",
        about: "two nodes, nothing goes wrong",
        nodes: 2,
        begin: REST,
        budget: NONE,
        back: &[],
        clocks: TWO,
        sights: &[],
        everyday: true,
    },
    Scope {
        name: "start",
        about: "two nodes start at once on an empty store",
        nodes: 2,
        begin: Begin::Empty,
        budget: NONE,
        back: &[],
        clocks: TWO,
        sights: &[ClaimedFree, Serving, RaceLost],
        everyday: true,
    },
    Scope {
        name: "delay",
        about: "one message is late or lost",
        nodes: 2,
        begin: REST,
        budget: Budget { delays: 1, ..NONE },
        back: &[],
        clocks: TWO,
        sights: &[Degraded, LateWrite],
        everyday: true,
    },
    Scope {
        name: "join",
        about: "a second node starts, and one message is late or lost",
        nodes: 2,
        begin: Begin::Joining,
        budget: Budget { delays: 1, ..NONE },
        back: &[],
        clocks: TWO,
        sights: &[
            Draining,
            ReleasedForBalance,
            ClaimedFree,
            UnknownOwn,
            UnknownNot,
            LateWrite,
        ],
        everyday: false,
    },
    Scope {
        name: "stop",
        about: "a node is asked to stop, and comes back",
        nodes: 2,
        begin: REST,
        budget: Budget { stops: 1, ..NONE },
        back: &[Back::WithDirectory],
        clocks: TWO,
        sights: &[ReleasedStopping, Resigned, ClaimedFree],
        everyday: true,
    },
    Scope {
        name: "crash",
        about: "a node dies and comes back, with or without its data directory",
        nodes: 2,
        begin: REST,
        budget: Budget { crashes: 1, ..NONE },
        back: EITHER,
        clocks: TWO,
        sights: &[
            TakenAfterEnd,
            Expired,
            Replaced,
            WaitedForName,
            ReleasedForBalance,
        ],
        everyday: false,
    },
    Scope {
        name: "pause",
        about: "a node stands still for any time",
        nodes: 2,
        begin: REST,
        budget: Budget { pauses: 1, ..NONE },
        back: &[],
        clocks: TWO,
        sights: &[
            Overslept,
            Detached,
            Recovering,
            Reattached,
            AdoptedAgain,
            CutLeaseLost,
            GateRanOut,
            SessionLost,
            Expired,
        ],
        everyday: false,
    },
    Scope {
        name: "removal",
        about: "an operator removes the shard's record",
        nodes: 2,
        begin: Begin::Rest { phases: 1 },
        budget: Budget {
            removals: 1,
            ..NONE
        },
        back: &[],
        clocks: TWO,
        sights: &[CutMissing, Restored],
        everyday: true,
    },
    Scope {
        name: "stop-delay",
        about: "a node is asked to stop, and one message is late or lost",
        nodes: 2,
        begin: Begin::Rest { phases: 1 },
        budget: Budget {
            stops: 1,
            delays: 1,
            ..NONE
        },
        back: &[],
        clocks: TWO,
        sights: &[
            ReleasedStopping,
            Resigned,
            ClaimedFree,
            UnknownOwn,
            UnknownNot,
            LateWrite,
        ],
        everyday: false,
    },
    Scope {
        name: "crash-delay",
        about: "a node dies for good, and one message is late or lost",
        nodes: 2,
        begin: Begin::Rest { phases: 1 },
        budget: Budget {
            crashes: 1,
            delays: 1,
            ..NONE
        },
        back: &[],
        clocks: TWO,
        sights: &[TakenAfterEnd, Expired, UnknownOwn, UnknownNot, LateWrite],
        everyday: false,
    },
    Scope {
        name: "join-crash",
        about: "a second node starts, a node dies for good, and one message is late or lost",
        nodes: 2,
        begin: Begin::Joining,
        budget: Budget {
            crashes: 1,
            delays: 1,
            ..NONE
        },
        back: &[],
        clocks: TWO,
        sights: &[
            ReleasedForBalance,
            TakenAfterEnd,
            Expired,
            UnknownOwn,
            UnknownNot,
            LateWrite,
        ],
        everyday: false,
    },
    Scope {
        name: "removal-pause",
        about: "an operator removes the shard's record, and a node stands still for any time",
        nodes: 2,
        begin: Begin::Rest { phases: 1 },
        budget: Budget {
            removals: 1,
            pauses: 1,
            ..NONE
        },
        back: &[],
        clocks: TWO,
        sights: &[CutMissing, Restored, Expired, GateRanOut],
        everyday: false,
    },
    Scope {
        name: "drift",
        about: "a node stands still; clocks run at rates that differ by as much as is allowed",
        nodes: 2,
        begin: Begin::Rest { phases: 1 },
        budget: Budget { pauses: 1, ..NONE },
        back: &[],
        clocks: &[&[20_000, -20_000], &[-20_000, 20_000]],
        sights: &[Overslept, SessionLost, Expired],
        everyday: false,
    },
    Scope {
        name: "three-crash",
        about: "one of three nodes dies for good",
        nodes: 3,
        begin: Begin::Rest { phases: 1 },
        budget: Budget { crashes: 1, ..NONE },
        back: &[],
        clocks: THREE,
        sights: &[TakenAfterEnd, Expired],
        everyday: false,
    },
    Scope {
        name: "three-pause",
        about: "one of three nodes stands still for any time",
        nodes: 3,
        begin: Begin::Rest { phases: 1 },
        budget: Budget { pauses: 1, ..NONE },
        back: &[],
        clocks: THREE,
        sights: &[Overslept, SessionLost, Expired],
        everyday: false,
    },
    Scope {
        name: "three-delay",
        about: "three nodes, and one message is late or lost",
        nodes: 3,
        begin: Begin::Rest { phases: 1 },
        budget: Budget { delays: 1, ..NONE },
        back: &[],
        clocks: THREE,
        sights: &[Degraded, LateWrite],
        everyday: false,
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
