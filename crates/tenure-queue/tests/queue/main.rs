//! Whole queues in virtual time: producers and workers over one store in memory, each behind faults of its own.

mod bad_input;
mod clock;
mod crashes;
mod edges;
mod endings;
mod faults;
mod index;
mod listing;
mod order;
mod recurring;
mod sharing;
mod work;
mod world;
