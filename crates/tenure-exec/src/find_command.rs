//! Search for a command before any shard is owned, so that a wrong name fails early.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Failure of [`find_command`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The path is a directory.
    #[error("command {0:?} is a directory; give the path of a program")]
    Directory(PathBuf),
    /// The file has no permission to be executed.
    #[error("command {0:?} is not executable; run `chmod +x` on the file")]
    NotExecutable(PathBuf),
    /// The path does not exist.
    #[error("file {0:?} does not exist; give the path of a program")]
    NoFile(PathBuf),
    /// No directory of PATH contains the command.
    #[error("command {name:?} is not found in PATH; give its path, such as ./{}", name.display())]
    NotInPath {
        /// Name of the command.
        name: PathBuf,
    },
}

enum Found {
    Runs,
    Directory,
    NotExecutable,
    Missing,
}

/// Replaces the name of the command by the path of its program.
///
/// # Errors
///
/// If there is no such program or it is not executable.
pub fn find_command(mut command: Vec<OsString>) -> Result<Vec<OsString>, CommandError> {
    let name = command.first().cloned().unwrap_or_default();
    let path = locate(&name, std::env::var_os("PATH").unwrap_or_default())?;
    if let Some(first) = command.first_mut() {
        *first = path.into_os_string();
    }
    Ok(command)
}

fn locate(name: &OsStr, path: OsString) -> Result<PathBuf, CommandError> {
    let given = Path::new(name);
    if given.components().count() > 1 || name.to_string_lossy().contains('/') {
        return match look(given) {
            Found::Runs => Ok(given.to_owned()),
            Found::Directory => Err(CommandError::Directory(given.to_owned())),
            Found::NotExecutable => Err(CommandError::NotExecutable(given.to_owned())),
            Found::Missing => Err(CommandError::NoFile(given.to_owned())),
        };
    }
    let mut unusable = None;
    for dir in std::env::split_paths(&path) {
        let candidate = dir.join(given);
        match look(&candidate) {
            Found::Runs => return Ok(candidate),
            Found::NotExecutable => unusable = Some(candidate),
            Found::Directory | Found::Missing => {}
        }
    }
    Err(match unusable {
        Some(path) => CommandError::NotExecutable(path),
        None => CommandError::NotInPath {
            name: given.to_owned(),
        },
    })
}

fn look(path: &Path) -> Found {
    match std::fs::metadata(path) {
        Err(_) => Found::Missing,
        Ok(meta) if meta.is_dir() => Found::Directory,
        Ok(meta) if meta.permissions().mode() & 0o111 == 0 => Found::NotExecutable,
        Ok(_) => Found::Runs,
    }
}
