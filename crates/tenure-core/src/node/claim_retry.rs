//! Retries of claims for assigned shards that another live node still owns.
//!
//! The watch reports when such a shard becomes free. The retries are for stores whose watch is late or disabled. Within
//! `claim_retry_window`, records are read every `claim_retry_interval`. After that the node reports a warning once, and the next full
//! check comes sooner (A7). A shard that was not waited for before has a whole window, even if other shards have used theirs up. The
//! same holds for a shard that is claimable but was noticed by the watch while `claim_watch_enabled` is off.

use std::collections::BTreeMap;

use crate::ids::ShardId;
use crate::keys::Key;
use crate::rules::Mutant;
use crate::telemetry::NodeEvent;
use crate::time::Time;

use super::context::Ctx;
use super::timers::Timer;

/// Maximum number of records that one retry reads.
const READS_PER_RETRY: usize = 64;

/// Shards that this node waits for, and the current round of retries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ClaimRetries {
    waiting: BTreeMap<ShardId, Time>,
    /// End of the current round of retries; `None` between rounds.
    until: Option<Time>,
    next: usize,
}

impl ClaimRetries {
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&ShardId, Time)> {
        self.waiting.iter().map(|(id, since)| (id, *since))
    }
}

impl ClaimRetries {
    /// Returns `true` if an assigned shard is known to be owned by another node.
    pub(super) fn is_waiting_for(&self, id: &ShardId) -> bool {
        self.waiting.contains_key(id)
    }

    /// Returns `true` if this node waits for any shard.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Records whether another node owns an assigned shard.
    pub(super) fn wait_for(&mut self, cx: &mut Ctx, id: &ShardId, held_elsewhere: bool) {
        if !held_elsewhere {
            if self.waiting.remove(id).is_some() && self.waiting.is_empty() {
                *self = ClaimRetries::default();
                cx.timers.clear(&Timer::ClaimRetry);
            }
            return;
        }
        if self.waiting.contains_key(id) {
            return;
        }
        let first = self.waiting.is_empty();
        self.waiting.insert(id.clone(), cx.now);
        if first || !cx.config.rules.broken_by(Mutant::RetriesUsedUp) {
            self.begin_retries(cx);
        }
    }

    /// Begins a round of retries for a shard that only `claim_watch_enabled` keeps from being claimed.
    pub(super) fn claim_on_retry(&mut self, cx: &mut Ctx) {
        if !cx.config.rules.broken_by(Mutant::RetriesUsedUp) {
            self.begin_retries(cx);
        }
    }

    /// Begins a round of retries. A round in progress continues for a whole window from now.
    fn begin_retries(&mut self, cx: &mut Ctx) {
        let timing = &cx.config.timing;
        if timing.claim_retry_window.is_zero() || self.waiting.is_empty() {
            return;
        }
        let until = cx.now + timing.claim_retry_window;
        if self.until.replace(until).is_none() {
            cx.timers
                .set(Timer::ClaimRetry, cx.now + timing.claim_retry_interval);
        }
    }

    pub(super) fn retry_acquire(&mut self, cx: &mut Ctx) {
        let shards = self.waiting.len();
        let Some(until) = self.until.filter(|_| shards > 0) else {
            return;
        };
        if cx.now >= until {
            self.until = None;
            let sooner = cx.now + cx.config.timing.tick_interval / 4;
            cx.timers.set_sooner(Timer::Tick, sooner);
            return cx.note(NodeEvent::ClaimRetryExhausted { shards });
        }
        let from = self.next % shards;
        let some: Vec<_> = self
            .waiting
            .keys()
            .cycle()
            .skip(from)
            .take(shards.min(READS_PER_RETRY))
            .cloned()
            .collect();
        self.next = from + some.len();
        cx.note(NodeEvent::ClaimRetry { shards });
        for id in some {
            cx.read(Key::Shard(id));
        }
        cx.timers.set(
            Timer::ClaimRetry,
            (cx.now + cx.config.timing.claim_retry_interval).min(until),
        );
    }

    /// Begins a new round of retries at a periodic check, unless a round is in progress.
    pub(super) fn renew_retries(&mut self, cx: &mut Ctx) {
        if self.until.is_none() {
            self.begin_retries(cx);
        }
    }
}
