//! Queries of known records, shared by several parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{Epoch, KeyspaceName, NodeName, SessionId, ShardId, ShardName};
use crate::keys::Key;
use crate::members;
use crate::members::UnservedReason;
use crate::plan::{LiveRecords, NodeState};
use crate::reason::Reason;
use crate::record::{
    AssignedBy, KeyspaceKind, Move, Ownership, RecordError, SessionRecord, ShardRecord,
};
use crate::rules::Mutant;
use crate::time::Time;
use crate::view::{KeyState, Versioned, View};

use super::Life;
use super::context::Ctx;

impl Ctx {
    /// Returns `true` if a session is proven to be over. Once true, this never changes.
    pub(super) fn ended(&self, session: SessionId) -> bool {
        self.is_end(self.view.sessions.cell(&session))
    }

    /// Returns `true` if the known state of a session proves that the session is over.
    pub(super) fn is_end(&self, cell: Option<&KeyState<SessionRecord>>) -> bool {
        match cell {
            Some(KeyState::Present(seen)) => seen.record.is_proven_end(),
            Some(KeyState::Missing { .. }) => self.broken_by(Mutant::AbsenceIsProof),
            _ => false,
        }
    }

    /// Returns `true` if a shard's record names this node's session as the owner.
    pub(super) fn is_mine(&self, record: &ShardRecord) -> bool {
        let by_name = self.broken_by(Mutant::NameIsIdentity)
            && record.owner().is_some_and(|o| o.node == self.config.name);
        self.session().is_some_and(|me| record.is_owned_by(me))
            || (by_name && self.session().is_some())
    }

    /// Returns `true` while the node is stopping.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.life, Life::Stopping)
    }

    pub(super) fn longest_ttl(&self) -> Duration {
        let cluster = self
            .view
            .cluster
            .get(&())
            .map_or(Duration::ZERO, |c| c.longest_ttl);
        cluster.max(self.config.timing.ttl).max(self.longest)
    }

    /// Returns the reason if no owner has served a shard for longer than three ttl. `None` if an owner serves it, or did so recently.
    pub(super) fn unserved_for_long(
        &self,
        id: &ShardId,
        seen: &Versioned<ShardRecord>,
        blocked: impl FnOnce() -> Option<UnservedReason>,
    ) -> Option<UnservedReason> {
        let owner = seen.record.owner().map(|owner| owner.session);
        let over = owner.filter(|session| self.ended(*session));
        let over = over.and_then(|session| self.view.sessions.seen(&session));
        let since = over.map_or(seen.since, |session| seen.since.max(session.since));
        let keyspace = self.view.keyspaces.get(&id.keyspace)?;
        if keyspace.deleted || self.now < since + self.config.timing.ttl * 3 {
            return None;
        }
        members::unserved(&seen.record, |session| self.ended(session), blocked)
    }

    /// Returns the shard's record and the minimum generation if both the shard's and the keyspace's records are readable; otherwise the
    /// reason.
    pub(super) fn readable(&self, id: &ShardId) -> Result<(&Versioned<ShardRecord>, u32), Reason> {
        if self.progress.store_replaced.is_some() {
            return Err(Reason::StoreReplaced);
        }
        let floor = match self.view.keyspaces.cell(&id.keyspace) {
            Some(KeyState::Present(seen)) if seen.record.deleted => {
                return Err(Reason::KeyspaceDeleted);
            }
            Some(KeyState::Present(seen)) => seen.record.min_generation,
            Some(KeyState::Damaged { .. }) => return Err(Reason::RecordUnreadable),
            Some(KeyState::Missing { .. }) | None => return Err(Reason::RecordMissing),
        };
        match self.view.shards.cell(id) {
            Some(KeyState::Present(seen)) => Ok((seen, floor)),
            Some(KeyState::Damaged { .. }) => Err(Reason::RecordUnreadable),
            Some(KeyState::Missing { .. }) | None => Err(Reason::RecordMissing),
        }
    }

    /// Returns `true` if a stopping node has used up the time for moves. The node releases the remaining shards.
    pub(super) fn is_past_moving(&self) -> bool {
        matches!(self.life, Life::Stopping)
            && self.now >= self.stopping_since + self.config.timing.drain_timeout
    }

    /// Returns `true` if the target of a move can no longer take the shard.
    pub(super) fn is_target_gone(&self, mv: &Move) -> bool {
        self.ended(mv.to.session)
    }

    /// Returns `true` if every live router holds the requests for a shard because of this move.
    pub(super) fn routers_hold(&self, id: &ShardId, mv: u64) -> bool {
        if self.config.rules.broken_by(Mutant::SealWithoutRouters) {
            return true;
        }
        let sessions = self.view.sessions.iter();
        let mut routers = sessions.filter(|(_, seen)| seen.record.routes(&id.keyspace));
        routers.all(|(_, seen)| seen.record.holds(id) == Some(mv))
    }

    /// Returns the record of a shard that this node owns at this epoch and may serve, otherwise the reason. A move in progress counts
    /// only once it is sealed.
    pub(super) fn still_mine(
        &self,
        id: &ShardId,
        epoch: Epoch,
    ) -> Result<Arc<ShardRecord>, Reason> {
        if !self.may_own() {
            return Err(Reason::LeaseLost);
        }
        let (seen, floor) = self.readable(id)?;
        let record = Arc::clone(&seen.record);
        if epoch.generation() < floor {
            return Err(Reason::GenerationRaised);
        }
        let sealed = matches!(record.ownership, Ownership::Sealed { .. });
        if !self.is_mine(&record) || record.epoch != epoch || sealed {
            return Err(Reason::Superseded);
        }
        Ok(record)
    }

    /// Returns the time within which the store must end the session of a dead process, counted from now. The store grants more than the
    /// ttl if its minimum lease is longer, and does not check for expiry continuously.
    pub(super) fn lease_ends_within(&self, session: SessionId) -> Duration {
        let record = self.view.sessions.get(&session);
        let granted = record.and_then(|s| s.leased).unwrap_or_default();
        let longest = granted.max(self.longest_ttl());
        longest + longest / 5 + Duration::from_secs(1)
    }
}

