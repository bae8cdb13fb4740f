//! Reaper, which outlives a command and kills all that it forked; child, the process that becomes the command.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitStatus, getpgid, getpgrp, kill_process};
use tenure::{Clock, Time};
use tokio::signal::unix::{SignalKind, signal};

use crate::grant_file::GrantState;
use crate::helper::{HelperArgs, child_command};
use crate::process_tree::{self, boot_now};

/// The longest piece of a line that is marked as one; what is longer is cut, so that no memory grows.
const LONGEST: u64 = 64 * 1024;

/// Interval of a reaper with an old grant file for checks whether its watchdog is stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Becomes the command, with its life bound to the reaper's.
pub(crate) fn child(args: &HelperArgs) -> ExitCode {
    if process_tree::bind_to(args.parent, Signal::KILL).is_err() {
        return ExitCode::FAILURE;
    }
    let error = Command::new(&args.command[0])
        .args(&args.command[1..])
        .exec();
    eprintln!("error: {:?} cannot be run: {error}", args.command[0]);
    // As shells have it.
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    })
}

/// Runs the command and ends when it and all that it forked are dead, with its exit code.
///
/// SIGTERM reaches the whole process group; a command that has left the group gets it from here. When the watchdog dies,
/// this process kills everything below it, then itself.
pub(crate) fn keep(args: &HelperArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    match runtime.block_on(keep_until_dead(args)) {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            // Nothing below this process may outlive it.
            let _ = process_tree::end_descendants();
            failed(&error)
        }
    }
}

fn failed(error: &io::Error) -> ExitCode {
    eprintln!("error: the process that supervises the command failed: {error}");
    ExitCode::FAILURE
}

async fn keep_until_dead(args: &HelperArgs) -> io::Result<i32> {
    // Before anything can send them.
    let mut orphaned = signal(SignalKind::user_defined2())?;
    let mut asked = signal(SignalKind::terminate())?;
    let mut died = signal(SignalKind::child())?;
    // A command may signal its process group, as in `kill 0`: that is not meant for this process.
    let _deaf = [
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
        signal(SignalKind::quit())?,
    ];
    let mut enough = signal(SignalKind::user_defined1())?;
    process_tree::adopt_orphans()?;
    process_tree::bind_to(args.parent, Signal::USR2)?;
    let (command, output) = spawn(args)?;
    // A grant that this process was born with is that of somebody further up.
    let grant = std::env::var_os("TENURE_GRANT").filter(|_| !args.pipe);
    let grant = grant.map(PathBuf::from);
    let clock = Clock::boot();
    let mut look_at = grant.as_ref().map_or(Time::NEVER, |_| clock.now());
    let status = loop {
        tokio::select! {
            biased;
            _ = orphaned.recv() => {
                if process_tree::is_orphan_of(args.parent) {
                    process_tree::end_descendants()?;
                    return Ok(128 + Signal::KILL.as_raw());
                }
            }
            _ = enough.recv() => if args.pipe {
                process_tree::end_descendants()?;
                return Ok(128 + Signal::KILL.as_raw());
            },
            () = clock.sleep_until(look_at) => match last_resort(grant.as_deref(), args.parent) {
                Some(later) => look_at = later,
                None => {
                    process_tree::end_descendants()?;
                    return Ok(128 + Signal::KILL.as_raw());
                }
            },
            _ = asked.recv() => pass_on(command),
            _ = died.recv() => if let Some(status) = reap_until(command)? {
                break status;
            },
        }
    };
    process_tree::end_descendants()?;
    // All that could write is dead, so the pipes end.
    for copying in output {
        let _ = copying.join();
    }
    Ok(process_tree::exit_code(status))
}

/// When to look again; `None` if the lease is about to be over and the watchdog, which should have killed by now, is stopped.
///
/// One look at the grant file per ttl as long as all is well. A file that is old although the watchdog runs says only that
/// it could not be written.
fn last_resort(grant: Option<&Path>, watchdog: i32) -> Option<Time> {
    let now = boot_now();
    let state = grant.and_then(|path| GrantState::read(path).ok());
    let due = state.map_or(now, |state| {
        let margin = state.deadline_ns.since(state.stop_time_ns);
        state.stop_time_ns + margin * 3 / 4
    });
    if due > now {
        return Some(due);
    }
    (!process_tree::is_stopped(watchdog)).then(|| now + POLL_INTERVAL)
}

fn spawn(args: &HelperArgs) -> io::Result<(Pid, Vec<JoinHandle<()>>)> {
    let mut command = child_command(&args.command);
    if !args.pipe {
        command.stdin(Stdio::null());
    }
    if args.label.is_some() {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    // From the main thread: the command's life is bound to it.
    let mut child = command.spawn()?;
    let mut output = Vec::new();
    if let Some(label) = &args.label {
        let mark = format!("[{label}] ");
        if let Some(from) = child.stdout.take() {
            output.push(copy(from, io::stdout(), mark.clone()));
        }
        if let Some(from) = child.stderr.take() {
            output.push(copy(from, io::stderr(), mark));
        }
    }
    // Reaped by its number, like all others that may turn up.
    Ok((Pid::from_child(&child), output))
}

/// Whether the command is among those that died, and how.
fn reap_until(command: Pid) -> io::Result<Option<WaitStatus>> {
    loop {
        match process_tree::reap()? {
            Some((pid, status)) if pid == command => return Ok(Some(status)),
            Some(_) => {}
            None => return Ok(None),
        }
    }
}

/// Asks a command to stop that has left the process group, where the watchdog's signal does not reach it.
fn pass_on(command: Pid) {
    if getpgid(Some(command)).is_ok_and(|group| group != getpgrp()) {
        let _ = kill_process(command, Signal::TERM);
    }
}

/// Copies lines, each with a mark in front and in one write, on a thread of its own: a reader that is slow or stuck must not
/// keep this process from killing.
fn copy(
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    mark: String,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        loop {
            let mut line = mark.clone().into_bytes();
            match from.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            if to.write_all(&line).and_then(|()| to.flush()).is_err() {
                return;
            }
        }
    })
}
