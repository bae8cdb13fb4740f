//! What operators do to a running cluster, as an API: the same that the `tenure` command does.
//!
//! An [`AdminClient`] is no participant: it has no session, owns nothing and decides nothing. It writes wishes into records, each
//! under the version that it was decided on; nodes and leader carry them out. Every operation may be repeated, and doing it
//! twice changes nothing. Whoever goes away in the middle leaves a wish that stands, or none.

mod moves;
mod nodes;
mod shards;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::ids::{BadName, ClusterName, KeyspaceName, NodeName, Nonce, SessionId};
use tenure_core::keys::{self, Key};
use tenure_core::machine::Found;
use tenure_core::members;
use tenure_core::ownership::{self, Facts, Transition, Writer};
use tenure_core::record::{
    AssignedBy, KeyspaceRecord, NodeRecord, Owner, Record, SessionRecord, ShardRecord,
};
use tenure_core::rules::Rules;
use tenure_core::time::Time;
use tenure_core::view::{KeyState, Versioned, View};
use tenure_store::{Expect, Put, PutIf, Store, StoreError};

pub use moves::MoveStatus;
pub use nodes::NodeStatus;
pub use shards::{MAX_META, NewShard, ShardWork};
pub use tenure_core::members::{UnservedGroup, UnservedReason};

/// How often a race against other writers is run again.
const CAS_ATTEMPTS: usize = 20;
/// How long the store may take to answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// How often a wait looks at the store, if nothing there has changed.
const LOOK: Duration = Duration::from_millis(200);

/// An operator's hands on one cluster.
pub struct AdminClient {
    store: Arc<dyn Store>,
    cluster: ClusterName,
    writer: SessionId,
    writes: AtomicU64,
}

