//! `tenure check`: whether the caller, a child of `tenure exec`, still owns its shard.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::cmd::exec::grant_file::GrantState;
use crate::exit::Exit;
use crate::supervise::boot_now;

/// Ask, from a child of `tenure exec`, whether its grant still holds
#[derive(Debug, Args)]
#[command(
    after_help = "Exits with 0 if the grant holds, with 1 if it does not, with 2 if there is none to ask about. \
    Reads one file and the clock; asks no store.\n\n\
    A child that checks and then acts may be paused in between: what must not happen twice carries TENURE_EPOCH to a \
    resource that refuses older ones.\n\n\
    Example:\n  tenure check && ./send-the-invoices --fencing-token \"$TENURE_EPOCH\""
)]
pub(crate) struct Check {
    /// The grant file [env: TENURE_GRANT]
    #[arg(long, value_name = "FILE")]
    grant: Option<PathBuf>,
    /// The epoch that must be the one in the file [env: TENURE_EPOCH]
    #[arg(long, value_name = "EPOCH")]
    epoch: Option<u64>,
}

impl Check {
    pub(crate) fn run(self) -> Result<ExitCode, Exit> {
        let path = self
            .grant
            .or_else(|| std::env::var_os("TENURE_GRANT").map(PathBuf::from))
            .ok_or_else(|| {
                Exit::usage("no grant is named: TENURE_GRANT is not set; run this under `tenure exec`, or pass --grant")
            })?;
        let epoch = match (self.epoch, std::env::var("TENURE_EPOCH")) {
            (Some(epoch), _) => Some(epoch),
            (None, Ok(text)) => Some(text.parse().map_err(|_| {
                Exit::usage(format!("TENURE_EPOCH is {text:?}, which is not a number"))
            })?),
            (None, Err(_)) => None,
        };
        check(&path, epoch).map(|()| ExitCode::SUCCESS)
    }
}

fn check(path: &Path, epoch: Option<u64>) -> Result<(), Exit> {
    let state = match GrantState::read(path) {
        Ok(state) => state,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Err(Exit::failed(format!(
                "the grant is over: {} is gone",
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
            "the grant at epoch {was} is over: the shard is at epoch {}",
            state.epoch
        )));
    }
    if state.boot_id != tenure_store::host::boot_id() {
        return Err(Exit::failed(
            "the grant is from another boot or another time namespace of this machine",
        ));
    }
    let now = boot_now();
    if now >= state.closes_at_ns {
        let late = now.since(state.closes_at_ns);
        return Err(Exit::failed(format!(
            "the grant is over since {} ms",
            late.as_millis()
        )));
    }
    Ok(())
}
