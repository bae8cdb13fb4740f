//! P5: failure is local. Runs with one fault and nothing else, in which what may change is known exactly.

use tenure_core::ids::Epoch;
use tenure_core::record::AssignedBy;

use super::gates::GateChecker;
use super::requests::Failure;
use super::{CheckResult, Violation};
use crate::clock::{Instant, MS};
use crate::event_queue::Pid;
use crate::fault::Fault;
use crate::process::Process;
use crate::run_config::{Class, Family, RunConfig, nanos};

/// Checker that a failure is local: what the cluster was like just before the one fault.
#[derive(Debug)]
pub(crate) struct FailureIsolationChecker {
    class: Class,
    owners: Vec<(Pid, Epoch)>,
    nodes: Vec<usize>,
    victim: Option<usize>,
    by: Instant,
    on_time: bool,
}

impl FailureIsolationChecker {
    /// Looks at a cluster that must be whole: nothing has gone wrong yet.
    pub(crate) fn before(
        at: Instant,
        plan: &RunConfig,
        missing: Option<String>,
        processes: &[Process],
        gates: &GateChecker,
    ) -> Result<Self, Violation> {
        if let Some(missing) = missing {
            return Err(Violation::new(
                "P6",
                at,
                format!("nothing has gone wrong, but {missing}"),
            ));
        }
        let owners: Vec<_> = (0..plan.shards as usize)
            .filter_map(|shard| gates.admitting(at, shard))
            .collect();
        let victim = plan.faults.iter().find_map(|(_, fault)| match fault {
            Fault::Kill { node } => Some(*node),
            _ => None,
        });
        Ok(Self {
            class: plan.class,
            nodes: owners.iter().map(|(pid, _)| processes[*pid].node).collect(),
            owners,
            victim,
            by: at + failover_bound(plan),
            on_time: false,
        })
    }

    /// When the shards of a dead node must be open elsewhere.
    pub(crate) fn by(&self) -> Instant {
        self.by
    }

    /// A gate was closed by its process, or a lease ran out under it.
    pub(crate) fn closed(&self, at: Instant, shard: usize, pid: Pid) -> CheckResult {
        let untouched = match self.class {
            Class::ShortOutage => true,
            Class::OneDeath => self.nodes.get(shard).copied() != self.victim,
            _ => false,
        };
        if untouched
            && self
                .owners
                .get(shard)
                .is_some_and(|(owner, _)| *owner == pid)
        {
            let what =
                format!("process {pid} closed shard {shard}, which the fault does not concern");
            return Err(Violation::new("P5", at, what));
        }
        Ok(())
    }

    /// A request fails that came then: only those that the one fault concerns may, and only until what it broke must be
    /// mended (P4, P5).
    pub(crate) fn failed(
        &self,
        at: Instant,
        (shard, came): (usize, Instant),
        failure: Failure,
    ) -> CheckResult {
        let concerned = match self.class {
            Class::OneDeath => self.nodes.get(shard).copied() == self.victim && came < self.by,
            // Held for longer than requests may be: the store was away for longer than that.
            Class::LongOutage => true,
            _ => false,
        };
        if concerned {
            return Ok(());
        }
        let what = format!(
            "a request for shard {shard} that came {} ms ago fails, and the fault does not concern it: {failure:?}",
            (at - came) / MS
        );
        Err(Violation::new("P4", at, what))
    }

    /// Looks at the cluster now and then.
    pub(crate) fn look(
        &mut self,
        at: Instant,
        missing: impl FnOnce() -> Option<String>,
        gates: &GateChecker,
    ) -> CheckResult {
        if self.class == Class::ShortOutage {
            return self.same_gates(at, gates);
        }
        if self.class == Class::OneDeath && !self.on_time && at >= self.by {
            self.on_time = true;
            if let Some(missing) = missing() {
                return Err(Violation::new(
                    "P5",
                    at,
                    format!("failover takes too long: {missing}"),
                ));
            }
        }
        Ok(())
    }

    /// Looks at the cluster at the end.
    pub(crate) fn end(
        &self,
        at: Instant,
        processes: &[Process],
        gates: &GateChecker,
    ) -> CheckResult {
        if self.class != Class::LongOutage {
            return Ok(());
        }
        for (shard, before) in self.nodes.iter().enumerate() {
            let now = gates
                .admitting(at, shard)
                .map(|(pid, _)| processes[pid].node);
            if now != Some(*before) {
                let what = format!(
                    "only the store was away, but shard {shard} went from node {before} to {now:?}"
                );
                return Err(Violation::new("P5", at, what));
            }
        }
        Ok(())
    }

    fn same_gates(&self, at: Instant, gates: &GateChecker) -> CheckResult {
        for (shard, before) in self.owners.iter().enumerate() {
            let now = gates.admitting(at, shard);
            if now != Some(*before) {
                let what = format!(
                    "nobody was to notice, but shard {shard} went from {before:?} to {now:?} (process, epoch)"
                );
                return Err(Violation::new("P5", at, what));
            }
        }
        Ok(())
    }
}

/// How long after a death its shards must be open elsewhere: `1.2 × ttl`, the load, and the few messages in between.
fn failover_bound(plan: &RunConfig) -> u64 {
    let told = match plan.family {
        Family::Polled => 3 * plan.watch.poll,
        _ => 3 * plan.watch.delay.1,
    };
    let t = &plan.timing;
    // Who is told not to act on the watch acts on its next look.
    let look = match (t.claim_watch_enabled, t.claim_retry_window.is_zero()) {
        (true, _) => 0,
        (false, false) => nanos(t.claim_retry_interval) * 3 / 2,
        (false, true) => nanos(t.tick_interval),
    };
    // A leader has to hear of it, perhaps after having been elected, and its word has to be heard.
    let led = match plan.mode {
        AssignedBy::Leader => 3 * told + nanos(t.ttl) / 10,
        _ => 0,
    };
    look + led
        + plan.session_bound()
        + plan.app.load.1
        + told
        + 16 * plan.net.delay.1
        + 6 * plan.jitter
        + 5 * MS
}
