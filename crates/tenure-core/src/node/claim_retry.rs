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

use super::context::Ctx;
use super::timers::Timer;

/// How many records one retry reads at most.
const READS_PER_RETRY: usize = 64;

/// The shards that are waited for, and the round of retries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ClaimRetries {
    waiting: BTreeMap<ShardId, Time>,
    /// When the current round of retries ends; `None` between rounds.
    until: Option<Time>,
    next: usize,
}

impl ClaimRetries {
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&ShardId, Time)> {
        self.waiting.iter().map(|(id, since)| (id, *since))
    }
}

impl ClaimRetries {
    /// Whether an assigned shard is known to be held elsewhere.
    pub(super) fn is_waiting_for(&self, id: &ShardId) -> bool {
        self.waiting.contains_key(id)
    }

    /// Whether any is.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Notes whether an assigned shard is held elsewhere.
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

    /// Begins a round of retries for a shard that only the setting of the watch keeps from being claimed.
    pub(super) fn claim_on_retry(&mut self, cx: &mut Ctx) {
        if !cx.config.rules.broken_by(Mutant::RetriesUsedUp) {
            self.begin_retries(cx);
        }
    }

    /// Begins a round of retries; one that is under way goes on for a whole window from now.
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

    /// A look at everything begins a new round.
    pub(super) fn renew_retries(&mut self, cx: &mut Ctx) {
        if self.until.is_none() {
            self.begin_retries(cx);
        }
    }
}