impl View {
    pub(super) fn is_greedy(&self, keyspace: &KeyspaceName) -> bool {
        let record = self.keyspaces.get(keyspace);
        record.is_some_and(|k| k.assigned_by == AssignedBy::FairShare)
    }

    /// Returns `true` if the leader plans for a keyspace.
    pub(super) fn is_coordinated(&self, keyspace: &KeyspaceName) -> bool {
        let record = self.keyspaces.get(keyspace);
        record.is_some_and(|k| k.assigned_by == AssignedBy::Leader)
    }

    /// Returns `true` if there is a keyspace that needs plans of a leader.
    pub(super) fn has_coordinated(&self) -> bool {
        self.keyspaces
            .iter()
            .any(|(_, k)| k.record.assigned_by == AssignedBy::Leader && !k.record.deleted)
    }

    /// Returns `true` if a session's record has a lower rev than the highest that was applied. A manual edit or a restored store can
    /// cause this. The view then ignores the session's renewals as outdated, so the absence of visible renewals proves nothing.
    pub(super) fn is_dated_back(&self, id: SessionId) -> bool {
        let rev = self.sessions.get(&id).map(|s| s.head.rev);
        rev.is_some_and(|rev| rev < self.mark(&Key::Session(id)))
    }

    /// Returns `true` if a session's tombstone has no proof. The tombstone proves nothing until a node has watched it for long enough
    /// and confirms the end.
    pub(super) fn is_unproven(&self, id: SessionId) -> bool {
        self.sessions
            .get(&id)
            .is_some_and(|s| s.ended.is_some() && !s.is_proven_end())
    }

    /// Returns `true` if a session's record has a newer format, which must not be rewritten.
    pub(super) fn is_newer(&self, id: SessionId) -> bool {
        matches!(
            self.sessions.cell(&id),
            Some(KeyState::Damaged {
                damage: RecordError::Newer(_),
                ..
            })
        )
    }

    pub(super) fn present(
        &self,
        name: &NodeName,
        keyspace: &KeyspaceName,
    ) -> Option<(SessionId, &SessionRecord)> {
        let node = members::participant(self, name, keyspace)?;
        Some((node.session, node.record))
    }

    pub(super) fn is_stopping(&self, session: SessionId) -> bool {
        let record = self.sessions.get(&session);
        record.is_some_and(|session| session.stopping)
    }

    /// Returns `true` if a shard is assigned to a node that is gone.
    pub(super) fn names_departed(&self, record: &ShardRecord, keyspace: &KeyspaceName) -> bool {
        LiveRecords::new(self, &|_| false).names_departed(record, keyspace)
    }

    pub(super) fn owned_by(&self, session: SessionId) -> usize {
        let shards = self.shards.iter();
        shards
            .filter(|(_, s)| s.record.is_owned_by(session))
            .count()
    }

    /// Returns `true` if a shard must exist. For a named keyspace, callers pass only shards that were seen.
    pub(super) fn belongs(&self, id: &ShardId) -> bool {
        let keyspace = self.keyspaces.get(&id.keyspace);
        keyspace.is_some_and(|k| is_of(k.kind, id))
    }

    /// Returns `true` if the keyspace has a live router.
    pub(super) fn is_routed(&self, keyspace: &KeyspaceName) -> bool {
        let mut sessions = self.sessions.iter();
        sessions.any(|(_, s)| s.record.routes(keyspace))
    }

    /// Returns the shard records that a keyspace lacks when it is created or restored, with the time since which this node knows that.
    pub(super) fn lost_at_start(
        &self,
        name: &KeyspaceName,
        kind: KeyspaceKind,
        fresh: bool,
    ) -> BTreeMap<ShardId, Time> {
        let KeyspaceKind::Hashed(n) = kind else {
            return BTreeMap::new();
        };
        let ids = (0..n).map(|index| ShardId::new(name.clone(), ShardName::index(index)));
        ids.filter_map(|id| {
            let since = match self.shards.cell(&id) {
                None => Time::ZERO,
                Some(KeyState::Missing { since }) => *since,
                Some(KeyState::Damaged { damage, since, .. })
                    if !fresh && damage.is_placeholder() =>
                {
                    *since
                }
                Some(KeyState::Damaged { .. } | KeyState::Present(_)) => return None,
            };
            Some((id, since))
        })
        .collect()
    }

    pub(super) fn is_corrupt(&self, id: SessionId) -> bool {
        let cell = self.sessions.cell(&id);
        matches!(
            cell,
            Some(KeyState::Damaged {
                damage: RecordError::Corrupt(_),
                ..
            })
        )
    }

    pub(super) fn is_referred_to(&self, session: SessionId) -> bool {
        LiveRecords::new(self, &|_| false).is_referred_to(session)
    }

    /// Returns `true` if a node is present and may be given shards of a keyspace.
    pub(super) fn takes_shards(&self, name: &NodeName, keyspace: &KeyspaceName) -> bool {
        let node = members::participant(self, name, keyspace);
        node.is_some_and(|node| node.state == NodeState::Active)
    }
}

pub(super) fn is_of(kind: KeyspaceKind, id: &ShardId) -> bool {
    let index = || id.shard.as_str().parse::<u32>();
    match kind {
        KeyspaceKind::Hashed(n) => index().is_ok_and(|i| i < n && ShardName::index(i) == id.shard),
        KeyspaceKind::Named => true,
    }
}
