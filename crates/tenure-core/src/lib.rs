//! The decisions of Tenure as pure machines: no I/O, no clock, no threads, no randomness.

pub mod assign;
pub mod gate;
pub mod hash;
pub mod ids;
pub mod invariants;

pub mod keys;
pub mod lease;
pub mod machine;
pub mod members;
pub mod node;
pub mod ownership;
pub mod plan;
pub mod reason;
pub mod record;
pub mod router;
pub mod rules;
pub mod settings;
pub mod telemetry;
pub mod time;
pub mod trace_format;
pub mod view;
