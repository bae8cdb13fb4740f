//! What moves: one shard to a node, a keyspace until it is even, or nothing at all.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{KeyspaceName, NodeName, ShardId};
use tenure_core::keys::Key;
use tenure_core::ownership::Transition;
use tenure_core::record::{
    ClusterRecord, KeyspaceRecord, MovesPaused, NodeMode, Ownership, Record, ShardRecord,
};
use tenure_core::view::{KeyState, Versioned, View};
use tenure_store::Expect;

use super::{AdminClient, AdminError, CAS_ATTEMPTS, is_over, keyspace, node, not_paused, planned};

/// How a shard that is to move stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveStatus {
    /// Its leader has not begun.
    Waiting,
    /// It is under way; what it is waiting for now.
    UnderWay(&'static str),
    /// It is served where it was to go.
    Done,
    /// It was called off, and is where it was.
    CalledOff,
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
        for _ in 0..CAS_ATTEMPTS {
            let view = self.snapshot().await?;
            let Some(seen) = view.cluster.seen(&()) else {
                return Err(AdminError::NotFound(
                    "the cluster does not exist yet; start a node or create a keyspace".to_owned(),
                ));
            };
            let now = seen.record.moves_paused.as_ref();
            match (pause, now) {
                (None, None) => return Ok(false),
                (Some((reason, None)), Some(now))
                    if now.reason == reason && now.lasts.is_none() =>
                {
                    return Ok(false);
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
            let record = Record::Cluster(Arc::new(record));
            if self.put(&Key::Cluster, expect, &record).await? {
                return Ok(true);
            }
        }
        Err(AdminError::Raced("the cluster's record".to_owned()))
    }

    /// Asks the leader to move a shard to a node, once. Says whether it is not there, or asked for, already.
    ///
    /// It stays there as long as balance does not say otherwise; to keep it there, pin it.
    pub async fn move_shard(&self, id: &ShardId, to: &NodeName) -> Result<bool, AdminError> {
        for _ in 0..CAS_ATTEMPTS {
            let view = self.snapshot().await?;
            let seen = movable(&view, id, to)?;
            let owner = seen.record.owner();
            let there = owner.is_some_and(|o| o.node == *to && !is_over(&view, o.session));
            let goes = seen.record.ownership.moving();
            let asked = seen.record.move_request.as_ref() == Some(to);
            if asked || (there && goes.is_none()) || goes.is_some_and(|(mv, _)| mv.to.node == *to) {
                return Ok(false);
            }
            let change = Transition::RequestMove {
                node: Some(to.clone()),
            };
            let Some(record) = self.changed(&seen.record, change, &view) else {
                return Err(AdminError::Refused(format!(
                    "shard {id} cannot be moved in its current state (`tenure shard show {id}`); retry later"
                )));
            };
            let expect = Expect::Version(seen.version.clone());
            let record = Record::Shard(Arc::new(record));
            if self.put(&Key::Shard(id.clone()), expect, &record).await? {
                return Ok(true);
            }
        }
        Err(AdminError::Raced(format!("shard {id}")))
    }

    /// Waits until a shard that was to move is where it should be, or the move was called off; tells of every step.
    pub async fn wait_until_moved(
        &self,
        id: &ShardId,
        to: &NodeName,
        limit: Duration,
        mut tell: impl FnMut(&MoveStatus),
    ) -> Result<MoveStatus, AdminError> {
        let mut last = None;
        let done = self
            .until(limit, async |view: &View| {
                let Some(record) = view.shards.get(id) else {
                    return Err(AdminError::NotFound(format!("there is no shard {id}")));
                };
                let standing = standing(view, record, to);
                if last.as_ref() != Some(&standing) {
                    tell(&standing);
                    last = Some(standing.clone());
                }
                let over = matches!(standing, MoveStatus::Done | MoveStatus::CalledOff);
                Ok(over.then_some(standing))
            })
            .await?;
        done.ok_or_else(|| {
            AdminError::TimedOut(format!(
                "shard {id} has not moved to {to} yet; the move request stays in effect"
            ))
        })
    }

    /// Asks the leader to even a keyspace out now, without the waits that usually keep it calm. Says whether that is new.
    pub async fn rebalance(&self, name: &KeyspaceName) -> Result<bool, AdminError> {
        for _ in 0..CAS_ATTEMPTS {
            let view = self.snapshot().await?;
            let record = keyspace(&view, name)?;
            planned(name, record, "no leader can rebalance it")?;
            not_paused(&view)?;
            let Some(seen) = view.keyspaces.seen(name).filter(|_| !record.rebalance) else {
                return Ok(false);
            };
            let record = KeyspaceRecord {
                head: seen.record.head.next(self.nonce()),
                rebalance: true,
                ..(*seen.record).clone()
            };
            let expect = Expect::Version(seen.version.clone());
            let record = Record::Keyspace(Arc::new(record));
            if self
                .put(&Key::Keyspace(name.clone()), expect, &record)
                .await?
            {
                return Ok(true);
            }
        }
        Err(AdminError::Raced(format!("keyspace {name}")))
    }

    /// Waits until a keyspace that was to be evened out is even; tells how many shards are on their way.
    pub async fn wait_until_balanced(
        &self,
        name: &KeyspaceName,
        limit: Duration,
        mut tell: impl FnMut(usize),
    ) -> Result<(), AdminError> {
        let mut last = None;
        let done = self
            .until(limit, async |view: &View| {
                let all = view.shards.iter();
                let moving = all.filter(|(id, s)| {
                    id.keyspace == *name && s.record.ownership.moving().is_some()
                });
                let moving = moving.count();
                if last != Some(moving) {
                    tell(moving);
                    last = Some(moving);
                }
                Ok((!keyspace(view, name)?.rebalance).then_some(()))
            })
            .await?;
        done.ok_or_else(|| {
            AdminError::TimedOut(format!(
                "keyspace {name} is not balanced yet; the leader continues to move shards"
            ))
        })
    }
}

fn standing(view: &View, record: &ShardRecord, to: &NodeName) -> MoveStatus {
    use tenure_core::record::MovePhase::{Freezing, Sealed, Warming};
    let owner = record.owner().filter(|o| !is_over(view, o.session));
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

/// A shard that can move to a node, or why not.
fn movable<'a>(
    view: &'a View,
    id: &ShardId,
    to: &NodeName,
) -> Result<&'a Versioned<ShardRecord>, AdminError> {
    let record = keyspace(view, &id.keyspace)?;
    planned(&id.keyspace, record, "no single shard can be moved")?;
    not_paused(view)?;
    let seen = match view.shards.cell(id) {
        Some(KeyState::Present(seen)) if seen.record.ownership != Ownership::Deleted => seen,
        Some(KeyState::Damaged { damage, .. }) => {
            return Err(AdminError::Refused(format!("shard {id}: {damage}")));
        }
        _ => return Err(AdminError::NotFound(format!("there is no shard {id}"))),
    };
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
    let target = &node(view, to)?.record;
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
    let session = view.sessions.get(&target.session);
    if session.is_none_or(|s| !s.is_live() || s.stopping) {
        return refuse(format!(
            "node {to} is not running; start it, or choose another target"
        ));
    }
    Ok(seen)
}
