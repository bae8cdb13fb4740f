//! What is to happen, in order of time; things at one instant happen in the order in which they were planned.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tenure_core::ids::LeaseId;
use tenure_core::keys::Key;
use tenure_core::machine::{ActivationId, Event, Expect, OpId, Reply, Request};
use tenure_core::record::Record;

use crate::app::Chore;
use crate::clients::{Answer, Req};
use crate::clock::Instant;
use crate::fault::Fault;

/// Number of a process, in order of starting.
pub(crate) type Pid = usize;

/// Event that is scheduled for a time of the simulation.
#[derive(Debug)]
pub(crate) enum ScheduledEvent {
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
    Reply { pid: Pid, op: OpId, reply: Reply },
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
    LoadEnds { pid: Pid, activation: ActivationId },
    /// The work of a stay has stopped.
    WorkEnds { pid: Pid, activation: ActivationId },
    /// A step of the application's own.
    Chore {
        pid: Pid,
        activation: ActivationId,
        chore: Chore,
    },
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
    Served {
        pid: Pid,
        activation: ActivationId,
        req: Req,
    },
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

impl ScheduledEvent {
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

/// How many of what comes first are kept in order.
const SOON: usize = 128;

/// Where the numbers begin that stand for something that says no more than which process it is for, instead of for the slot
/// of something: [`ScheduledEvent::Tick`], [`ScheduledEvent::Watch`] and [`ScheduledEvent::Progress`].
const SHORT: u32 = 1 << 30;

impl ScheduledEvent {
    fn as_short(&self) -> Option<u32> {
        let (kind, pid) = match self {
            Self::Tick(pid) => (1, *pid),
            Self::Watch(pid) => (2, *pid),
            Self::Progress(pid) => (3, *pid),
            _ => return None,
        };
        let pid = u32::try_from(pid).ok().filter(|pid| *pid < SHORT)?;
        Some(kind * SHORT + pid)
    }

