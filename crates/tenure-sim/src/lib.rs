//! A whole Tenure cluster in one thread on virtual time.
//!
//! The machines that ship ([`tenure_core::node::Node`]) run here unchanged; everything around them is simulated: clocks,
//! the network, the store, the application, and the people who lay hands on records. A run is a [`run_config::RunConfig`], drawn from
//! a seed; the checkers see everything with an omniscient clock and share no code with what they check.

mod app;
mod check;
pub mod clients;
pub mod clock;
pub mod coverage;
mod describe;
mod driver;
pub mod event_log;
mod event_queue;
pub mod fault;
mod generate;
mod generate_features;
mod generate_traffic;
mod inject;
#[cfg(feature = "kit")]
pub mod kit;
pub mod lease_tampering;
mod leases;
pub mod lifecycle;
mod mixed;
pub mod model;
#[cfg(feature = "mutants")]
pub mod mutants;
mod network;
mod operator;
pub mod orders;
pub mod phase_faults;
mod process;
pub mod rng;
mod router;
pub mod run;
pub mod run_config;
pub mod script;
pub mod shrink;
mod store;
pub mod trace_recorder;
pub mod validate;
pub mod world;

pub use check::Violation;
