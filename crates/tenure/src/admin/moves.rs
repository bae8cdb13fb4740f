//! Moves: one shard to a node, pins, a rebalance, and the pause of all planned moves.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{KeyspaceName, NodeName, ShardId};
use tenure_core::keys::Key;
use tenure_core::ownership::Transition;
use tenure_core::record::{
    AssignedBy, ClusterRecord, KeyspaceRecord, MovesPaused, NodeMode, Ownership, Record,
    ShardRecord,
};
use tenure_core::view::Versioned;
use tenure_store::Expect;

use super::client::Change;
use super::{AdminClient, AdminError, Snapshot};

/// State of a requested move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveStatus {
    /// The leader has not started the move.
    Waiting,
    /// The move is in progress. The text names the step that it waits for.
    UnderWay(&'static str),
    /// The target serves the shard.
    Done,
    /// The move was aborted, and the shard did not move.
    CalledOff,
}

/// Result of [`AdminClient::pin_shard`] and [`AdminClient::unpin_shard`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinUpdate {
    /// Node that the shard was pinned to before.
    pub previous: Option<NodeName>,
    /// False if the shard was already pinned to this node, or already not pinned.
    pub changed: bool,
    /// False if the shard is pinned to a node that does not exist yet.
    pub target_exists: bool,
}

impl AdminClient {
    /// Pauses planned moves until [`AdminClient::resume_moves`], or for a duration. Failover continues.
    ///
    /// Returns `false` if moves are already paused for this reason without a duration. A pause with a duration starts again.
    pub async fn pause_moves(
        &self,
        reason: &str,
        lasts: Option<Duration>,
    ) -> Result<bool, AdminError> {
        self.set_pause(Some((reason, lasts))).await
    }

    /// Resumes planned moves. Returns `false` if they are not paused.
    pub async fn resume_moves(&self) -> Result<bool, AdminError> {
        self.set_pause(None).await
    }

    async fn set_pause(&self, pause: Option<(&str, Option<Duration>)>) -> Result<bool, AdminError> {
        let change = |snapshot: &Snapshot| {
            let Some(seen) = snapshot.view.cluster.seen(&()) else {
                return Err(AdminError::NotFound(
                    "the cluster does not exist yet; start a node or create a keyspace".to_owned(),
                ));
            };
            match (pause, &seen.record.moves_paused) {
                (None, None) => return Ok(Change::Keep(())),
                (Some((reason, None)), Some(now))
                    if now.reason == reason && now.lasts.is_none() =>
                {
                    return Ok(Change::Keep(()));
                }
                _ => {}
            }
            let head = seen.record.head.next(self.nonce());
            let moves_paused = pause.map(|(reason, lasts)| MovesPaused {
                reason: reason.to_owned(),
                rev: head.rev,
                lasts,
            });
            let record = ClusterRecord {
                head,
                moves_paused,
                ..(*seen.record).clone()
            };
            let expect = Expect::Version(seen.version.clone());
            Ok(Change::Write(expect, Record::Cluster(Arc::new(record)), ()))
        };
        let updated = self
            .update(&Key::Cluster, "the cluster record", change)
            .await?;
        Ok(updated.changed)
    }

    /// Requests one move of a shard to a node. Returns `false` if the shard is there already, or its move is requested.
    ///
    /// The leader may move the shard again later for balance; [`AdminClient::pin_shard`] prevents that.
    pub async fn move_shard(&self, id: &ShardId, to: &NodeName) -> Result<bool, AdminError> {
        let change = |snapshot: &Snapshot| {
            let seen = movable(snapshot, id, to)?;
            let owner = seen.record.owner();
            let there = owner.is_some_and(|o| o.node == *to && !snapshot.is_over(o.session));
            let goes = seen.record.ownership.moving();
            let asked = seen.record.move_request.as_ref() == Some(to);
            if asked || (there && goes.is_none()) || goes.is_some_and(|(mv, _)| mv.to.node == *to) {
                return Ok(Change::Keep(()));
            }
            let node = Some(to.clone());
            let moved = self.transition(snapshot, &seen.record, Transition::RequestMove { node });
            let record = moved.map_err(|_| {
                AdminError::Refused(format!(
                    "shard {id} cannot be moved in its current state (`tenure shard show {id}`); retry later"
                ))
            })?;
            let expect = Expect::Version(seen.version.clone());
            Ok(Change::Write(expect, Record::Shard(Arc::new(record)), ()))
        };
        let what = format!("shard {id}");
        let updated = self.update(&Key::Shard(id.clone()), &what, change).await?;
        Ok(updated.changed)
    }

