//! Owning shards: which process owns which shard, right now, and never two.
//!
//! An application implements [`Handler`] for what a shard means to it and starts a [`Node`]. The node takes its part of the
//! shards of a cluster; requests [`enter`](Node::enter) the shard of their key or are told who has it; work holds a
//! [`Grant`], which carries the epoch and ends with the lease.
//!
//! ```
//! use tenure::{Hashed, Result, Seal, Shard};
//!
//! struct Orders;
//! struct Ledger(Vec<(String, tenure::Epoch)>);
//!
//! impl tenure::Handler for Orders {
//!     type State = Ledger; // one per owned shard, dropped when the grant ends
//!     async fn load(&self, _s: &Shard) -> Result<Ledger> {
//!         Ok(Ledger(Vec::new()))
//!     }
//!     async fn seal(&self, _s: &Shard, l: &mut Ledger) -> Result<Seal> {
//!         Ok(Seal::new(l.0.len().to_string()))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! # let data = tempfile::tempdir()?;
//! # let data_dir = data.path().join("orders-1.d");
//! let node = tenure::Node::builder("memory:shop", "shop")
//!     .name("orders-1")
//!     .address("http", "http://127.0.0.1:8080")
//!     .data_dir(data_dir)
//!     .keyspace("orders", Hashed(64), Orders)
//!     .start()
//!     .await?; // returns when what it owns is loaded
//! let user = "user-42".to_owned();
//! node.enter::<Orders>("orders", &user)? // `NotOwner { owner, epoch, .. }` otherwise
//!     .run(async |ledger, grant| ledger.0.push((user.clone(), grant.epoch())))
//!     .await?;
//! node.stop().await?; // close, stop, release, end: in this order
//! # Ok(())
//! # }
//! ```
//!
//! An [`AdminClient`] carries out the operations of the `tenure` command on clusters, nodes, keyspaces and shards.
//!
//! A [`Router`] sends requests to the owners of their shards, and holds them for the moment in which a shard changes hands.
//!
//! By default the node runs on a thread of its own, so that a busy application cannot keep it from renewing its lease.
//! An application whose runtime stands still for long loses the lease nevertheless: a process that does nothing must not
//! keep shards.

pub mod admin;
mod builder;
mod clock;
mod codec;
pub mod data_dir;
mod driver;
mod enter;
mod entities;
mod error;
pub mod gate;
mod grant;
mod handler;
mod handler_task;
mod local_shard;
mod logging;
pub mod metrics;
mod metrics_http;
mod node;
pub mod router;
mod shard_table;
mod singleton;
mod startup;
mod store_error_log;
mod store_io;
mod store_watch;
mod trace_writer;

pub use admin::{AdminClient, AdminError};
pub use builder::Builder;
pub use clock::Clock;
pub use codec::written_at;
pub use enter::{AdmittedRequest, KnownOwner, NotOwner, RejectReason};
pub use entities::{ActiveEntities, Entities, Entity, NotProcessed, TellError};
pub use error::{StartError, StopError};
pub use grant::{Grant, GrantExpired};
pub use handler::{BoxError, Handler, Result, Seal, Shard, SharedState};
pub use metrics::Metrics;
pub use metrics_http::{MetricsServer, MetricsSource};
pub use node::Node;
pub use router::Router;
pub use singleton::Singleton;
pub use tenure_core::ids::{Epoch, NodeName, SessionId, ShardId, ShardName};
pub use tenure_core::machine::Refusal;
pub use tenure_core::plan;
pub use tenure_core::reason::Reason;
pub use tenure_core::record::KeyspaceKind::{Hashed, Named};
pub use tenure_core::record::{AssignedBy, KeyspaceKind, NodeMode, PlanningSettings, RejoinMode};
pub use tenure_core::settings::{SettingProblem, Settings};
pub use tenure_core::telemetry::{NodeEvent, ShardEvent, ShardStep};
pub use tenure_core::time::Time;
pub use tenure_store as store;
pub use trace_writer::TraceError;
