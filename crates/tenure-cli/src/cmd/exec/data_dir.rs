//! The data directory of `exec`, whose lock its children hold on to.

use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};
use tenure::Clock;
use tenure::data_dir::DataDir;
use tenure_store::machine_identity::MachineIdentity;

use super::{Signals, Waited};
use crate::exit::Exit;

/// Opens and locks the directory, for this process and for those that it starts.
///
/// The children of an `exec` that was killed hold the lock for the moment that they take to die: that is waited for, at most
/// as long as they could live.
pub(crate) async fn take(
    path: &str,
    ttl: Duration,
    signals: &mut Signals,
) -> Result<DataDir, Exit> {
    let clock = Clock::boot();
    let dir = match signals
        .or(DataDir::open_after_death(path, &clock, ttl))
        .await
    {
        Waited::Done(opened) => opened.map_err(|e| Exit::failed(e.to_string()))?,
        Waited::Signal => {
            return Err(Exit::failed(format!(
                "interrupted while waiting for data directory {path}, which another process uses"
            )));
        }
    };
    dir.inherit().map_err(|e| {
        Exit::failed(format!(
            "the lock of data directory {path} cannot be passed on to child processes: {e}"
        ))
    })?;
    Ok(dir)
}

/// A node's name if none is given: the host's with that of the directory, or with something that nobody else has.
pub(crate) fn default_name(data: Option<&DataDir>) -> String {
    let host = MachineIdentity::this().name;
    if let Some(name) = data.and_then(|dir| dir.path().file_name()) {
        return format!("{host}-{}", name.to_string_lossy());
    }
    let mut bytes = [0u8; 4];
    let pid = std::process::id();
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(4) => format!("{host}-{:08x}", u32::from_ne_bytes(bytes)),
        _ => format!("{host}-{pid}"),
    }
}
