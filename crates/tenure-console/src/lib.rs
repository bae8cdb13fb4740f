//! Exit codes, standard output, tables and durations of the programs `tenure`, `tenure-sim` and `tenure-bench`.
//!
//! The crate exists so that the shipped `tenure` command contains neither simulator nor benchmarks, and all three programs
//! still print alike.

pub mod duration;
pub mod exit;
#[cfg(feature = "logging")]
pub mod logging;
pub mod program;
#[cfg(feature = "reference")]
pub mod reference;
pub mod stdout;
pub mod table;
