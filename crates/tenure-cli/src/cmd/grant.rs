//! `tenure grant check`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use tenure_exec::{GrantState, boot_now};

use crate::exit::Exit;
use crate::stdout;

/// Check, from inside a command run by `tenure exec`, that it still owns its shard
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tenure grant check && ./send-invoices")]
pub(crate) struct GrantCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Check(Check),
}

/// Exit with 0 if the command run by `tenure exec` still owns its shard, with 1 if not
#[derive(Debug, Args)]
#[command(
    after_help = "Reads the grant file and the clock; does not contact the store. Exits with 2 if no grant is given.\n\n\
    A process may be paused between the check and its effect. Pass TENURE_EPOCH to a resource that rejects older\n\
    epochs if an effect must not happen twice.\n\n\
    Examples:\n  tenure grant check && ./send-invoices --fencing-token \"$TENURE_EPOCH\"\n  \
    tenure grant check --json"
)]
struct Check {
    /// Grant file that `tenure exec` wrote for the command [env: TENURE_GRANT]
    #[arg(long, value_name = "FILE")]
    grant: Option<PathBuf>,
    /// Epoch that the grant must have; exit with 1 if it has another [env: TENURE_EPOCH]
    #[arg(long, value_name = "EPOCH")]
    epoch: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl GrantCommand {
    pub(crate) fn run(self) -> Result<ExitCode, Exit> {
        let Action::Check(check) = self.action;
        check.run()
    }
}

impl Check {
    fn run(self) -> Result<ExitCode, Exit> {
        let path = self
            .grant
            .or_else(|| std::env::var_os("TENURE_GRANT").map(PathBuf::from))
            .ok_or_else(|| {
                Exit::usage("no grant is given: TENURE_GRANT is not set; run the command in a child of `tenure exec`, or pass --grant")
            })?;
        let epoch = match (self.epoch, std::env::var("TENURE_EPOCH")) {
            (Some(epoch), _) => Some(epoch),
            (None, Ok(text)) => Some(text.parse().map_err(|_| {
                Exit::usage(format!("TENURE_EPOCH is {text:?}, which is not a number"))
            })?),
            (None, Err(_)) => None,
        };
        let checked = check(&path, epoch);
        if self.json {
            let reason = checked.as_ref().err().map(|e| &e.message);
            stdout::json(&json!({ "valid": checked.is_ok(), "reason": reason }));
        }
        checked.map(|()| ExitCode::SUCCESS)
    }
}

fn check(path: &Path, epoch: Option<u64>) -> Result<(), Exit> {
    let state = match GrantState::read(path) {
        Ok(state) => state,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Err(Exit::failed(format!(
                "the grant has ended: {} does not exist",
                path.display()
            )));
        }
        Err(e) => {
            return Err(Exit::usage(format!(
                "grant file {} cannot be read: {e}",
                path.display()
            )));
        }
    };
    if epoch.is_some_and(|epoch| epoch != state.epoch) {
        let was = epoch.unwrap_or_default();
        return Err(Exit::failed(format!(
            "the grant at epoch {was} has ended: the shard is at epoch {}",
            state.epoch
        )));
    }
    if state.boot_id != tenure_store::machine_identity::boot_id() {
        return Err(Exit::failed(
            "the grant is from another boot or another time namespace of this machine",
        ));
    }
    let now = boot_now();
    if now >= state.stop_time_ns {
        let late = now.since(state.stop_time_ns);
        return Err(Exit::failed(format!(
            "the grant ended {} ms ago",
            late.as_millis()
        )));
    }
    Ok(())
}
