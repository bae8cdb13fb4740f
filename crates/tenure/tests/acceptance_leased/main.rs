//! The same promises over a store that keeps the time of sessions itself: every case of `acceptance`, with leases.

#[path = "../acceptance/acquire.rs"]
mod acquire;
#[path = "../acceptance/deletion.rs"]
mod deletion;
#[path = "../acceptance/detachment.rs"]
mod detachment;
#[path = "../acceptance/entities.rs"]
mod entities;
#[path = "../acceptance/faults.rs"]
mod faults;
#[path = "../acceptance/lease.rs"]
mod lease;
#[path = "../acceptance/loading.rs"]
mod loading;
#[path = "../acceptance/named.rs"]
mod named;
#[path = "../acceptance/observer.rs"]
mod observer;
#[path = "../acceptance/restart.rs"]
mod restart;
#[path = "../acceptance/serving.rs"]
mod serving;
#[path = "../acceptance/starting.rs"]
mod starting;
#[path = "../acceptance/test_cluster.rs"]
mod test_cluster;

/// The memory store with leases of its own.
pub(crate) const LEASES: bool = true;
