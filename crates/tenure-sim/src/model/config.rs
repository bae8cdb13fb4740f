//! Scopes: how large a world, and how much misfortune.

use super::reachability::Sight::{self, *};
use super::timing::TTL;

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
    /// Removals of a session's record.
    pub losses: u8,
    /// Requests that come at a router.
    pub requests: u8,
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

/// Kind of the last node of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LastNodeKind {
    /// The same as the others.
    Alike,
    /// A node that serves no keyspace.
    Stranger,
    /// A node that serves another keyspace than the others. That keyspace has named shards, and none yet.
    Elsewhere,
    /// A process that only plans.
    Planner,
    /// A node that is cordoned, from the beginning on.
    Cordoned,
}

/// What is explored, to the last state.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Its name.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// How many nodes there are; they have one shard. Where there are more clocks, the others are routers'.
    pub nodes: usize,
    /// Kind of the last node, where it differs from the others.
    pub last: LastNodeKind,
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

const TWO: &[&[i64]] = &[&[0, 0]];
const THREE: &[&[i64]] = &[&[0, 0, 0]];
/// Clocks show whole units, so that one that gains 4 % jumps by one every 25: a ttl that has one jump is off by the 5 % that
/// are allowed, and one that has jumps of both clocks would be off by more.
const ONE_CLOCK_OFF: &[&[i64]] = &[&[40_000, 0], &[-40_000, 0], &[0, 40_000], &[0, -40_000]];
const IN_STEP: Begin = Begin::Rest { phases: 1 };
const OUT_OF_STEP: Begin = Begin::Rest { phases: 4 };

/// Nothing goes wrong.
const NOTHING: Budget = Budget {
    delays: 0,
    crashes: 0,
    pauses: 0,
    stops: 0,
    removals: 0,
    losses: 0,
    requests: 0,
};
const DELAY: Budget = Budget {
    delays: 1,
    ..NOTHING
};
const CRASH: Budget = Budget {
    crashes: 1,
    ..NOTHING
};
const PAUSE: Budget = Budget {
    pauses: 1,
    ..NOTHING
};
const STOP: Budget = Budget {
    stops: 1,
    ..NOTHING
};
const REMOVAL: Budget = Budget {
    removals: 1,
    ..NOTHING
};

const LOSS: Budget = Budget {
    losses: 1,
    ..NOTHING
};

