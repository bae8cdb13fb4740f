//! The decisions of Tenure as pure machines: no I/O, no clock, no threads, no randomness.

pub mod assign;
pub mod gate;
pub mod hash;
pub mod ids;
pub mod invariants;

pub mod layout;
pub mod lease;
pub mod machine;
pub mod members;
pub mod node;
pub mod note;
pub mod plan;
pub mod record;
pub mod router;
pub mod rules;
pub mod settings;
pub mod shard;
pub mod time;
pub mod trace;
pub mod view;
pub mod why;
