//! A whole Tenure cluster in one thread on virtual time.
//!
//! The machines that ship ([`tenure_core::node::Node`]) run here unchanged; everything around them is simulated: clocks,
//! the network, the store, the application, and the people who lay hands on records. A run is a [`plan::Plan`], drawn from
//! a seed; the checkers see everything with an omniscient clock and share no code with what they check.

pub mod ambush;
mod check;
pub mod clients;
pub mod clock;
pub mod coverage;
mod driver;
mod extras;
pub mod fault;
mod hand_over;
pub mod hands;
#[cfg(feature = "kit")]
pub mod kit;
mod leases;
pub mod life;
mod misfortune;
mod mixed;
pub mod model;
#[cfg(feature = "mutants")]
pub mod mutants;
mod network;
mod operator;
pub mod orders;
pub mod plan;
mod process;
mod queue;
pub mod record;
pub mod rng;
mod router;
pub mod run;
pub mod script;
pub mod shrink;
mod spelling;
mod store;
mod swarm;
pub mod trace;
mod traffic;
pub mod validate;
mod words;
pub mod world;

pub use check::Violation;
