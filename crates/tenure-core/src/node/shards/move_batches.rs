//! Groups shards that move to this node, so that they freeze at the same time.
//!
//! Every live router writes once for all shards that freeze together, so those of one plan should. A shard that is loaded
//! here waits for others while its owner serves on: no request is held for it yet. It costs a little at the end of the move,
//! where the application has to catch up with what the owner did meanwhile. So the wait has an end:
//!
//! | a loaded shard waits | at most |
//! |---|---|
//! | for records of the same plan that are on their way | [`TOGETHER`] after the first of the group was loaded |
//! | for shards that are loading here | as long as its own load took |
//! | for moves that the budgets of the plan do not allow yet (`more`) | [`FOR_MORE`], or as long as its own load took |
//!
//! Moves of the third kind are named in this node's session while they wait. The leader then no longer counts them against
//! its budgets and begins others, so the budgets limit how many shards load or change hands at a time, as without a group.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ids::ShardId;
use crate::keys::Key;
use crate::node::context::Ctx;
use crate::record::HeldByRouter;
use crate::time::Time;

use super::Shards;

/// Maximum wait of a loaded shard for records of the same plan that are not seen yet.
const TOGETHER: Duration = Duration::from_millis(50);
/// Minimum time that a loaded shard may wait for moves that the budgets do not allow yet.
const FOR_MORE: Duration = Duration::from_secs(2);
/// Maximum number of shards that freeze together: requests are held while the writes of all of them are in flight.
const MOST: usize = 256;

/// Shards that move to this node, from when they begin to load until they are its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::node) struct IncomingMoves {
    loading: BTreeSet<ShardId>,
    waiting: BTreeMap<ShardId, Waiting>,
    /// Time at which the first of the waiting shards was loaded.
    since: Option<Time>,
    /// From when on the session may say again which of them are loaded: a leader plans no more often.
    tell_from: Time,
    /// Shards that may freeze.
    released: BTreeSet<ShardId>,
}

/// A shard that is loaded and not yet to be frozen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    mv: u64,
    more: bool,
    until: Time,
}

impl Shards {
    /// A shard that moves here begins to load.
    pub(super) fn note_loading(&mut self, cx: &mut Ctx, id: &ShardId) {
        self.forget_move(cx, id);
        self.together.loading.insert(id.clone());
    }

    /// A shard that was moving here is this node's own, or its move is over.
    pub(super) fn forget_move(&mut self, cx: &mut Ctx, id: &ShardId) {
        let together = &mut self.together;
        together.released.remove(id);
        if together.waiting.remove(id).is_some() && together.waiting.is_empty() {
            together.since = None;
        }
        if together.loading.remove(id)
            && together.loading.is_empty()
            && let Some(first) = together.waiting.keys().next()
        {
            // Those that are loaded may have waited for this one.
            cx.changed.insert(Key::Shard(first.clone()));
        }
        if let Some(shards) = cx.held.get_mut(&id.keyspace) {
            shards.remove(&id.shard);
            if shards.is_empty() {
                cx.held.remove(&id.keyspace);
            }
        }
    }

    /// Returns `now` if a loaded shard may freeze, otherwise the time of the next check.
    ///
    /// `limit` is when its load would have failed.
    pub(super) fn freezes_at(
        &mut self,
        cx: &mut Ctx,
        id: &ShardId,
        mv: u64,
        more: bool,
        limit: Time,
    ) -> Time {
        if self.together.released.contains(id) || !cx.view.is_routed(&id.keyspace) {
            return cx.now;
        }
        let (now, timing) = (cx.now, &cx.config.timing);
        let step = (timing.ttl / 200).min(TOGETHER);
        let begun = limit - timing.load_timeout;
        let wait = match more {
            true => now.since(begun).max(FOR_MORE.min(timing.ttl)),
            false => now.since(begun).max(step),
        };
        // The owner calls a move off that takes longer than a load may.
        let until = (now + wait).min(begun + timing.load_timeout / 4 * 3);
        let together = &mut self.together;
        together.loading.remove(id);
        let since = *together.since.get_or_insert(now);
        let waiting = Waiting { mv, more, until };
        let waiting = together.waiting.entry(id.clone()).or_insert(waiting);
        waiting.more = more;
        let until = waiting.until;
        let (loads, full) = (!together.loading.is_empty(), together.waiting.len() >= MOST);
        let (ripe, tell_from) = (since + step, together.tell_from);
        if more && (!loads || now >= ripe) && now >= tell_from {
            together.tell_from = now + step;
            self.report_loaded(cx);
        }
        let complete = !loads && self.together.waiting.values().any(|w| !w.more);
        if full || now >= until || (complete && now >= ripe) {
            self.release_together(cx);
            return now;
        }
        let looks = [ripe, tell_from, until].into_iter();
        looks.filter(|at| now < *at).min().unwrap_or(until)
    }

    /// All that wait are frozen now.
    fn release_together(&mut self, cx: &mut Ctx) {
        self.together.since = None;
        for (id, _) in std::mem::take(&mut self.together.waiting) {
            cx.changed.insert(Key::Shard(id.clone()));
            self.together.released.insert(id);
        }
    }

    /// Says in the session which moves have loaded and wait for moves that are to come.
    fn report_loaded(&mut self, cx: &mut Ctx) {
        let mut held: HeldByRouter = cx.held.clone();
        for (id, waiting) in self.together.waiting.iter().filter(|(_, w)| w.more) {
            let shards = held.entry(id.keyspace.clone()).or_default();
            shards.insert(id.shard.clone(), waiting.mv);
        }
        cx.hold(held);
    }
}
