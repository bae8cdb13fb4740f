//! For model checkers: a node whose counters begin where they can be told from everything else.

use std::sync::Arc;

use crate::ids::Revision;
use crate::keys::Key;
use crate::time::Time;
use crate::view::{KeyState, KnownRecords};

use super::store_requests::{Pending, Write};
use super::{Life, Node, NodeConfig};

/// Where the counters of a node begin. They name requests, stays and writes; only their order means anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counters {
    /// Requests to the store.
    pub ops: u64,
    /// Stays of shards.
    pub runs: u64,
    /// Marks of writes.
    pub nonces: u64,
}

impl Node {
    /// A node that has not begun and counts from here on. What it does is the same from any beginning, but for the
    /// fraction by which it stretches some waits.
    ///
    /// A model checker has to see that two states differ in nothing but how much was counted on the way: with beginnings
    /// far from every other number it finds the counters in the node's hash.
    pub fn counting_from(config: Arc<NodeConfig>, from: Counters) -> Self {
        let mut node = Self::new(config);
        (node.ctx.ops, node.ctx.nonces) = (from.ops, from.nonces);
        node.shards.run_count = from.runs;
        node
    }
}

/// What a node has written, and knows of others' writing, since it last read everything.
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a> {
    /// How far the store had come then.
    pub listed: u64,
    /// How often the node wrote since.
    pub written: u64,
    /// The versions of its last writes.
    pub last_writes: &'a [u64],
    /// It has noticed that somebody else wrote: nothing else counts until it reads everything again.
    pub others_wrote: bool,
}

impl Node {
    /// What the node will find out by asking how far the store has come. [`Self::essence`] leaves it out.
    pub fn listing(&self) -> Listing<'_> {
        Listing {
            listed: self.ctx.progress.listed.0,
            written: self.ctx.progress.written,
            last_writes: &self.ctx.progress.last_writes,
            others_wrote: self.ctx.progress.others_wrote,
        }
    }

    /// The node without what it can no longer decide by, and without its [`Listing`]: what two nodes have to have in common to
    /// do the same from now on, in `rendezvous` keyspaces on a store that keeps no leases and never goes back.
    ///
    /// Only to be compared, not to go on from.
    pub fn essence(&self) -> Self {
        let mut node = self.clone();
        let (now, timing) = (self.ctx.now, &self.ctx.config.timing);
        // Both are set anew by the next step before anything asks for them.
        node.ctx.now = Time::ZERO;
        node.ctx.from_watch = false;
        let forget = |time: &mut Time, over: bool| {
            if over {
                *time = Time::ZERO;
            }
        };
        forget(
            &mut node.ctx.absent_not_before,
            now >= self.ctx.absent_not_before,
        );
        forget(
            &mut node.session.resign_not_before,
            now >= self.session.resign_not_before,
        );
        node.membership
            .forget_since(now - timing.assignment_settle_time);
        node.membership.forget_trust(self.oldest_doubt());
        if let Some(lease) = node.ctx.own.as_mut().and_then(|h| h.lease.as_mut()) {
            lease.forget_recovery();
        }
        let old = now - timing.load_retry_max;
        let stays = node.shards.slots.values_mut();
        stays.for_each(|stay| stay.forget(old, timing));
        for (id, mark) in &mut node.shards.doubtful {
            *mark = u64::from(self.ctx.view.mark(&Key::Shard(id.clone())) == *mark);
        }
        // A store that never goes back is never behind what it once said.
        node.ctx.progress.asked_at = Revision(0);
        node.ctx.progress.behind = self
            .ctx
            .progress
            .behind
            .filter(|behind| self.ctx.view.revision < *behind);
        node.ctx
            .requests
            .values_mut()
            .for_each(|pending| match pending {
                Pending::List { asked_at, .. } | Pending::Revision { asked_at } => {
                    *asked_at = Revision(0);
                }
                Pending::Read { key, mark }
                | Pending::ReadBack {
                    write: Write { key, .. },
                    mark,
                    ..
                }
                | Pending::Delete { key, mark } => {
                    // A key's mark never goes back: what counts is whether it is still the one.
                    *mark = u64::from(self.ctx.view.mark(key) == *mark);
                }
                _ => {}
            });
        node.ctx.progress.listed = Revision(0);
        node.ctx.progress.written = 0;
        node.ctx.progress.last_writes.clear();
        if self.lacks_nothing() {
            node.ctx.progress.listed_at = self
                .ctx
                .progress
                .listed_at
                .max(now - timing.relist_interval);
        }
        node
    }

    /// Since when the session has been known that has been so for longest and is not over: what was observed before it
    /// proves nothing anyway.
    fn oldest_doubt(&self) -> Time {
        let doubts = self
            .ctx
            .view
            .sessions
            .cells()
            .filter_map(|(_, cell)| match cell {
                KeyState::Present(seen) if seen.record.ended.is_none() => Some(seen.since),
                KeyState::Damaged { since, .. } => Some(*since),
                _ => None,
            });
        doubts.min().unwrap_or(Time::NEVER)
    }

    /// True if no record is missing or damaged and no start is under way, so that no decision waits for a complete read.
    fn lacks_nothing(&self) -> bool {
        fn there<K: Ord + Clone, R>(table: &KnownRecords<K, R>) -> bool {
            let present = |cell: &KeyState<R>| matches!(cell, KeyState::Present(_));
            table.cells().all(|(_, cell)| present(cell))
        }
        let view = &self.ctx.view;
        matches!(self.ctx.life, Life::Running)
            && self.recovery.drawn.is_empty()
            && self
                .startup
                .company
                .as_ref()
                .is_none_or(|company| company.is_sure())
            && there(&view.cluster)
            && there(&view.keyspaces)
            && there(&view.nodes)
            && there(&view.shards)
            && there(&view.sessions)
    }
}
