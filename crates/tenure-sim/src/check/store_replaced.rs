//! A store that is put back under running processes: whoever has noticed owns nothing until the generations were raised, and
//! from then on epochs fence again.
//!
//! Between the restore and the moment at which a process notices, nothing is promised: it acts on a history that is gone.

use std::collections::BTreeSet;

use super::gates::GateChecker;
use super::{CheckResult, Violation};
use crate::clock::Instant;
use crate::event_queue::Pid;
use crate::process::Process;

/// Checker of a replaced store: the processes that have noticed and wait for an operator.
#[derive(Debug, Default)]
pub(crate) struct StoreReplacementChecker {
    waiting: BTreeSet<Pid>,
}

impl StoreReplacementChecker {
    /// A process says that the store is not the one it was, before anybody raised the generations.
    pub(crate) fn noticed(&mut self, pid: Pid) {
        self.waiting.insert(pid);
    }

    /// A process is about to own something.
    pub(crate) fn takes(&self, at: Instant, pid: Pid, what: &str) -> CheckResult {
        if !self.waiting.contains(&pid) {
            return Ok(());
        }
        let what = format!(
            "process {pid} {what} although the store was put back and nothing was raised yet"
        );
        Err(Violation::new("identity", at, what))
    }

    /// The generations were raised: what was to be closed is closed.
    pub(crate) fn raised(
        &mut self,
        at: Instant,
        processes: &[Process],
        gates: &GateChecker,
    ) -> CheckResult {
        let waiting = std::mem::take(&mut self.waiting);
        // One that was stopped on its way has not come to it yet; its clock closes its gates.
        let awake = |pid: &Pid| processes[*pid].alive && processes[*pid].paused_until.is_none();
        let open = waiting
            .into_iter()
            .filter(awake)
            .find_map(|pid| Some((pid, gates.any_of(pid)?)));
        let Some((pid, shard)) = open else {
            return Ok(());
        };
        let what = format!(
            "process {pid} knows that the store was put back, and shard {shard} is open there"
        );
        Err(Violation::new("identity", at, what))
    }
}
