//! What an application implements to own shards.

use std::future::Future;
use std::sync::Arc;

use tenure_core::ids::{Epoch, KeyspaceName, ShardId, ShardName};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use crate::grant::{Grant, GrantExpired};

/// Any error of an application.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The result of application code.
pub type Result<T, E = BoxError> = std::result::Result<T, E>;

/// A shard as its handler sees it.
#[derive(Clone, Debug)]
pub struct Shard {
    pub(crate) grant: Grant,
    pub(crate) meta: Option<String>,
}

impl Shard {
    /// Which shard it is.
    pub fn id(&self) -> &ShardId {
        self.grant.shard()
    }

    /// The keyspace that it belongs to.
    pub fn keyspace(&self) -> &KeyspaceName {
        &self.id().keyspace
    }

    /// Its name within the keyspace.
    pub fn name(&self) -> &ShardName {
        &self.id().shard
    }

    /// Whether the shard is this node's. It is not while it is loaded for a move and the last owner still serves.
    pub fn is_owned(&self) -> bool {
        self.grant.stay().is_owned()
    }

    /// The epoch of this stay. Fence the resource at it before reading. Before the shard is owned: that of its present owner,
    /// which is only good for reading.
    pub fn epoch(&self) -> Epoch {
        self.grant.epoch()
    }

    /// What the creator of a named shard attached to it.
    pub fn meta(&self) -> Option<&str> {
        self.meta.as_deref()
    }

    /// The grant of this stay.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }
}

/// Where an owner's writes end: a position that only the application understands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seal(String);

impl Seal {
    /// The position written as text.
    pub fn new(position: impl Into<String>) -> Self {
        Self(position.into())
    }

    /// The position.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An application's part in owning the shards of a keyspace.
///
/// For each stay of a shard, in this order: `load`; then, while the gate is open, requests that
/// [`enter`](crate::Node::enter), and `run`; then, if the shard is given away in good order, `seal`; then the state is
/// dropped. Only after that does anybody else learn that the shard is free. When the shard is lost instead, whatever of
/// these is going on is dropped where it stands.
///
/// All of it runs on the runtime that called [`start`](crate::Builder::start). An error or a panic in one shard is that
/// shard's alone.
pub trait Handler: Send + Sync + 'static {
    /// What the node keeps in memory for a shard that it owns. Dropped when the grant ends.
    type State: Send + 'static;

    /// Whether `load` may run while another node still owns and serves the shard, to be completed by
    /// [`catch_up`](Self::catch_up).
    ///
    /// With `true` a planned move holds requests only while the shard changes hands, however long a load takes. `load` then
    /// only reads where [`Shard::is_owned`] is false, and `catch_up` must bring in all that was written since. With `false`,
    /// the usual, the new owner loads once the shard is its own, and requests are held meanwhile: safe for every handler.
    const CATCHES_UP: bool = false;

    /// Makes a shard ready to serve: fences the resource at `shard.epoch()`, then reads. Retried with growing waits if it
    /// fails; after a few failures the shard goes to another node.
    fn load(&self, shard: &Shard) -> impl Future<Output = Result<Self::State>> + Send;

    /// In a planned move of a handler that [`CATCHES_UP`](Self::CATCHES_UP): applies what the last owner wrote after `load`
    /// had read, up to the position that it sealed. Only reads: the shard is not owned before this is done.
    fn catch_up(
        &self,
        shard: &Shard,
        state: &mut Self::State,
        from: &Seal,
    ) -> impl Future<Output = Result<()>> + Send {
        let _ = (shard, state, from);
        async { Ok(()) }
    }

    /// Writes out what must outlive this stay and says where it ends. Called with the gate closed and nothing in flight.
    fn seal(
        &self,
        shard: &Shard,
        state: &mut Self::State,
    ) -> impl Future<Output = Result<Seal>> + Send {
        let _ = (shard, state);
        async { Ok(Seal::default()) }
    }

    /// Runs a loop for the shard, such as a consumer. Starts when the shard is owned and loaded, never before.
    ///
    /// When `grant.cancelled()` resolves, the shard is released or lost: return soon. The loop is dropped after
    /// `kill_grace`, or at once if the shard is lost. A loop that returns by itself counts as a failed load: the shard is closed
    /// and loaded again after `load_retry_min`, which doubles with each failure. After `load_attempts` failures another node
    /// may load it.
    fn run(
        &self,
        grant: Grant,
        state: SharedState<Self::State>,
    ) -> impl Future<Output = Result<()>> + Send {
        let _ = state;
        async move {
            grant.cancelled().await;
            Ok(())
        }
    }
}

/// Where a stay keeps its handler's state: empty before the load and after the end.
pub(crate) type StateCell<S> = Mutex<Option<S>>;

/// The state of a shard as its own loop sees it: shared with the requests that enter.
pub struct SharedState<S> {
    pub(crate) cell: Arc<StateCell<S>>,
    pub(crate) grant: Grant,
}

impl<S> SharedState<S> {
    /// Waits for exclusive use of the state, in order of asking.
    pub async fn lock(&self) -> Result<MappedMutexGuard<'_, S>, GrantExpired> {
        let guard = self.grant.run_until_lost(self.cell.lock()).await?;
        MutexGuard::try_map(guard, Option::as_mut).map_err(|_| self.grant.lost())
    }
}

impl<S> Clone for SharedState<S> {
    fn clone(&self) -> Self {
        Self {
            cell: self.cell.clone(),
            grant: self.grant.clone(),
        }
    }
}
