//! Supervision of child processes that own shards: a child is dead before another node can own its shard (P1).
//!
//! [`ChildHandler`] runs one child per activation of a shard, under a [`Supervisor`]. [`AppProcess`] keeps one application
//! alive, and [`ProgramSpawner`] runs programs that die with this process. Programs that use any of them call
//! [`run_helper`] first in `main`.
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     if let Some(code) = tenure_exec::run_helper() {
//!         return code;
//!     }
//!     // The program itself: a node with a `ChildHandler`.
//!     std::process::ExitCode::SUCCESS
//! }
//! ```
//!
//! The children die in time, whichever other process is dead or stopped:
//!
//! ```text
//! tenure exec ──socket── tenure __watchdog ──┬─ tenure __reaper ── tenure __child → the command ── what it forks
//!  (the node)            (own session)       └─ …                (one process: it becomes the command)
//! ```
//!
//! The process that kills the command, and everything that it forked, in each case:
//!
//! | what happens | who acts |
//! |---|---|
//! | the lease runs out, or `exec` is stopped (SIGSTOP, Ctrl-Z) | the watchdog, by its own clock: SIGTERM when gates close, SIGKILL `kill_grace` later |
//! | `exec` is killed | the watchdog, which reads the end of its socket |
//! | the watchdog is killed | every reaper, by its parent-death signal; then `exec`, to which what is left falls |
//! | the watchdog is stopped | `exec`, which kills it before the lease is over: see the line above |
//! | `exec` and the watchdog are killed | every reaper |
//! | the watchdog is stopped and `exec` is stopped or killed | every reaper, which reads the grant file and the clock |
//! | a reaper is killed | the command dies of its own parent-death signal; the watchdog kills what is left |
//!
//! Every level adopts the orphans below it (`PR_SET_CHILD_SUBREAPER`), so that what a command forked cannot hide from its
//! reaper by leaving its process group or its session. There is no `unsafe` code: what other programs do between fork and
//! exec, these do after an exec of themselves.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "tenure-exec needs Linux: it binds processes by subreapers and parent-death signals"
);

mod app_process;
mod backoff;
mod bound_program;
mod child_handler;
mod data_dir;
mod find_command;
mod grant_file;
mod helper;
mod process_tree;
mod reaper;
mod systemd;
mod watchdog;
mod watchdog_client;
mod watchdog_protocol;

pub use app_process::AppProcess;
pub use bound_program::{ProgramSpawner, RunningProgram};
pub use child_handler::{ChildHandler, NodeIdentity, RestartCondition};
pub use data_dir::{LockError, default_node_name, lock_data_dir};
pub use find_command::{CommandError, find_command};
pub use grant_file::{GrantFile, GrantFiles, GrantState};
pub use helper::{bound_command, run_helper};
pub use process_tree::{boot_now, is_stopped, this_program};
pub use systemd::{KeepAlive, ServiceManager};
pub use watchdog_client::{Running, Supervisor};
pub use watchdog_protocol::{ChildEnd, Limits, Start};
