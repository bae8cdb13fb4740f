//! The gate in front of every unit of work for one stay of a shard.
//!
//! One word holds both the count of what is in flight and whether the gate is open, so that *count first, then check* is
//! one atomic instruction: whoever enters is counted before it can see the gate open, and whoever closes sees everybody
//! that may still be inside. The lease's end needs nobody to act: every entry compares the clock itself (P1).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_core::gate::admits;
use tenure_core::time::Time;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

const CLOSED: u64 = 1 << 63;
const OPEN: u64 = 1 << 62;
const FROZEN: u64 = 1 << 61;
const COUNT: u64 = FROZEN - 1;

/// Until when one session's gates admit work. Each session has its own cell: an old one is never extended by a new one.
#[derive(Debug, Default)]
pub struct LeaseCell {
    closes_at: AtomicU64,
    deadline: AtomicU64,
    extended: Notify,
}

impl LeaseCell {
    /// A lease that admits nothing yet.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Moves both times forward; never back.
    pub fn extend(&self, closes_at: Time, deadline: Time) {
        self.deadline.fetch_max(deadline.0, Ordering::AcqRel);
        self.closes_at.fetch_max(closes_at.0, Ordering::AcqRel);
        self.extended.notify_waiters();
    }

    /// Waits until the deadline is later than `known`.
    pub async fn beyond(&self, known: Time) {
        loop {
            // Listens before it looks, so that nothing that happens in between is missed.
            let mut extended = pin!(self.extended.notified());
            extended.as_mut().enable();
            if self.deadline() > known {
                return;
            }
            extended.await;
        }
    }

    /// When gates close by themselves.
    #[inline]
    pub fn closes_at(&self) -> Time {
        // An older value than the newest is an earlier time: to read one is safe.
        Time(self.closes_at.load(Ordering::Acquire))
    }

    /// When others may take over.
    pub fn deadline(&self) -> Time {
        Time(self.deadline.load(Ordering::Acquire))
    }
}

/// Why a gate let nobody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateRejection {
    /// It was not opened yet.
    NotOpen,
    /// It is shut for a move that may be called off.
    Frozen,
    /// It was closed, for good.
    Closed,
    /// The lease's time is over.
    OutOfTime,
}

/// A gate: opened once, closed once. In between it may be shut for a while, for a move.
#[derive(Debug)]
pub struct Gate {
    state: AtomicU64,
    lease: Arc<LeaseCell>,
    clock: Clock,
    drained: CancellationToken,
    emptied: Notify,
}

impl Gate {
    /// A gate that is not open yet.
    pub fn new(clock: Clock, lease: Arc<LeaseCell>) -> Self {
        Self {
            state: AtomicU64::new(0),
            lease,
            clock,
            drained: CancellationToken::new(),
            emptied: Notify::new(),
        }
    }

    /// The lease that bounds it.
    pub fn lease(&self) -> &LeaseCell {
        &self.lease
    }

    /// Lets work in from now on, unless it was closed before.
    pub fn open(&self) {
        self.state.fetch_or(OPEN, Ordering::AcqRel);
    }

    /// Lets nobody in any more.
    pub fn close(&self) {
        let before = self.state.fetch_or(CLOSED, Ordering::AcqRel);
        if before & COUNT == 0 {
            self.drained.cancel();
        }
    }

    /// Lets nobody in for now.
    pub fn freeze(&self) {
        self.state.fetch_or(FROZEN, Ordering::AcqRel);
    }

    /// Lets work in again.
    pub fn thaw(&self) {
        self.state.fetch_and(!FROZEN, Ordering::AcqRel);
    }

