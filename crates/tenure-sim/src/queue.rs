//! What is to happen, in order of time; things at one instant happen in the order in which they were planned.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tenure_core::ids::LeaseId;
use tenure_core::layout::Key;
use tenure_core::machine::{Event, Expect, OpId, Reply, Request, RunId};

use crate::clients::{Answer, Req};
use crate::clock::Instant;
use crate::fault::Fault;
use crate::hand_over::Chore;

/// Number of a process, in order of starting.
pub(crate) type Pid = usize;

/// Something that is to happen.
#[derive(Debug)]
pub(crate) enum Due {
    /// Nothing any more.
    Nothing,
    /// A process starts for the first time.
    Start { node: usize },
    /// A process's timer.
    Tick(Pid),
    /// The runtime of a process shows a sign of life.
    Progress(Pid),
    /// A request reaches the store.
    Arrive {
        pid: Pid,
        op: OpId,
        request: Request,
    },
    /// An answer reaches a process.
    Reply {
        pid: Pid,
        op: OpId,
        reply: Reply,
    },
    /// A process stops waiting for an answer.
    Timeout { pid: Pid, op: OpId },
    /// A watch delivers.
    Watch(Pid),
    /// A broken watch begins anew.
    WatchAgain(Pid),
    /// The store looks whether a lease has run out.
    LeaseEnds(LeaseId),
    /// A poller asks.
    Poll(Pid),
    /// A load is over, one way or the other.
    LoadEnds { pid: Pid, run: RunId },
    /// The work of a stay has stopped.
    WorkEnds { pid: Pid, run: RunId },
    /// A step of the application's own.
    Chore { pid: Pid, run: RunId, chore: Chore },
    /// Clients send something.
    Traffic,
    /// Clients send something for this shard.
    Burst { shard: usize },
    /// A router's own timer.
    RouterTick(Pid),
    /// A request was held for as long as may be.
    HeldTooLong { pid: Pid, req: Req },
    /// A request reaches a node.
    Enter { pid: Pid, req: Req, sending: u32 },
    /// A node has done what it was asked.
    Served { pid: Pid, run: RunId, req: Req },
    /// An answer reaches a router.
    Answer {
        pid: Pid,
        req: Req,
        sending: u32,
        answer: Answer,
    },
    /// Any other event for the machine.
    Tell { pid: Pid, event: Box<Event> },
    /// A stopped process runs again, if it was not stopped for longer meanwhile.
    Resume(Pid),
    /// An operator creates a named shard.
    Create(usize),
    /// An operator raises all generations.
    Raise,
    /// A fault, by its number in the plan.
    Fault(usize),
    /// A fault that waited for its moment.
    Strike(Fault),
    /// Faults are over.
    Heal,
    /// The checkers look at the whole, once or from now on.
    Look { again: bool },
}

impl Due {
    /// The process that handles it, if it is one's business.
    pub(crate) fn pid(&self) -> Option<Pid> {
        match self {
            Self::Tick(pid)
            | Self::Progress(pid)
            | Self::Reply { pid, .. }
            | Self::Timeout { pid, .. }
            | Self::Watch(pid)
            | Self::WatchAgain(pid)
            | Self::Chore { pid, .. }
            | Self::Poll(pid)
            | Self::RouterTick(pid)
            | Self::HeldTooLong { pid, .. }
            | Self::Enter { pid, .. }
            | Self::Served { pid, .. }
            | Self::Answer { pid, .. }
            | Self::LoadEnds { pid, .. }
            | Self::WorkEnds { pid, .. }
            | Self::Tell { pid, .. } => Some(*pid),
            _ => None,
        }
    }
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Time, order of planning and slot in one number, from top to bottom: most of what a heap does is compare.
    heap: BinaryHeap<Reverse<u128>>,
    slots: Vec<Option<Due>>,
    free: Vec<u32>,
    /// Timeouts are planned the same time ahead, all of them, and so come in order.
    timeouts: VecDeque<(u128, Pid, OpId)>,
    planned: u32,
}

impl Queue {
    pub(crate) fn push(&mut self, at: Instant, due: Due) {
        self.planned += 1;
        let order = u128::from(at) << 64 | u128::from(self.planned) << 32;
        if let Due::Timeout { pid, op } = due
            && self.timeouts.back().is_none_or(|(last, ..)| *last < order)
        {
            return self.timeouts.push_back((order, pid, op));
        }
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(due);
                slot
            }
            None => {
                self.slots.push(Some(due));
                (self.slots.len() - 1) as u32
            }
        };
        self.heap.push(Reverse(order | u128::from(slot)));
    }

    /// Whether a request that would create this key is on its way to the store.
    pub(crate) fn creates(&self, key: &Key) -> bool {
        self.slots.iter().flatten().any(|due| {
            matches!(due, Due::Arrive { request, .. }
                if matches!(request, Request::Put { key: put, expect: Expect::Absent, .. } if put == key))
        })
    }

    /// Loses everything that is under way between processes and the store.
    pub(crate) fn forget_messages(&mut self) {
        for slot in &mut self.slots {
            if matches!(slot, Some(Due::Arrive { .. } | Due::Reply { .. })) {
                *slot = Some(Due::Nothing);
            }
        }
    }

    pub(crate) fn pop(&mut self) -> Option<(Instant, Due)> {
        let first = self.heap.peek().map_or(u128::MAX, |Reverse(order)| *order);
        if let Some((order, pid, op)) = self.timeouts.pop_front_if(|(order, ..)| *order < first) {
            let at = (order >> 64) as Instant;
            return Some((at, Due::Timeout { pid, op }));
        }
        let Reverse(order) = self.heap.pop()?;
        let (at, slot) = ((order >> 64) as Instant, order as u32);
        self.free.push(slot);
        let due = self.slots[slot as usize].take()?;
        Some((at, due))
    }
}
