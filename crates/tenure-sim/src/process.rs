//! One simulated process: the machine under test, and what its driver has to remember.

use std::collections::{BTreeMap, VecDeque};

use tenure_core::ids::{Epoch, SessionId};
use tenure_core::machine::{Action, ActivationId, Close, OpId};
use tenure_core::node::Node;
use tenure_core::router::RecordVersion;
use tenure_core::time::Time;

use crate::clients::Req;
use crate::clock::{Clock, Instant, SEC};
use crate::event_queue::ScheduledEvent;
use crate::router::RouterProcess;

/// How far the application is with a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// It loads, and the load will end so.
    Loading(LoadEnd),
    /// The load is over without success; nothing runs.
    Failed,
    /// It is loaded; the gate may be open.
    Ready,
}

/// How a load ends if nobody interferes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadEnd {
    /// With a state.
    Loaded,
    /// With an error.
    Fails,
    /// Not at all.
    Hangs,
}

/// One stay of a shard at a process.
#[derive(Clone, Debug)]
pub(crate) struct Activation {
    pub(crate) activation: ActivationId,
    pub(crate) shard: usize,
    pub(crate) epoch: Epoch,
    pub(crate) session: SessionId,
    pub(crate) work: Work,
    pub(crate) open: bool,
    pub(crate) closing: Option<Close>,
    /// The shard is another's, and moves here.
    pub(crate) succeeds: bool,
    /// How many of the resource's writes its state has, and how many are on their way.
    pub(crate) known: u64,
    pub(crate) in_flight: u32,
    /// The move that its gate is shut for, until nothing is in flight.
    pub(crate) frozen: Option<u64>,
    pub(crate) sealing: bool,
    /// Requests that it works on.
    pub(crate) requests: Vec<Req>,
}

/// The state of a process's watch.
#[derive(Clone, Debug)]
pub(crate) struct Watching {
    /// How much of the store's history it has told.
    pub(crate) told: usize,
    /// Whether a delivery is under way.
    pub(crate) under_way: bool,
    /// Whether it runs at all.
    pub(crate) up: bool,
    /// Until when it is silent.
    pub(crate) mute_until: Instant,
}

/// A process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) node: usize,
    pub(crate) clock: Clock,
    pub(crate) machine: Node,
    pub(crate) dir: usize,
    pub(crate) alive: bool,
    /// When it was started.
    pub(crate) since: Instant,
    pub(crate) paused_until: Option<Instant>,
    /// When it last ran again after having been stopped.
    pub(crate) resumed_at: Instant,
    /// What came while it was stopped.
    pub(crate) missed: Vec<ScheduledEvent>,
    /// What it was about to do when it was stopped.
    pub(crate) midway: VecDeque<Action>,
    /// Stop it after this many actions, for this long.
    pub(crate) stop_after: Option<(u32, u64)>,
    /// When it wants the next tick.
    pub(crate) wake: Instant,
    /// The same on its own clock.
    pub(crate) woken_at: Option<Time>,
    /// The earliest tick that is in the queue.
    pub(crate) tick_at: Instant,
    pub(crate) pending: Vec<(OpId, bool)>,
    pub(crate) stays: Vec<Activation>,
    pub(crate) watch: Watching,
    pub(crate) wedged_until: Instant,
    pub(crate) cut_requests_until: Instant,
    pub(crate) cut_replies_until: Instant,
    pub(crate) slow: (u64, Instant),
    /// Writes and lists sent, for P7.
    pub(crate) writes: u64,
    pub(crate) lists: u64,
    /// The last second in which it was woken, and how often.
    woken: (Instant, u32),
    /// What a router has beside its machine.
    pub(crate) router: Option<Box<RouterProcess>>,
    /// Who serves each shard by the records that it has seen: what it tells requests that it turns away.
    pub(crate) seen: BTreeMap<usize, (Option<SessionId>, RecordVersion)>,
}

/// How often a process is woken within a second at most, many times over.
const MOST_TICKS: u32 = 10_000;

impl Process {
    pub(crate) fn new(node: usize, clock: Clock, machine: Node, dir: usize, told: usize) -> Self {
        Self {
            node,
            clock,
            machine,
            dir,
            alive: true,
            since: 0,
            paused_until: None,
            resumed_at: 0,
            missed: Vec::new(),
            midway: VecDeque::new(),
            stop_after: None,
            wake: Instant::MAX,
            woken_at: None,
            tick_at: Instant::MAX,
            pending: Vec::new(),
            stays: Vec::new(),
            watch: Watching {
                told,
                under_way: false,
                up: true,
                mute_until: 0,
            },
            wedged_until: 0,
            cut_requests_until: 0,
            cut_replies_until: 0,
            slow: (0, 0),
            writes: 0,
            lists: 0,
            woken: (0, 0),
            router: None,
            seen: BTreeMap::new(),
        }
    }

    /// Counts a tick; says whether there were so many that the process would keep a core busy for nothing.
    pub(crate) fn spins(&mut self, now: Instant) -> bool {
        let second = now / SEC;
        let count = if self.woken.0 == second {
            self.woken.1
        } else {
            0
        };
        self.woken = (second, count + 1);
        count >= MOST_TICKS
    }

    pub(crate) fn stay(&self, activation: ActivationId) -> Option<&Activation> {
        self.stays.iter().find(|stay| stay.activation == activation)
    }

    pub(crate) fn stay_mut(&mut self, activation: ActivationId) -> Option<&mut Activation> {
        self.stays
            .iter_mut()
            .find(|stay| stay.activation == activation)
    }
}

/// Data directory of a node: what it remembers, and whether its file is the one that was locked when it did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataDirectory {
    pub(crate) session: Option<SessionId>,
    /// False for a copy: its device, inode or boot id is not the one that it names.
    pub(crate) genuine: bool,
    /// The process that holds its lock, or held it last.
    pub(crate) holder: Option<usize>,
}
