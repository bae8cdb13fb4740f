//! Groups shards that move to this node, so that they freeze at the same time.
//!
//! Every live router writes once for all shards that freeze together, so the shards of one plan should freeze together. A loaded shard
//! waits for others while its owner continues to serve: no router holds requests for it yet. The wait makes the catch-up at the end of the
//! move a little longer, because the owner does more in the meantime. So the wait is bounded:
//!
//! | a loaded shard waits | at most |
//! |---|---|
//! | for records of the same plan that have not arrived yet | [`TOGETHER`] after the first of the group was loaded |
//! | for shards that are loading here | as long as its own load took |
//! | for moves that the budgets of the plan do not allow yet (`more`) | [`FOR_MORE`], or as long as its own load took |
//!
//! The session record of this node names moves of the third kind while they wait. The leader then stops counting them against its budgets
//! and starts other moves. So the budgets limit the shards that load or change owners at a time, as without a group.

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
/// Maximum number of shards that freeze together: routers hold requests until the writes of all of them are done.
const MOST: usize = 256;

/// Shards that move to this node, from the start of their load until this node owns them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::node) struct IncomingMoves {
    loading: BTreeSet<ShardId>,
    waiting: BTreeMap<ShardId, Waiting>,
    /// Time at which the first of the waiting shards was loaded.
    since: Option<Time>,
    /// Earliest time of the next report of loaded shards in the session: a leader plans no more often.
    tell_from: Time,
    /// Shards that may freeze.
    released: BTreeSet<ShardId>,
}

/// Shard that is loaded and must not freeze yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    mv: u64,
    more: bool,
    until: Time,
}

impl Shards {
    /// Records that a shard that moves here starts to load.
    pub(super) fn note_loading(&mut self, cx: &mut Ctx, id: &ShardId) {
        self.forget_move(cx, id);
        self.together.loading.insert(id.clone());
    }

    /// Forgets a shard whose move here is over, whether this node owns the shard now or not.
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
            // Loaded shards may have waited for this one.
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
    /// `limit` is the time at which the load of the shard would have timed out.
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
        // The owner aborts a move that takes longer than `load_timeout`.
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

    /// Lets all waiting shards freeze now.
    fn release_together(&mut self, cx: &mut Ctx) {
        self.together.since = None;
        for (id, _) in std::mem::take(&mut self.together.waiting) {
            cx.changed.insert(Key::Shard(id.clone()));
            self.together.released.insert(id);
        }
    }

    /// Reports in the session which moves are loaded and wait for further moves.
    fn report_loaded(&mut self, cx: &mut Ctx) {
        let mut held: HeldByRouter = cx.held.clone();
        for (id, waiting) in self.together.waiting.iter().filter(|(_, w)| w.more) {
            let shards = held.entry(id.keyspace.clone()).or_default();
            shards.insert(id.shard.clone(), waiting.mv);
        }
        cx.hold(held);
    }
}
