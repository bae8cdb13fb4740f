//! One state of the model: real machines, a store, and what is on its way between them.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use tenure_core::ids::{Epoch, Revision, SessionId, Version};
use tenure_core::keys::Key;
use tenure_core::machine::{ActivationId, Event, OpId, Reply, Request};
use tenure_core::node::Node;
use tenure_core::time::Time;

use super::canonical::{Revs, StateToken, Words, toks};
use super::config::{Budget, LastNodeKind};
use super::invariants::{HighestEpoch, InvariantBreach};
use super::router::RouterProcess;
use super::store::ModelStore;
use crate::clock::{Clock, Instant};

/// A state. Equal states have the same future; see [`super::canonical`].
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) now: Instant,
    /// One for each node name.
    pub(crate) seats: Vec<ModelNode>,
    pub(crate) store: Arc<ModelStore>,
    /// On their way to the store, in the order of sending.
    pub(crate) requests: Vec<PendingStoreRequest>,
    /// Misfortune that may still happen.
    pub(crate) left: Budget,
    pub(crate) ghost: HighestEpoch,
    pub(crate) broken: Option<Arc<InvariantBreach>>,
    /// Times older than this are not told apart.
    pub(crate) memory: u64,
    /// Whether no request may fail: no process can have died or stood still.
    pub(crate) strict: bool,
}

/// Node of the model: its name, its machine's clock, its data directory, and the process that runs there, if one does.
#[derive(Clone, Debug)]
pub(crate) struct ModelNode {
    pub(crate) clock: Clock,
    pub(crate) directory: Option<SessionId>,
    /// How many processes it has had.
    pub(crate) incarnations: u32,
    pub(crate) paused: bool,
    /// Its processes are routers.
    pub(crate) router: bool,
    /// Kind of its processes.
    pub(crate) part: LastNodeKind,
    pub(crate) process: Option<Arc<Process>>,
}

/// A process: the machine that ships, and what its driver has to remember.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) machine: Node,
    /// The number that its sessions and marks count up from.
    pub(crate) entropy: u128,
    pub(crate) wake: Option<Time>,
    pub(crate) waiting: Vec<UnansweredRequest>,
    pub(crate) stays: Vec<Activation>,
    pub(crate) leases: Vec<Lease>,
    /// Events in the order in which they came.
    pub(crate) inbox: VecDeque<PendingEvent>,
    /// What a router has beside its machine.
    pub(crate) desk: Option<RouterProcess>,
    /// What the machine hashes, once somebody has asked.
    pub(crate) toks: OnceLock<Vec<StateToken>>,
}

/// Store request of a process that is not answered yet.
#[derive(Clone, Debug)]
pub(crate) struct UnansweredRequest {
    pub(crate) op: OpId,
    pub(crate) key: Option<Key>,
    pub(crate) write: bool,
    pub(crate) until: Time,
    /// The mark of the write.
    pub(crate) nonce: Option<tenure_core::ids::Nonce>,
    /// It reads back a write of this mark, whose outcome was unknown.
    pub(crate) settles: Option<tenure_core::ids::Nonce>,
}

/// One stay of the shard at a process.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Activation {
    pub(crate) activation: ActivationId,
    pub(crate) epoch: Epoch,
    pub(crate) session: SessionId,
    pub(crate) loaded: bool,
    pub(crate) open: bool,
    pub(crate) closing: bool,
    /// The move for which its gate is shut, until nothing is in flight.
    pub(crate) frozen: Option<u64>,
}

/// The lease of one session, on its holder's clock.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Lease {
    pub(crate) session: SessionId,
    pub(crate) closes_at: Time,
    pub(crate) deadline: Time,
}

/// Event that waits for a machine to hear it.
#[derive(Clone, Debug, Hash)]
pub(crate) struct PendingEvent {
    pub(crate) event: Arc<Event>,
    /// It is heard at some time, or never.
    pub(crate) late: bool,
}

/// Request that has not reached the store yet.
#[derive(Clone, Debug)]
pub(crate) struct PendingStoreRequest {
    pub(crate) seat: usize,
    pub(crate) entropy: u128,
    pub(crate) op: OpId,
    pub(crate) request: Arc<Request>,
    /// It arrives at some time, or never.
    pub(crate) late: bool,
}

impl ModelNode {
    /// What its clock shows.
    pub(crate) fn time(&self, now: Instant) -> Time {
        self.clock.at(now)
    }

    /// Its process, if it runs.
    pub(crate) fn running(&self) -> Option<&Process> {
        self.process.as_deref().filter(|_| !self.paused)
    }
}

