//! Whole queues in virtual time: producers and workers over one store in memory, each behind faults of its own.

mod bad_input;
mod clock;
mod crashes;
mod deletion;
mod faults;
mod index;
mod late_writes;
mod listing;
mod metrics;
mod multiple_workers;
mod order;
mod outcomes;
mod races;
mod recurring;
mod shard_ownership;
mod test_cluster;
mod work;
