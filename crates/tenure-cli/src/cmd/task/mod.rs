//! `tenure task`: tasks of a queue.
//!
//! | file | content |
//! |---|---|
//! | `list.rs` | list |
//! | `show.rs` | show, wait |
//! | `submit.rs` | submit; `task_json.rs` parses tasks in JSON |
//! | `cancel.rs` | cancel, retry |
//! | `watch.rs` | watch |

mod cancel;
mod list;
mod show;
mod submit;
pub(super) mod task_json;
mod watch;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use tenure_queue::{Task, TaskState};

use crate::config::Config;
use crate::exit::Exit;
use crate::stdout;

/// Submit, list, cancel and retry tasks
#[derive(Debug, Args)]
#[command(
    after_help = "A task is executed at least once and finished exactly once. docs/queue-cli.md describes tasks and workers.\n\n\
    Examples:\n  \
    tenure task submit mails 'to: bob' --idempotency-key welcome-bob\n  \
    tenure task list mails --state dead\n  \
    tenure task retry mails --dead"
)]
pub(crate) struct TaskCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(list::List),
    Show(show::Show),
    Submit(Box<submit::SubmitCommand>),
    Wait(show::WaitCommand),
    Cancel(cancel::CancelCommand),
    Retry(cancel::RetryCommand),
    Watch(watch::WatchCommand),
}

impl TaskCommand {
    pub(crate) async fn run(self, config: &Config) -> Result<ExitCode, Exit> {
        match self.action {
            Action::List(action) => action.run(config).await,
            Action::Show(action) => action.run(config).await,
            Action::Submit(action) => action.run(config).await,
            Action::Wait(action) => action.run(config).await,
            Action::Cancel(action) => action.run(config).await,
            Action::Retry(action) => action.run(config).await,
            Action::Watch(action) => action.run(config).await,
        }
    }
}

/// Prints the result of a done task if `print` is set. Fails for a task in another state.
fn print_result(task: &Task, print: bool) -> Result<ExitCode, Exit> {
    match &task.state {
        TaskState::Done { result, .. } => {
            if print {
                let mut bytes = result.to_bytes();
                if !bytes.ends_with(b"\n") {
                    bytes.push(b'\n');
                }
                stdout::bytes(&bytes);
            }
            Ok(ExitCode::SUCCESS)
        }
        TaskState::Dead { reason, .. } => Err(Exit::failed(format!(
            "task {} is a dead letter after {} attempts: {reason}",
            task.id, task.attempts
        ))),
        state => Err(Exit::failed(format!(
            "task {} is {}",
            task.id,
            state.status()
        ))),
    }
}
