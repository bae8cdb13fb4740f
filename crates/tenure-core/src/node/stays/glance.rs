//! Which shards a look at every shard need not look at.
//!
//! Most shards of a cluster are served where they are to stay, elsewhere or here. All that [`Node::decide`] would do about one
//! of them is to find that out, with a dozen look-ups; here that takes two or three. Whatever is not plain is looked at.

use crate::ids::{KeyspaceName, SessionId, ShardId};
use crate::node::share::Wanted;
use crate::node::{Life, Node};
use crate::record::{Role, ShardRecord, Tenancy};
use crate::time::Time;
use crate::view::{Cell, Seen};

use super::{Phase, Stay};

/// What was found out for one shard and holds for others too.
struct Glance<'a> {
    node: &'a Node,
    /// Whether nothing that this node serves is to leave it because of what the node itself is.
    keeps: bool,
    /// The keyspace of the last shard, and what this node wants there; nothing if its shards are all looked at.
    keyspace: Option<(&'a KeyspaceName, Option<(Wanted<'a>, u32)>)>,
    /// Whether these sessions are known and not over.
    live: Vec<(SessionId, bool)>,
}

impl Node {
    /// The shards to look at: those that the view knows, then those that it has forgotten; both in order.
    pub(super) fn worth_a_look(&self) -> Vec<ShardId> {
        let plain =
            matches!(self.life, Life::Running) && self.may_own() && self.config.role == Role::Node;
        let mut glance = Glance {
            node: self,
            keeps: self.is_active(),
            keyspace: None,
            live: Vec::new(),
        };
        let (mut worth, mut forgotten) = (Vec::with_capacity(self.runs.len() + 4), Vec::new());
        let mut stays = self.stays.iter().peekable();
        for (id, cell) in self.view.shards.cells() {
            while let Some((other, _)) = stays.next_if(|(other, _)| *other < id) {
                forgotten.push(other.clone());
            }
            let stay = stays.next_if(|(other, _)| *other == id);
            let stay = stay.map(|(_, stay)| stay);
            if !(plain && matches!(cell, Cell::Present(seen) if glance.passes(id, seen, stay))) {
                worth.push(id.clone());
            }
        }
        worth.extend(forgotten);
        worth.extend(stays.map(|(other, _)| other.clone()));
        worth
    }
}

impl<'a> Glance<'a> {
    /// Whether a shard is plainly where it is to stay, and nothing here waits for it.
    fn passes(&mut self, id: &'a ShardId, seen: &Seen<ShardRecord>, stay: Option<&Stay>) -> bool {
        let node = self.node;
        let record = &*seen.record;
        let Tenancy::Held { by, serving } = &record.tenancy else {
            return false;
        };
        if node.is_mine(record) {
            return *serving && stay.is_some_and(|stay| self.serves_on(id, record, stay));
        }
        let waits = |stay: &Stay| !stay.is_idle(node.now) || stay.not_before > Time::ZERO;
        !record.doomed
            && !stay.is_some_and(waits)
            && !node.leaving.contains(id)
            && !node.is_waiting_for(id)
            && !node.timers.has_stay(id)
            && self.lives(by.session)
            && self
                .wanted(&id.keyspace)
                .is_some_and(|(wanted, _)| node.leaves(wanted, id, seen))
    }

    /// Whether a shard of this node's own is plainly served here as its record says, and is to be.
    fn serves_on(&mut self, id: &'a ShardId, record: &ShardRecord, stay: &Stay) -> bool {
        let node = self.node;
        let settled = stay.writing.is_none() && stay.moving.is_none() && stay.trouble == record.trouble;
        matches!(stay.phase, Phase::Serving { epoch, .. } if epoch == record.epoch)
            && self.keeps
            && settled
            && stay.not_before == Time::ZERO
            && !record.doomed
            && !node.timers.has_stay(id)
            && self.wanted(&id.keyspace).is_some_and(|(wanted, floor)| {
                record.epoch.generation() >= floor && node.keeps(wanted, id, record)
            })
    }

    fn lives(&mut self, session: SessionId) -> bool {
        if let Some((_, lives)) = self.live.iter().find(|(known, _)| *known == session) {
            return *lives;
        }
        let seen = self.node.view.sessions.seen(&session);
        let lives = seen.is_some_and(|seen| !seen.record.is_proven_end());
        self.live.push((session, lives));
        lives
    }

    fn wanted(&mut self, keyspace: &'a KeyspaceName) -> Option<(Wanted<'a>, u32)> {
        match self.keyspace {
            Some((known, wanted)) if known == keyspace => wanted,
            _ => {
                let wanted = self.node.wanted(keyspace);
                self.keyspace = Some((keyspace, wanted));
                wanted
            }
        }
    }
}