    fn of_short(number: u32) -> Option<Self> {
        let pid = (number % SHORT) as Pid;
        match number / SHORT {
            1 => Some(Self::Tick(pid)),
            2 => Some(Self::Watch(pid)),
            3 => Some(Self::Progress(pid)),
            _ => None,
        }
    }
}

/// The queue.
///
/// Time, order of planning and slot are one number, from top to bottom: most of what a queue does is compare.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// What comes first, the very first last: most things are planned a moment ahead, and go in near the end.
    soon: Vec<u128>,
    /// What comes after all of that.
    later: BinaryHeap<Reverse<u128>>,
    slots: Vec<Option<ScheduledEvent>>,
    free: Vec<u32>,
    /// Timeouts are planned the same time ahead, all of them, and so come in order.
    timeouts: VecDeque<(u128, Pid, OpId)>,
    planned: u32,
}

impl Queue {
    pub(crate) fn push(&mut self, at: Instant, due: ScheduledEvent) {
        self.planned += 1;
        let order = u128::from(at) << 64 | u128::from(self.planned) << 32;
        if let ScheduledEvent::Timeout { pid, op } = due
            && self.timeouts.back().is_none_or(|(last, ..)| *last < order)
        {
            return self.timeouts.push_back((order, pid, op));
        }
        if let Some(short) = due.as_short() {
            return self.plan(order | u128::from(short));
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
        self.plan(order | u128::from(slot));
    }

    fn plan(&mut self, order: u128) {
        if self
            .later
            .peek()
            .is_some_and(|Reverse(first)| *first < order)
        {
            return self.later.push(Reverse(order));
        }
        // Nothing of the same instant was planned later.
        let at = (order >> 64) as Instant;
        let place = self
            .soon
            .partition_point(|other| (*other >> 64) as Instant > at);
        self.soon.insert(place, order);
        if self.soon.len() > SOON {
            let last = self.soon.drain(..SOON / 2);
            self.later.extend(last.map(Reverse));
        }
    }

    /// Sees to it that what comes first is known, if there is anything.
    fn first(&mut self) -> Option<u128> {
        while self.soon.len() < SOON / 2
            && let Some(Reverse(order)) = self.later.pop()
        {
            self.soon.insert(0, order);
        }
        self.soon.last().copied()
    }

    /// Whether a request that would create this key is on its way to the store.
    pub(crate) fn creates(&self, key: &Key) -> bool {
        self.slots.iter().flatten().any(|due| {
            matches!(due, ScheduledEvent::Arrive { request, .. }
                if matches!(request, Request::Put { key: put, expect: Expect::Absent, record: Record::Shard(_) } if put == key))
        })
    }

    /// Loses everything that is under way between processes and the store.
    pub(crate) fn forget_messages(&mut self) {
        for slot in &mut self.slots {
            if matches!(
                slot,
                Some(ScheduledEvent::Arrive { .. } | ScheduledEvent::Reply { .. })
            ) {
                *slot = Some(ScheduledEvent::Nothing);
            }
        }
    }

    pub(crate) fn pop(&mut self) -> Option<(Instant, ScheduledEvent)> {
        let first = self.first().unwrap_or(u128::MAX);
        if let Some((order, pid, op)) = self.timeouts.pop_front_if(|(order, ..)| *order < first) {
            let at = (order >> 64) as Instant;
            return Some((at, ScheduledEvent::Timeout { pid, op }));
        }
        let order = self.soon.pop()?;
        let (at, slot) = ((order >> 64) as Instant, order as u32);
        if let Some(due) = ScheduledEvent::of_short(slot) {
            return Some((at, due));
        }
        self.free.push(slot);
        let due = self.slots[slot as usize].take()?;
        Some((at, due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that is left, by instant and by the number of the fault that it was planned as.
    fn rest(queue: &mut Queue) -> Vec<(Instant, usize)> {
        let number = |due| match due {
            ScheduledEvent::Fault(n) => n,
            other => panic!("not planned: {other:?}"),
        };
        let left = std::iter::from_fn(|| queue.pop());
        left.map(|(at, due)| (at, number(due))).collect()
    }

    #[test]
    fn things_come_in_order_of_time_and_then_of_planning_however_many_there_are() {
        for count in [3, SOON, 5 * SOON] {
            let mut queue = Queue::default();
            let mut rng = crate::rng::Rng::new(count as u64);
            let mut expected: Vec<_> = (0..count).map(|n| (rng.below(50), n)).collect();
            for (at, n) in &expected {
                queue.push(*at, ScheduledEvent::Fault(*n));
            }
            expected.sort();
            assert_eq!(rest(&mut queue), expected);
        }
    }

    #[test]
    fn what_is_planned_while_others_come_finds_its_place() {
        let mut queue = Queue::default();
        let (mut rng, mut last, mut seen) = (crate::rng::Rng::new(1), 0, 0);
        for n in 0..4 * SOON {
            queue.push(rng.below(1_000), ScheduledEvent::Fault(n));
        }
        for n in 0..10 * SOON {
            let Some((at, _)) = queue.pop() else { break };
            assert!(at >= last, "{at} {last}");
            (last, seen) = (at, seen + 1);
            queue.push(at + rng.below(1_000), ScheduledEvent::Fault(n));
        }
        assert_eq!((seen, rest(&mut queue).len()), (10 * SOON, 4 * SOON));
    }

    #[test]
    fn timeouts_come_in_their_place_among_the_others() {
        let mut queue = Queue::default();
        let timeout = |n| ScheduledEvent::Timeout {
            pid: 0,
            op: OpId(n),
        };
        for (at, due) in [
            (5, timeout(1)),
            (7, ScheduledEvent::Nothing),
            (9, timeout(2)),
            // Planned less far ahead than those before it.
            (6, timeout(3)),
            (9, ScheduledEvent::Nothing),
        ] {
            queue.push(at, due);
        }
        let all = std::iter::from_fn(|| queue.pop()).map(|(at, due)| match due {
            ScheduledEvent::Timeout { op, .. } => (at, op.0),
            _ => (at, 0),
        });
        let expected = [(5, 1), (6, 3), (7, 0), (9, 2), (9, 0)];
        assert_eq!(all.collect::<Vec<_>>(), expected);
    }
}