/// Why an operation was not done.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdminError {
    /// There is no such thing; says which, and what there is.
    NotFound(String),
    /// It cannot be done as things are; says why, and the way out.
    Refused(String),
    /// Others keep changing the record: try again.
    Raced(String),
    /// A wait is over and what was waited for has not come; the wish stands.
    TimedOut(String),
    /// The store did not do it.
    Store(StoreError),
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(text) | Self::Refused(text) | Self::TimedOut(text) => f.write_str(text),
            Self::Raced(what) => write!(f, "{what} keeps being changed concurrently; retry"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AdminError {}

impl From<StoreError> for AdminError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<BadName> for AdminError {
    fn from(error: BadName) -> Self {
        Self::Refused(error.to_string())
    }
}

/// What became of a record that was to be changed.
enum Edited<T> {
    /// It says so already.
    Same(T),
    /// It was written.
    Written(T),
}

impl<T> Edited<T> {
    fn split(self) -> (T, bool) {
        match self {
            Self::Same(value) => (value, false),
            Self::Written(value) => (value, true),
        }
    }
}

impl AdminClient {
    /// The cluster named `cluster` in the store at `url`, which must be there.
    pub async fn open(url: &str, cluster: &str) -> Result<Self, AdminError> {
        let store = tenure_store::open_existing(url).await?;
        Ok(Self::new(store, ClusterName::new(cluster)?))
    }

    /// A cluster in a store that is open already.
    pub fn new(store: Arc<dyn Store>, cluster: ClusterName) -> Self {
        Self {
            store,
            cluster,
            writer: SessionId(crate::startup::entropy()),
            writes: AtomicU64::new(0),
        }
    }

    /// Everything that the store holds of the cluster, at one instant.
    pub async fn snapshot(&self) -> Result<View, AdminError> {
        let prefix = keys::prefix(&self.cluster);
        let listing = within(self.store.list(&prefix)).await?;
        let mut view = View::new(Rules::sound());
        for entry in listing.entries {
            if let Some(key) = Key::parse(&self.cluster, &entry.key) {
                let record = Record::decode(&key, &entry.value);
                let version = entry.version;
                view.apply(Time::ZERO, &key, Found { version, record });
            }
        }
        view.revision = listing.revision;
        Ok(view)
    }

    /// Returns the shards that are not served and why, by keyspace: those that no node can be given, and those that the nodes report as
    /// not served for longer than three ttl. Quarantined shards are left out. Empty if all is well.
    pub async fn unserved(&self) -> Result<BTreeMap<KeyspaceName, Vec<UnservedGroup>>, AdminError> {
        let view = self.snapshot().await?;
        let ended = |session| view.sessions.get(&session).is_none_or(|s| !s.is_live());
        let each = view.keyspaces.iter().map(|(name, _)| {
            let blocked = members::blocked(&view, name);
            (name.clone(), members::stuck(&view, name, ended, blocked))
        });
        Ok(each.filter(|(_, stuck)| !stuck.is_empty()).collect())
    }

    /// Looks whenever something has changed, until `look` has an answer; at most for `limit`.
    async fn until<T>(
        &self,
        limit: Duration,
        mut look: impl AsyncFnMut(&View) -> Result<Option<T>, AdminError>,
    ) -> Result<Option<T>, AdminError> {
        let waited = tokio::time::timeout(limit, async {
            let mut last = None;
            loop {
                // A store that is away for a moment must not end a wait of minutes. Before the first look there is nothing to
                // compare with.
                let now = match last {
                    Some(_) => within(self.store.revision()).await.ok(),
                    None => None,
                };
                if now.is_none() || now != last {
                    match self.snapshot().await {
                        Ok(view) => {
                            last = Some(view.revision);
                            if let Some(answer) = look(&view).await? {
                                return Ok(answer);
                            }
                        }
                        Err(AdminError::Store(StoreError::Denied { reason })) => {
                            return Err(StoreError::Denied { reason }.into());
                        }
                        Err(_) => last = None,
                    }
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        match waited.await {
            Ok(answer) => answer.map(Some),
            Err(_) => Ok(None),
        }
    }

    fn nonce(&self) -> Nonce {
        Nonce {
            writer: self.writer,
            n: self.writes.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// What a change of a shard's record makes of it.
    fn changed(
        &self,
        record: &ShardRecord,
        change: Transition,
        view: &View,
    ) -> Option<ShardRecord> {
        let node = NodeName::new("operator").ok()?;
        let session = self.writer;
        let writer = Writer {
            owner: Owner { node, session },
            nonce: self.nonce(),
        };
        let facts = Facts {
            ended: &|session| is_over(view, session),
            highest_epoch: record.epoch,
            min_generation: 0,
            load: None,
            rules: Rules::sound(),
        };
        ownership::apply(record, &writer, change, &facts).ok()
    }

    fn write(&self, key: &Key, expect: Expect, record: &Record) -> PutIf {
        PutIf {
            key: key.path(&self.cluster),
            value: record.encode().into(),
            expect,
            lease: record.lease(key),
        }
    }

    /// Writes one record; says whether it stands. An outcome that the store does not know is settled by reading back.
    async fn put(&self, key: &Key, expect: Expect, record: &Record) -> Result<bool, AdminError> {
        let put = self.write(key, expect, record);
        let (path, value) = (put.key.clone(), put.value.clone());
        match within(self.store.put_if(put)).await {
            Ok(Put::Won(_)) => Ok(true),
            Ok(Put::Lost) => Ok(false),
            Err(StoreError::Unknown { .. }) => {
                let found = within(self.store.get(&path)).await?;
                Ok(found.is_some_and(|entry| entry.value == value))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Changes a node's record until it is as it should be.
    async fn edit_node(
        &self,
        name: &NodeName,
        change: impl Fn(&View, &NodeRecord) -> Result<Option<NodeRecord>, AdminError>,
    ) -> Result<Edited<NodeRecord>, AdminError> {
        let key = Key::Node(name.clone());
        for _ in 0..CAS_ATTEMPTS {
            let view = self.snapshot().await?;
            let seen = node(&view, name)?;
            let Some(mut new) = change(&view, &seen.record)? else {
                return Ok(Edited::Same((*seen.record).clone()));
            };
            new.head = seen.record.head.next(self.nonce());
            let expect = Expect::Version(seen.version.clone());
            if self
                .put(&key, expect, &Record::Node(Arc::new(new.clone())))
                .await?
            {
                return Ok(Edited::Written(new));
            }
        }
        Err(AdminError::Raced(format!("node {name}")))
    }
}

async fn within<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let answer = tokio::time::timeout(CALL_TIMEOUT, call).await;
    answer.unwrap_or_else(|_| {
        Err(StoreError::Unknown {
            reason: format!(
                "the store did not respond within {}s; check that it is running and reachable",
                CALL_TIMEOUT.as_secs()
            ),
        })
    })
}

/// Whether a session is proven to be over.
fn is_over(view: &View, session: SessionId) -> bool {
    let record = view.sessions.get(&session);
    record.is_some_and(SessionRecord::is_proven_end)
}

fn node<'a>(view: &'a View, name: &NodeName) -> Result<&'a Versioned<NodeRecord>, AdminError> {
    match view.nodes.cell(name) {
        Some(KeyState::Present(seen)) => Ok(seen),
        Some(KeyState::Damaged { damage, .. }) => Err(AdminError::Refused(format!(
            "node {name}: {damage}; see `tenure status`"
        ))),
        _ => {
            let there: Vec<&str> = view.nodes.iter().map(|(n, _)| n.as_str()).collect();
            Err(AdminError::NotFound(format!(
                "there is no node {name}; {}",
                few(&there)
            )))
        }
    }
}

fn keyspace<'a>(view: &'a View, name: &KeyspaceName) -> Result<&'a KeyspaceRecord, AdminError> {
    match view.keyspaces.cell(name) {
        Some(KeyState::Present(seen)) if seen.record.deleted => {
            Err(AdminError::Refused(format!("keyspace {name} was deleted")))
        }
        Some(KeyState::Present(seen)) => Ok(&seen.record),
        Some(KeyState::Damaged { damage, .. }) => Err(AdminError::Refused(format!(
            "keyspace {name}: {damage}; see `tenure status`"
        ))),
        _ => {
            let there: Vec<&str> = view.keyspaces.iter().map(|(n, _)| n.as_str()).collect();
            Err(AdminError::NotFound(format!(
                "there is no keyspace {name}; {}",
                few(&there)
            )))
        }
    }
}

/// Refuses what a leader has to carry out where none plans.
fn planned(name: &KeyspaceName, record: &KeyspaceRecord, what: &str) -> Result<(), AdminError> {
    let reason = match record.assigned_by {
        AssignedBy::Leader => return Ok(()),
        AssignedBy::Rendezvous => "placement follows from the names and weights of the nodes",
        AssignedBy::FairShare => "nodes balance their shards themselves",
    };
    Err(AdminError::Refused(format!(
        "keyspace {name} has assigned_by = {}: {reason}, and {what}; drain, resume or stop nodes, or change their weights \
         instead",
        record.assigned_by
    )))
}

/// Rejects requests for moves while moves are paused.
fn not_paused(view: &View) -> Result<(), AdminError> {
    match view.cluster.get(&()).and_then(|c| c.moves_paused.as_ref()) {
        None => Ok(()),
        Some(pause) => Err(AdminError::Refused(format!(
            "moves are paused ({}); run `tenure cluster resume-moves` first",
            pause.reason
        ))),
    }
}

fn few(names: &[&str]) -> String {
    const SHOWN: usize = 10;
    match names.len() {
        0 => "there are none".to_owned(),
        n if n > SHOWN => format!(
            "existing: {} and {} more",
            names[..SHOWN].join(", "),
            n - SHOWN
        ),
        _ => format!("existing: {}", names.join(", ")),
    }
}
