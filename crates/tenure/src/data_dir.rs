//! The data directory: proof that a node's last process is dead, and which session it had.
//!
//! | file | content |
//! |---|---|
//! | `lock` | locked exclusively (`flock`) for as long as work of this node runs; holds the process id, for people |
//! | `session` | the last session, with boot id, device and inode of the lock file, as JSON |
//!
//! A free lock proves the last holder dead only where it is the *same* lock: same boot of the same machine, same device, same
//! inode, on a local file system. A copied or mounted directory proves nothing, and its node waits for the ttl instead.
//!
//! `flock` belongs to the open file and so to every process that inherits it: whoever supervises children can hand them the
//! lock, which is then free only when the last of them is dead.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::FdFlags;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};
use tenure_core::ids::SessionId;

use crate::clock::Clock;

/// How soon a lock that is about to be free is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// A live process has it.
    #[error(
        "data directory {} is in use by {}; stop that process or choose another directory", path.display(),
        .pid.map_or("another process".to_owned(), |pid| format!("process {pid}"))
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process, if it said who it is.
        pid: Option<u32>,
    },
    /// It cannot be read or written.
    #[error("data directory {} cannot be used: {error}; check that it exists and is writable", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// A data directory, locked for as long as this value lives.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    mark: LockRecord,
    // Locked; closing it frees the lock.
    lock: File,
    last_session: Option<SessionId>,
}

/// What makes a lock file the one it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LockRecord {
    boot_id: Option<String>,
    device: u64,
    inode: u64,
}

#[derive(Serialize, Deserialize)]
struct Remembered {
    session: SessionId,
    #[serde(flatten)]
    mark: LockRecord,
}

impl DataDir {
    /// Opens and locks a directory, making it if need be. `boot_id` names the running clock of this machine.
    pub fn open(path: impl Into<PathBuf>, boot_id: Option<String>) -> Result<Self, DataDirError> {
        let path = path.into();
        let locked = fs::create_dir_all(&path).and_then(|()| lock(&path));
        let (lock, local) = match locked {
            Ok(Some(locked)) => locked,
            Ok(None) => {
                let pid = fs::read_to_string(path.join("lock")).ok();
                let pid = pid.and_then(|pid| pid.trim().parse().ok());
                return Err(DataDirError::InUse { path, pid });
            }
            Err(error) => return Err(DataDirError::Io { path, error }),
        };
        let mark = match lock.metadata() {
            Ok(meta) => LockRecord {
                boot_id,
                device: meta.dev(),
                inode: meta.ino(),
            },
            Err(error) => return Err(DataDirError::Io { path, error }),
        };
        let last_session = remembered(&path)
            .filter(|last| local && last.mark == mark && mark.boot_id.is_some())
            .map(|last| last.session);
        Ok(Self {
            path,
            mark,
            lock,
            last_session,
        })
    }

    /// Opens and locks a directory whose last holder may have been killed a moment ago.
    ///
    /// Whoever inherited the lock from a process that was killed holds it until it is dead itself, which takes its supervisor
    /// a moment: that is waited for, at most for `patience`. A holder that is alive is not waited for. Can be dropped at any
    /// time.
    pub async fn open_after_death(
        path: impl Into<PathBuf>,
        clock: &Clock,
        patience: Duration,
    ) -> Result<Self, DataDirError> {
        let path = path.into();
        let until = clock.now() + patience;
        loop {
            match Self::open(&path, clock.id()) {
                Err(DataDirError::InUse { pid, .. }) if !is_alive(pid) && clock.now() < until => {
                    clock.sleep(RETRY).await;
                }
                opened => return opened,
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets the processes that this one starts from now on inherit the lock, which is then free only when the last of them
    /// is dead.
    pub fn inherit(&self) -> io::Result<()> {
        Ok(rustix::io::fcntl_setfd(&self.lock, FdFlags::empty())?)
    }

    /// The session of the last process, if the lock proves that process dead.
    pub fn last_session(&self) -> Option<SessionId> {
        self.last_session
    }

    /// Notes down, durably, the session that is about to be created.
    pub fn remember(&self, session: SessionId) -> io::Result<()> {
        let mark = self.mark.clone();
        let json = serde_json::to_vec(&Remembered { session, mark })?;
        let new = self.path.join("session.new");
        let mut file = File::create(&new)?;
        file.write_all(&json)?;
        file.sync_all()?;
        fs::rename(&new, self.path.join("session"))?;
        File::open(&self.path)?.sync_all()
    }
}

/// The locked file and whether it is on a local file system; nothing if somebody else has the lock.
fn lock(path: &Path) -> io::Result<Option<(File, bool)>> {
    let name = path.join("lock");
    loop {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&name)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // The file may have been replaced between opening and locking it: then this is not the lock that others see.
        let (ours, theirs) = (file.metadata()?, fs::metadata(&name));
        if !theirs.is_ok_and(|t| (t.dev(), t.ino()) == (ours.dev(), ours.ino())) {
            continue;
        }
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())?;
        let local = is_local(&file);
        return Ok(Some((file, local)));
    }
}

/// Whether a process is there and not about to go. A killed one whose parent has not asked for its end is not.
fn is_alive(pid: Option<u32>) -> bool {
    let Some(pid) = pid
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw)
    else {
        // Whoever has just taken the lock has not said yet who it is; the next try tells.
        return false;
    };
    // A process that may not be signalled is there.
    test_kill_process(pid) != Err(rustix::io::Errno::SRCH) && !is_zombie(pid)
}

#[cfg(target_os = "linux")]
fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    // The state follows the name, which is in brackets and may contain any.
    let state = stat
        .ok()
        .and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
    matches!(state, Some('Z' | 'X'))
}

