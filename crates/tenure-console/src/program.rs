//! Location of the other programs of the workspace.

use std::env;
use std::path::{Path, PathBuf};

/// Environment variable with the path of the `tenure` program.
pub const TENURE_BIN: &str = "TENURE_BIN";

/// Path of the `tenure` program: `given`, else [`TENURE_BIN`], else the file beside this executable.
///
/// A test executable in `target/PROFILE/deps` finds the program in `target/PROFILE`.
///
/// # Errors
///
/// A message with the searched path and the way out, if there is no such file.
pub fn tenure(given: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(path) = given {
        return existing(path.to_owned(), "--tenure-bin");
    }
    if let Some(path) = env::var_os(TENURE_BIN) {
        return existing(path.into(), TENURE_BIN);
    }
    let build = "build it with `cargo build -p tenure-cli` in the same profile, or set TENURE_BIN to its path";
    located("tenure", build)
}

/// Path of the example `name` of a package, for tests.
///
/// # Errors
///
/// A message with the searched path and the command that builds the example, if there is no such file.
pub fn example(name: &str, package: &str) -> Result<PathBuf, String> {
    let build =
        format!("build it with `cargo build -p {package} --example {name}` in the same profile");
    located(&format!("examples/{name}"), &build)
}

/// Path of the program of the package `name`, beside this executable.
///
/// # Errors
///
/// A message with the searched path and the command that builds the program, if there is no such file.
pub fn beside(name: &str) -> Result<PathBuf, String> {
    let build = format!("build it with `cargo build -p {name}` in the same profile");
    located(name, &build)
}

fn located(name: &str, hint: &str) -> Result<PathBuf, String> {
    let this =
        env::current_exe().map_err(|e| format!("the path of this program cannot be read: {e}"))?;
    let path = sibling(&this, name);
    match path.is_file() {
        true => Ok(path),
        false => Err(format!("there is no program {}; {hint}", path.display())),
    }
}

fn existing(path: PathBuf, source: &str) -> Result<PathBuf, String> {
    match path.is_file() {
        true => Ok(path),
        false => Err(format!("{source}: there is no file {}", path.display())),
    }
}

fn sibling(executable: &Path, name: &str) -> PathBuf {
    let mut dir = executable.parent().unwrap_or(Path::new(""));
    if dir.ends_with("deps") || dir.ends_with("examples") {
        dir = dir.parent().unwrap_or(dir);
    }
    dir.join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_searched_beside_the_executable_and_above_its_deps() {
        for (executable, found) in [
            ("/t/debug/tenure-bench", "/t/debug/tenure"),
            ("/t/debug/deps/test-0123", "/t/debug/tenure"),
            ("/t/debug/examples/beat", "/t/debug/tenure"),
        ] {
            assert_eq!(sibling(Path::new(executable), "tenure"), Path::new(found));
        }
    }

    #[test]
    fn a_missing_program_is_named_with_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tenure");
        let error = tenure(Some(&path)).unwrap_err();
        assert!(error.contains("--tenure-bin") && error.contains(&path.display().to_string()));
        let error = beside("tenure-nothing").unwrap_err();
        assert!(error.contains("cargo build -p tenure-nothing"), "{error}");
    }
}
