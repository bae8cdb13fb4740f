//! What the planner must do, seen from outside.

mod bad_input;
mod harness;
mod incremental;
mod load;
mod policies;
mod properties;
mod reasons;
mod report;
mod stability;
mod sticky;
