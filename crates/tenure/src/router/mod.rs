//! A router: sends requests to the owners of their shards, and holds them while a shard changes hands.
//!
//! ```
//! use tenure::router::{SendResult, Router};
//! # use tenure::{Hashed, Result, Shard};
//! # struct Orders;
//! # impl tenure::Handler for Orders {
//! #     type State = u32;
//! #     async fn load(&self, _: &Shard) -> Result<u32> { Ok(41) }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! # let node = tenure::Node::builder("memory:route", "shop").name("n").keyspace("orders", Hashed(4), Orders).start().await?;
//! let router = Router::builder("memory:route", "shop").name("router-1").start().await?;
//! // In real life: send the bytes to `route.owner.address("http")`, with the epoch; the node there uses `enter_at`.
//! let answer = router
//!     .send("orders", "user-42", 128, async |route| {
//!         match node.enter_at::<Orders>("orders", "user-42", route.epoch) {
//!             Ok(entered) => SendResult::Done(entered.run(async |n, _| *n + 1).await),
//!             Err(refused) => refused.into(),
//!         }
//!     })
//!     .await?;
//! assert_eq!(answer, Ok(42));
//! router.stop().await?;
//! # Ok(())
//! # }
//! ```

mod append_only;
mod atomic_entry;
mod builder;
mod driver;
mod error;
mod in_process;
mod lookup_table;
mod transport;

use std::sync::Arc;

pub use builder::RouterBuilder;
pub(crate) use builder::RouterParts;
pub(crate) use driver::{RouterDriver, RouterInput};
pub use error::RouteError;
pub use lookup_table::{LookupResult, PeerNode, Route};
use tenure_core::ids::{Epoch, NodeName, SessionId, ShardId};
pub use tenure_core::router::{HoldLimits, HoldReason};
use tenure_core::router::{RecordVersion, RequestRefusal};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::DropGuard;
pub use transport::{DrainedReport, FlushAmount, ProbeReport, Transport};

use crate::enter::NotOwner;
use crate::error::StopError;
use crate::metrics::Metrics;
use crate::node::Node;
use in_process::{InProcessTransport, QueuedRequest};
use lookup_table::{KeyspaceTable, LookupTable, ShardRef};

/// What became of a request that was sent to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendResult<R> {
    /// The owner answered, well or badly: whatever it said is final, and the request is not sent again.
    Done(R),
    /// The node does not own the shard at the epoch that the request named. It has done nothing for it.
    NotOwner {
        /// The session that owns the shard and serves it, by that node's word.
        owner: Option<SessionId>,
        /// Its epoch.
        epoch: Epoch,
        /// Which of the record's values that is from.
        rev: u64,
    },
}

impl<R> From<NotOwner> for SendResult<R> {
    fn from(refused: NotOwner) -> Self {
        let serving = refused.owner.filter(|owner| owner.serving);
        Self::NotOwner {
            owner: serving.map(|owner| owner.session),
            epoch: refused.epoch,
            rev: refused.rev,
        }
    }
}

/// A router: a session in the cluster, a table of who owns what, and a place where requests wait. Cheap to clone.
///
/// It begins closed: what it knows nothing of it holds. What it holds is bounded in number, size and age, and kept in order
/// per key. It makes moves smooth; that they are safe is the owners' doing, so a router that lags or dies delays a move by
/// `router_hold_timeout` at most.
#[derive(Clone)]
pub struct Router {
    directory: OwnerDirectory,
    desk: Arc<InProcessTransport>,
}

impl Router {
    /// Sets up a router of the cluster named `cluster` in the store at `url`.
    pub fn builder(url: impl Into<String>, cluster: impl Into<String>) -> RouterBuilder {
        RouterBuilder::new(url, cluster)
    }

    /// Sends a request to the owner of the shard of `key`, and waits for its answer.
    ///
    /// `call` carries it to one node and says what came back. It is called again only after [`SendResult::NotOwner`]. `bytes` is
    /// what the request counts for while it is held. After a hold the first request of a key goes alone; when it is answered,
    /// the others of the key go in the order of arrival, without waiting for each other. Requests in flight at the same time have
    /// no order. Dropping the future gives the request up.
    pub async fn send<R, A: Future<Output = SendResult<R>>>(
        &self,
        keyspace: &str,
        key: impl AsRef<[u8]>,
        bytes: u64,
        call: impl FnMut(Route) -> A,
    ) -> Result<R, RouteError> {
        let spot = self.directory.resolve(keyspace, key.as_ref())?;
        self.dispatch(spot, bytes, call).await
    }

    /// Sends a request to the owner of a shard that it names itself. All such requests of a shard keep their order.
    pub async fn send_to<R, A: Future<Output = SendResult<R>>>(
        &self,
        shard: &ShardId,
        bytes: u64,
        call: impl FnMut(Route) -> A,
    ) -> Result<R, RouteError> {
        let spot = self.directory.spot_of(shard)?;
        self.dispatch(spot, bytes, call).await
    }

