//! Model checking: every order of events of small clusters, with the machines that ship.
//!
//! A [`Scope`] says how large the world is and how much may go wrong. Within it every state is visited, and in each the
//! promises are checked. `docs/model.md` says how the space is bounded, and what that leaves out.

mod canon;
mod driver;
mod explore;
mod heal;
mod laws;
mod router;
mod run;
mod scope;
mod shelf;
mod sight;
mod state;
mod steps;
mod story;
mod world;

pub use run::{Checked, Options, Progress, check};
pub use scope::{Back, Budget, Last, SCOPES, Scope, scope};
pub use sight::Sight;
