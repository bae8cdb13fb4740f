//! What is held of one shard: a line per key, each sent one after the other, in the order of arrival.
//!
//! A line is there as long as something of it waits or is under way; whoever comes meanwhile goes to its end. So a flush and
//! what comes during it cannot overtake each other.

use std::collections::{BTreeMap, VecDeque};

use tenure_core::router::HoldWhy;
use tokio::sync::oneshot;

use super::slot::{Slot, Ticket};
use super::transport::{Drained, Flush, Trial};

/// A request that waits.
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) bytes: u64,
    go: oneshot::Sender<Option<Trial>>,
}

/// The requests of one key.
#[derive(Default)]
struct Line {
    running: Option<Ticket>,
    queue: VecDeque<Waiter>,
}

/// All that is held of one shard, and what was ordered for it.
pub(super) struct Waiting {
    lines: BTreeMap<u64, Line>,
    open: bool,
    pub(super) why: HoldWhy,
    /// How many wait, and how large they are.
    pub(super) count: u64,
    pub(super) bytes: u64,
    drain: Option<Drained>,
    /// Nothing more is taken.
    pub(super) stopping: bool,
    /// Whoever stops waits for this one.
    pub(super) busy: bool,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            lines: BTreeMap::new(),
            open: false,
            why: HoldWhy::Unknown,
            count: 0,
            bytes: 0,
            drain: None,
            stopping: false,
            busy: false,
        }
    }
}

impl Waiting {
    /// Whether a request of this line may go at once.
    pub(super) fn passes(&self, line: u64) -> bool {
        self.open && !self.lines.contains_key(&line)
    }

    /// Puts a request in its place in its line; it hears when it may go. It may be at once.
    pub(super) fn join(
        &mut self,
        slot: &Slot,
        line: u64,
        ticket: Ticket,
        bytes: u64,
    ) -> oneshot::Receiver<Option<Trial>> {
        let (go, heard) = oneshot::channel();
        let waiter = Waiter { ticket, bytes, go };
        let Line { running, queue } = self.lines.entry(line).or_default();
        running.take_if(|running| *running == ticket);
        let after = queue
            .iter()
            .rev()
            .take_while(|w| ticket.is_before(w.ticket));
        let at = queue.len() - after.count();
        queue.insert(at, waiter);
        self.count += 1;
        self.bytes += bytes;
        slot.hold();
        if self.open {
            self.next(slot, line);
        }
        heard
    }

    /// Takes a request out of its line although it was not told to go; says whether that was so.
    pub(super) fn give_up(&mut self, slot: &Slot, line: u64, ticket: Ticket) -> Option<u64> {
        let Line { queue, .. } = self.lines.get_mut(&line)?;
        let at = queue.iter().position(|w| w.ticket == ticket)?;
        let bytes = queue.remove(at)?.bytes;
        self.count -= 1;
        self.bytes -= bytes;
        self.next(slot, line);
        Some(bytes)
    }

    /// A request that was told to go is over: the next one of its line goes.
    pub(super) fn over(&mut self, slot: &Slot, line: u64, ticket: Ticket) {
        if let Some(Line { running, .. }) = self.lines.get_mut(&line) {
            running.take_if(|running| *running == ticket);
        }
        self.next(slot, line);
    }

    /// Keeps what comes.
    pub(super) fn hold(&mut self, slot: &Slot, why: HoldWhy) {
        (self.open, self.why) = (false, why);
        slot.hold();
    }

    /// Reports when nothing is in flight.
    pub(super) fn drain(&mut self, slot: &Slot, drained: Drained) {
        self.drain = Some(drained);
        self.check_empty(slot);
    }

    /// Reports that nothing is in flight, if that is so and somebody asked.
    pub(super) fn check_empty(&mut self, slot: &Slot) {
        if slot.in_flight() == 0
            && let Some(drained) = self.drain.take()
        {
            drained.report();
        }
    }

    /// Whether nothing of the shard waits or is in flight.
    pub(super) fn is_idle(&self, slot: &Slot) -> bool {
        self.lines.is_empty() && slot.in_flight() == 0
    }

    /// Sends what waits. Says how many.
    pub(super) fn flush(&mut self, slot: &Slot, flush: Flush) -> u64 {
        let before = self.count;
        match flush {
            Flush::All => {
                self.open = true;
                let lines: Vec<u64> = self.lines.keys().copied().collect();
                for line in lines {
                    self.next(slot, line);
                }
            }
            Flush::One(trial) => match self.foremost() {
                Some(line) => self.go(slot, line, Some(trial)),
                // Whoever is under way will tell.
                None if !self.lines.is_empty() => {}
                None => {
                    self.open = true;
                    trial.answered();
                }
            },
        }
        self.open_slot(slot);
        before - self.count
    }

    /// The line whose first request came before all others that wait and could go.
    fn foremost(&self) -> Option<u64> {
        let idle = self.lines.iter().filter(|(_, l)| l.running.is_none());
        let firsts = idle.filter_map(|(line, l)| Some((*line, l.queue.front()?.ticket)));
        firsts
            .reduce(|a, b| if b.1.is_before(a.1) { b } else { a })
            .map(|(line, _)| line)
    }

    /// Sends the next of a line, if it may go; forgets a line of which nothing is left.
    fn next(&mut self, slot: &Slot, line: u64) {
        let Some(Line { running, queue }) = self.lines.get(&line) else {
            return;
        };
        if running.is_none() && queue.is_empty() {
            self.lines.remove(&line);
            self.open_slot(slot);
        } else if running.is_none() && self.open {
            self.go(slot, line, None);
        }
    }

    fn go(&mut self, slot: &Slot, line: u64, trial: Option<Trial>) {
        let Some(Line { running, queue }) = self.lines.get_mut(&line) else {
            return;
        };
        let Some(Waiter { ticket, bytes, go }) = queue.pop_front() else {
            return;
        };
        *running = Some(ticket);
        self.count -= 1;
        self.bytes -= bytes;
        slot.count_in();
        // One that is just giving up finds that it was told to go, and says that it is over.
        let _ = go.send(trial);
    }

    /// What comes goes straight on once nothing waits.
    fn open_slot(&self, slot: &Slot) {
        if self.open && self.lines.is_empty() && !self.stopping {
            slot.open();
        }
    }
}
