//! The decisions of Tenure as pure machines.

pub mod ids;
