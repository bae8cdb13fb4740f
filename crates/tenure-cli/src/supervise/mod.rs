//! Children that are dead in time, whoever else is dead or stopped (P1 for `tenure exec`).
//!
//! ```text
//! tenure exec ──socket── tenure __watchdog ──┬─ tenure __reaper ── tenure __child → the command ── what it forks
//!  (the node)            (own session)       └─ …                (one process: it becomes the command)
//! ```
//!
//! Who kills the command, and everything that it forked, in each case:
//!
//! | what happens | who acts |
//! |---|---|
//! | the lease runs out, or `exec` is stopped (SIGSTOP, Ctrl-Z) | the watchdog, by its own clock: SIGTERM when gates close, SIGKILL `kill_grace` later |
//! | `exec` is killed | the watchdog, which reads the end of its socket |
//! | the watchdog is killed | every keeper, by its parent-death signal; then `exec`, to which what is left falls |
//! | the watchdog is stopped | `exec`, which kills it before the lease is over: see the line above |
//! | `exec` and the watchdog are killed | every keeper |
//! | the watchdog is stopped and `exec` is stopped or killed | every keeper, which looks at the grant file and the clock |
//! | a keeper is killed | the command dies of its own parent-death signal; the watchdog kills what is left |
//!
//! Every level adopts the orphans below it (`PR_SET_CHILD_SUBREAPER`), so that what a command forked cannot hide from its
//! keeper by leaving its process group or its session. There is no `unsafe` code: what other programs do between fork and
//! exec, these do after an exec of themselves.

mod messages;
mod process_tree;
mod reaper;
mod watchdog;
mod watchdog_client;

pub(crate) use messages::{Ended, Limits, Start};
pub(crate) use process_tree::{boot_now, is_stopped, myself};
pub(crate) use reaper::{ChildArgs, KeepArgs, child, keep};
pub(crate) use watchdog::{WatchdogArgs, watchdog};
pub(crate) use watchdog_client::{Running, Supervisor};
