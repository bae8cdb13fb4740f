//! Which shards a look at every shard need not look at.
//!
//! Most shards of a cluster are served elsewhere and are to stay there. All that [`Node::decide`] would do about one of them
//! is to find that out, with a dozen look-ups; here that takes two or three. Whatever is not plain is looked at.

use crate::ids::{KeyspaceName, SessionId, ShardId};
use crate::node::share::Wanted;
use crate::node::{Life, Node};
use crate::record::{Role, ShardRecord, Tenancy};
use crate::time::Time;
use crate::view::{Cell, Seen};

use super::Stay;

/// What was found out for one shard and holds for others too.
struct Glance<'a> {
    node: &'a Node,
    /// The keyspace of the last shard, and what this node wants there; nothing if its shards are all looked at.
    keyspace: Option<(&'a KeyspaceName, Option<Wanted<'a>>)>,
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
    /// Whether a shard is plainly another's, and nothing here waits for it.
    fn passes(&mut self, id: &'a ShardId, seen: &Seen<ShardRecord>, stay: Option<&Stay>) -> bool {
        let node = self.node;
        let record = &*seen.record;
        let Tenancy::Held { by, .. } = &record.tenancy else {
            return false;
        };
        let waits = |stay: &Stay| !stay.is_idle(node.now) || stay.not_before > Time::ZERO;
        !node.is_mine(record)
            && !record.doomed
            && !stay.is_some_and(waits)
            && !node.leaving.contains(id)
            && !node.is_waiting_for(id)
            && !node.timers.has_stay(id)
            && self.lives(by.session)
            && self
                .wanted(&id.keyspace)
                .is_some_and(|wanted| node.leaves(wanted, id, seen))
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

    fn wanted(&mut self, keyspace: &'a KeyspaceName) -> Option<Wanted<'a>> {
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
