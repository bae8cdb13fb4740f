//! Model checking: every order of events of small clusters, with the machines that ship.
//!
//! A [`Scope`] says how large the world is and how much may go wrong. Within it every state is visited, and in each the
//! promises are checked. `docs/model.md` says how the space is bounded, and what that leaves out.

mod canonical;
mod config;
mod counterexample;
mod driver;
mod explore;
mod invariants;
mod liveness;
mod reachability;
mod router;
mod run;
mod state;
mod step_report;
mod store;
mod timing;
mod transitions;

pub use config::{Back, Budget, LastNodeKind, SCOPES, Scope, scope};
pub use reachability::Sight;
pub use run::{ModelOptions, ModelResult, Progress, check};
