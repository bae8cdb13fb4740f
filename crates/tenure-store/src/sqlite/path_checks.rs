//! Whether a path is a place where SQLite's locks hold.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// The file that a path named when it was opened. A different one under the same path is a different store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DatabasePath {
    /// The path without symbolic links: where SQLite puts the files beside it.
    pub(super) path: PathBuf,
    device: u64,
    inode: u64,
}

impl DatabasePath {
    /// Makes the file if it does not exist (readable by its owner alone) and checks that it may hold a store.
    pub(super) fn prepare(path: &Path) -> Result<Self, StoreError> {
        if path.is_dir() {
            return Err(StoreError::denied(format!(
                "database {} is a directory; name a file in it",
                path.display()
            )));
        }
        // Before the file is made, so that a refusal leaves nothing behind.
        let parent = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        if parent.is_dir() {
            refuse_network(path, parent)?;
        }
        // Only ever closed here if it is new: closing a database file that SQLite has open in this process drops its locks.
        let created = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        if let Err(e) = created
            && e.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(refusal(path, parent, &e));
        }
        let resolved = fs::canonicalize(path).map_err(|e| refusal(path, parent, &e))?;
        refuse_network(path, &resolved)?;
        let metadata = fs::metadata(&resolved).map_err(|e| refusal(path, parent, &e))?;
        Ok(Self {
            path: resolved,
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }

    /// Refuses to go on with a file that is no longer the one under its path: others would be using another one.
    pub(super) fn check_unmoved(&self) -> Result<(), StoreError> {
        let found = fs::metadata(&self.path).map(|m| (m.dev(), m.ino()));
        match found {
            Ok(found) if found == (self.device, self.inode) => Ok(()),
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(StoreError::unavailable(format!(
                "database {} cannot be checked: {e}",
                self.path.display()
            ))),
            _ => Err(StoreError::denied(format!(
                "database {} was deleted or replaced while open; restart this process with the right file in place",
                self.path.display()
            ))),
        }
    }

    /// The kind of file system that the file is on, where the system says so.
    pub(super) fn file_system(&self) -> Option<String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        mount_kind(&mounts, self.device)
    }

    /// The write-ahead log beside the file.
    pub(super) fn wal(&self) -> PathBuf {
        let mut wal = self.path.clone().into_os_string();
        wal.push("-wal");
        PathBuf::from(wal)
    }
}

fn refusal(path: &Path, parent: &Path, e: &io::Error) -> StoreError {
    let (path, parent) = (path.display(), parent.display());
    StoreError::denied(match e.kind() {
        io::ErrorKind::NotFound => {
            format!(
                "database {path} cannot be created: directory {parent} does not exist; create it first"
            )
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "database {path} cannot be opened: permission denied; check owner and mode of {parent}"
            )
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            format!(
                "database {path} cannot be opened: the file system is read-only; name another place"
            )
        }
        _ => format!("database {path} cannot be opened: {e}"),
    })
}

#[cfg(target_os = "linux")]
fn refuse_network(path: &Path, probe: &Path) -> Result<(), StoreError> {
    let found = match rustix::fs::statfs(probe) {
        Ok(found) => found,
        // A path that cannot be asked about cannot be opened either, and that says more.
        Err(_) => return Ok(()),
    };
    let mount_kind = || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        mount_kind(&mounts, rustix::fs::stat(probe).ok()?.st_dev)
    };
    match shared_kind(found.f_type as u32, mount_kind) {
        None => Ok(()),
        Some(kind) => Err(StoreError::denied(format!(
            "database {} is on a network or shared file system ({kind}), where SQLite's locks do not work; use a \
             local disk, or a store with a server",
            path.display()
        ))),
    }
}

#[cfg(not(target_os = "linux"))]
fn refuse_network(_path: &Path, _probe: &Path) -> Result<(), StoreError> {
    Ok(())
}

