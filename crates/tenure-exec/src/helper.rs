//! Helper processes: this program, started again in another role.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::getpid;

use crate::process_tree::this_program;
use crate::{reaper, watchdog};

pub(crate) const WATCHDOG: &str = "__watchdog";
pub(crate) const REAPER: &str = "__reaper";
pub(crate) const CHILD: &str = "__child";

/// Runs the helper process that the arguments of this program name, and returns its exit code; `None` if they name none.
///
/// Call it first in `main`, before any thread starts: [`Supervisor`](crate::Supervisor) and
/// [`ProgramSpawner`](crate::ProgramSpawner) start this program again as a watchdog, reaper and child.
pub fn run_helper() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let role = args.next()?;
    let run: fn(HelperArgs) -> ExitCode = match role.to_str()? {
        WATCHDOG => watchdog::watchdog,
        REAPER => |args| reaper::keep(&args),
        CHILD => |args| reaper::child(&args),
        _ => return None,
    };
    Some(match HelperArgs::parse(args) {
        Ok(args) => run(args),
        Err(problem) => {
            eprintln!("error: {}: {problem}", role.display());
            ExitCode::from(2)
        }
    })
}

/// Command that runs `command` below a reaper: it dies, with all that it forked, when the calling process dies.
///
/// `program` is an executable that calls [`run_helper`].
///
/// The reaper notices the death of the *thread* that starts it, which has to live as long as the process.
pub fn bound_command<S: AsRef<OsStr>>(
    program: &Path,
    command: impl IntoIterator<Item = S>,
) -> Command {
    let mut reaper = reaper_command(Command::new(program));
    reaper.arg("--").args(command);
    reaper
}

/// Command of a reaper of this process, without options and without the command to run.
pub(crate) fn reaper_command(mut program: Command) -> Command {
    program.arg(REAPER).arg(parent_option()).process_group(0);
    program
}

/// Command of the process that becomes `command`.
pub(crate) fn child_command(command: &[OsString]) -> Command {
    let mut child = this_program();
    child
        .arg(CHILD)
        .arg(parent_option())
        .arg("--")
        .args(command);
    child
}

fn parent_option() -> String {
    format!("--parent={}", getpid().as_raw_nonzero())
}

/// Arguments of a helper process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct HelperArgs {
    /// Id of the process that the helper is bound to; 0 if none is given, which is nobody's parent.
    pub(crate) parent: i32,
    /// Prefix of each line of output.
    pub(crate) label: Option<String>,
    /// The command reads the standard input of the reaper, and SIGUSR1 ends it and all that it forked at once.
    pub(crate) pipe: bool,
    /// The watchdog prefixes each line of output with the label of the child.
    pub(crate) prefix: bool,
    /// The command and its arguments.
    pub(crate) command: Vec<OsString>,
}

impl HelperArgs {
    fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut parsed = Self::default();
        for arg in args.by_ref() {
            let text = arg.to_string_lossy();
            match text.split_once('=') {
                _ if text == "--" => break,
                _ if text == "--pipe" => parsed.pipe = true,
                _ if text == "--prefix" => parsed.prefix = true,
                Some(("--label", label)) => parsed.label = Some(label.to_owned()),
                Some(("--parent", pid)) => {
                    parsed.parent = pid
                        .parse()
                        .map_err(|_| format!("{text:?} is not the id of a process"))?;
                }
                _ => return Err(format!("unknown argument {text:?}")),
            }
        }
        parsed.command = args.collect();
        match parsed.command.is_empty() {
            true => Err("the command is missing".to_owned()),
            false => Ok(parsed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<HelperArgs, String> {
        HelperArgs::parse(args.iter().map(OsString::from))
    }

    #[test]
    fn arguments_are_read_up_to_the_command() {
        let args = [
            "--parent=7",
            "--label=a=b",
            "--pipe",
            "--",
            "sh",
            "--",
            "--x",
        ];
        let expected = HelperArgs {
            parent: 7,
            label: Some("a=b".to_owned()),
            pipe: true,
            prefix: false,
            command: ["sh", "--", "--x"].map(OsString::from).to_vec(),
        };
        assert_eq!(parse(&args), Ok(expected));
        assert!(parse(&["--prefix", "--", "sh"]).unwrap().prefix);
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (args, named) in [
            (&["--parent=x", "--", "sh"][..], "--parent=x"),
            (&["--frobnicate", "--", "sh"], "--frobnicate"),
            (&["--pipe", "--"], "command is missing"),
            (&["--pipe"], "command is missing"),
        ] {
            let error = parse(args).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