    /// Waits until a requested move is done or aborted. Reports every step.
    pub async fn wait_until_moved(
        &self,
        id: &ShardId,
        to: &NodeName,
        limit: Duration,
        mut progress: impl FnMut(&MoveStatus),
    ) -> Result<MoveStatus, AdminError> {
        let mut last = None;
        let done = self
            .until(limit, |snapshot| {
                let Some(record) = snapshot.view.shards.get(id) else {
                    return Err(AdminError::NotFound(format!("there is no shard {id}")));
                };
                let status = move_status(snapshot, record, to);
                if last.as_ref() != Some(&status) {
                    progress(&status);
                    last = Some(status.clone());
                }
                let over = matches!(status, MoveStatus::Done | MoveStatus::CalledOff);
                Ok(over.then_some(status))
            })
            .await?;
        done.ok_or_else(|| {
            AdminError::TimedOut(format!(
                "shard {id} has not moved to {to} yet; the move request stays in effect"
            ))
        })
    }

    /// Pins a shard to a node: the leader moves it there and keeps it there. The node need not exist yet.
    pub async fn pin_shard(&self, id: &ShardId, to: &NodeName) -> Result<PinUpdate, AdminError> {
        self.set_pin(id, Some(to)).await
    }

    /// Removes the pin of a shard, which stays where it is until the leader moves it for balance.
    pub async fn unpin_shard(&self, id: &ShardId) -> Result<PinUpdate, AdminError> {
        self.set_pin(id, None).await
    }

    async fn set_pin(&self, id: &ShardId, to: Option<&NodeName>) -> Result<PinUpdate, AdminError> {
        let change = |snapshot: &Snapshot| {
            let seen = snapshot.shard(id)?;
            let mode = snapshot.keyspace(&id.keyspace)?.assigned_by;
            if to.is_some() && mode != AssignedBy::Leader {
                return Err(AdminError::Refused(format!(
                    "keyspace {} has assigned_by = {mode}; only shards of keyspaces assigned by the leader can be pinned",
                    id.keyspace
                )));
            }
            let previous = seen.record.pin.clone();
            let exists = to.is_none_or(|to| snapshot.view.nodes.cell(to).is_some());
            if previous.as_ref() == to {
                return Ok(Change::Keep((previous, exists)));
            }
            let node = to.cloned();
            let pinned = self.transition(snapshot, &seen.record, Transition::Pin { node });
            let record = pinned.map_err(|reason| {
                AdminError::Refused(format!("shard {id} cannot be pinned: {reason}"))
            })?;
            let expect = Expect::Version(seen.version.clone());
            let record = Record::Shard(Arc::new(record));
            Ok(Change::Write(expect, record, (previous, exists)))
        };
        let what = format!("shard {id}");
        let updated = self.update(&Key::Shard(id.clone()), &what, change).await?;
        let (previous, target_exists) = updated.answer;
        Ok(PinUpdate {
            previous,
            changed: updated.changed,
            target_exists,
        })
    }

    /// Requests that the leader balances a keyspace now, without settle time and cool-down. Returns `false` if that is
    /// already requested.
    pub async fn rebalance(&self, name: &KeyspaceName) -> Result<bool, AdminError> {
        let change = |snapshot: &Snapshot| {
            let seen = snapshot.keyspace_version(name)?;
            planned(name, &seen.record, "no leader can rebalance it")?;
            not_paused(snapshot)?;
            if seen.record.rebalance {
                return Ok(Change::Keep(()));
            }
            let record = KeyspaceRecord {
                head: seen.record.head.next(self.nonce()),
                rebalance: true,
                ..(*seen.record).clone()
            };
            let expect = Expect::Version(seen.version.clone());
            Ok(Change::Write(
                expect,
                Record::Keyspace(Arc::new(record)),
                (),
            ))
        };
        let what = format!("keyspace {name}");
        let updated = self
            .update(&Key::Keyspace(name.clone()), &what, change)
            .await?;
        Ok(updated.changed)
    }

