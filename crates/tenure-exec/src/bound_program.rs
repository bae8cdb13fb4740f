//! Programs that do not outlive this process.
//!
//! Each program runs below a reaper. The reaper adopts all processes that the program forks, and kills them when the program ends, on
//! request, and when this process dies. The kernel notifies the reaper of the death of the *thread* that started it, so one thread, which
//! lives as long as the process, starts all programs.

use std::ffi::OsString;
use std::io;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::helper::reaper_command;
use crate::process_tree::this_program;

/// Longest time for a reaper to kill everything below it.
const LAST_RESORT: Duration = Duration::from_secs(2);

type StartRequest = (Command, oneshot::Sender<io::Result<Child>>);

/// Handle of the thread that starts programs. Cheap to clone.
#[derive(Clone)]
pub struct ProgramSpawner(mpsc::Sender<StartRequest>);

impl ProgramSpawner {
    /// Starts the thread, within a runtime.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn begin() -> io::Result<Self> {
        let (sender, requests) = mpsc::channel::<StartRequest>();
        let handle = Handle::current();
        let thread = std::thread::Builder::new().name("spawner".to_owned());
        thread.spawn(move || {
            let _within = handle.enter();
            for (mut command, answer) in requests {
                // If no caller waits any more, the child is dropped and thereby killed.
                let _ = answer.send(command.spawn());
            }
            // Never before the process ends: the reapers would take it for the end of this process.
            loop {
                std::thread::park();
            }
        })?;
        Ok(Self(sender))
    }

    /// Starts a program with pipes to its standard input, output and error.
    ///
    /// # Errors
    ///
    /// If its reaper cannot be started.
    pub async fn start(
        &self,
        command: &[OsString],
        env: Vec<(&'static str, String)>,
    ) -> io::Result<RunningProgram> {
        let mut reaper = reaper_command(this_program());
        reaper
            .arg("--pipe")
            .arg("--")
            .args(command)
            .envs(env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut reaper = Command::from(reaper);
        reaper.kill_on_drop(true);
        let (sender, answer) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts programs has exited");
        self.0.send((reaper, sender)).map_err(|_| gone())?;
        let child = answer.await.map_err(|_| gone())??;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(RunningProgram {
            pid: pid.ok_or_else(gone)?,
            child: Some(child),
            runtime: Handle::current(),
        })
    }
}

/// A running program, killed with all that it forked when dropped.
pub struct RunningProgram {
    pid: Pid,
    child: Option<Child>,
    runtime: Handle,
}

impl RunningProgram {
    /// The reaper with the pipes of the program, each of which can be taken once; `None` after the end.
    pub fn child(&mut self) -> Option<&mut Child> {
        self.child.as_mut()
    }

    /// Waits until the program and all that it forked are dead; returns its exit code, 128 + N if it died of signal N.
    ///
    /// # Errors
    ///
    /// If the program has already ended.
    pub async fn ended(&mut self) -> io::Result<i32> {
        let Some(child) = &mut self.child else {
            return Err(io::Error::other("the program has already ended"));
        };
        let status = child.wait().await?;
        self.child = None;
        Ok(exit_code(status))
    }

    /// Asks the program to stop.
    pub fn terminate(&self) {
        if self.child.is_some() {
            let _ = kill_process_group(self.pid, Signal::TERM);
            // A stopped process acts on it only when it goes on.
            let _ = kill_process_group(self.pid, Signal::CONT);
        }
    }

    /// Kills the program with all that it forked, and waits for their end.
    pub async fn kill(mut self) {
        if let Some(child) = self.child.take() {
            end(child, self.pid).await;
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            // If the runtime ends first, so does this process, and the reaper kills by itself.
            self.runtime.spawn(end(child, self.pid));
        }
    }
}

/// Makes the reaper kill everything; kills the reaper if it does not. Its process id is not reused before the wait.
async fn end(mut child: Child, pid: Pid) {
    let _ = kill_process(pid, Signal::USR1);
    let _ = kill_process(pid, Signal::CONT);
    if tokio::time::timeout(LAST_RESORT, child.wait())
        .await
        .is_err()
    {
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = child.wait().await;
    }
}

fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, signal) => 128 + signal.unwrap_or(0),
    }
}
