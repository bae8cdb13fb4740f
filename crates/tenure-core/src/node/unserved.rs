//! Shards that no owner has served for long, reported to operators in the session's record.
//!
//! A program that reads the records once, such as `tenure status`, cannot distinguish a waiting shard from a stuck one. Nodes can, by
//! their clocks. One node per keyspace reports, the first that serves the keyspace. It reports only facts that other records do not
//! show. Where renewals are writes, the report causes no additional write, as with costs. Where the store keeps the time of sessions,
//! the record is written when the report changes, at most once per ttl (P7).

use crate::ids::KeyspaceName;
use crate::members;
use crate::members::{NAMED, UnservedReason};
use crate::record::{Ownership, Role, UnservedShards};

use super::claim_retry::ClaimRetries;
use super::config::ShardWaitStats;
use super::context::Ctx;
use super::renewal::Session;

/// Returns the shards that are not served, for the next record of the session.
pub(super) fn unserved_shards(cx: &Ctx) -> UnservedShards {
    let mut all = UnservedShards::new();
    if cx.config.role != Role::Node {
        return all;
    }
    for keyspace in cx.config.keyspaces.keys() {
        if reports_on(cx, keyspace) {
            add_unserved(cx, keyspace, &mut all);
        }
    }
    all
}

/// Returns whether this node reports on a keyspace: the first live node that serves the keyspace does.
fn reports_on(cx: &Ctx, keyspace: &KeyspaceName) -> bool {
    let mut nodes = members::participants(&cx.view, keyspace, None);
    let first = nodes.find(|node| !cx.ended(node.session));
    first.is_some_and(|node| Some(node.session) == cx.session())
}

fn add_unserved(cx: &Ctx, keyspace: &KeyspaceName, all: &mut UnservedShards) {
    let mut blocked = None;
    let shards = cx.view.shards.iter();
    for (id, seen) in shards.filter(|(id, _)| id.keyspace == *keyspace) {
        if let Ownership::Owned { by, serving: true } = &seen.record.ownership
            && !cx.ended(by.session)
        {
            continue;
        }
        let blocked = || *blocked.get_or_insert_with(|| members::blocked(&cx.view, keyspace));
        let Some(reason) = cx.unserved_for_long(id, seen, blocked) else {
            continue;
        };
        if reason.is_in_records() {
            continue;
        }
        let reasons = all.entry(keyspace.clone()).or_default();
        let found = reasons.entry(reason.as_str().to_owned()).or_default();
        found.count += 1;
        if found.shards.len() < NAMED {
            found.shards.push(id.shard.clone());
        }
    }
}

impl Session {
    /// Returns whether a changed report justifies a write of the session's record that has no other reason.
    pub(super) fn unserved_changed(&self, cx: &Ctx, new: &UnservedShards) -> bool {
        let Some(holder) = &cx.own else {
            return false;
        };
        holder.record.unserved != *new && cx.now >= self.costs_reported_at + cx.config.timing.ttl
    }
}

/// Counts the shards without the owner that they should have.
pub(super) fn waiting(cx: &Ctx, retries: &ClaimRetries) -> ShardWaitStats {
    let mut waiting = ShardWaitStats::default();
    let mut blocked: Option<(&KeyspaceName, Option<UnservedReason>)> = None;
    for (_, since) in retries.waiting() {
        waiting.held_elsewhere += 1;
        waiting.held_elsewhere_for = waiting.held_elsewhere_for.max(cx.now.since(since));
    }
    for (id, seen) in cx.view.shards.iter() {
        let free = matches!(seen.record.ownership, Ownership::Free { .. });
        if free && cx.config.keyspaces.contains_key(&id.keyspace) {
            waiting.unclaimed += 1;
            waiting.unclaimed_for = waiting.unclaimed_for.max(cx.now.since(seen.since));
        }
        let reason = || {
            if blocked
                .as_ref()
                .is_none_or(|(known, _)| *known != &id.keyspace)
            {
                let reason = members::blocked(&cx.view, &id.keyspace);
                blocked = Some((&id.keyspace, reason));
            }
            blocked.and_then(|(_, reason)| reason)
        };
        if let Some(reason) = cx.unserved_for_long(id, seen, reason) {
            *waiting.unserved.entry(reason).or_default() += 1;
        }
    }
    waiting
}
