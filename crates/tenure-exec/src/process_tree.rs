//! Processes and their parents: binding a life to another, adopting orphans, and ending all that descend from this one.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgid, getpid, getppid, kill_process,
    kill_process_group, set_child_subreaper, set_parent_process_death_signal, wait,
};
use tenure::{Clock, Time};

/// Time of the machine's boot-time clock.
pub fn boot_now() -> Time {
    Clock::boot().now()
}

/// Command that starts this program again, also if its file was replaced meanwhile, as in an upgrade.
pub fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tenure");
    command
}

/// Has the kernel send `signal` to this process when its parent dies. An error if the parent is dead already.
///
/// The kernel looks at the *thread* that made this process: whoever starts processes that bind themselves must do it from
/// a thread that lives as long as the process.
pub(crate) fn bind_to(parent: i32, signal: Signal) -> io::Result<()> {
    set_parent_process_death_signal(Some(signal))?;
    // The parent may have died before the line above, and then nothing would ever be sent.
    if is_orphan_of(parent) {
        return Err(io::Error::other(format!(
            "parent process {parent} has exited"
        )));
    }
    Ok(())
}

/// Returns whether this process has another parent by now.
pub(crate) fn is_orphan_of(parent: i32) -> bool {
    getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(parent)
}

/// Makes orphans among the descendants of this process its children, wherever they have hidden.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// The children of this process, dead ones that were not reaped included.
pub(crate) fn children() -> io::Result<HashSet<Pid>> {
    let me = getpid().as_raw_nonzero().to_string();
    let mut found = HashSet::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // Gone between listing and reading: then it is nobody's child.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        // PID (NAME) STATE PPID …, where NAME may hold anything.
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1));
        if parent == Some(me.as_str()) {
            found.extend(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

/// Returns whether a process is stopped, as by SIGSTOP.
pub fn is_stopped(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with(['T', 't']))
}

/// Kills a child of this process, and its process group if it leads one.
pub(crate) fn kill_child(child: Pid) {
    // It cannot be another process by now: a child keeps its number until it is reaped. Dead already is as good.
    if getpgid(Some(child)) == Ok(child) {
        let _ = kill_process_group(child, Signal::KILL);
    }
    let _ = kill_process(child, Signal::KILL);
}

/// The next child that died, if one has; an error if there are no children at all.
pub(crate) fn reap() -> Result<Option<(Pid, WaitStatus)>, Errno> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Kills and reaps every descendant of this process; returns when none is left.
pub(crate) fn end_descendants() -> io::Result<()> {
    loop {
        match reap() {
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
            Ok(Some(_)) => continue,
            Ok(None) => {}
        }
        let children = children()?;
        children.iter().copied().for_each(kill_child);
        if !children.is_empty() {
            // At least one of them is about to die. Its own children fall to this process, so look again.
            match wait(WaitOptions::empty()) {
                Ok(_) | Err(Errno::INTR | Errno::CHILD) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The exit code that stands for a status: that of the process, or 128 + the signal it died of.
pub(crate) fn exit_code(status: WaitStatus) -> i32 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    }
}