    /// Waits until a requested rebalance is done. Reports the number of moving shards whenever it changes.
    pub async fn wait_until_balanced(
        &self,
        name: &KeyspaceName,
        limit: Duration,
        mut progress: impl FnMut(usize),
    ) -> Result<(), AdminError> {
        let mut last = None;
        let done = self
            .until(limit, |snapshot| {
                let all = snapshot.view.shards.iter();
                let moving = all.filter(|(id, s)| {
                    id.keyspace == *name && s.record.ownership.moving().is_some()
                });
                let moving = moving.count();
                if last != Some(moving) {
                    progress(moving);
                    last = Some(moving);
                }
                Ok((!snapshot.keyspace(name)?.rebalance).then_some(()))
            })
            .await?;
        done.ok_or_else(|| {
            AdminError::TimedOut(format!(
                "keyspace {name} is not balanced yet; the leader continues to move shards"
            ))
        })
    }
}

fn move_status(snapshot: &Snapshot, record: &ShardRecord, to: &NodeName) -> MoveStatus {
    use tenure_core::record::MovePhase::{Freezing, Sealed, Warming};
    let owner = record.owner().filter(|o| !snapshot.is_over(o.session));
    let serving = matches!(record.ownership, Ownership::Owned { serving: true, .. });
    match record.ownership.moving() {
        Some((_, Warming)) => MoveStatus::UnderWay("the target loads it"),
        Some((_, Freezing)) => MoveStatus::UnderWay("the owner finishes requests in flight"),
        Some((_, Sealed)) => MoveStatus::UnderWay("the target takes it"),
        None if owner.is_some_and(|o| o.node == *to) && serving => MoveStatus::Done,
        None if owner.is_some_and(|o| o.node == *to) => MoveStatus::UnderWay("the target loads it"),
        None if record.move_request.is_some() => MoveStatus::Waiting,
        None if owner.is_none() && record.assigned.as_ref() == Some(to) => {
            MoveStatus::UnderWay("the assigned node claims it")
        }
        None => MoveStatus::CalledOff,
    }
}

/// Returns the record of a shard that can move to a node.
fn movable<'a>(
    snapshot: &'a Snapshot,
    id: &ShardId,
    to: &NodeName,
) -> Result<&'a Versioned<ShardRecord>, AdminError> {
    let keyspace = snapshot.keyspace(&id.keyspace)?;
    planned(&id.keyspace, keyspace, "no single shard can be moved")?;
    not_paused(snapshot)?;
    let seen = snapshot.shard(id)?;
    let refuse = |reason: String| Err(AdminError::Refused(reason));
    if seen.record.deleting {
        return refuse(format!("shard {id} is being deleted"));
    }
    if seen.record.quarantine.is_some() {
        return refuse(format!(
            "shard {id} is quarantined; remove the cause, then run `tenure shard repair {id}`"
        ));
    }
    if let Some(pin) = seen.record.pin.as_ref().filter(|pin| *pin != to) {
        return refuse(format!(
            "shard {id} is pinned to {pin}; run `tenure shard unpin {id}` first, or pin it to {to}"
        ));
    }
    let target = &snapshot.node(to)?.record;
    if target.mode != NodeMode::Active {
        return refuse(format!(
            "node {to} is {} and accepts no shards; run `tenure node resume {to}` first",
            target.mode
        ));
    }
    if target.cordoned {
        return refuse(format!(
            "node {to} is cordoned and accepts no new shards; run `tenure node uncordon {to}` first"
        ));
    }
    let session = snapshot.view.sessions.get(&target.session);
    if session.is_none_or(|s| !s.is_live() || s.stopping) {
        return refuse(format!(
            "node {to} is not running; start it, or choose another target"
        ));
    }
    Ok(seen)
}

/// Rejects an operation that a leader carries out, for keyspaces without a leader.
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
pub(super) fn not_paused(snapshot: &Snapshot) -> Result<(), AdminError> {
    let cluster = snapshot.view.cluster.get(&());
    match cluster.and_then(|c| c.moves_paused.as_ref()) {
        None => Ok(()),
        Some(pause) => Err(AdminError::Refused(format!(
            "moves are paused ({}); run `tenure cluster resume-moves` first",
            pause.reason
        ))),
    }
}
