//! A consistent read of a cluster: readable and unreadable records, and the state of sessions.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use tenure_core::ids::{ClusterName, KeyspaceName, NodeName, SessionId, ShardId, ShardName};
use tenure_core::keys::Key;
use tenure_core::machine::Found;
use tenure_core::plan::{LiveRecords, StaleRecord};
use tenure_core::record::{
    EndReason, KeyspaceKind, KeyspaceRecord, NodeRecord, Ownership, Record, ShardRecord,
};
use tenure_core::rules::Rules;
use tenure_core::time::Time;
use tenure_core::view::{KeyState, Versioned, View};
use tenure_store::Listing;

use super::AdminError;
use crate::clock::Clock;

/// Everything that a store held of a cluster at one instant.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The records.
    pub view: View,
    /// The identity of the store.
    pub identity: String,
    records: usize,
    now: Time,
    clock: Option<String>,
}

/// State of a session, as far as the records show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// No record says that the session has ended.
    Live,
    /// Live; its process is handing over its shards.
    Stopping,
    /// The deadline of the lease passed this long ago, by the clock of this machine. No node has expired the session yet.
    Overdue(Duration),
    /// The session has ended.
    Ended(EndReason),
    /// The session has no record.
    Missing,
    /// The record cannot be read.
    Unreadable,
}

impl SessionState {
    /// Returns `false` only for a session that is proven to have ended.
    pub fn may_serve(self) -> bool {
        !matches!(self, Self::Ended(reason) if reason != EndReason::Missing)
    }

    /// Returns `true` for a session with a tombstone, proven or not.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live => f.write_str("live"),
            Self::Stopping => f.write_str("stopping"),
            Self::Overdue(_) => f.write_str("overdue"),
            Self::Ended(reason) => write!(f, "{reason}"),
            Self::Missing => f.write_str("missing"),
            Self::Unreadable => f.write_str("unreadable"),
        }
    }
}

impl Snapshot {
    pub(super) fn new(
        cluster: &ClusterName,
        listing: &Listing,
        identity: String,
        clock: &Clock,
    ) -> Self {
        let now = clock.now();
        let mut view = View::new(Rules::sound());
        for entry in &listing.entries {
            if let Some(key) = Key::parse(cluster, &entry.key) {
                let record = Record::decode(&key, &entry.value);
                let version = entry.version.clone();
                view.apply(now, &key, Found { version, record });
            }
        }
        view.revision = listing.revision;
        Self {
            view,
            identity,
            records: listing.entries.len(),
            now,
            clock: clock.id(),
        }
    }

    /// Returns `true` if the cluster has no record.
    pub fn is_empty(&self) -> bool {
        self.view.present_keys().is_empty()
    }

    /// Returns the number of records, including those with an unknown key.
    pub fn records(&self) -> usize {
        self.records
    }

    /// Returns the state of a session.
    pub fn session_state(&self, session: SessionId) -> SessionState {
        let record = match self.view.sessions.cell(&session) {
            Some(KeyState::Present(seen)) => &seen.record,
            Some(KeyState::Damaged { .. }) => return SessionState::Unreadable,
            Some(KeyState::Missing { .. }) | None => return SessionState::Missing,
        };
        if let Some(ended) = record.ended {
            return SessionState::Ended(ended.reason);
        }
        match &record.boot_clock {
            Some(clock) if Some(&clock.id) == self.clock.as_ref() && clock.until_ns < self.now => {
                SessionState::Overdue(self.now.since(clock.until_ns))
            }
            _ if record.stopping => SessionState::Stopping,
            _ => SessionState::Live,
        }
    }

    /// Returns `true` if a session is proven to have ended.
    pub fn is_over(&self, session: SessionId) -> bool {
        !self.session_state(session).may_serve()
    }