/// All scopes, the small ones first.
pub const SCOPES: &[Scope] = &[
    two("rest", "two nodes, nothing goes wrong")
        .begin(OUT_OF_STEP)
        .everyday(),
    two("start", "two nodes start at once on an empty store")
        .begin(Begin::Empty)
        .sees(&[ClaimedFree, Serving, RaceLost])
        .everyday(),
    two("delay", "one message is late or lost")
        .begin(OUT_OF_STEP)
        .may(DELAY)
        .sees(&[Degraded, LateWrite])
        .everyday(),
    two(
        "join",
        "a second node starts, and one message is late or lost",
    )
    .begin(Begin::Joining)
    .may(DELAY)
    .sees(&[
        Moving, Frozen, Sealed, Taken, UnknownOwn, UnknownNot, LateWrite,
    ]),
    two("stop", "a node is asked to stop, and comes back")
        .begin(OUT_OF_STEP)
        .may(STOP)
        .back(&[Back::WithDirectory])
        .sees(&[Taken, Resigned])
        .everyday(),
    two(
        "crash",
        "a node dies and comes back, with or without its data directory",
    )
    .begin(OUT_OF_STEP)
    .may(CRASH)
    .back(&[Back::WithDirectory, Back::Without])
    .sees(&[TakenAfterEnd, Expired, Replaced, WaitedForName, Taken]),
    two("pause", "a node stands still for any time")
        .begin(OUT_OF_STEP)
        .may(PAUSE)
        .sees(&[
            Overslept,
            Detached,
            Recovering,
            Reattached,
            AdoptedAgain,
            CutLeaseLost,
            GateRanOut,
            SessionLost,
            Expired,
        ])
        .everyday(),
    two("removal", "an operator removes the shard's record")
        .may(REMOVAL)
        .sees(&[CutMissing, Restored])
        .everyday(),
    two("loss", "an operator removes the record of a session")
        .may(LOSS)
        .sees(&[CutSessionEnded, SessionLost])
        .everyday(),
    two(
        "removal-delay",
        "an operator removes the shard's record, and one message is late or lost",
    )
    .may(Budget {
        delays: 1,
        ..REMOVAL
    })
    .sees(&[CutMissing, Restored]),
    two(
        "stop-delay",
        "a node is asked to stop, and one message is late or lost",
    )
    .may(Budget { delays: 1, ..STOP })
    .sees(&[Taken, Resigned, UnknownOwn, UnknownNot, LateWrite]),
    two(
        "crash-delay",
        "a node dies for good, and one message is late or lost",
    )
    .may(Budget { delays: 1, ..CRASH })
    .sees(&[TakenAfterEnd, Expired, UnknownOwn, UnknownNot, LateWrite]),
    two(
        "join-crash",
        "a second node starts, a node dies for good, and one message is late or lost",
    )
    .begin(Begin::Joining)
    .may(Budget { delays: 1, ..CRASH })
    .sees(&[
        Taken,
        TakenAfterEnd,
        Expired,
        UnknownOwn,
        UnknownNot,
        LateWrite,
    ]),
    two(
        "removal-pause",
        "an operator removes the shard's record, and a node stands still for any time",
    )
    .may(Budget {
        pauses: 1,
        ..REMOVAL
    })
    .sees(&[CutMissing, Restored, Expired, GateRanOut]),
    two(
        "drift",
        "a node stands still; the clock of one of them gains or loses as much as is allowed",
    )
    .may(PAUSE)
    .clocks(ONE_CLOCK_OFF)
    .sees(&[Overslept, SessionLost, Expired]),
    two(
        "stranger",
        "two nodes, one of which does not serve the keyspace; a node is asked to stop, and comes back; one message is late \
         or lost",
    )
    .last(LastNodeKind::Stranger)
    .may(Budget { delays: 1, ..STOP })
    .back(&[Back::WithDirectory])
    .sees(&[ClaimedFree, Resigned, LateWrite])
    .everyday(),
    two(
        "elsewhere",
        "two nodes that serve different keyspaces; a node is asked to stop, and comes back",
    )
    .last(LastNodeKind::Elsewhere)
    .begin(OUT_OF_STEP)
    .may(STOP)
    .back(&[Back::WithDirectory])
    .sees(&[ClaimedFree, Resigned])
    .everyday(),
    two(
        "planner",
        "a node and a process that only plans; one of them is asked to stop, and comes back",
    )
    .last(LastNodeKind::Planner)
    .begin(OUT_OF_STEP)
    .may(STOP)
    .back(&[Back::WithDirectory])
    .sees(&[ClaimedFree, Resigned])
    .everyday(),
    two(
        "cordon",
        "two nodes, one of them cordoned; a node is asked to stop, and comes back",
    )
    .last(LastNodeKind::Cordoned)
    .begin(OUT_OF_STEP)
    .may(STOP)
    .back(&[Back::WithDirectory])
    .sees(&[Taken, Resigned])
    .everyday(),
    two(
        "cordon-delay",
        "two nodes, one of them cordoned; a node is asked to stop, and comes back; one message is late or lost",
    )
    .last(LastNodeKind::Cordoned)
    .may(Budget { delays: 1, ..STOP })
    .back(&[Back::WithDirectory])
    .sees(&[ClaimedFree, Resigned, LateWrite]),
    three("three-join", "a third node starts")
        .begin(Begin::Joining)
        .sees(&[Sealed, Taken])
        .everyday(),
    three("three-stop", "one of three nodes is asked to stop")
        .may(STOP)
        .sees(&[Taken, Resigned]),
    three("three-crash", "one of three nodes dies for good")
        .may(CRASH)
        .sees(&[TakenAfterEnd, Expired]),
    routed("router", "a second node starts, and two requests come")
        .may(Budget {
            requests: 2,
            ..NOTHING
        })
        .sees(&[Frozen, Sealed, Taken, RequestHeld, FlushedAfterTake])
        .everyday(),
    routed(
        "router-delay",
        "a second node starts, a request comes, and one message is late or lost",
    )
    .may(Budget {
        requests: 1,
        ..DELAY
    })
    .sees(&[Taken, RequestHeld, FlushedAfterTake]),
    routed(
        "router-crash",
        "a second node starts, a request comes, and a process dies for good",
    )
    .may(Budget {
        requests: 1,
        ..CRASH
    })
    .sees(&[Taken, RequestHeld, FlushedAfterTake, FlushedAfterCancel]),
    three(
        "three-delay",
        "three nodes, and one message is late or lost",
    )
    .may(DELAY)
    .sees(&[Degraded, LateWrite]),
    three(
        "three-pause",
        "one of three nodes stands still for any time",
    )
    .may(PAUSE)
    .sees(&[Overslept, SessionLost, Expired]),
];

/// Two nodes at rest.
const fn two(name: &'static str, about: &'static str) -> Scope {
    Scope {
        name,
        about,
        nodes: 2,
        last: LastNodeKind::Alike,
        begin: IN_STEP,
        budget: NOTHING,
        back: &[],
        clocks: TWO,
        sights: &[],
        everyday: false,
    }
}

/// Two nodes, of which one starts at any time, and a router.
const fn routed(name: &'static str, about: &'static str) -> Scope {
    Scope {
        begin: Begin::Joining,
        clocks: THREE,
        ..two(name, about)
    }
}

/// Three nodes at rest.
const fn three(name: &'static str, about: &'static str) -> Scope {
    Scope {
        nodes: 3,
        clocks: THREE,
        ..two(name, about)
    }
}

impl Scope {
    const fn begin(self, begin: Begin) -> Self {
        Self { begin, ..self }
    }

    const fn last(self, last: LastNodeKind) -> Self {
        Self { last, ..self }
    }

    const fn may(self, budget: Budget) -> Self {
        Self { budget, ..self }
    }

    const fn back(self, back: &'static [Back]) -> Self {
        Self { back, ..self }
    }

    const fn clocks(self, clocks: &'static [&'static [i64]]) -> Self {
        Self { clocks, ..self }
    }

    const fn sees(self, sights: &'static [Sight]) -> Self {
        Self { sights, ..self }
    }

    const fn everyday(self) -> Self {
        Self {
            everyday: true,
            ..self
        }
    }
}

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
