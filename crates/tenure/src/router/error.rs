//! Why a request was not carried.

use std::time::Duration;

use tenure_core::ids::ShardId;
use tenure_core::router::HoldReason;

/// Why a request was not carried. No owner has done anything for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// There is no such keyspace.
    #[error("keyspace {keyspace:?} does not exist; start a node that serves it, or create it")]
    UnknownKeyspace {
        /// The name that was asked for.
        keyspace: String,
    },
    /// There is no such shard.
    #[error("keyspace {keyspace:?} has no shard {shard:?}; create it, or check the name")]
    UnknownShard {
        /// The keyspace.
        keyspace: String,
        /// The name that was asked for.
        shard: String,
    },
    /// As much is held as may be.
    #[error("shard {shard}: the hold queue is full ({what}); requests are held because {}; retry, or raise the limit", .reason.as_str())]
    Full {
        /// The shard.
        shard: ShardId,
        /// Which limit was reached.
        what: &'static str,
        /// Why requests for the shard are held.
        reason: HoldReason,
    },
    /// It was held for as long as may be.
    #[error("shard {shard}: the request was held for {age:?} and not sent, because {}; retry", .reason.as_str())]
    HeldTooLong {
        /// The shard.
        shard: ShardId,
        /// The limit.
        age: Duration,
        /// Why requests for the shard are held.
        reason: HoldReason,
    },
    /// The router is stopping or has stopped.
    #[error("the router is stopping; retry at another router")]
    Stopping,
}
