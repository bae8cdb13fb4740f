//! Where ownership is written down.
//!
//! One small [`Store`] trait, opened by URL with [`open`]; one file or folder and one feature per backend; one conformance
//! suite that all of them pass; and two wrappers around any store: [`fault`] makes it fail on purpose, [`observed_store`] counts.

#[cfg(any(feature = "nats", feature = "s3"))]
mod concurrent_batch;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod fanout;
pub mod fault;
pub mod machine_identity;
pub mod memory;
#[cfg(feature = "nats")]
pub mod nats;
pub mod observed_store;
mod operation;
#[cfg(feature = "postgres")]
pub mod postgres;
mod rng;
#[cfg(feature = "s3")]
pub mod s3;
#[cfg(feature = "servers")]
pub mod servers;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod store;
pub mod store_check;
#[cfg(any(feature = "nats", feature = "s3"))]
mod timestamps;
mod url;
mod watch;

#[cfg(feature = "conformance")]
pub mod conformance;

pub use error::StoreError;
pub use operation::Op;
pub use store::{
    ClockScope, Delete, DeleteIf, Entry, Expect, KeyPage, LeaseState, Leases, Listing, Put, PutIf,
    Store, StoreInfo,
};
pub use tenure_core::ids::{LeaseId, Revision, Version};
pub use url::{describe, open, open_existing, redacted};
pub use watch::{Change, ChangeBatch, Watch, WatchEnd, WatchSource};
