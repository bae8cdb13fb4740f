//! Wake-up times of a node: at most one per purpose.
//!
//! Nearly every step sets one or two of them, so each kind has a cheap representation. Kinds with a single timer share an array. Timers
//! per session are in a list, which is short. Timers per shard are ordered by time.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{SessionId, ShardId};
use crate::time::Time;

/// Purpose of a wake-up. Timers that are due at the same time fire in the order of these variants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Timer {
    /// Continues the start of the node.
    Boot,
    /// Renews the session, or retries a failed renewal.
    Renew,
    /// Changes the phase of the lease as time passes.
    Lease,
    /// Checks for the expiry of a session.
    SessionExpiry(SessionId),
    /// Evaluates one shard again.
    Shard(ShardId),
    /// Starts the periodic check of all state.
    Tick,
    /// Rebalances, because the members have not changed for `assignment_settle_time`.
    Rebalance,
    /// Reads shards again that another node owns.
    ClaimRetry,
    /// Reads keys again that seem to be missing.
    Absent,
    /// Restores records that were lost.
    Restore,
    /// Tries to become the leader.
    Election,
    /// Plans as the leader.
    Plan,
    /// Ends a stop at its time limit, finished or not.
    Stop,
    /// Continues a scan of all shards.
    Scan,
    /// Checks the liveness of other nodes, and the requests in the node's own record.
    OwnRecord,
    /// Ends a pause of planned moves.
    PauseEnd,
}

/// Number of timer kinds.
const KINDS: usize = 16;
const EXPIRY: usize = 3;
const SHARD: usize = 4;

impl Timer {
    fn kind(&self) -> usize {
        match self {
            Self::Boot => 0,
            Self::Renew => 1,
            Self::Lease => 2,
            Self::SessionExpiry(_) => EXPIRY,
            Self::Shard(_) => SHARD,
            Self::Tick => 5,
            Self::Rebalance => 6,
            Self::ClaimRetry => 7,
            Self::Absent => 8,
            Self::Restore => 9,
            Self::Election => 10,
            Self::Plan => 11,
            Self::Stop => 12,
            Self::Scan => 13,
            Self::OwnRecord => 14,
            Self::PauseEnd => 15,
        }
    }
}

/// Timers of one kind with one time per key, ordered by time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Each<K: Ord> {
    at: BTreeMap<K, Time>,
    order: BTreeSet<(Time, K)>,
}

impl<K: Ord> Default for Each<K> {
    fn default() -> Self {
        Self {
            at: BTreeMap::new(),
            order: BTreeSet::new(),
        }
    }
}

impl<K: Ord + Clone> Each<K> {
    fn set(&mut self, key: K, at: Time) {
        match self.at.get_mut(&key) {
            Some(old) if *old == at => return,
            Some(old) => {
                let old = std::mem::replace(old, at);
                self.order.remove(&(old, key.clone()));
            }
            None => {
                self.at.insert(key.clone(), at);
            }
        }
        self.order.insert((at, key));
    }

    fn clear(&mut self, key: &K) {
        if let Some(old) = self.at.remove(key) {
            self.order.remove(&(old, key.clone()));
        }
    }

    fn first(&self) -> Time {
        self.order.first().map_or(Time::NEVER, |(at, _)| *at)
    }

    fn take_first(&mut self) -> Option<K> {
        let (_, key) = self.order.pop_first()?;
        self.at.remove(&key);
        Some(key)
    }
}

/// Timers of one kind for few keys whose times change often.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Few<K> {
    /// Entries in order of their keys.
    at: Vec<(K, Time)>,
}

impl<K> Default for Few<K> {
    fn default() -> Self {
        Self { at: Vec::new() }
    }
}

impl<K: Ord + Copy> Few<K> {
    fn find(&self, key: K) -> Result<usize, usize> {
        self.at.binary_search_by_key(&key, |(known, _)| *known)
    }

    fn get(&self, key: K) -> Option<Time> {
        self.find(key).ok().map(|place| self.at[place].1)
    }

    fn set(&mut self, key: K, at: Time) {
        match self.find(key) {
            Ok(place) => self.at[place].1 = at,
            Err(place) => self.at.insert(place, (key, at)),
        }
    }

    fn clear(&mut self, key: K) {
        if let Ok(place) = self.find(key) {
            self.at.remove(place);
        }
    }

    fn first(&self) -> Time {
        let times = self.at.iter().map(|(_, at)| *at);
        times.min().unwrap_or(Time::NEVER)
    }

    /// Removes the earliest timer; of equal times, the first in order of the keys.
    fn take_first(&mut self) -> Option<K> {
        let first = self.first();
        let place = self.at.iter().position(|(_, at)| *at == first)?;
        Some(self.at.remove(place).0)
    }
}

/// Wake-up times by purpose.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Timers {
    /// Earliest time of each kind; [`Time::NEVER`] if there is none.
    kinds: [Time; KINDS],
    /// Kind of the earliest time; of equal times, the first kind. Cached because every step reads it several times.
    first: usize,
    sessions: Few<SessionId>,
    shards: Each<ShardId>,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            kinds: [Time::NEVER; KINDS],
            first: 0,
            sessions: Few::default(),
            shards: Each::default(),
        }
    }
}

