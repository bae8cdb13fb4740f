//! Shards that nobody has served for long: reported to operators in the session's record.
//!
//! A program that reads the records once, such as `tenure status`, cannot tell a shard that waits from one that is stuck; nodes
//! can, by their clocks. One node reports per keyspace, the first that serves it, and only what the records do not show by themselves. As with load,
//! no write is made for it where renewals are writes anyway; where the store keeps the time of sessions, the record is written when
//! the report changes, and for that not more often than once per ttl (P7).

use crate::ids::KeyspaceName;
use crate::members;
use crate::members::{NAMED, UnservedReason};
use crate::record::{Ownership, Role, UnservedShards};

use super::claim_retry::ClaimRetries;
use super::config::ShardWaitStats;
use super::context::Ctx;
use super::renewal::Session;

impl Ctx {
    /// Returns what the session's record says next of shards that are not served.
    pub(super) fn unserved(&self) -> UnservedShards {
        let mut all = UnservedShards::new();
        if self.config.role != Role::Node {
            return all;
        }
        for keyspace in self.config.keyspaces.keys() {
            if self.reports_on(keyspace) {
                self.add_unserved(keyspace, &mut all);
            }
        }
        all
    }

    /// Returns whether this node is the first of those that serve a keyspace.
    fn reports_on(&self, keyspace: &KeyspaceName) -> bool {
        let mut nodes = members::participants(&self.view, keyspace, None);
        let first = nodes.find(|node| !self.ended(node.session));
        first.is_some_and(|node| Some(node.session) == self.session())
    }

    fn add_unserved(&self, keyspace: &KeyspaceName, all: &mut UnservedShards) {
        let mut blocked = None;
        let shards = self.view.shards.iter();
        for (id, seen) in shards.filter(|(id, _)| id.keyspace == *keyspace) {
            if let Ownership::Owned { by, serving: true } = &seen.record.ownership
                && !self.ended(by.session)
            {
                continue;
            }
            let blocked = || *blocked.get_or_insert_with(|| members::blocked(&self.view, keyspace));
            let Some(reason) = self.unserved_for_long(id, seen, blocked) else {
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
}

impl Session {
    /// Returns whether this is worth a write of the session's record that nothing else calls for.
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
