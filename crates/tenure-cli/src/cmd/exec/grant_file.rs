//! The files that `TENURE_GRANT` names: what a child may know of its grant, at any time.
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

use crate::exit::Exit;

/// What a grant file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GrantState {
    /// The cluster.
    pub(crate) cluster: String,
    /// The keyspace.
    pub(crate) keyspace: String,
    /// The shard's name within it.
    pub(crate) shard: String,
    /// The node that owns it.
    pub(crate) node: String,
    /// The fencing token.
    pub(crate) epoch: u64,
    /// Names the clock of the two times below.
    pub(crate) boot_id: Option<String>,
    /// Nanoseconds on CLOCK_BOOTTIME: no effect may begin after this.
    pub(crate) stop_time_ns: Time,
    /// Nanoseconds on CLOCK_BOOTTIME: somebody else may be at work after this.
    pub(crate) deadline_ns: Time,
}

impl GrantState {
    /// Reads a grant file.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    }
}

/// Where the grant files of one `exec` are.
pub(super) struct GrantFiles {
    dir: PathBuf,
}

impl GrantFiles {
    /// In the data directory, or else in a temporary one, which goes when it is dropped.
    pub(super) fn open(data: Option<&Path>) -> Result<(Self, Option<TempDir>), Exit> {
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
        let absolute = made.and_then(|(dir, own)| Ok((std::path::absolute(dir)?, own)));
        let (dir, own) = absolute.map_err(|e| {
            Exit::failed(format!(
                "the directory for grant files cannot be created: {e}"
            ))
        })?;
        Ok((Self { dir }, own))
    }

    /// The file of a shard.
    pub(super) fn of(&self, shard: &str) -> GrantFile {
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
pub(super) struct GrantFile(PathBuf);

impl GrantFile {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Says that the grant holds.
    pub(super) fn write(&self, state: &GrantState) -> io::Result<()> {
        let new = self.0.with_extension("new");
        fs::write(&new, serde_json::to_vec(state)?)?;
        fs::rename(&new, &self.0)
    }

    /// Says that there is no grant.
    pub(super) fn remove(&self) {
        // Not there is what was wanted. If it cannot be removed, its times still end it.
        let _ = fs::remove_file(&self.0);
    }
}
