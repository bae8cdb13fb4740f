//! A running node, as the application holds it.

use std::any::TypeId;
use std::sync::Arc;

use tenure_core::ids::{Epoch, NodeName, ShardId, ShardName};
use tenure_core::machine::{Close, Event};
use tenure_core::telemetry::NodeEvent;
use tokio::sync::{broadcast, watch};

use crate::builder::Builder;
use crate::driver::{DriverInput, DriverSender, NodeLifecycle};
use crate::enter::{AdmittedRequest, KnownOwner, NotOwner, RejectReason};
use crate::error::{StartError, StopError};
use crate::handler::{Handler, StateCell};
use crate::local_shard::LocalShard;
use crate::metrics::Metrics;
use crate::shard_table::{KeyspaceShards, OwnerInfo, ShardTable};

/// A node: a process's part in a cluster. Cheap to clone.
///
/// [`Node::stop`] ends it in good order. If the last clone is dropped without that, it ends abruptly: all gates close and
/// all work is cancelled at once, but nothing is released, and others take the shards over only when the ttl has proved
/// the session dead, as after a crash.
#[derive(Clone)]
pub struct Node(Arc<Inner>);

struct Inner {
    board: Arc<ShardTable>,
    inputs: DriverSender,
    life: watch::Receiver<NodeLifecycle>,
    metrics: Arc<Metrics>,
    notes: broadcast::Sender<Arc<NodeEvent>>,
}

impl Node {
    /// Sets up a node of the cluster named `cluster` in the store at `url`.
    pub fn builder(url: impl Into<String>, cluster: impl Into<String>) -> Builder {
        Builder::new(url, cluster)
    }

    pub(crate) fn new(
        board: Arc<ShardTable>,
        inputs: DriverSender,
        life: watch::Receiver<NodeLifecycle>,
        metrics: Arc<Metrics>,
        notes: broadcast::Sender<Arc<NodeEvent>>,
    ) -> Self {
        Self(Arc::new(Inner {
            board,
            inputs,
            life,
            metrics,
            notes,
        }))
    }

    /// The node's stable name.
    pub fn name(&self) -> &NodeName {
        &self.0.board.node
    }

    /// Enters the shard of `key`: the one that its hash selects, or, in a named keyspace, the one of that name.
    ///
    /// The answer is right at the instant it is given, by the clock alone (P1). The shard stays here at least until the
    /// [`AdmittedRequest`] is dropped or the lease runs out.
    pub fn enter<H: Handler>(
        &self,
        keyspace: &str,
        key: impl AsRef<[u8]>,
    ) -> Result<AdmittedRequest<H>, NotOwner> {
        let key = key.as_ref();
        let shards = self.shards::<H>(keyspace)?;
        let stay = shards.stay_of_key(key);
        self.admit(stay, None, || match shards.shard_of_key(key) {
            Some(shard) => self.not_owner(shards, shard),
            None => nobody(keyspace, RejectReason::UnknownShard),
        })
    }

    /// Enters the shard of `key` if it is served at the epoch that the request names: the way in for requests that a router
    /// sent. One that was sent to another epoch is refused before it has any effect.
    pub fn enter_at<H: Handler>(
        &self,
        keyspace: &str,
        key: impl AsRef<[u8]>,
        epoch: Epoch,
    ) -> Result<AdmittedRequest<H>, NotOwner> {
        let key = key.as_ref();
        let shards = self.shards::<H>(keyspace)?;
        let stay = shards.stay_of_key(key);
        self.admit(stay, Some(epoch), || match shards.shard_of_key(key) {
            Some(shard) => self.not_owner(shards, shard),
            None => nobody(keyspace, RejectReason::UnknownShard),
        })
    }

    /// Enters a shard that the request names itself.
    pub fn enter_shard<H: Handler>(&self, shard: &ShardId) -> Result<AdmittedRequest<H>, NotOwner> {
        let shards = self.shards::<H>(shard.keyspace.as_str())?;
        let stay = shards.look_up(&shard.shard).and_then(|slot| slot.stay);
        self.admit(stay, None, || self.not_owner(shards, shard.shard.clone()))
    }

    /// Enters a shard that the request names itself, if it is served at the epoch that the request names too.
    pub fn enter_shard_at<H: Handler>(
        &self,
        shard: &ShardId,
        epoch: Epoch,
    ) -> Result<AdmittedRequest<H>, NotOwner> {
        let shards = self.shards::<H>(shard.keyspace.as_str())?;
        let stay = shards.look_up(&shard.shard).and_then(|slot| slot.stay);
        let refuse = || self.not_owner(shards, shard.shard.clone());
        self.admit(stay, Some(epoch), refuse)
    }

    /// The shards whose gates are open.
    pub fn owned(&self) -> Vec<ShardId> {
        let stays = self.0.board.stays();
        let mut owned: Vec<ShardId> = stays
            .iter()
            .filter(|stay| stay.gate.is_open())
            .map(|stay| stay.shard.clone())
            .collect();
        owned.sort();
        owned
    }

