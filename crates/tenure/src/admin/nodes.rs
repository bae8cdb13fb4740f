//! Nodes: drained, activated, asked to stop.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tenure_core::ids::{NodeName, SessionId};
use tenure_core::record::{NodeMode, NodeRecord, Role};
use tenure_core::view::View;

use super::{AdminClient, AdminError, is_over, node, not_paused};

/// How a node stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its mode.
    pub mode: NodeMode,
    /// Its session, or its last one.
    pub session: SessionId,
    /// Whether that is proven to be over.
    pub is_over: bool,
    /// How many shards it owns.
    pub shards: usize,
    /// How many of them are on their way to other nodes.
    pub moving: usize,
}

impl NodeStatus {
    /// How a node of this name stands, by these records.
    pub fn of(view: &View, name: &NodeName) -> Result<Self, AdminError> {
        let record = &node(view, name)?.record;
        let shards = view.shards.iter().map(|(_, seen)| &seen.record);
        let owned = shards.filter(|s| s.owner().is_some_and(|o| o.node == *name));
        let owned: Vec<_> = owned
            .filter(|s| s.owner().is_some_and(|o| !is_over(view, o.session)))
            .collect();
        Ok(Self {
            mode: record.mode.clone(),
            session: record.session,
            is_over: is_over(view, record.session),
            shards: owned.len(),
            moving: owned
                .iter()
                .filter(|s| s.ownership.moving().is_some())
                .count(),
        })
    }

    /// Whether it has given away everything and says so.
    pub fn is_drained(&self) -> bool {
        matches!(self.mode, NodeMode::Drained(_)) && self.shards == 0
    }
}

impl AdminClient {
    /// Lets a node give away everything it has, and take nothing, until it is activated. Says whether that is new.
    ///
    /// The node gives away by itself, as its leader plans; [`AdminClient::wait_until_drained`] waits for it. One that is not there is drained
    /// at once.
    pub async fn drain(&self, name: &NodeName) -> Result<bool, AdminError> {
        let by_operator = NodeMode::drained(NodeMode::BY_OPERATOR);
        let drain = |view: &View, record: &NodeRecord| {
            if record.mode.is_by_operator() {
                return Ok(None);
            }
            owns_shards(view, name, record, "drained")?;
            let has_none = is_over(view, record.session) || record.mode != NodeMode::Active;
            if !has_none {
                not_paused(view)?;
            }
            Ok(Some(NodeRecord {
                mode: match has_none {
                    true => by_operator.clone(),
                    false => NodeMode::Draining,
                },
                ..record.clone()
            }))
        };
        Ok(self.edit_node(name, drain).await?.split().1)
    }

    /// Waits until a node that was drained owns nothing, and tells how it stands whenever that changes.
    pub async fn wait_until_drained(
        &self,
        name: &NodeName,
        limit: Duration,
        mut tell: impl FnMut(&NodeStatus),
    ) -> Result<NodeStatus, AdminError> {
        let mut last = None;
        let done = self
            .until(limit, async |view: &View| {
                let mut standing = NodeStatus::of(view, name)?;
                if last.as_ref() != Some(&standing) {
                    tell(&standing);
                    last = Some(standing.clone());
                }
                if standing.mode == NodeMode::Active {
                    return Err(AdminError::Refused(format!(
                        "node {name} was resumed during the drain"
                    )));
                }
                if standing.is_over && standing.shards == 0 && !standing.is_drained() {
                    // Whoever would say so is gone.
                    self.settle_drained(name).await?;
                    standing.mode = NodeMode::drained(NodeMode::BY_OPERATOR);
                }
                Ok(standing.is_drained().then_some(standing))
            })
            .await?;
        let left = last.map_or(0, |standing| standing.shards);
        done.ok_or_else(|| {
            AdminError::TimedOut(format!(
                "node {name} still has {left} shards; the drain continues, and `tenure node resume {name}` cancels it"
            ))
        })
    }

    async fn settle_drained(&self, name: &NodeName) -> Result<(), AdminError> {
        let settle = |view: &View, record: &NodeRecord| {
            let over = is_over(view, record.session) && record.mode == NodeMode::Draining;
            Ok(over.then(|| NodeRecord {
                mode: NodeMode::drained(NodeMode::BY_OPERATOR),
                ..record.clone()
            }))
        };
        self.edit_node(name, settle).await.map(|_| ())
    }

    /// Lets a node take shards again, whatever it was drained for. Says in which mode it was.
    ///
    /// What is known against one that is not there just now is forgiven: it comes back active.
    pub async fn resume(&self, name: &NodeName) -> Result<(NodeMode, bool), AdminError> {
        let was = RefCell::new(NodeMode::Active);
        let activate = |view: &View, record: &NodeRecord| {
            owns_shards(view, name, record, "resumed")?;
            was.replace(record.mode.clone());
            let away = is_over(view, record.session) && record.boot != Some(0);
            let same = record.mode == NodeMode::Active && !away;
            Ok((!same).then(|| NodeRecord {
                mode: NodeMode::Active,
                boot: if away { Some(0) } else { record.boot },
                ..record.clone()
            }))
        };
        let (_, changed) = self.edit_node(name, activate).await?.split();
        Ok((was.into_inner(), changed))
    }

    /// Asks the present process of a node to give away everything and to stop. Says whom, if it is not over already.
    ///
    /// A process that does not answer is not hurried: its shards are taken once its ttl has proved it gone.
    pub async fn stop_node(
        &self,
        name: &NodeName,
    ) -> Result<Option<(SessionId, bool)>, AdminError> {
        let over = Cell::new(false);
        let evict = |view: &View, record: &NodeRecord| {
            over.set(is_over(view, record.session));
            let asked = record.stop_session == Some(record.session) || over.get();
            Ok((!asked).then(|| NodeRecord {
                stop_session: Some(record.session),
                ..record.clone()
            }))
        };
        let (record, changed) = self.edit_node(name, evict).await?.split();
        Ok((!over.get()).then_some((record.session, changed)))
    }

    /// Waits until a session is over, and tells of the shards that it still has whenever their number changes.
    pub async fn wait_until_stopped(
        &self,
        name: &NodeName,
        session: SessionId,
        limit: Duration,
        mut tell: impl FnMut(usize),
    ) -> Result<(), AdminError> {
        let mut last = None;
        let done = self
            .until(limit, async |view: &View| {
                let shards = view.shards.iter();
                let left = shards
                    .filter(|(_, s)| s.record.is_owned_by(session))
                    .count();
                let over = is_over(view, session) || view.sessions.cell(&session).is_none();
                if !over && last != Some(left) {
                    tell(left);
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
}

/// Refuses for those that own nothing by their role.
fn owns_shards(
    view: &View,
    name: &NodeName,
    record: &NodeRecord,
    what: &str,
) -> Result<(), AdminError> {
    let role = view.sessions.get(&record.session).map(|s| s.role);
    match role {
        Some(role) if role != Role::Node => Err(AdminError::Refused(format!(
            "{name} is a router, planner or shadow node, which owns no shards; it cannot be {what}"
        ))),
        _ => Ok(()),
    }
}
