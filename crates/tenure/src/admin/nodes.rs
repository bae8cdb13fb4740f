//! Nodes: cordon, drain, resume and stop.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{NodeName, SessionId};
use tenure_core::keys::Key;
use tenure_core::record::{NodeMode, NodeRecord, Record, Role};
use tenure_store::Expect;

use super::client::{Change, Updated};
use super::moves::not_paused;
use super::{AdminClient, AdminError, Snapshot};

/// State of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Mode of the node.
    pub mode: NodeMode,
    /// The present session, or the last one.
    pub session: SessionId,
    /// True if that session is proven to have ended.
    pub is_over: bool,
    /// Number of shards that the node owns.
    pub shards: usize,
    /// Number of these shards that are moving to other nodes.
    pub moving: usize,
}

impl NodeStatus {
    /// Returns the state of a node that must exist.
    pub fn of(snapshot: &Snapshot, name: &NodeName) -> Result<Self, AdminError> {
        let record = &snapshot.node(name)?.record;
        let shards = snapshot.view.shards.iter().map(|(_, seen)| &seen.record);
        let owns =
            |by: &tenure_core::record::Owner| by.node == *name && !snapshot.is_over(by.session);
        let owned: Vec<_> = shards.filter(|s| s.owner().is_some_and(owns)).collect();
        Ok(Self {
            mode: record.mode.clone(),
            session: record.session,
            is_over: snapshot.is_over(record.session),
            shards: owned.len(),
            moving: owned
                .iter()
                .filter(|s| s.ownership.moving().is_some())
                .count(),
        })
    }

    /// Returns `true` if the node is drained and owns nothing.
    pub fn is_drained(&self) -> bool {
        matches!(self.mode, NodeMode::Drained(_)) && self.shards == 0
    }
}

/// Result of [`AdminClient::resume`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumedNode {
    /// Mode before the operation.
    pub previous: NodeMode,
    /// False if the node was active, and would restart as active.
    pub changed: bool,
}

/// Result of [`AdminClient::stop_node`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopRequest {
    /// The session of the node has ended.
    NotRunning,
    /// The stop of this session is now requested.
    Requested(SessionId),
    /// The stop of this session was requested before.
    AlreadyRequested(SessionId),
}

impl StopRequest {
    /// Returns the session that stops. `None` if the node is not running.
    pub fn session(self) -> Option<SessionId> {
        match self {
            Self::NotRunning => None,
            Self::Requested(session) | Self::AlreadyRequested(session) => Some(session),
        }
    }
}

impl AdminClient {
    /// Cordons a node: it keeps its shards and gets no others. Returns `false` if the node is already cordoned.
    pub async fn cordon(&self, name: &NodeName) -> Result<bool, AdminError> {
        self.set_cordoned(name, true).await
    }

    /// Ends the cordon of a node. Returns `false` if the node is not cordoned.
    pub async fn uncordon(&self, name: &NodeName) -> Result<bool, AdminError> {
        self.set_cordoned(name, false).await
    }

    async fn set_cordoned(&self, name: &NodeName, cordoned: bool) -> Result<bool, AdminError> {
        let change = |_: &Snapshot, record: &NodeRecord| {
            let new = NodeRecord {
                cordoned,
                ..record.clone()
            };
            Ok((record.cordoned != cordoned).then_some(new))
        };
        Ok(self.update_node(name, change).await?.changed)
    }

    /// Drains a node: it hands over all shards and takes none until it is resumed. Returns `false` if it is already draining.
    ///
    /// The node hands over as its leader plans; [`AdminClient::wait_until_drained`] waits for the end. A node that is not running
    /// is drained at once.
    pub async fn drain(&self, name: &NodeName) -> Result<bool, AdminError> {
        let change = |snapshot: &Snapshot, record: &NodeRecord| {
            if record.mode.is_by_operator() {
                return Ok(None);
            }
            owns_shards(snapshot, name, record, "drained")?;
            let has_none = snapshot.is_over(record.session) || record.mode != NodeMode::Active;
            if !has_none {
                not_paused(snapshot)?;
            }
            let mode = match has_none {
                true => NodeMode::drained(NodeMode::BY_OPERATOR),
                false => NodeMode::Draining,
            };
            Ok(Some(NodeRecord {
                mode,
                ..record.clone()
            }))
        };
        Ok(self.update_node(name, change).await?.changed)
    }

    /// Waits until a draining node owns nothing. Reports the state of the node whenever it changes.
    pub async fn wait_until_drained(
        &self,
        name: &NodeName,
        limit: Duration,
        mut progress: impl FnMut(&NodeStatus),
    ) -> Result<NodeStatus, AdminError> {
        let mut last = None;
        let done = self
            .until(limit, |snapshot| {
                let status = NodeStatus::of(snapshot, name)?;
                if last.as_ref() != Some(&status) {
                    progress(&status);
                    last = Some(status.clone());
                }
                if status.mode == NodeMode::Active {
                    return Err(AdminError::Refused(format!(
                        "node {name} was resumed during the drain"
                    )));
                }
                let gone = status.is_over && status.shards == 0;
                Ok((gone || status.is_drained()).then_some(status))
            })
            .await?;
        let Some(mut status) = done else {
            let left = last.map_or(0, |status| status.shards);
            return Err(AdminError::TimedOut(format!(
                "node {name} still has {left} shards; the drain continues, and `tenure node resume {name}` cancels it"
            )));
        };
        if !status.is_drained() {
            // The node has ended and can no longer record the end of its drain.
            self.settle_drained(name).await?;
            status.mode = NodeMode::drained(NodeMode::BY_OPERATOR);
        }
        Ok(status)
    }