/// The kind of file system by its magic number, if several machines may have it mounted.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn shared_kind(magic: u32, mount_kind: impl FnOnce() -> Option<String>) -> Option<String> {
    const FUSE: u32 = 0x6573_5546;
    const SHARED: [(u32, &str); 19] = [
        (0x0000_6969, "NFS"),
        (0x0000_517B, "SMB"),
        (0xFF53_4D42, "CIFS"),
        (0xFE53_4D42, "SMB2"),
        (0x0102_1997, "9p"),
        (0x5346_414F, "AFS"),
        (0x6B41_4653, "AFS"),
        (0x7375_7245, "Coda"),
        (0x00C3_6400, "Ceph"),
        (0x0BD0_0BD0, "Lustre"),
        (0x0116_1970, "GFS2"),
        (0x7461_636F, "OCFS2"),
        (0x4750_4653, "GPFS"),
        (0x1983_0326, "BeeGFS"),
        (0x786F_4256, "VirtualBox shared folder"),
        (0xBACB_ACBC, "VMware shared folder"),
        (0x7C7C_6673, "Parallels shared folder"),
        (0xAAD7_AAEA, "PanFS"),
        (0x0000_564C, "NCP"),
    ];
    /// File systems in user space that are known to be of one machine. Any other may be anything.
    const LOCAL_FUSE: [&str; 6] = [
        "fuseblk",
        "fuse.fuse-overlayfs",
        "fuse.mergerfs",
        "fuse.ntfs-3g",
        "fuse.exfat",
        "fuse.gocryptfs",
    ];
    if magic == FUSE {
        let kind = mount_kind().unwrap_or_else(|| "fuse".to_owned());
        return (!LOCAL_FUSE.contains(&kind.as_str())).then_some(kind);
    }
    let found = SHARED.iter().find(|(known, _)| *known == magic);
    found.map(|(_, kind)| (*kind).to_owned())
}

/// The type of the file system on this device, from the text of `/proc/self/mountinfo`.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn mount_kind(mounts: &str, device: u64) -> Option<String> {
    let device = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let matches = mount.split(' ').nth(2) == Some(&device);
        matches.then(|| kind.split(' ').next().unwrap_or_default().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(magic: u32, fuse: Option<&str>) -> Option<String> {
        shared_kind(magic, || fuse.map(str::to_owned))
    }

    #[test]
    fn network_file_systems_are_known_by_their_magic_number() {
        for (magic, kind) in [
            (0x6969, "NFS"),
            (0xFF53_4D42, "CIFS"),
            (0xFE53_4D42, "SMB2"),
            (0x0102_1997, "9p"),
            (0x00C3_6400, "Ceph"),
            (0x0BD0_0BD0, "Lustre"),
        ] {
            assert_eq!(shared(magic, None).as_deref(), Some(kind));
        }
    }

    #[test]
    fn local_file_systems_are_taken() {
        let (ext4, xfs, btrfs, tmpfs, overlay, zfs) = (
            0xEF53,
            0x5846_5342,
            0x9123_683E,
            0x0102_1994,
            0x794C_7630,
            0x2FC1_2FC1,
        );
        for magic in [ext4, xfs, btrfs, tmpfs, overlay, zfs] {
            assert_eq!(shared(magic, None), None);
        }
    }

    #[test]
    fn a_file_system_in_user_space_is_refused_unless_known_to_be_local() {
        let fuse = 0x6573_5546;
        assert_eq!(
            shared(fuse, Some("fuse.sshfs")).as_deref(),
            Some("fuse.sshfs")
        );
        assert_eq!(shared(fuse, Some("virtiofs")).as_deref(), Some("virtiofs"));
        assert_eq!(shared(fuse, None).as_deref(), Some("fuse"));
        assert_eq!(shared(fuse, Some("fuseblk")), None);
        assert_eq!(shared(fuse, Some("fuse.fuse-overlayfs")), None);
    }

    #[test]
    fn the_mount_of_a_device_is_found_among_others() {
        let mounts = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
51 22 0:45 / /home/a/far rw,nosuid shared:2 master:3 - fuse.sshfs a@b:/x rw,user_id=0
";
        let device = rustix::fs::makedev(0, 45);
        assert_eq!(mount_kind(mounts, device).as_deref(), Some("fuse.sshfs"));
        assert_eq!(mount_kind(mounts, rustix::fs::makedev(9, 9)), None);
    }
}
