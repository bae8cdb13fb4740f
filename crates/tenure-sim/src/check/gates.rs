//! P1: at no instant do two gates admit work for one shard.
//!
//! A gate admits from its opening until it is closed, its process dies, or its process's clock reaches the time at which
//! the lease closes it. So two can begin to overlap only when one opens, or when a lease that had run out is extended
//! under a gate that was left open. A stopped process counts as admitting while its clock has not run out.

use tenure_core::ids::{Epoch, SessionId};
use tenure_core::machine::ActivationId;
use tenure_core::time::Time;

use super::{CheckResult, Violation};
use crate::clock::{Clock, Instant};
use crate::event_queue::Pid;

#[derive(Clone, Debug)]
struct Gate {
    pid: Pid,
    activation: ActivationId,
    session: SessionId,
    epoch: Epoch,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) session: SessionId,
    pub(crate) pid: Pid,
    pub(crate) clock: Clock,
    pub(crate) closes_at: Time,
    pub(crate) deadline: Time,
}

/// Checker of gates, with all that were opened and not closed.
#[derive(Debug)]
pub(crate) struct GateChecker {
    shards: Vec<Vec<Gate>>,
    leases: Vec<Lease>,
    /// Whether two at once are a violation: not where clocks break the assumption, nor while some process may not have
    /// noticed that the store was put back.
    demanded: bool,
}

impl GateChecker {
    pub(crate) fn new(shards: usize, demanded: bool) -> Self {
        Self {
            shards: vec![Vec::new(); shards],
            leases: Vec::new(),
            demanded,
        }
    }

    pub(crate) fn demand(&mut self, demanded: bool) {
        self.demanded = demanded;
    }

    pub(crate) fn is_demanded(&self) -> bool {
        self.demanded
    }

    pub(crate) fn lease(&self, session: SessionId) -> Option<&Lease> {
        self.leases
            .iter()
            .rev()
            .find(|lease| lease.session == session)
    }

    pub(crate) fn leased(&mut self, at: Instant, lease: Lease) -> CheckResult {
        let known = self
            .leases
            .iter_mut()
            .find(|known| known.session == lease.session);
        let Some(known) = known else {
            self.leases.push(lease);
            return Ok(());
        };
        if lease.closes_at < known.closes_at {
            let what = format!("the lease of session {} went back", lease.session);
            return Err(Violation::new("P1", at, what));
        }
        let had_run_out = known.clock.at(at) >= known.closes_at;
        (known.closes_at, known.deadline) = (lease.closes_at, lease.deadline);
        if !had_run_out {
            return Ok(());
        }
        (0..self.shards.len()).try_for_each(|shard| self.alone(at, shard))
    }

    pub(crate) fn opened(
        &mut self,
        at: Instant,
        shard: usize,
        pid: Pid,
        activation: ActivationId,
        session: SessionId,
        epoch: Epoch,
    ) -> CheckResult {
        self.shards[shard].retain(|gate| gate.pid != pid || gate.activation != activation);
        self.shards[shard].push(Gate {
            pid,
            activation,
            session,
            epoch,
        });
        self.alone(at, shard)
    }

    pub(crate) fn closed(&mut self, shard: usize, pid: Pid, activation: ActivationId) {
        self.shards[shard].retain(|gate| gate.pid != pid || gate.activation != activation);
    }

    pub(crate) fn died(&mut self, pid: Pid) {
        for gates in &mut self.shards {
            gates.retain(|gate| gate.pid != pid);
        }
    }

    /// The process and epoch that a shard's gate admits for at this instant.
    pub(crate) fn admitting(&self, at: Instant, shard: usize) -> Option<(Pid, Epoch)> {
        self.shards[shard]
            .iter()
            .find(|gate| self.admits(at, gate))
            .map(|gate| (gate.pid, gate.epoch))
    }

    /// Whether this gate admits at this instant.
    pub(crate) fn admits_run(
        &self,
        at: Instant,
        shard: usize,
        pid: Pid,
        activation: ActivationId,
    ) -> bool {
        let gates = self.shards[shard].iter();
        gates
            .filter(|gate| gate.pid == pid && gate.activation == activation)
            .any(|gate| self.admits(at, gate))
    }

    pub(crate) fn any_of(&self, pid: Pid) -> Option<usize> {
        self.shards
            .iter()
            .position(|gates| gates.iter().any(|gate| gate.pid == pid))
    }

    fn admits(&self, at: Instant, gate: &Gate) -> bool {
        self.lease(gate.session)
            .is_some_and(|lease| lease.clock.at(at) < lease.closes_at)
    }

    fn alone(&self, at: Instant, shard: usize) -> CheckResult {
        if !self.demanded || self.shards[shard].len() < 2 {
            return Ok(());
        }
        let mut open = self.shards[shard]
            .iter()
            .filter(|gate| self.admits(at, gate));
        let (Some(a), Some(b)) = (open.next(), open.next()) else {
            return Ok(());
        };
        let what = format!(
            "shard {shard} is open at process {} (epoch {}, session {}) and at process {} (epoch {}, session {})",
            a.pid, a.epoch, a.session, b.pid, b.epoch, b.session
        );
        Err(Violation::new("P1", at, what))
    }
}
