//! The data directory of `exec`, whose lock its children hold on to.

use std::time::Duration;

use rustix::process::{Pid, test_kill_process};
use rustix::rand::{GetRandomFlags, getrandom};
use tenure::Clock;
use tenure::data_dir::{DataDir, DataDirError};
use tenure_store::host::Host;

use super::{Signals, Waited};
use crate::fail::Fail;

/// How often a lock that the children of a dead `exec` still hold is tried again: nothing tells when it is free.
const RETRY: Duration = Duration::from_millis(20);

/// Opens and locks the directory, for this process and for those that it starts.
///
/// The children of an `exec` that was killed hold the lock for the moment that they take to die: that is waited for, at most
/// as long as they could live. A process that is alive is not waited for.
pub(crate) async fn take(
    path: &str,
    ttl: Duration,
    signals: &mut Signals,
) -> Result<DataDir, Fail> {
    let clock = Clock::boot();
    let until = clock.now() + ttl;
    loop {
        match DataDir::open(path, clock.id()) {
            Ok(dir) => {
                dir.inherit().map_err(|e| {
                    Fail::no(format!("the lock of {path} cannot be inherited: {e}"))
                })?;
                return Ok(dir);
            }
            Err(DataDirError::InUse { pid, .. }) if !is_alive(pid) && clock.now() < until => {
                if let Waited::Signal = signals.or(clock.sleep(RETRY)).await {
                    return Err(Fail::no(format!("interrupted while waiting for {path}")));
                }
            }
            Err(error) => return Err(Fail::no(error.to_string())),
        }
    }
}

fn is_alive(pid: Option<u32>) -> bool {
    let pid = pid
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw);
    // A process that may not be signalled is there.
    pid.is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// A node's name if none is given: the host's with that of the directory, or with something that nobody else has.
pub(crate) fn default_name(data: Option<&DataDir>) -> String {
    let host = Host::this().name;
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
