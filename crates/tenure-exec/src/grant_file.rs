//! Files that `TENURE_GRANT` names: the current grant of a child.
//!
//! Each is replaced as a whole (written beside, then renamed), so that a reader sees one state or the next and never half of
//! one. It is not made durable: after a crash of the machine there is nothing that it could be right about.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tenure::Time;
use tenure_core::hash::key_hash;
use tenure_core::keys::escape;

/// Content of a grant file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantState {
    /// The cluster.
    pub cluster: String,
    /// The keyspace.
    pub keyspace: String,
    /// The shard's name within it.
    pub shard: String,
    /// The node that owns it.
    pub node: String,
    /// The fencing token.
    pub epoch: u64,
    /// Id of the boot whose clock the two times below are from.
    pub boot_id: Option<String>,
    /// Nanoseconds on CLOCK_BOOTTIME: no effect may begin after this.
    pub stop_time_ns: Time,
    /// Nanoseconds on CLOCK_BOOTTIME: another node may own the shard after this.
    pub deadline_ns: Time,
}

impl GrantState {
    /// Reads a grant file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is no grant file.
    pub fn read(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    }
}

/// Directory of the grant files of one process.
pub struct GrantFiles {
    dir: PathBuf,
}

impl GrantFiles {
    /// Creates the directory in the data directory, or else a temporary one, which is removed when dropped.
    ///
    /// # Errors
    ///
    /// If the directory cannot be created.
    pub fn open(data: Option<&Path>) -> io::Result<(Self, Option<TempDir>)> {
        let made = match data {
            Some(data) => {
                let dir = data.join("grants");
                // What an earlier process left says nothing.
                let _ = fs::remove_dir_all(&dir);
                fs::create_dir_all(&dir).map(|()| (dir, None))
            }
            None => tempfile::Builder::new()
                .prefix("tenure-exec-")
                .tempdir()
                .map(|dir| (dir.path().to_owned(), Some(dir))),
        };
        let (dir, own) = made?;
        let dir = std::path::absolute(dir)?;
        Ok((Self { dir }, own))
    }

    /// The file of a shard.
    pub fn of(&self, shard: &str) -> GrantFile {
        GrantFile(self.dir.join(format!("{}.json", file_name(shard))))
    }
}

/// A name for the file of a shard, whatever its name is: as in keys, and cut where a file's name could not be as long.
fn file_name(shard: &str) -> String {
    const MOST: usize = 200;
    let name = escape(shard);
    match name.len() {
        n if n <= MOST => name,
        _ => {
            let hash = key_hash(shard.as_bytes());
            format!("{}-{hash:016x}", &name[..MOST])
        }
    }
}

/// The grant file of one shard.
pub struct GrantFile(PathBuf);

impl GrantFile {
    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Replaces the content of the file.
    ///
    /// # Errors
    ///
    /// If the file cannot be written; it then has the content from before.
    pub fn write(&self, state: &GrantState) -> io::Result<()> {
        let new = self.0.with_extension("new");
        fs::write(&new, serde_json::to_vec(state)?)?;
        fs::rename(&new, &self.0)
    }

    /// Removes the file: there is no grant.
    pub fn remove(&self) {
        // Not there is what was wanted. If it cannot be removed, its times still end it.
        let _ = fs::remove_file(&self.0);
    }
}
