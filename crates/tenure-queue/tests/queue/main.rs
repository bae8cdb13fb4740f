//! Whole queues in virtual time: producers and workers over one store in memory, each behind faults of its own.

mod bad_input;
mod clock;
mod counted;
mod crashes;
mod deletion;
mod edges;
mod endings;
mod faults;
mod index;
mod late;
mod listing;
mod order;
mod recurring;
mod sharing;
mod together;
mod work;
mod world;
