//! A worker process as a test holds it.

use std::fs;
use std::process::{Child, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};

use crate::test_cluster::until;

/// A worker process. Killed when dropped.
pub(crate) struct Process {
    pub(crate) node: String,
    child: Child,
}

impl Process {
    pub(crate) fn new(node: &str, child: Child) -> Self {
        let node = node.to_owned();
        Self { node, child }
    }

    pub(crate) fn pid(&self) -> u64 {
        self.child.id().into()
    }

    /// Sends a signal to this very process: it is not reaped before it is waited for, so that its number is its own.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("a process of our own");
    }

    /// Stops it, and waits until its last thread stands still: the signal alone only asks for that.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        let threads = format!("/proc/{}/task", self.pid());
        until(&format!("{} stands still", self.node), || {
            let threads = fs::read_dir(&threads).expect("a process of our own");
            let mut stats = threads.map(|thread| {
                let stat = thread.expect("a thread").path().join("stat");
                fs::read_to_string(stat).unwrap_or_default()
            });
            // The state follows the name, which is in brackets. A thread that is gone has none.
            stats.all(|stat| stat.is_empty() || stat.contains(") T "))
        });
    }

    /// Kills it, and waits until it is dead.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a process of our own");
        self.child.wait().expect("a process of our own");
    }

    /// Whether, and how, it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a process of our own")
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until(&format!("{} ends", self.node), || {
            status = self.ended();
            status.is_some()
        });
        status.expect("just seen")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if it is dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
