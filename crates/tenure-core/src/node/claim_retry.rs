//! Assigned shards that another live node still has: how often to look again.
//!
//! The watch tells when they come free. The retries are for stores whose watch is late or off: every
//! `claim_retry_interval` within `claim_retry_window`; when that is over, once a warning, and the next look at
//! everything comes sooner (A7). A shard that was not waited for before, or that could be had but for the setting that the watch
//! leads to no claims, has a whole window, whether or not others have used theirs up.

use std::collections::BTreeMap;

use crate::ids::ShardId;
use crate::keys::Key;
use crate::rules::Mutant;
use crate::telemetry::NodeEvent;
use crate::time::Time;

use super::Node;
use super::timers::Timer;

/// How many records one retry reads at most.
const READS_PER_RETRY: usize = 64;

/// The shards that are waited for, and the round of retries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Acquire {
    waiting: BTreeMap<ShardId, Time>,
    /// When the current round of retries ends; `None` between rounds.
    until: Option<Time>,
    next: usize,
}

impl Acquire {
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&ShardId, Time)> {
        self.waiting.iter().map(|(id, since)| (id, *since))
    }
}

impl Node {
    /// Whether an assigned shard is known to be held elsewhere.
    pub(super) fn is_waiting_for(&self, id: &ShardId) -> bool {
        self.assignment.acquire.waiting.contains_key(id)
    }

    /// Whether any is.
    pub(super) fn is_waiting(&self) -> bool {
        !self.assignment.acquire.waiting.is_empty()
    }

    /// Notes whether an assigned shard is held elsewhere.
    pub(super) fn wait_for(&mut self, id: &ShardId, held_elsewhere: bool) {
        if !held_elsewhere {
            if self.assignment.acquire.waiting.remove(id).is_some()
                && self.assignment.acquire.waiting.is_empty()
            {
                self.assignment.acquire = Acquire::default();
                self.ctx.timers.clear(&Timer::Acquire);
            }
            return;
        }
        if self.assignment.acquire.waiting.contains_key(id) {
            return;
        }
        let first = self.assignment.acquire.waiting.is_empty();
        self.assignment
            .acquire
            .waiting
            .insert(id.clone(), self.ctx.now);
        if first || !self.ctx.config.rules.broken_by(Mutant::RetriesUsedUp) {
            self.begin_retries();
        }
    }

    /// Begins a round of retries for a shard that only the setting of the watch keeps from being claimed.
    pub(super) fn claim_on_retry(&mut self) {
        if !self.ctx.config.rules.broken_by(Mutant::RetriesUsedUp) {
            self.begin_retries();
        }
    }

    /// Begins a round of retries; one that is under way goes on for a whole window from now.
    fn begin_retries(&mut self) {
        let timing = &self.ctx.config.timing;
        if timing.claim_retry_window.is_zero() || self.assignment.acquire.waiting.is_empty() {
            return;
        }
        let until = self.ctx.now + timing.claim_retry_window;
        if self.assignment.acquire.until.replace(until).is_none() {
            self.ctx
                .timers
                .set(Timer::Acquire, self.ctx.now + timing.claim_retry_interval);
        }
    }

    pub(super) fn retry_acquire(&mut self) {
        let shards = self.assignment.acquire.waiting.len();
        let Some(until) = self.assignment.acquire.until.filter(|_| shards > 0) else {
            return;
        };
        if self.ctx.now >= until {
            self.assignment.acquire.until = None;
            let sooner = self.ctx.now + self.ctx.config.timing.tick_interval / 4;
            self.ctx.timers.set_sooner(Timer::Tick, sooner);
            return self.ctx.note(NodeEvent::ClaimRetryExhausted { shards });
        }
        let from = self.assignment.acquire.next % shards;
        let some: Vec<_> = self
            .assignment
            .acquire
            .waiting
            .keys()
            .cycle()
            .skip(from)
            .take(shards.min(READS_PER_RETRY))
            .cloned()
            .collect();
        self.assignment.acquire.next = from + some.len();
        self.ctx.note(NodeEvent::ClaimRetry { shards });
        for id in some {
            self.ctx.read(Key::Shard(id));
        }
        self.ctx.timers.set(
            Timer::Acquire,
            (self.ctx.now + self.ctx.config.timing.claim_retry_interval).min(until),
        );
    }

    /// A look at everything begins a new round.
    pub(super) fn renew_retries(&mut self) {
        if self.assignment.acquire.until.is_none() {
            self.begin_retries();
        }
    }
}
