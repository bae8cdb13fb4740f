//! Support for model checkers: nodes whose counters start at distinguishable values, and states without irrelevant differences.

use crate::ids::Revision;
use crate::keys::Key;
use crate::time::Time;
use crate::view::{KeyState, KnownRecords};

use super::store_requests::{Pending, Write};
use super::sync::StoreProgress;
use super::{Life, Node};

/// Start values of a node's counters. The counters identify requests, activations and writes; only their order has a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counters {
    /// Counter of requests to the store.
    pub ops: u64,
    /// Counter of activations of shards.
    pub runs: u64,
    /// Counter of the nonces of writes.
    pub nonces: u64,
}

/// Writes of a node and of other processes since the node's last complete read, as far as the node knows.
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a> {
    /// Store revision of the last complete read.
    pub listed: u64,
    /// Number of the node's writes since then.
    pub written: u64,
    /// Versions of the node's last writes.
    pub last_writes: &'a [u64],
    /// `true` once the node has noticed a write of another process. The other fields then have no meaning until the next complete read.
    pub others_wrote: bool,
}

impl<'a> Listing<'a> {
    pub(super) fn of(progress: &'a StoreProgress) -> Self {
        Self {
            listed: progress.listed.0,
            written: progress.written,
            last_writes: &progress.last_writes,
            others_wrote: progress.others_wrote,
        }
    }
}

/// Returns a copy of the node for [`Node::essence`].
pub(super) fn essence(of: &Node) -> Node {
    let mut node = of.clone();
    let (now, timing) = (of.ctx.now, &of.ctx.config.timing);
    // The next step sets both before any code reads them.
    node.ctx.now = Time::ZERO;
    node.ctx.from_watch = false;
    let forget = |time: &mut Time, over: bool| {
        if over {
            *time = Time::ZERO;
        }
    };
    forget(
        &mut node.ctx.absent_not_before,
        now >= of.ctx.absent_not_before,
    );
    forget(
        &mut node.session.resign_not_before,
        now >= of.session.resign_not_before,
    );
    node.membership
        .forget_since(now - timing.assignment_settle_time);
    node.membership.forget_trust(oldest_doubt(of));
    if let Some(lease) = node.ctx.own.as_mut().and_then(|h| h.lease.as_mut()) {
        lease.forget_recovery();
    }
    let old = now - timing.load_retry_max;
    let stays = node.shards.slots.values_mut();
    stays.for_each(|slot| slot.forget(old, timing));
    for (id, mark) in &mut node.shards.doubtful {
        *mark = u64::from(of.ctx.view.mark(&Key::Shard(id.clone())) == *mark);
    }
    // A store that is never restored never reports a revision below an earlier one.
    node.ctx.progress.asked_at = Revision(0);
    node.ctx.progress.behind = of
        .ctx
        .progress
        .behind
        .filter(|behind| of.ctx.view.revision < *behind);
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
                // A key's mark only increases, so only its equality with the current mark matters.
                *mark = u64::from(of.ctx.view.mark(key) == *mark);
            }
            _ => {}
        });
    node.ctx.progress.listed = Revision(0);
    node.ctx.progress.written = 0;
    node.ctx.progress.last_writes.clear();
    if lacks_nothing(of) {
        node.ctx.progress.listed_at = of.ctx.progress.listed_at.max(now - timing.relist_interval);
    }
    node
}

/// Returns the earliest time since which a session that is not over is known in its current state. Observations before this time prove
/// nothing anyway.
fn oldest_doubt(of: &Node) -> Time {
    let doubts = of
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

/// Returns `true` if no record is missing or damaged and no start is in progress, so that no decision waits for a complete read.
fn lacks_nothing(of: &Node) -> bool {
    fn there<K: Ord + Clone, R>(table: &KnownRecords<K, R>) -> bool {
        let present = |cell: &KeyState<R>| matches!(cell, KeyState::Present(_));
        table.cells().all(|(_, cell)| present(cell))
    }
    let view = &of.ctx.view;
    matches!(of.ctx.life, Life::Running)
        && of.recovery.drawn.is_empty()
        && of
            .startup
            .peers
            .as_ref()
            .is_none_or(|company| company.is_sure())
        && there(&view.cluster)
        && there(&view.keyspaces)
        && there(&view.nodes)
        && there(&view.shards)
        && there(&view.sessions)
}
