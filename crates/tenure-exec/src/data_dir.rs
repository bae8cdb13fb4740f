//! The data directory of a node, whose lock its children inherit.

use std::io;
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};
use tenure::Clock;
use tenure::data_dir::{DataDir, DataDirError};
use tenure_store::machine_identity::MachineIdentity;

/// Opens and locks a data directory, for this process and for those that it starts.
///
/// The children of a killed process hold the lock until they are dead. The call waits for that, at most as long as they can
/// live.
///
/// # Errors
///
/// If the directory is in use or cannot be read, or its lock cannot be passed on to child processes.
pub async fn lock_data_dir(path: &str, ttl: Duration) -> Result<DataDir, LockError> {
    let dir = DataDir::open_after_death(path, &Clock::boot(), ttl).await?;
    dir.inherit().map_err(|error| LockError::NotInherited {
        path: path.to_owned(),
        error,
    })?;
    Ok(dir)
}

/// Failure of [`lock_data_dir`].
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The directory is in use or cannot be read or written.
    #[error(transparent)]
    Directory(#[from] DataDirError),
    /// The lock cannot be passed on.
    #[error("the lock of data directory {path} cannot be passed on to child processes: {error}")]
    NotInherited {
        /// The directory.
        path: String,
        /// The error of the system.
        error: io::Error,
    },
}

/// Name of a node without a configured name: the host's with that of the data directory, or with random digits.
pub fn default_node_name(data: Option<&DataDir>) -> String {
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
