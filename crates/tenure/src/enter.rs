//! The way of a request into a shard, and what it is told if it is turned away.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_core::ids::{Epoch, NodeName, SessionId, ShardId};

use crate::grant::{Grant, GrantExpired};
use crate::handler::{Handler, StateCell};
use crate::local_shard::LocalShard;

/// A unit of work that was let into a shard. The shard is not given away before this is dropped.
pub struct AdmittedRequest<H: Handler> {
    grant: Grant,
    state: Arc<StateCell<H::State>>,
}

impl<H: Handler> AdmittedRequest<H> {
    pub(crate) fn new(stay: Arc<LocalShard>, state: Arc<StateCell<H::State>>) -> Self {
        let grant = Grant::of_work(stay);
        Self { grant, state }
    }

    /// The grant of this unit of work.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Does work with exclusive use of the shard's state; units of work take turns in the order in which they call this.
    ///
    /// The work is dropped where it stands if the grant ends first.
    pub async fn run<F, R>(self, work: F) -> Result<R, GrantExpired>
    where
        F: AsyncFnOnce(&mut H::State, &Grant) -> R,
    {
        self.run_ref(work).await
    }

    /// As [`AdmittedRequest::run`], for work that is not all there is to this unit: it stays in flight.
    pub async fn run_ref<F, R>(&self, work: F) -> Result<R, GrantExpired>
    where
        F: AsyncFnOnce(&mut H::State, &Grant) -> R,
    {
        let grant = &self.grant;
        let done = grant.run_until_lost(async {
            match self.state.lock().await.as_mut() {
                Some(state) => Some(work(state, grant).await),
                None => None,
            }
        });
        done.await?.ok_or_else(|| grant.lost())
    }

    pub(crate) fn state(&self) -> &Arc<StateCell<H::State>> {
        &self.state
    }
}

impl<H: Handler> Drop for AdmittedRequest<H> {
    fn drop(&mut self) {
        self.grant.stay().gate.count_out();
    }
}

impl<H: Handler> std::fmt::Debug for AdmittedRequest<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AdmittedRequest").field(&self.grant).finish()
    }
}

/// Who has a shard, and where to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownOwner {
    /// The node.
    pub node: NodeName,
    /// Its incarnation.
    pub session: SessionId,
    /// Its addresses by kind, as far as they are known here.
    pub addresses: BTreeMap<String, String>,
    /// Whether it serves already.
    pub serving: bool,
}

/// Why a request was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RejectReason {
    /// Another node owns the shard: ask there.
    Elsewhere,
    /// Nobody owns the shard just now: ask again soon.
    Unowned,
    /// This node owns the shard but is loading it, giving it away, or cut off from the store: ask again soon.
    NotReady,
    /// This node has not heard of such a shard.
    UnknownShard,
    /// This node takes no part in such a keyspace.
    UnknownKeyspace,
    /// The keyspace has another handler than the request asked for.
    OtherHandler,
    /// This node serves the shard, but not at the epoch that the request named.
    OtherEpoch,
}

impl RejectReason {
    /// The reason as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Elsewhere => "elsewhere",
            Self::Unowned => "unowned",
            Self::NotReady => "not_ready",
            Self::UnknownShard => "unknown_shard",
            Self::UnknownKeyspace => "unknown_keyspace",
            Self::OtherHandler => "other_handler",
            Self::OtherEpoch => "other_epoch",
        }
    }
}

/// This node may not do the work. What it knows of who may is in the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotOwner {
    /// The keyspace that was asked for.
    pub keyspace: String,
    /// The shard, if the keyspace is known.
    pub shard: Option<ShardId>,
    /// Who owns it by the records that this node has seen.
    pub owner: Option<Box<KnownOwner>>,
    /// Its epoch by the same records.
    pub epoch: Epoch,
    /// Which of the record's values that is from: tells whether somebody else knows more.
    pub rev: u64,
    /// Why.
    pub reason: RejectReason,
}

impl std::fmt::Display for NotOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.shard {
            Some(shard) => write!(f, "shard {shard}: ")?,
            None => write!(f, "keyspace {:?}: ", self.keyspace)?,
        }
        match (self.reason, &self.owner) {
            (RejectReason::Elsewhere, Some(owner)) => {
                write!(
                    f,
                    "it is owned by node {} at epoch {}",
                    owner.node, self.epoch
                )
            }
            (RejectReason::Elsewhere, None) => write!(f, "it is owned by another node"),
            (RejectReason::Unowned, _) => write!(f, "it has no owner at the moment; retry"),
            (RejectReason::NotReady, _) => {
                write!(f, "this node owns it but is not ready to serve it; retry")
            }
            (RejectReason::UnknownShard, _) => write!(
                f,
                "this node does not know it; create it, or check the name"
            ),
            (RejectReason::UnknownKeyspace, _) => {
                write!(
                    f,
                    "this node does not serve it; add the keyspace to the node's builder"
                )
            }
            (RejectReason::OtherEpoch, _) => {
                write!(
                    f,
                    "this node serves it at epoch {}; retry with that epoch",
                    self.epoch
                )
            }
            (RejectReason::OtherHandler, _) => {
                write!(
                    f,
                    "the shard's handler is not of the type that `enter` requested"
                )
            }
        }
    }
}

impl std::error::Error for NotOwner {}