    /// The epoch of a shard and the name of its owner, by the records that this node has seen.
    pub fn owner(&self, shard: &ShardId) -> Option<(Epoch, Option<NodeName>)> {
        let shards = self.0.board.keyspace(shard.keyspace.as_str())?;
        let seen = shards.look_up(&shard.shard)?.seen?;
        Some((seen.epoch, seen.owner.map(|owner| owner.node)))
    }

    /// The node's metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// Everything worth telling, from now on. A listener that falls far behind misses some.
    pub fn events(&self) -> broadcast::Receiver<Arc<NodeEvent>> {
        self.0.notes.subscribe()
    }

    /// Ends the node in good order: gates closed, work stopped, shards released, session ended.
    ///
    /// Others have the shards at once. Calling it again waits for the same end.
    pub async fn stop(&self) -> Result<(), StopError> {
        self.0.metrics.leaving();
        self.0.inputs.event(Event::Stop);
        self.ended().await
    }

    /// Waits until the node has ended, because it was stopped or because it cannot go on.
    pub async fn ended(&self) -> Result<(), StopError> {
        let mut life = self.0.life.clone();
        match life.wait_for(NodeLifecycle::is_over).await.as_deref() {
            Ok(NodeLifecycle::Stopped) => Ok(()),
            Ok(NodeLifecycle::Refused(refusal)) => Err(StopError::Refused(refusal.clone())),
            _ => Err(StopError::Gone),
        }
    }

    pub(crate) async fn started(&self) -> Result<(), StartError> {
        let mut life = self.0.life.clone();
        match life
            .wait_for(|life| *life != NodeLifecycle::Starting)
            .await
            .as_deref()
        {
            Ok(NodeLifecycle::Running) => Ok(()),
            Ok(NodeLifecycle::Refused(refusal)) => Err(StartError::Refused(refusal.clone())),
            _ => Err(StartError::Gone),
        }
    }

    fn shards<H: Handler>(&self, keyspace: &str) -> Result<&KeyspaceShards, NotOwner> {
        let reason = match self.0.board.keyspace(keyspace) {
            Some(shards) if shards.handler == TypeId::of::<H>() => return Ok(shards),
            Some(_) => RejectReason::OtherHandler,
            None => RejectReason::UnknownKeyspace,
        };
        self.0.metrics.refused(reason);
        Err(nobody(keyspace, reason))
    }

    fn admit<H: Handler>(
        &self,
        stay: Option<Arc<LocalShard>>,
        at: Option<Epoch>,
        refuse: impl FnOnce() -> NotOwner,
    ) -> Result<AdmittedRequest<H>, NotOwner> {
        if let Some(stay) = stay
            && let Ok(state) = stay.state.clone().downcast::<StateCell<H::State>>()
            && stay.gate.count_in().is_ok()
        {
            // The epoch of a stay is set before its gate opens.
            let epoch = stay.epoch();
            let entered = AdmittedRequest::new(stay, state);
            if at.is_none_or(|at| at == epoch) {
                return Ok(entered);
            }
            drop(entered);
            let refused = NotOwner {
                epoch,
                reason: RejectReason::OtherEpoch,
                ..refuse()
            };
            self.0.metrics.refused(refused.reason);
            return Err(refused);
        }
        let refused = refuse();
        self.0.metrics.refused(refused.reason);
        Err(refused)
    }

    fn not_owner(&self, shards: &KeyspaceShards, shard: ShardName) -> NotOwner {
        let keyspace = shards.name.clone();
        let mut answer = nobody(keyspace.as_str(), RejectReason::UnknownShard);
        let slot = shards.look_up(&shard);
        answer.shard = Some(ShardId::new(keyspace, shard));
        let Some(slot) = slot else {
            return answer;
        };
        let here = slot.stay.is_some();
        let Some(OwnerInfo {
            owner,
            epoch,
            serving,
            rev,
        }) = slot.seen
        else {
            answer.reason = if here {
                RejectReason::NotReady
            } else {
                RejectReason::Unowned
            };
            return answer;
        };
        (answer.epoch, answer.rev) = (epoch, rev);
        answer.reason = match &owner {
            _ if here => RejectReason::NotReady,
            Some(owner) if owner.node == *self.name() => RejectReason::NotReady,
            Some(_) => RejectReason::Elsewhere,
            None => RejectReason::Unowned,
        };
        answer.owner = owner.map(|owner| {
            Box::new(KnownOwner {
                addresses: self.0.board.addresses(owner.session),
                node: owner.node,
                session: owner.session,
                serving,
            })
        });
        answer
    }
}

fn nobody(keyspace: &str, reason: RejectReason) -> NotOwner {
    NotOwner {
        keyspace: keyspace.to_owned(),
        shard: None,
        owner: None,
        epoch: Epoch::default(),
        rev: 0,
        reason,
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for stay in self.board.stays() {
            stay.close(Close::Cancel);
        }
        self.inputs.send(DriverInput::Abandon);
    }
}