    async fn settle_drained(&self, name: &NodeName) -> Result<(), AdminError> {
        let settle = |snapshot: &Snapshot, record: &NodeRecord| {
            let over = snapshot.is_over(record.session) && record.mode == NodeMode::Draining;
            Ok(over.then(|| NodeRecord {
                mode: NodeMode::drained(NodeMode::BY_OPERATOR),
                ..record.clone()
            }))
        };
        self.update_node(name, settle).await.map(|_| ())
    }

    /// Lets a node take shards again, for whatever reason it was drained.
    ///
    /// A node that is not running restarts as active, also if it would otherwise have restarted as drained.
    pub async fn resume(&self, name: &NodeName) -> Result<ResumedNode, AdminError> {
        let mut previous = NodeMode::Active;
        let change = |snapshot: &Snapshot, record: &NodeRecord| {
            owns_shards(snapshot, name, record, "resumed")?;
            previous = record.mode.clone();
            let away = snapshot.is_over(record.session) && record.boot != Some(0);
            let same = record.mode == NodeMode::Active && !away;
            Ok((!same).then(|| NodeRecord {
                mode: NodeMode::Active,
                boot: if away { Some(0) } else { record.boot },
                ..record.clone()
            }))
        };
        let changed = self.update_node(name, change).await?.changed;
        Ok(ResumedNode { previous, changed })
    }

    /// Requests that the present process of a node hands over its shards and stops.
    ///
    /// A process that does not respond is not forced: other nodes claim its shards after its ttl.
    pub async fn stop_node(&self, name: &NodeName) -> Result<StopRequest, AdminError> {
        let mut over = false;
        let change = |snapshot: &Snapshot, record: &NodeRecord| {
            over = snapshot.is_over(record.session);
            let asked = record.stop_session == Some(record.session) || over;
            Ok((!asked).then(|| NodeRecord {
                stop_session: Some(record.session),
                ..record.clone()
            }))
        };
        let updated = self.update_node(name, change).await?;
        let session = updated.answer.session;
        Ok(match (over, updated.changed) {
            (true, _) => StopRequest::NotRunning,
            (false, true) => StopRequest::Requested(session),
            (false, false) => StopRequest::AlreadyRequested(session),
        })
    }

    /// Waits until a session has ended. Reports the number of shards that it still owns whenever that changes.
    pub async fn wait_until_stopped(
        &self,
        name: &NodeName,
        session: SessionId,
        limit: Duration,
        mut progress: impl FnMut(usize),
    ) -> Result<(), AdminError> {
        let mut last = None;
        let done = self
            .until(limit, |snapshot| {
                let shards = snapshot.view.shards.iter();
                let left = shards.filter(|(_, s)| s.record.is_owned_by(session));
                let left = left.count();
                let known = snapshot.view.sessions.cell(&session).is_some();
                let over = snapshot.is_over(session) || !known;
                if !over && last != Some(left) {
                    progress(left);
                    last = Some(left);
                }
                Ok(over.then_some(()))
            })
            .await?;
        done.ok_or_else(|| {
            AdminError::TimedOut(format!(
                "node {name} has not stopped; other nodes claim its shards only after its lease expires"
            ))
        })
    }

    /// Changes a node's record until it is as `change` wants it.
    async fn update_node(
        &self,
        name: &NodeName,
        mut change: impl FnMut(&Snapshot, &NodeRecord) -> Result<Option<NodeRecord>, AdminError>,
    ) -> Result<Updated<Arc<NodeRecord>>, AdminError> {
        let what = format!("the record of node {name}");
        self.update(&Key::Node(name.clone()), &what, |snapshot| {
            let seen = snapshot.node(name)?;
            let Some(mut new) = change(snapshot, &seen.record)? else {
                return Ok(Change::Keep(seen.record.clone()));
            };
            new.head = seen.record.head.next(self.nonce());
            let new = Arc::new(new);
            let expect = Expect::Version(seen.version.clone());
            Ok(Change::Write(expect, Record::Node(new.clone()), new))
        })
        .await
    }
}

/// Rejects an operation on processes whose role owns no shards.
fn owns_shards(
    snapshot: &Snapshot,
    name: &NodeName,
    record: &NodeRecord,
    what: &str,
) -> Result<(), AdminError> {
    let role = snapshot.view.sessions.get(&record.session).map(|s| s.role);
    match role {
        Some(role) if role != Role::Node => Err(AdminError::Refused(format!(
            "{name} is a router, planner or shadow node, which owns no shards; it cannot be {what}"
        ))),
        _ => Ok(()),
    }
}
