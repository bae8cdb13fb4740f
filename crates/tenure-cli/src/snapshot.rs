//! What a store holds of a cluster, read once: the records that can be read, and those that cannot.

use std::time::Duration;

use tenure::Clock;
use tenure_core::ids::{ClusterName, KeyspaceName, NodeName, SessionId, ShardId, ShardName};
use tenure_core::keys::Key;
use tenure_core::machine::Found;
use tenure_core::plan::Live;
use tenure_core::record::{
    EndReason, KeyspaceKind, KeyspaceRecord, NodeRecord, Ownership, Record, ShardRecord,
};
use tenure_core::rules::Rules;
use tenure_core::time::Time;
use tenure_core::view::{KeyState, Versioned, View};
use tenure_store::Listing;

use crate::config::duration;
use crate::exit::Exit;

/// One reading of a cluster.
pub(crate) struct Snapshot {
    pub(crate) view: View,
    /// The identity of the store at that instant.
    pub(crate) identity: String,
    now: Time,
    clock: Option<String>,
}

/// What is known of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    /// Nothing says that it is over.
    Live,
    /// Live, but its holder is stopping: it gives away what it has.
    Stopping,
    /// Its own deadline, on this machine's clock, passed this long ago; nobody has ended it yet.
    Overdue(Duration),
    /// It is over.
    Ended(EndReason),
    /// There is no such record.
    Missing,
    /// Its record cannot be read.
    Unreadable,
}

impl Lease {
    /// Whether the session may still serve: everything but a proven end.
    pub(crate) fn may_serve(self) -> bool {
        !matches!(self, Self::Ended(reason) if reason != EndReason::Missing)
    }

