//! What a request reads of one shard: one cache line of atomics.
//!
//! The word counts what is in flight and says whether to hold, so that *count first, then check* is one instruction: whoever
//! passes is counted before it can see that nothing is held, and whoever waits for the drain sees everybody that passed. It
//! also numbers the arrivals, so that a request that comes back refused finds its place among those that came after it.
//!
//! Owner, epoch and rev are read together: they stand in two copies of which a number selects one, and only the other is
//! written. A reader never waits for a writer, even one that was stopped halfway; it reads again only if the shard changed
//! twice meanwhile.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use tenure_core::ids::Epoch;
use tenure_core::router::RecordVersion;
use tenure_core::router::hold_queue::{ArrivalNo, FlightCounter};
use tokio::sync::oneshot;

use super::transport::{DrainedReport, ProbeReport};

const HOLD: u64 = 1 << 23;
const COUNT: u64 = HOLD - 1;
const ARRIVAL: u64 = 1 << 24;
/// Set where nobody owns the shard any more.
const FREE: u64 = 1 << 32;

/// Snapshot of the owner of a shard, read from the atomics in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnerSnapshot {
    /// The number of its owner, or of its last one; nothing if it never had any.
    pub(super) peer: Option<usize>,
    /// Whether nobody owns it now.
    pub(super) free: bool,
    pub(super) mark: RecordVersion,
}

/// One shard.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct AtomicEntry {
    word: AtomicU64,
    number: AtomicU64,
    copies: [[AtomicU64; 3]; 2],
}

impl Default for AtomicEntry {
    fn default() -> Self {
        Self {
            word: AtomicU64::new(HOLD),
            number: AtomicU64::new(0),
            copies: Default::default(),
        }
    }
}

impl AtomicEntry {
    /// Counts a request in and numbers it; says whether it passes.
    #[inline]
    pub(super) fn arrive(&self) -> (ArrivalNo, bool) {
        let before = self.word.fetch_add(ARRIVAL | 1, Ordering::AcqRel);
        (ArrivalNo::new(before / ARRIVAL), before & HOLD == 0)
    }

    /// Counts a request out; says whether somebody may be waiting for it to be the last.
    #[inline]
    pub(super) fn count_out(&self) -> bool {
        let before = self.word.fetch_sub(1, Ordering::AcqRel);
        before & COUNT == 1 && before & HOLD != 0
    }

    /// Whether what comes is held.
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.word.load(Ordering::Acquire) & HOLD != 0
    }

    /// What the records say.
    #[inline]
    pub(super) fn read(&self) -> OwnerSnapshot {
        loop {
            let number = self.number.load(Ordering::Acquire);
            let copy = &self.copies[(number & 1) as usize];
            let [peer, epoch, rev] = [0, 1, 2].map(|i| copy[i].load(Ordering::Relaxed));
            // Pairs with the fence in `write`: whoever sees a word of a later value also sees that the number has moved on.
            fence(Ordering::Acquire);
            if self.number.load(Ordering::Relaxed) == number {
                return OwnerSnapshot {
                    peer: ((peer & (FREE - 1)) as usize).checked_sub(1),
                    free: peer & FREE != 0,
                    mark: RecordVersion {
                        epoch: Epoch(epoch),
                        rev,
                    },
                };
            }
        }
    }

    /// Replaces what the records say. There is one writer.
    pub(super) fn write(&self, entry: OwnerSnapshot) {
        let next = self.number.load(Ordering::Relaxed).wrapping_add(1);
        let copy = &self.copies[(next & 1) as usize];
        fence(Ordering::Release);
        let free = if entry.free { FREE } else { 0 };
        let peer = entry.peer.map_or(0, |peer| peer as u64 + 1);
        copy[0].store(peer | free, Ordering::Relaxed);
        copy[1].store(entry.mark.epoch.0, Ordering::Relaxed);
        copy[2].store(entry.mark.rev, Ordering::Relaxed);
        self.number.store(next, Ordering::Release);
    }
}

impl FlightCounter for AtomicEntry {
    type Waiter = oneshot::Sender<Option<ProbeReport>>;
    type Drained = DrainedReport;
    type Trial = ProbeReport;

    fn count_in(&self) {
        self.word.fetch_add(1, Ordering::AcqRel);
    }

    fn hold(&self) {
        self.word.fetch_or(HOLD, Ordering::AcqRel);
    }

    fn open(&self) {
        self.word.fetch_and(!HOLD, Ordering::AcqRel);
    }

    fn in_flight(&self) -> u64 {
        self.word.load(Ordering::Acquire) & COUNT
    }

    fn go(&self, waiter: Self::Waiter, trial: Option<ProbeReport>) {
        // One that is just giving up finds that it was told to go, and says that it is over.
        let _ = waiter.send(trial);
    }

    fn drained(&self, drained: DrainedReport) {
        drained.report();
    }

    fn untried(&self, trial: ProbeReport) {
        trial.answered();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn entry(n: u64) -> OwnerSnapshot {
        OwnerSnapshot {
            peer: Some(n as usize),
            free: n.is_multiple_of(2),
            mark: RecordVersion {
                epoch: Epoch(n),
                rev: n,
            },
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let slot = AtomicEntry::default();
        let nothing = OwnerSnapshot {
            peer: None,
            free: false,
            mark: RecordVersion::default(),
        };
        assert_eq!(slot.read(), nothing);
        for n in 0..5 {
            slot.write(entry(n));
            assert_eq!(slot.read(), entry(n));
        }
        assert_eq!(size_of::<AtomicEntry>(), 64);
    }

    #[test]
    fn a_reader_sees_values_that_belong_together() {
        let (slot, over) = (AtomicEntry::default(), AtomicBool::new(false));
        slot.write(entry(1));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let seen = slot.read();
                        assert_eq!(seen, entry(seen.mark.rev));
                    }
                });
            }
            (2..300_000).for_each(|n| slot.write(entry(n)));
            over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_slot_starts_held_and_the_last_to_leave_a_held_one_says_so() {
        let slot = AtomicEntry::default();
        let (first, passed) = slot.arrive();
        assert!(!passed && slot.is_held());
        assert!(slot.count_out());
        slot.open();
        let (second, passed) = slot.arrive();
        let (third, _) = slot.arrive();
        assert!(passed && first.is_before(second) && second.is_before(third));
        assert!(!third.is_before(second) && !second.is_before(second));
        slot.hold();
        assert_eq!(slot.in_flight(), 2);
        assert!(!slot.count_out());
        assert!(slot.count_out());
    }

    #[test]
    fn tickets_keep_their_order_where_the_circle_closes() {
        let slot = AtomicEntry::default();
        slot.word.store(u64::MAX - COUNT - HOLD, Ordering::Relaxed);
        let (last, passed) = slot.arrive();
        let (first, _) = slot.arrive();
        assert!(passed && last.is_before(first) && !first.is_before(last));
        assert_eq!(slot.in_flight(), 2);
        assert!(!slot.is_held());
    }
}
