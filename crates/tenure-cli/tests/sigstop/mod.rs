//! Stopping a process without locking everybody else out of a database that it writes.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process};

/// How long it may take to find a moment between two transactions.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Sends a signal to a process of this test; that it is gone is as good.
pub(crate) fn send(pid: i32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}

/// Stops a process, but not in the middle of a transaction on this database: that would lock everybody out.
pub(crate) fn stop_outside(pid: i32, database: &Path) {
    let begun = Instant::now();
    loop {
        send(pid, Signal::STOP);
        // The signal only asks: a thread that is in the middle of taking the lock takes it before it stands still.
        while !stands_still(pid) && begun.elapsed() < TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
        if is_free(database) {
            return;
        }
        send(pid, Signal::CONT);
        assert!(
            begun.elapsed() < TIMEOUT,
            "not within {TIMEOUT:?}: process {pid} is stopped between transactions"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a transaction could begin.
fn is_free(database: &Path) -> bool {
    let database = Connection::open(database).unwrap();
    database.busy_timeout(Duration::from_millis(200)).unwrap();
    database.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok()
}

/// Whether the last thread of a process is stopped, or gone.
fn stands_still(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    let mut stats = threads.flatten().map(|thread| {
        // A thread that has ended meanwhile has none.
        fs::read_to_string(thread.path().join("stat")).unwrap_or_default()
    });
    // The state follows the name, which is in brackets.
    stats.all(|stat| {
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        state.is_none_or(|state| matches!(state, 'T' | 't' | 'Z' | 'X'))
    })
}
