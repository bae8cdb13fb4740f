//! What the node promises, in virtual time over a memory store with faults. Names in comments are acceptance cases.

mod acquire;
mod administration;
mod deletion;
mod detachment;
mod entities;
mod faults;
mod knobs;
mod leading;
mod lease;
mod loading;
mod metered;
mod named;
mod observer;
mod real_time;
mod restart;
mod serving;
mod starting;
mod store_io;
mod test_cluster;
mod trace;

/// The memory store without leases: nodes keep the time of each other's sessions.
pub(crate) const LEASES: bool = false;
