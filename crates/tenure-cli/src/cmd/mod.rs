//! One file per command: what it takes, and what it does.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod completions;
pub(crate) mod config;
mod confirm;
pub(crate) mod cordon;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod evict;
pub(crate) mod exec;
pub(crate) mod freeze;
pub(crate) mod key;
pub(crate) mod keyspace;
pub(crate) mod leader;
pub(crate) mod move_shard;
pub(crate) mod owner;
pub(crate) mod pin;
pub(crate) mod plan;
pub(crate) mod rebalance;
pub(crate) mod repair;
pub(crate) mod shard;
pub(crate) mod sim;
pub(crate) mod status;
pub(crate) mod sweep;
pub(crate) mod up;
mod wait;