    async fn dispatch<R, A: Future<Output = SendResult<R>>>(
        &self,
        spot: ShardRef<'_>,
        bytes: u64,
        mut call: impl FnMut(Route) -> A,
    ) -> Result<R, RouteError> {
        let (mut place, mut route) = QueuedRequest::take(&self.desk, spot, bytes).await?;
        let mut followed = false;
        loop {
            let sent_by = route.mark();
            let (owner, mark) = match call(route).await {
                SendResult::Done(answer) => {
                    place.answered();
                    return Ok(answer);
                }
                SendResult::NotOwner { owner, epoch, rev } => (owner, RecordVersion { epoch, rev }),
            };
            let refused = RequestRefusal {
                sent_by,
                owner,
                mark,
                followed,
            };
            route = match self.directory.on_refusal(&spot.cold.id, refused).await? {
                Some(route) => {
                    followed = true;
                    self.desk.metrics.hopped();
                    route
                }
                None => place.again().await?,
            };
        }
    }

    /// Ends the router in good order: takes nothing more, finishes what it holds and what is in flight, then ends its
    /// session. Takes no longer than the holding age and the slowest answer.
    pub async fn stop(&self) -> Result<(), StopError> {
        self.directory.stop().await
    }
}

impl std::ops::Deref for Router {
    type Target = OwnerDirectory;

    fn deref(&self) -> &OwnerDirectory {
        &self.directory
    }
}

/// What a router knows: who owns which shard. Cheap to clone.
#[derive(Clone)]
pub struct OwnerDirectory(Arc<Inner>);

struct Inner {
    node: Node,
    table: Arc<LookupTable>,
    transport: Arc<dyn Transport>,
    tell: mpsc::UnboundedSender<RouterInput>,
    _over: DropGuard,
}

impl OwnerDirectory {
    fn new(
        node: Node,
        table: Arc<LookupTable>,
        transport: Arc<dyn Transport>,
        tell: mpsc::UnboundedSender<RouterInput>,
        over: DropGuard,
    ) -> Self {
        Self(Arc::new(Inner {
            node,
            table,
            transport,
            tell,
            _over: over,
        }))
    }

    /// The router's name.
    pub fn name(&self) -> &NodeName {
        self.0.node.name()
    }

    /// The router's metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        self.0.node.metrics()
    }

    /// Who owns the shard of `key`. Neither waits nor allocates.
    #[inline]
    pub fn look_up(
        &self,
        keyspace: &str,
        key: impl AsRef<[u8]>,
    ) -> Result<LookupResult<'_>, RouteError> {
        let spot = self.resolve(keyspace, key.as_ref())?;
        Ok(self.0.table.found(spot))
    }

    /// Who owns a shard.
    pub fn look_up_shard(&self, shard: &ShardId) -> Result<LookupResult<'_>, RouteError> {
        let spot = self.spot_of(shard)?;
        Ok(self.0.table.found(spot))
    }

    /// A node has refused a request that was sent by `route`: says where it is to go instead, at most once for a request that
    /// has not `followed` before. Nothing: it waits with the others until it is flushed. For transports of one's own.
    pub async fn refused<R>(
        &self,
        route: &Route,
        answer: &SendResult<R>,
        followed: bool,
    ) -> Result<Option<Route>, RouteError> {
        let SendResult::NotOwner { owner, epoch, rev } = *answer else {
            return Ok(None);
        };
        let refused = RequestRefusal {
            sent_by: route.mark(),
            owner,
            mark: RecordVersion { epoch, rev },
            followed,
        };
        self.on_refusal(&route.shard, refused).await
    }

    /// Ends the router in good order: its transport finishes what it has, then the session ends.
    pub async fn stop(&self) -> Result<(), StopError> {
        self.0.transport.stop().await;
        self.0.node.stop().await
    }

    async fn on_refusal(
        &self,
        shard: &ShardId,
        refused: RequestRefusal,
    ) -> Result<Option<Route>, RouteError> {
        let (verdict, heard) = oneshot::channel();
        let shard = shard.clone();
        let _ = self.0.tell.send(RouterInput::Refused {
            shard,
            refused,
            verdict,
        });
        // Without its keeper a router knows nothing new.
        heard.await.map_err(|_| RouteError::Stopping)
    }

    #[inline]
    fn keyspace(&self, name: &str) -> Result<&KeyspaceTable, RouteError> {
        let unknown = || RouteError::UnknownKeyspace {
            keyspace: name.to_owned(),
        };
        self.0
            .table
            .keyspace(name)
            .map(|k| &**k)
            .ok_or_else(unknown)
    }

    #[inline]
    fn resolve(&self, keyspace: &str, key: &[u8]) -> Result<ShardRef<'_>, RouteError> {
        LookupTable::of_key(self.keyspace(keyspace)?, key).ok_or_else(|| RouteError::UnknownShard {
            keyspace: keyspace.to_owned(),
            shard: String::from_utf8_lossy(key).into_owned(),
        })
    }

    fn spot_of(&self, shard: &ShardId) -> Result<ShardRef<'_>, RouteError> {
        let keyspace = self.keyspace(shard.keyspace.as_str())?;
        LookupTable::of_shard(keyspace, &shard.shard).ok_or_else(|| RouteError::UnknownShard {
            keyspace: shard.keyspace.to_string(),
            shard: shard.shard.to_string(),
        })
    }
}

impl std::fmt::Debug for OwnerDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OwnerDirectory").field(self.name()).finish()
    }
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Router").field(self.name()).finish()
    }
}