    /// Whether the session has a tombstone, proven or not.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

impl std::fmt::Display for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
    pub(crate) fn new(cluster: &ClusterName, listing: &Listing, identity: String) -> Self {
        let clock = Clock::boot();
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
            now,
            clock: clock.id(),
        }
    }

    /// Whether there is nothing of the cluster.
    pub(crate) fn is_empty(&self) -> bool {
        self.view.present_keys().is_empty()
    }

    /// What is known of a session.
    pub(crate) fn lease(&self, session: SessionId) -> Lease {
        let record = match self.view.sessions.cell(&session) {
            Some(KeyState::Present(seen)) => &seen.record,
            Some(KeyState::Damaged { .. }) => return Lease::Unreadable,
            Some(KeyState::Missing { .. }) | None => return Lease::Missing,
        };
        if let Some(ended) = record.ended {
            return Lease::Ended(ended.reason);
        }
        match &record.boot_clock {
            Some(clock) if Some(&clock.id) == self.clock.as_ref() && clock.until_ns < self.now => {
                Lease::Overdue(self.now.since(clock.until_ns))
            }
            _ if record.stopping => Lease::Stopping,
            _ => Lease::Live,
        }
    }

    /// The records as a planner sees them. A session has ended if its tombstone proves it.
    pub(crate) fn live<T>(&self, see: impl FnOnce(Live<'_>) -> T) -> T {
        let ended = |session| !self.lease(session).may_serve();
        see(Live::new(&self.view, &ended))
    }

    /// The record of a shard that must be there and readable.
    pub(crate) fn shard(&self, id: &ShardId) -> Result<&Versioned<ShardRecord>, Exit> {
        let kind = self.keyspace(&id.keyspace)?.kind;
        match self.view.shards.cell(id) {
            Some(KeyState::Present(seen)) if seen.record.ownership != Ownership::Deleted => {
                Ok(seen)
            }
            Some(KeyState::Damaged { damage, .. }) => Err(Exit::failed(format!(
                "shard {id}: {damage}; see `tenure status`"
            ))),
            _ => Err(Exit::failed(format!(
                "there is no shard {id}; {}",
                self.shards_there_are(&id.keyspace, kind)
            ))),
        }
    }

    fn shards_there_are(&self, name: &KeyspaceName, kind: KeyspaceKind) -> String {
        if let KeyspaceKind::Hashed(count) = kind {
            return format!("keyspace {name} has the shards 0 to {}", count - 1);
        }
        let there = self.view.shards.iter().filter(|(id, seen)| {
            id.keyspace == *name && seen.record.ownership != Ownership::Deleted
        });
        named("existing shards", there.map(|(id, _)| id.shard.to_string()))
    }

    /// The record of a node that must be there and readable.
    pub(crate) fn node(&self, name: &NodeName) -> Result<&Versioned<NodeRecord>, Exit> {
        match self.view.nodes.cell(name) {
            Some(KeyState::Present(seen)) => Ok(seen),
            Some(KeyState::Damaged { damage, .. }) => Err(Exit::failed(format!(
                "node {name}: {damage}; see `tenure status`"
            ))),
            Some(KeyState::Missing { .. }) | None => Err(Exit::failed(format!(
                "there is no node {name}; {}",
                self.nodes_there_are()
            ))),
        }
    }

    /// The nodes that are known, for messages.
    pub(crate) fn nodes_there_are(&self) -> String {
        named(
            "existing nodes",
            self.view.nodes.iter().map(|(name, _)| name.to_string()),
        )
    }

    /// A keyspace that can be used, or why not.
    pub(crate) fn keyspace(&self, name: &KeyspaceName) -> Result<&KeyspaceRecord, Exit> {
        match self.view.keyspaces.cell(name) {
            Some(KeyState::Present(seen)) if seen.record.deleted => Err(Exit::failed(format!(
                "keyspace {name} was deleted; create it again with `tenure keyspace create {name}`"
            ))),
            Some(KeyState::Present(seen)) => Ok(&seen.record),
            Some(KeyState::Damaged { damage, .. }) => Err(Exit::failed(format!(
                "keyspace {name}: {damage}; see `tenure status`"
            ))),
            Some(KeyState::Missing { .. }) | None => {
                let names: Vec<_> = self.keyspace_names().map(|n| n.as_str()).collect();
                Err(Exit::failed(match names.as_slice() {
                    [] => format!("there is no keyspace {name}; existing keyspaces: none"),
                    names => format!(
                        "there is no keyspace {name}; existing keyspaces: {}",
                        names.join(", ")
                    ),
                }))
            }
        }
    }

    /// The keyspace that a command means if it names none: the only one there is.
    pub(crate) fn sole_keyspace(&self) -> Result<KeyspaceName, Exit> {
        let names: Vec<_> = self.keyspace_names().collect();
        match names.as_slice() {
            [only] => Ok((*only).clone()),
            [] => Err(Exit::failed(
                "the cluster has no keyspace; create one with `tenure keyspace create`",
            )),
            several => {
                let names: Vec<_> = several.iter().map(|n| n.as_str()).collect();
                Err(Exit::usage(format!(
                    "the cluster has several keyspaces; pass --keyspace with one of: {}",
                    names.join(", ")
                )))
            }
        }
    }

    fn keyspace_names(&self) -> impl Iterator<Item = &KeyspaceName> {
        let all = self.view.keyspaces.iter();
        all.filter(|(_, seen)| !seen.record.deleted)
            .map(|(name, _)| name)
    }

    /// The shards that a keyspace must have, in the order of their numbers, each with what is known of it.
    pub(crate) fn shards<'a>(
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

    /// The shards of a keyspace that there are records of, whether they belong to it or not.
    pub(crate) fn recorded<'a>(
        &'a self,
        name: &'a KeyspaceName,
    ) -> impl Iterator<Item = (&'a ShardId, &'a KeyState<ShardRecord>)> {
        let all = self.view.shards.cells();
        all.filter(move |(id, _)| id.keyspace == *name)
    }

    /// How many shards of a keyspace are owned by sessions that may still serve.
    pub(crate) fn owned(&self, name: &KeyspaceName) -> usize {
        let owners = self.recorded(name).filter_map(|(_, cell)| match cell {
            KeyState::Present(seen) => seen.record.owner(),
            _ => None,
        });
        owners
            .filter(|owner| self.lease(owner.session).may_serve())
            .count()
    }

    /// The highest generation that a keyspace is known to have used: as drawn, as recorded, and as its shards have it. Zero if
    /// there never was such a keyspace.
    pub(crate) fn highest_generation(&self, name: &KeyspaceName) -> u32 {
        let cluster = self.view.cluster.get(&());
        let listed = cluster.and_then(|c| c.keyspaces.get(name).copied());
        let recorded = self
            .view
            .keyspaces
            .get(name)
            .map(|k| k.generation.max(k.min_generation));
        let shards = self.recorded(name).map(|(_, cell)| match cell {
            KeyState::Present(seen) => seen.record.epoch.generation(),
            // Something was there, whatever it said.
            _ => 1,
        });
        shards.chain(listed).chain(recorded).max().unwrap_or(0)
    }

    /// Sessions that may own a shard whose record is lost: every one of a node that is not proven to be over.
    pub(crate) fn witnesses(&self) -> Vec<SessionId> {
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

    /// The longest ttl that any session of the cluster has used, as far as that can be known.
    pub(crate) fn longest_ttl(&self) -> Duration {
        let recorded = self.view.cluster.get(&()).map(|c| c.longest_ttl);
        let sessions = self.view.sessions.iter().map(|(_, s)| s.record.ttl);
        sessions.chain(recorded).max().unwrap_or_default()
    }

    /// Whether the cluster was written to another store than this one, and to which.
    pub(crate) fn other_store(&self) -> Option<&str> {
        let recorded = &self.view.cluster.get(&())?.store;
        (*recorded != self.identity).then_some(recorded.as_str())
    }

    /// How long to watch something unchanged to know that every lease of the cluster has run out meanwhile.
    pub(crate) fn proof(&self, ttl: Duration, drift_permille: u32) -> Duration {
        let longest = self.longest_ttl().max(ttl);
        longest + longest * drift_permille / 1000
    }
}

/// A few of the names that there are.
fn named(what: &str, names: impl Iterator<Item = String>) -> String {
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

/// Says how long ago something was, for people.
pub(crate) fn ago(time: Duration) -> String {
    let rounded = match time.as_secs() {
        0 => Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(0)),
        seconds => Duration::from_secs(seconds),
    };
    duration::show(rounded)
}