#[cfg(not(target_os = "linux"))]
fn is_zombie(_pid: Pid) -> bool {
    false
}

fn remembered(path: &Path) -> Option<Remembered> {
    let mut text = Vec::new();
    let mut file = File::open(path.join("session")).ok()?;
    file.read_to_end(&mut text).ok()?;
    // What cannot be read proves nothing; the next session overwrites it.
    serde_json::from_slice(&text).ok()
}

/// Whether locks of the file system are known to be this machine's alone. One that is not known proves nothing.
#[cfg(target_os = "linux")]
fn is_local(file: &File) -> bool {
    const LOCAL: [u32; 10] = [
        0x0000_EF53, // ext2, ext3, ext4
        0x5846_5342, // xfs
        0x9123_683E, // btrfs
        0x2FC1_2FC1, // zfs
        0xF2F5_2010, // f2fs
        0xCA45_1A4E, // bcachefs
        0x0102_1994, // tmpfs
        0x8584_58F6, // ramfs
        0x794C_7630, // overlayfs
        0x3153_464A, // jfs
    ];
    rustix::fs::fstatfs(file).is_ok_and(|found| LOCAL.contains(&(found.f_type as u32)))
}

#[cfg(not(target_os = "linux"))]
fn is_local(_file: &File) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot() -> Option<String> {
        Some("boot-1".to_owned())
    }

    fn dir_with_session() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path(), boot()).unwrap();
        assert_eq!(data.last_session(), None);
        data.remember(SessionId(3)).unwrap();
        data.remember(SessionId(7)).unwrap();
        dir
    }

    #[test]
    fn the_last_session_is_known_to_the_next_process() {
        let dir = dir_with_session();
        let data = DataDir::open(dir.path(), boot()).unwrap();
        assert_eq!(data.last_session(), Some(SessionId(7)));
    }

    #[test]
    fn a_directory_in_use_is_refused_with_its_name_and_process() {
        let dir = dir_with_session();
        let _data = DataDir::open(dir.path(), boot()).unwrap();
        let error = DataDir::open(dir.path(), boot()).unwrap_err().to_string();
        assert!(error.contains(&*dir.path().to_string_lossy()), "{error}");
        let pid = format!("process {}", std::process::id());
        assert!(error.contains(&pid), "{error}");
    }

    #[test]
    fn a_lock_that_a_child_inherited_is_free_when_the_child_is_dead() {
        let dir = dir_with_session();
        let data = DataDir::open(dir.path(), boot()).unwrap();
        data.inherit().unwrap();
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        drop(data);
        DataDir::open(dir.path(), boot()).unwrap_err();
        drop(child.stdin.take());
        child.wait().unwrap();
        DataDir::open(dir.path(), boot()).unwrap();
    }

    #[tokio::test]
    async fn the_heirs_of_a_killed_holder_are_waited_for_and_a_live_holder_is_not() {
        let dir = dir_with_session();
        let clock = Clock::boot();
        let again = async |patience| {
            let opened = DataDir::open_after_death(dir.path(), &clock, patience);
            opened.await.map(|_| ())
        };
        let long = Duration::from_secs(3600);
        let data = DataDir::open(dir.path(), boot()).unwrap();
        // Its own process is alive.
        again(long).await.unwrap_err();
        data.inherit().unwrap();
        let piped = |name| {
            let mut command = std::process::Command::new(name);
            command.stdin(std::process::Stdio::piped()).spawn().unwrap()
        };
        let mut heir = piped("cat");
        let mut holder = piped("cat");
        drop(data);
        fs::write(dir.path().join("lock"), holder.id().to_string()).unwrap();
        again(long).await.unwrap_err();
        // Dead, and nobody has asked for its end yet. It inherited the lock, too.
        holder.kill().unwrap();
        let soon = Duration::from_millis(200);
        while is_alive(Some(holder.id())) {
            clock.sleep(RETRY).await;
        }
        again(soon).await.unwrap_err();
        let ((), opened) = tokio::join!(
            async {
                clock.sleep(soon).await;
                drop(heir.stdin.take());
                heir.wait().unwrap();
            },
            again(long)
        );
        opened.unwrap();
        holder.wait().unwrap();
    }

    #[test]
    fn another_boot_proves_nothing() {
        let dir = dir_with_session();
        for other in [Some("boot-2".to_owned()), None] {
            let data = DataDir::open(dir.path(), other).unwrap();
            assert_eq!(data.last_session(), None);
        }
    }

    #[test]
    fn a_copied_directory_proves_nothing() {
        let dir = dir_with_session();
        let copy = tempfile::tempdir().unwrap();
        for file in ["lock", "session"] {
            fs::copy(dir.path().join(file), copy.path().join(file)).unwrap();
        }
        let data = DataDir::open(copy.path(), boot()).unwrap();
        assert_eq!(data.last_session(), None);
    }

    #[test]
    fn a_replaced_lock_file_proves_nothing() {
        let dir = dir_with_session();
        let _holder = DataDir::open(dir.path(), boot()).unwrap();
        fs::remove_file(dir.path().join("lock")).unwrap();
        let data = DataDir::open(dir.path(), boot()).unwrap();
        assert_eq!(data.last_session(), None);
    }

    #[test]
    fn a_session_file_that_cannot_be_read_proves_nothing() {
        let dir = dir_with_session();
        fs::write(dir.path().join("session"), b"{\"session\":").unwrap();
        let data = DataDir::open(dir.path(), boot()).unwrap();
        assert_eq!(data.last_session(), None);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = DataDir::open(file.path().join("d"), boot()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&*file.path().to_string_lossy()), "{text}");
    }
}