    /// Waits until the gate is shut, for now or for good, and nothing is in flight.
    pub async fn empty(&self) {
        loop {
            // Listens before it looks, so that nothing that happens in between is missed.
            let mut emptied = pin!(self.emptied.notified());
            emptied.as_mut().enable();
            let state = self.state.load(Ordering::Acquire);
            if state & (FROZEN | CLOSED) != 0 && state & COUNT == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Whether it would let work in now.
    pub fn is_open(&self) -> bool {
        shut(self.state.load(Ordering::Acquire)).is_none() && self.in_time()
    }

    /// Whether it was closed by [`Gate::close`].
    pub fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Whether the lease still has time.
    #[inline]
    pub fn in_time(&self) -> bool {
        admits(true, self.clock.now(), self.lease.closes_at())
    }

    /// How many are inside, and how many are just being turned away.
    pub fn in_flight(&self) -> u64 {
        self.state.load(Ordering::Acquire) & COUNT
    }

    /// Enters, for as long as the pass lives.
    #[inline]
    pub fn enter(&self) -> Result<GatePass<'_>, GateRejection> {
        self.count_in().map(|()| GatePass(self))
    }

    /// Enters; whoever is let in must call [`Gate::count_out`] once.
    #[inline]
    pub(crate) fn count_in(&self) -> Result<(), GateRejection> {
        let before = self.state.fetch_add(1, Ordering::AcqRel);
        let refused = match shut(before) {
            None if self.in_time() => return Ok(()),
            None => GateRejection::OutOfTime,
            Some(shut) => shut,
        };
        self.count_out();
        Err(refused)
    }

    #[inline]
    pub(crate) fn count_out(&self) {
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        if before & COUNT == 1 && before & (CLOSED | FROZEN) != 0 {
            self.emptied.notify_waiters();
            if before & CLOSED != 0 {
                self.drained.cancel();
            }
        }
    }

    /// Waits until the gate is closed and nothing is in flight.
    pub async fn drained(&self) {
        self.drained.cancelled().await;
    }
}

#[inline]
fn shut(state: u64) -> Option<GateRejection> {
    match state & (CLOSED | OPEN | FROZEN) {
        OPEN => None,
        0 | FROZEN => Some(GateRejection::NotOpen),
        frozen if frozen & CLOSED == 0 => Some(GateRejection::Frozen),
        _ => Some(GateRejection::Closed),
    }
}

/// One unit of work inside a gate.
#[derive(Debug)]
pub struct GatePass<'a>(&'a Gate);

impl Drop for GatePass<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.count_out();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;

    fn gate() -> Gate {
        let (clock, lease) = (Clock::boot(), LeaseCell::new());
        let now = clock.now();
        lease.extend(now + Duration::from_secs(60), now + Duration::from_secs(90));
        Gate::new(clock, lease)
    }

    #[test]
    fn a_gate_admits_between_open_and_close_alone() {
        let gate = gate();
        assert_eq!(gate.enter().unwrap_err(), GateRejection::NotOpen);
        gate.open();
        assert!(gate.is_open());
        drop(gate.enter().unwrap());
        gate.close();
        assert_eq!(gate.enter().unwrap_err(), GateRejection::Closed);
        gate.open();
        assert_eq!(gate.enter().unwrap_err(), GateRejection::Closed);
        assert_eq!(gate.in_flight(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_gate_closes_by_the_clock_although_nobody_acts() {
        let (clock, lease) = (Clock::runtime(), LeaseCell::new());
        let now = clock.now();
        lease.extend(now + Duration::from_secs(2), now + Duration::from_secs(3));
        let gate = Gate::new(clock.clone(), lease.clone());
        gate.open();
        drop(gate.enter().unwrap());
        tokio::time::advance(Duration::from_millis(1999)).await;
        drop(gate.enter().unwrap());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(gate.enter().unwrap_err(), GateRejection::OutOfTime);
        let now = clock.now();
        lease.extend(now + Duration::from_secs(1), now + Duration::from_secs(2));
        drop(gate.enter().unwrap());
    }

    #[test]
    fn a_lease_cell_never_goes_back() {
        let lease = LeaseCell::new();
        lease.extend(Time(20), Time(30));
        lease.extend(Time(10), Time(15));
        assert_eq!((lease.closes_at(), lease.deadline()), (Time(20), Time(30)));
    }

    #[tokio::test]
    async fn whoever_waits_for_a_longer_lease_hears_of_it() {
        let lease = LeaseCell::new();
        lease.extend(Time(20), Time(30));
        lease.beyond(Time(29)).await;
        let waiting = tokio::spawn({
            let lease = lease.clone();
            async move {
                lease.beyond(Time(30)).await;
                lease.closes_at()
            }
        });
        tokio::task::yield_now().await;
        lease.extend(Time(21), Time(31));
        assert_eq!(waiting.await.unwrap(), Time(21));
    }

    #[tokio::test]
    async fn the_last_to_leave_a_closed_gate_reports_it_drained() {
        let gate = gate();
        gate.open();
        let (a, b) = (gate.enter().unwrap(), gate.enter().unwrap());
        gate.close();
        drop(a);
        assert!(!gate.drained.is_cancelled());
        drop(b);
        gate.drained().await;
    }

    #[test]
    fn nobody_is_inside_once_a_closed_gate_has_drained() {
        const THREADS: usize = 8;
        for _ in 0..300 {
            let gate = gate();
            // What every admitted thread touches, and what nobody may touch after the gate has drained.
            let inside = AtomicU64::new(0);
            let over = AtomicBool::new(false);
            gate.open();
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        while let Ok(_pass) = gate.enter() {
                            inside.fetch_add(1, Ordering::SeqCst);
                            assert!(!over.load(Ordering::SeqCst), "admitted after the drain");
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    });
                }
                gate.close();
                while !gate.drained.is_cancelled() {
                    std::hint::spin_loop();
                }
                over.store(true, Ordering::SeqCst);
                assert_eq!(inside.load(Ordering::SeqCst), 0);
            });
        }
    }
}