    /// Calls `read` with the records as a planner reads them. A session has ended if its tombstone proves it.
    pub fn live<T>(&self, read: impl FnOnce(LiveRecords<'_>) -> T) -> T {
        let ended = |session| self.is_over(session);
        read(LiveRecords::new(&self.view, &ended))
    }

    /// Returns references to departed nodes and records of ended sessions that no record refers to.
    pub fn stale(&self) -> Vec<StaleRecord> {
        self.live(|live| live.stale())
    }

    /// Returns the record of a shard that must exist and be readable.
    pub fn shard(&self, id: &ShardId) -> Result<&Versioned<ShardRecord>, AdminError> {
        let kind = self.keyspace(&id.keyspace)?.kind;
        match self.view.shards.cell(id) {
            Some(KeyState::Present(seen)) if seen.record.ownership != Ownership::Deleted => {
                Ok(seen)
            }
            Some(KeyState::Damaged { damage, .. }) => Err(AdminError::Refused(format!(
                "shard {id}: {damage}; see `tenure status`"
            ))),
            _ => Err(AdminError::NotFound(format!(
                "there is no shard {id}; {}",
                self.existing_shards(&id.keyspace, kind)
            ))),
        }
    }

    fn existing_shards(&self, name: &KeyspaceName, kind: KeyspaceKind) -> String {
        if let KeyspaceKind::Hashed(count) = kind {
            return format!("keyspace {name} has the shards 0 to {}", count - 1);
        }
        let there = self.view.shards.iter().filter(|(id, seen)| {
            id.keyspace == *name && seen.record.ownership != Ownership::Deleted
        });
        some_of("existing shards", there.map(|(id, _)| id.shard.to_string()))
    }

    /// Returns the record of a node that must exist and be readable.
    pub fn node(&self, name: &NodeName) -> Result<&Versioned<NodeRecord>, AdminError> {
        match self.view.nodes.cell(name) {
            Some(KeyState::Present(seen)) => Ok(seen),
            Some(KeyState::Damaged { damage, .. }) => Err(AdminError::Refused(format!(
                "node {name}: {damage}; see `tenure status`"
            ))),
            Some(KeyState::Missing { .. }) | None => Err(AdminError::NotFound(format!(
                "there is no node {name}; {}",
                self.existing_nodes()
            ))),
        }
    }

    /// Returns the names of the existing nodes, for messages: `existing nodes: a, b`.
    pub fn existing_nodes(&self) -> String {
        let all = self.view.nodes.iter();
        some_of("existing nodes", all.map(|(name, _)| name.to_string()))
    }

    /// Returns the record of a keyspace that must exist, be readable and not be deleted.
    pub fn keyspace(&self, name: &KeyspaceName) -> Result<&KeyspaceRecord, AdminError> {
        self.keyspace_version(name).map(|seen| &*seen.record)
    }

    pub(super) fn keyspace_version(
        &self,
        name: &KeyspaceName,
    ) -> Result<&Versioned<KeyspaceRecord>, AdminError> {
        match self.view.keyspaces.cell(name) {
            Some(KeyState::Present(seen)) if seen.record.deleted => {
                Err(AdminError::Refused(format!(
                    "keyspace {name} was deleted; create it again with `tenure keyspace create {name}`"
                )))
            }
            Some(KeyState::Present(seen)) => Ok(seen),
            Some(KeyState::Damaged { damage, .. }) => Err(AdminError::Refused(format!(
                "keyspace {name}: {damage}; see `tenure status`"
            ))),
            Some(KeyState::Missing { .. }) | None => {
                let names: Vec<_> = self.keyspace_names().map(KeyspaceName::as_str).collect();
                let existing = match names.as_slice() {
                    [] => "none".to_owned(),
                    names => names.join(", "),
                };
                Err(AdminError::NotFound(format!(
                    "there is no keyspace {name}; existing keyspaces: {existing}"
                )))
            }
        }
    }

    /// Returns the keyspace of a cluster that must have exactly one.
    pub fn sole_keyspace(&self) -> Result<KeyspaceName, AdminError> {
        let names: Vec<_> = self.keyspace_names().collect();
        match names.as_slice() {
            [only] => Ok((*only).clone()),
            [] => Err(AdminError::NotFound(
                "the cluster has no keyspace; create one with `tenure keyspace create`".to_owned(),
            )),
            several => {
                let names: Vec<_> = several.iter().map(|n| n.as_str()).collect();
                Err(AdminError::Invalid(format!(
                    "the cluster has several keyspaces; pass --keyspace with one of: {}",
                    names.join(", ")
                )))
            }
        }
    }

    /// Returns the keyspaces that can be read and are not deleted.
    pub fn keyspace_names(&self) -> impl Iterator<Item = &KeyspaceName> {
        let all = self.view.keyspaces.iter();
        all.filter(|(_, seen)| !seen.record.deleted)
            .map(|(name, _)| name)
    }

    /// Returns all keyspaces that ever existed, including those without a record.
    pub fn past_and_present_keyspaces(&self) -> Vec<KeyspaceName> {
        let recorded = self.view.keyspaces.cells().map(|(name, _)| name);
        let cluster = self.view.cluster.get(&());
        let listed = cluster.into_iter().flat_map(|c| c.keyspaces.keys());
        let names: BTreeSet<KeyspaceName> = recorded.chain(listed).cloned().collect();
        names.into_iter().collect()
    }

    /// Returns the shards that a keyspace must have, by number, each with the state of its record.
    pub fn shards<'a>(
        &'a self,
        name: &'a KeyspaceName,
        kind: KeyspaceKind,
    ) -> Box<dyn Iterator<Item = (ShardName, Option<&'a KeyState<ShardRecord>>)> + 'a> {
        match kind {
            KeyspaceKind::Hashed(count) => Box::new((0..count).map(move |index| {
                let shard = ShardName::index(index);
                let id = ShardId::new(name.clone(), shard.clone());
                (shard, self.view.shards.cell(&id))
            })),
            KeyspaceKind::Named => Box::new(
                self.recorded(name)
                    .map(|(id, cell)| (id.shard.clone(), Some(cell))),
            ),
        }
    }

    /// Returns the shard records of a keyspace, also those that do not belong to it.
    pub fn recorded<'a>(
        &'a self,
        name: &'a KeyspaceName,
    ) -> impl Iterator<Item = (&'a ShardId, &'a KeyState<ShardRecord>)> {
        let all = self.view.shards.cells();
        all.filter(move |(id, _)| id.keyspace == *name)
    }

