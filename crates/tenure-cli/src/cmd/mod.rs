//! One module per command: arguments, calls into the library, and output.

pub(crate) mod cluster;
pub(crate) mod completion;
pub(crate) mod config;
mod confirm;
pub(crate) mod exec;
pub(crate) mod grant;
pub(crate) mod keyspace;
pub(crate) mod node;
pub(crate) mod planner;
pub(crate) mod queue;
pub(crate) mod router;
pub(crate) mod schedule;
pub(crate) mod shard;
pub(crate) mod sidecar;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod task;
pub(crate) mod up;
mod wait;
pub(crate) mod worker;