impl Process {
    pub(crate) fn lease(&self, session: SessionId) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.session == session)
    }

    /// Whether the gate of a stay admits work at this time.
    pub(crate) fn admits(&self, stay: &Activation, now: Time) -> bool {
        stay.open
            && self
                .lease(stay.session)
                .is_some_and(|lease| now < lease.closes_at)
    }

    fn toks(&self, revs: Revs) -> &[StateToken] {
        self.toks.get_or_init(|| {
            let mut all = Vec::new();
            toks(&self.machine.essence(), revs, &mut all);
            all
        })
    }

    /// Adds what the machine will find out about others' writing when it hears how far the store has come: whether anybody
    /// else has written since it last read everything, not how often.
    fn add_listing(&self, revision: u64, words: &mut Words) {
        let listing = self.machine.listing();
        let replies = || {
            self.inbox.iter().filter_map(|letter| match &*letter.event {
                Event::Reply { op, reply } if self.waits_for(*op) => Some(reply),
                _ => None,
            })
        };
        // Whether others have written after this, beside what the node has written and has not heard of.
        let others = |listed: u64, known: u64| {
            let unheard = replies()
                .filter(|reply| is_won_after(reply, listed))
                .count();
            let all = revision.saturating_sub(listed + known);
            u64::from(all > unheard as u64)
        };
        for reply in replies() {
            match reply {
                Reply::Won(_) => words.raw(u64::from(is_won_after(reply, listing.listed))),
                // What this will tell depends on which of its own writes it has heard of by then.
                Reply::Revision(Revision(told)) => {
                    let later = listing.last_writes.iter().filter(|n| *n > told).count() as u64;
                    let unheard = replies().filter(|reply| {
                        is_won_after(reply, listing.listed) && !is_won_after(reply, *told)
                    });
                    let own = listing.written.saturating_sub(later) + unheard.count() as u64;
                    words.raw(u64::from(*told > listing.listed + own));
                    if later > listing.written {
                        words.raw(later - listing.written);
                        words.raw(told.wrapping_sub(listing.listed));
                    }
                }
                Reply::Listed(listed) => words.raw(others(listed.revision.0, 0)),
                _ => {}
            }
        }
        if !listing.others_wrote {
            words.raw(others(listing.listed, listing.written));
        }
    }

    /// Puts an event into the inbox.
    pub(crate) fn post(&mut self, event: Event) {
        self.inbox.push_back(PendingEvent {
            event: Arc::new(event),
            late: false,
        });
    }

    pub(crate) fn waits_for(&self, op: OpId) -> bool {
        self.waiting.iter().any(|waiting| waiting.op == op)
    }

    /// Whether something is due by the clock.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        let router = self.desk.as_ref().and_then(RouterProcess::wake);
        self.wake.into_iter().chain(router).any(|at| at <= now)
            || self.waiting.iter().any(|w| w.until <= now)
    }
}

impl State {
    /// The process that sent a request, if it still waits for the answer.
    pub(crate) fn waiter(&self, sent: &PendingStoreRequest) -> Option<&Process> {
        self.seats[sent.seat]
            .process
            .as_deref()
            .filter(|p| p.entropy == sent.entropy && p.waits_for(sent.op))
    }

    /// One number for all states that are the same.
    pub(crate) fn print(&self) -> u64 {
        self.words().print(self.ghost.highest.0)
    }

    fn words(&self) -> Words {
        let routed = self.seats.iter().any(|seat| seat.router);
        let mut words = Words::new(if routed { Revs::Kept } else { Revs::LeftOut });
        for (n, seat) in self.seats.iter().enumerate() {
            let now = seat.time(self.now);
            words.raw(u64::from(seat.paused) << 1 | u64::from(seat.incarnations == 0));
            // Where the clock is on its way to the next tick that it gains or loses.
            words.raw(phase(seat.clock, self.now));
            words.add(&seat.directory);
            if let Some(process) = &seat.process {
                words.extend(process.toks(words.revs));
                process.add_listing(self.store.revision, &mut words);
                words.add(&process.wake);
                for waiting in &process.waiting {
                    words.add(&(waiting.op, waiting.until));
                }
                words.add(&process.stays);
                words.add(&process.leases);
                words.add_marks(&process.desk);
                for letter in &process.inbox {
                    words.add(letter);
                }
            }
            for sent in self.requests.iter().filter(|sent| sent.seat == n) {
                let heard = self.waiter(sent).map(|_| sent.op);
                words.add(&(heard, &sent.request, sent.late));
            }
            words.part(now.0, self.memory);
        }
        words.add(&self.store.keys);
        words.add(&self.store.revision);
        words.add(&self.left);
        words.add(&self.ghost);
        words.raw(u64::from(self.broken.is_some()));
        words
    }
}

/// Whether a write that was answered so is newer than this.
fn is_won_after(reply: &Reply, revision: u64) -> bool {
    matches!(reply, Reply::Won(Version::Number(n)) if *n > revision)
}

fn phase(clock: Clock, now: Instant) -> u64 {
    match clock.rate_ppm.unsigned_abs() {
        0 => 0,
        ppm => now * ppm % 1_000_000,
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.print());
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.print() == other.print()
    }
}
