//! The decisions of Tenure as pure machines: no I/O, no clock, no threads, no randomness.

pub mod gate;
pub mod hash;
pub mod ids;
pub mod layout;
pub mod lease;
pub mod machine;
pub mod node;
pub mod note;
pub mod record;
pub mod rules;
pub mod settings;
pub mod time;
pub mod why;