impl Timers {
    /// Sets the only wake-up time for this purpose. [`Time::NEVER`] clears it.
    pub(super) fn set(&mut self, timer: Timer, at: Time) {
        if at == Time::NEVER {
            return self.clear(&timer);
        }
        match timer {
            Timer::SessionExpiry(id) => {
                self.sessions.set(id, at);
                self.put(EXPIRY, self.sessions.first());
            }
            Timer::Shard(id) => {
                self.shards.set(id, at);
                self.put(SHARD, self.shards.first());
            }
            single => self.put(single.kind(), at),
        }
    }

    /// Sets the wake-up time for this purpose unless an earlier one is set.
    pub(super) fn set_sooner(&mut self, timer: Timer, at: Time) {
        let old = match &timer {
            Timer::SessionExpiry(id) => self.sessions.get(*id),
            Timer::Shard(id) => self.shards.at.get(id).copied(),
            single => Some(self.kinds[single.kind()]),
        };
        if old.is_none_or(|old| old > at) {
            self.set(timer, at);
        }
    }

    /// Removes the wake-up time for this purpose.
    pub(super) fn clear(&mut self, timer: &Timer) {
        match timer {
            Timer::SessionExpiry(id) => {
                self.sessions.clear(*id);
                self.put(EXPIRY, self.sessions.first());
            }
            Timer::Shard(id) => {
                self.shards.clear(id);
                self.put(SHARD, self.shards.first());
            }
            single => self.put(single.kind(), Time::NEVER),
        }
    }

    fn put(&mut self, kind: usize, at: Time) {
        let before = std::mem::replace(&mut self.kinds[kind], at);
        if at == before {
            return;
        }
        let first = (self.kinds[self.first], self.first);
        if kind == self.first {
            if at > before {
                self.first = self.find_first();
            }
        } else if (at, kind) < first {
            self.first = kind;
        }
    }

    /// Removes the wake-up time for a shard, at less cost than [`Self::clear`].
    pub(super) fn clear_shard(&mut self, id: &ShardId) {
        if !self.shards.at.is_empty() {
            self.shards.clear(id);
            self.put(SHARD, self.shards.first());
        }
    }

    /// Returns `true` if a wake-up time is set for this shard.
    pub(super) fn has_shard(&self, id: &ShardId) -> bool {
        !self.shards.at.is_empty() && self.shards.at.contains_key(id)
    }

    /// Removes and returns the first purpose that is due.
    pub(super) fn due(&mut self, now: Time) -> Option<Timer> {
        let (kind, at) = (self.first, self.kinds[self.first]);
        if at > now || at == Time::NEVER {
            return None;
        }
        let timer = match kind {
            0 => Timer::Boot,
            1 => Timer::Renew,
            2 => Timer::Lease,
            EXPIRY => Timer::SessionExpiry(self.sessions.take_first()?),
            SHARD => Timer::Shard(self.shards.take_first()?),
            5 => Timer::Tick,
            6 => Timer::Rebalance,
            7 => Timer::ClaimRetry,
            8 => Timer::Absent,
            9 => Timer::Restore,
            10 => Timer::Election,
            11 => Timer::Plan,
            12 => Timer::Stop,
            13 => Timer::Scan,
            14 => Timer::OwnRecord,
            _ => Timer::PauseEnd,
        };
        let next = match kind {
            EXPIRY => self.sessions.first(),
            SHARD => self.shards.first(),
            _ => Time::NEVER,
        };
        self.put(kind, next);
        Some(timer)
    }

    /// Returns the earliest wake-up time.
    pub(super) fn next(&self) -> Option<Time> {
        let at = self.kinds[self.first];
        (at != Time::NEVER).then_some(at)
    }

    fn find_first(&self) -> usize {
        let mut first = 0;
        for (kind, at) in self.kinds.iter().enumerate() {
            if *at < self.kinds[first] {
                first = kind;
            }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(name: &str) -> ShardId {
        format!("k/{name}").parse().unwrap()
    }

    #[test]
    fn what_is_due_comes_in_order_of_time_and_then_of_purpose() {
        let mut timers = Timers::default();
        timers.set(Timer::Tick, Time(5));
        timers.set(Timer::Shard(shard("b")), Time(5));
        timers.set(Timer::Shard(shard("a")), Time(5));
        timers.set(Timer::SessionExpiry(SessionId(1)), Time(5));
        timers.set(Timer::SessionExpiry(SessionId(2)), Time(4));
        timers.set(Timer::Renew, Time(6));
        assert_eq!(timers.next(), Some(Time(4)));
        let due: Vec<_> = std::iter::from_fn(|| timers.due(Time(5))).collect();
        let expected = [
            Timer::SessionExpiry(SessionId(2)),
            Timer::SessionExpiry(SessionId(1)),
            Timer::Shard(shard("a")),
            Timer::Shard(shard("b")),
            Timer::Tick,
        ];
        assert_eq!(due, expected);
        assert_eq!(timers.next(), Some(Time(6)));
    }

    #[test]
    fn a_purpose_has_one_time() {
        let mut timers = Timers::default();
        timers.set(Timer::Shard(shard("a")), Time(5));
        timers.set(Timer::Shard(shard("a")), Time(9));
        assert_eq!(timers.next(), Some(Time(9)));
        timers.set_sooner(Timer::Shard(shard("a")), Time(10));
        assert_eq!(timers.next(), Some(Time(9)));
        timers.set_sooner(Timer::Shard(shard("a")), Time(7));
        assert_eq!(timers.next(), Some(Time(7)));
        timers.clear(&Timer::Shard(shard("a")));
        assert_eq!(timers, Timers::default());
    }
}
