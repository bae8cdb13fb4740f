//! Times at which a node wants to be woken: at most one per purpose.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{SessionId, ShardId};
use crate::time::Time;

/// What a node wants to be woken for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Go on with the start.
    Boot,
    /// Renew the session.
    Renew,
    /// The lease changes phase by the clock.
    Lease,
    /// Look whether a session is over.
    Judge(SessionId),
    /// Look at a shard.
    Stay(ShardId),
    /// Look at everything.
    Tick,
    /// The set of members has been the same for long enough.
    Rebalance,
    /// Look again at shards that are held elsewhere.
    Acquire,
    /// Ask again about keys that seem to be missing.
    Absent,
    /// Make lost records anew.
    Restore,
    /// Stand for leader.
    Lead,
    /// Plan for the others.
    Plan,
    /// Stop, finished or not.
    Stop,
}

/// The times, by purpose and in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Timers {
    at: BTreeMap<Timer, Time>,
    order: BTreeSet<(Time, Timer)>,
}

impl Timers {
    /// Wakes for this purpose at this time, and at no other.
    pub(super) fn set(&mut self, timer: Timer, at: Time) {
        if let Some(old) = self.at.insert(timer.clone(), at) {
            if old == at {
                return;
            }
            self.order.remove(&(old, timer.clone()));
        }
        self.order.insert((at, timer));
    }

    /// Wakes for this purpose at this time if it would not be woken earlier.
    pub(super) fn set_sooner(&mut self, timer: Timer, at: Time) {
        if self.at.get(&timer).is_none_or(|old| *old > at) {
            self.set(timer, at);
        }
    }

    /// Does not wake for this purpose.
    pub(super) fn clear(&mut self, timer: &Timer) {
        if let Some(old) = self.at.remove(timer) {
            self.order.remove(&(old, timer.clone()));
        }
    }

    /// The next purpose whose time has come.
    pub(super) fn due(&mut self, now: Time) -> Option<Timer> {
        let (at, timer) = self.order.first()?;
        if *at > now {
            return None;
        }
        let timer = timer.clone();
        self.clear(&timer);
        Some(timer)
    }

    /// The earliest time.
    pub(super) fn next(&self) -> Option<Time> {
        self.order.first().map(|(at, _)| *at)
    }
}
