//! Finds the command before anything is owned, so that a slip of the pen costs nobody a shard.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::exit::Exit;

enum Found {
    Runs,
    Directory,
    NotExecutable,
    Missing,
}

/// The command with the path that it will be run by.
pub(crate) fn find(mut command: Vec<OsString>) -> Result<Vec<OsString>, Exit> {
    let name = command.first().cloned().unwrap_or_default();
    let path = locate(&name, std::env::var_os("PATH").unwrap_or_default())?;
    command[0] = path.into_os_string();
    Ok(command)
}

fn locate(name: &OsStr, path: OsString) -> Result<PathBuf, Exit> {
    let given = Path::new(name);
    if given.components().count() > 1 || name.to_string_lossy().contains('/') {
        return match look(given) {
            Found::Runs => Ok(given.to_owned()),
            Found::Directory => Err(Exit::usage(format!(
                "command {given:?} is a directory; give the path of a program"
            ))),
            Found::NotExecutable => Err(not_executable(given)),
            Found::Missing => Err(Exit::usage(format!(
                "file {given:?} does not exist; give the path of a program"
            ))),
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
        Some(path) => not_executable(&path),
        None => Exit::usage(format!(
            "command {given:?} is not found in PATH; give its path, such as ./{}",
            given.display()
        )),
    })
}

fn not_executable(path: &Path) -> Exit {
    Exit::usage(format!(
        "command {path:?} is not executable; run `chmod +x` on the file"
    ))
}

fn look(path: &Path) -> Found {
    match std::fs::metadata(path) {
        Err(_) => Found::Missing,
        Ok(meta) if meta.is_dir() => Found::Directory,
        Ok(meta) if meta.permissions().mode() & 0o111 == 0 => Found::NotExecutable,
        Ok(_) => Found::Runs,
    }
}