    /// Returns the number of shards of a keyspace that are owned by sessions that may serve.
    pub fn owned(&self, name: &KeyspaceName) -> usize {
        let owners = self.recorded(name).filter_map(|(_, cell)| match cell {
            KeyState::Present(seen) => seen.record.owner(),
            _ => None,
        });
        owners.filter(|owner| !self.is_over(owner.session)).count()
    }

    /// Returns the highest generation that a keyspace is known to have used: reserved, recorded, or in the epoch of a shard.
    /// Zero for a keyspace that never existed.
    pub fn highest_generation(&self, name: &KeyspaceName) -> u32 {
        let cluster = self.view.cluster.get(&());
        let listed = cluster.and_then(|c| c.keyspaces.get(name).copied());
        let recorded = self.view.keyspaces.get(name);
        let recorded = recorded.map(|k| k.generation.max(k.min_generation));
        let shards = self.recorded(name).map(|(_, cell)| match cell {
            KeyState::Present(seen) => seen.record.epoch.generation(),
            // An unreadable record proves that the keyspace existed.
            _ => 1,
        });
        shards.chain(listed).chain(recorded).max().unwrap_or(0)
    }

    /// Returns the sessions that may own a shard whose record is lost: those of nodes that are not proven to have ended.
    pub fn witnesses(&self) -> Vec<SessionId> {
        let all = self.view.sessions.cells();
        all.filter(|(id, cell)| match cell {
            KeyState::Present(seen) => {
                let record = &seen.record;
                self.view.may_own_shards(**id, record) && !record.is_proven_end()
            }
            KeyState::Damaged { .. } => true,
            KeyState::Missing { .. } => false,
        })
        .map(|(id, _)| *id)
        .collect()
    }

    /// Returns the longest ttl that any session of the cluster has used, as far as the records show it.
    pub fn longest_ttl(&self) -> Duration {
        let recorded = self.view.cluster.get(&()).map(|c| c.longest_ttl);
        let sessions = self.view.sessions.iter().map(|(_, s)| s.record.ttl);
        sessions.chain(recorded).max().unwrap_or_default()
    }

    /// Returns the identity of the store that the cluster was written to, if this is another one.
    pub fn other_store(&self) -> Option<&str> {
        let recorded = &self.view.cluster.get(&())?.store;
        (*recorded != self.identity).then_some(recorded.as_str())
    }
}

/// Lists the first of some names.
fn some_of(what: &str, names: impl Iterator<Item = String>) -> String {
    const SHOWN: usize = 10;
    let names: Vec<String> = names.collect();
    match names.len() {
        0 => format!("{what}: none"),
        n if n > SHOWN => format!(
            "{what}: {} and {} more",
            names[..SHOWN].join(", "),
            n - SHOWN
        ),
        _ => format!("{what}: {}", names.join(", ")),
    }
}
