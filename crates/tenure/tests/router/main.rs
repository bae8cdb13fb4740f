//! What routers promise, in virtual time over a memory store; `real.rs` in real time over SQLite. Names in comments are
//! acceptance cases.

mod entities;
mod holding;
mod load;
mod moving;
mod real;
mod refusing;
mod starting;
mod streams;
mod test_cluster;
