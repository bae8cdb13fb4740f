//! Fast path of a full scan: skips shards that need no decision.
//!
//! Most shards of a cluster are served by the assigned node, which is this node or another one. For such a shard, [`Shards::decide`] would
//! only confirm this with a dozen look-ups; the filter needs two or three. Shards in any other state are evaluated.

use std::cmp::Ordering;

use crate::ids::{KeyspaceName, SessionId, ShardId};
use crate::node::Life;
use crate::node::assignment::{Assignment, KeyspaceAssignment};
use crate::node::context::Ctx;
use crate::node::membership::Membership;
use crate::record::{Role, ShardRecord};
use crate::time::Time;
use crate::view::{KeyState, Versioned};

use super::{Phase, ShardSlot, Shards};

/// Findings of one scan that hold for several shards.
struct ScanFilter<'a> {
    cx: &'a Ctx,
    membership: &'a Membership,
    assignment: &'a Assignment,
    shards: &'a Shards,
    /// `true` if the node may own shards.
    owns: bool,
    /// `true` if the node runs with a role that owns shards, and is not stopping.
    usual: bool,
    /// `true` if no state of the node itself requires it to release its shards.
    keeps: bool,
    /// `true` if the node waits for shards, or if some of its shards are leaving.
    waits: bool,
    /// Keyspace of the last shard, and this node's assignment there; `None` if all shards of the keyspace must be evaluated.
    keyspace: Option<(&'a KeyspaceName, Option<(KeyspaceAssignment<'a>, u32)>)>,
    /// Times since which these sessions are known in their current state; `None` for a session that is unknown or over.
    live: Vec<(SessionId, Option<Time>)>,
}

impl Shards {
    /// Returns the shards to evaluate: first those in the view, then those that the view has forgotten, both in order.
    pub(super) fn shards_to_scan(
        &self,
        cx: &Ctx,
        membership: &Membership,
        assignment: &Assignment,
    ) -> Vec<ShardId> {
        if !matches!(cx.life, Life::Running | Life::Stopping) {
            return Vec::new();
        }
        let mut glance = ScanFilter {
            cx,
            membership,
            assignment,
            shards: self,
            owns: cx.may_own(),
            usual: matches!(cx.life, Life::Running) && cx.config.role == Role::Node,
            keeps: cx.is_active(),
            waits: self.retries.is_waiting() || !self.leaving.is_empty(),
            keyspace: None,
            live: Vec::new(),
        };
        let (mut worth, mut forgotten) = (Vec::new(), Vec::new());
        let mut slots = self.slots.iter();
        let mut next = slots.next();
        for (id, cell) in cx.view.shards.cells() {
            let mut slot = None;
            while let Some((other, its)) = next {
                match other.cmp(id) {
                    Ordering::Less => forgotten.push(other.clone()),
                    Ordering::Equal => slot = Some(its),
                    Ordering::Greater => break,
                }
                next = slots.next();
                if slot.is_some() {
                    break;
                }
            }
            if !glance.passes(id, cell, slot) {
                worth.push(id.clone());
            }
        }
        worth.extend(forgotten);
        worth.extend(next.into_iter().chain(slots).map(|(id, _)| id.clone()));
        worth
    }
}

impl<'a> ScanFilter<'a> {
    /// Returns `true` if the assigned node serves the shard, and nothing here waits for the shard.
    fn passes(
        &mut self,
        id: &'a ShardId,
        cell: &KeyState<ShardRecord>,
        slot: Option<&ShardSlot>,
    ) -> bool {
        if slot.is_some_and(|slot| slot.not_before > Time::ZERO) || self.cx.timers.has_shard(id) {
            return false;
        }
        let idle = slot.is_none_or(|slot| slot.is_idle(self.cx.now));
        match cell {
            // A node that may not own shards decides nothing about a shard without an activation here.
            _ if !self.owns => idle,
            KeyState::Present(seen) if self.usual && self.cx.is_mine(&seen.record) => {
                slot.is_some_and(|slot| self.serves_on(id, &seen.record, slot))
            }
            KeyState::Present(seen) => idle && self.usual && self.is_anothers(id, seen),
            _ => false,
        }
    }

    /// Returns `true` if this node serves an owned shard as the record states, and must keep it.
    fn serves_on(&mut self, id: &'a ShardId, record: &ShardRecord, slot: &ShardSlot) -> bool {
        let serves = matches!(*slot.phase(), Phase::Serving { epoch, .. } if epoch == record.epoch);
        let settled = slot.writing.is_none() && slot.moving.is_none();
        serves
            && settled
            && self.keeps
            && record.says_served()
            && record.trouble == slot.trouble
            && !record.deleting
            && self
                .keyspace_assignment(&id.keyspace)
                .is_some_and(|(wanted, floor)| {
                    record.epoch.generation() >= floor
                        && self
                            .assignment
                            .keeps_owned(self.cx, self.membership, wanted, id, record)
                })
    }

    /// Returns `true` if another live node owns a shard, and neither a move nor the assignment brings the shard here.
    fn is_anothers(&mut self, id: &'a ShardId, seen: &Versioned<ShardRecord>) -> bool {
        let record = &*seen.record;
        let Some(owner) = record.owner() else {
            return false;
        };
        let moving = record.ownership.moving();
        let comes = moving.is_some_and(|(mv, _)| Some(mv.to.session) == self.cx.session());
        if comes || record.deleting {
            return false;
        }
        if self.waits
            && (self.shards.leaving.contains(id) || self.shards.retries.is_waiting_for(id))
        {
            return false;
        }
        let (Some(known), Some((wanted, _))) = (
            self.lives(owner.session),
            self.keyspace_assignment(&id.keyspace),
        ) else {
            return false;
        };
        self.assignment
            .leaves_to_owner(self.cx, wanted, id, record, seen.since.max(known))
    }

    fn lives(&mut self, session: SessionId) -> Option<Time> {
        if let Some((_, lives)) = self.live.iter().find(|(known, _)| *known == session) {
            return *lives;
        }
        let seen = self.cx.view.sessions.seen(&session);
        let lives = seen.filter(|seen| !seen.record.is_proven_end());
        let lives = lives.map(|seen| seen.since);
        self.live.push((session, lives));
        lives
    }

    fn keyspace_assignment(
        &mut self,
        keyspace: &'a KeyspaceName,
    ) -> Option<(KeyspaceAssignment<'a>, u32)> {
        match self.keyspace {
            Some((known, wanted)) if known == keyspace => wanted,
            _ => {
                let wanted = self.assignment.keyspace_assignment(self.cx, keyspace);
                self.keyspace = Some((keyspace, wanted));
                wanted
            }
        }
    }
}
