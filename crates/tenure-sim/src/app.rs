//! The application of a simulated process while it serves and while its shards move: it writes to a resource, finishes what is
//! in flight, seals, and catches up; each takes its time, and may fail.

use tenure_core::ids::Epoch;
use tenure_core::machine::{ActivationId, Event};

use crate::check::{CheckResult, Violation};
use crate::event_queue::{Pid, ScheduledEvent};
use crate::process::Work;
use crate::run_config::nanos;
use crate::world::World;

/// One step of the application's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chore {
    /// A write begins, if the gate admits it.
    Write,
    /// A write reaches the resource.
    Written,
    /// The application has written out all that must outlive the stay.
    Sealed,
    /// The application has read all that the last owner wrote.
    CaughtUp,
}

impl World {
    /// The next write of a stay comes some time from now.
    pub(crate) fn write_later(&mut self, pid: Pid, activation: ActivationId) {
        let ttl = nanos(self.plan.timing.ttl);
        let after = self.work_rng.between(ttl / 8, ttl * 2);
        self.chore(pid, activation, after, Chore::Write);
    }

    fn chore(&mut self, pid: Pid, activation: ActivationId, after: u64, chore: Chore) {
        let at = self.now.saturating_add(after);
        self.queue.push(
            at,
            ScheduledEvent::Chore {
                pid,
                activation,
                chore,
            },
        );
    }

    pub(crate) fn do_chore(
        &mut self,
        pid: Pid,
        activation: ActivationId,
        chore: Chore,
    ) -> CheckResult {
        let now = self.now;
        let wedged = self.processes[pid].wedged_until;
        if wedged > now {
            self.queue.push(
                wedged,
                ScheduledEvent::Chore {
                    pid,
                    activation,
                    chore,
                },
            );
            return Ok(());
        }
        let Some(stay) = self.processes[pid].stay_mut(activation) else {
            return Ok(());
        };
        let (shard, epoch) = (stay.shard, stay.epoch);
        match chore {
            Chore::Write => {
                let admitted = stay.open && self.gates.admits_run(now, shard, pid, activation);
                if admitted && let Some(stay) = self.processes[pid].stay_mut(activation) {
                    stay.in_flight += 1;
                    let (low, high) = self.app.drain;
                    let hangs = self.work_rng.permille(self.app.stubborn / 4);
                    let most = nanos(self.plan.timing.drain_timeout) * 3;
                    let takes = if hangs {
                        most
                    } else {
                        self.work_rng.between(low, high)
                    };
                    self.chore(pid, activation, takes, Chore::Written);
                }
                self.write_later(pid, activation);
            }
            Chore::Written => {
                let taken = self.journal.write(shard, epoch);
                let Some(stay) = self.processes[pid].stay_mut(activation) else {
                    return Ok(());
                };
                stay.known += u64::from(taken);
                stay.in_flight -= 1;
                self.coverage.writes += u64::from(taken);
                return self.tell_if_empty(pid, activation);
            }
            Chore::Sealed => {
                if stay.closing.is_some() || !std::mem::take(&mut stay.sealing) {
                    return Ok(());
                }
                let fails = self.work_rng.permille(self.app.load_fails);
                let event = match fails {
                    true => Event::SealFailed {
                        activation,
                        error: "the disk is full".to_owned(),
                    },
                    false => Event::Sealed {
                        activation,
                        seal: shard.to_string(),
                    },
                };
                return self.step(pid, event);
            }
            Chore::CaughtUp => {
                if stay.closing.is_some() {
                    return Ok(());
                }
                if self.plan.reads_tail {
                    stay.known = self.journal.read(shard);
                }
                if self.work_rng.permille(self.app.load_fails) {
                    stay.work = Work::Failed;
                    let error = "the log is torn".to_owned();
                    return self.step(pid, Event::LoadFailed { activation, error });
                }
                return self.step(pid, Event::CaughtUp(activation));
            }
        }
        Ok(())
    }

    /// Says that nothing is in flight, if that is being waited for.
    pub(crate) fn tell_if_empty(&mut self, pid: Pid, activation: ActivationId) -> CheckResult {
        let Some(stay) = self.processes[pid].stay_mut(activation) else {
            return Ok(());
        };
        if stay.in_flight > 0 || stay.closing.is_some() {
            return Ok(());
        }
        match stay.frozen.take() {
            Some(move_id) => {
                let event = Box::new(Event::Frozen {
                    activation,
                    move_id,
                });
                self.queue
                    .push(self.now, ScheduledEvent::Tell { pid, event });
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(crate) fn freeze(
        &mut self,
        pid: Pid,
        activation: ActivationId,
        move_id: u64,
    ) -> CheckResult {
        self.coverage.freezes += 1;
        let Some(stay) = self.processes[pid].stay_mut(activation) else {
            return self.no_such(pid, activation, "freezes");
        };
        stay.frozen = Some(move_id);
        let (shard, epoch) = (stay.shard, stay.epoch);
        let patience = nanos(self.plan.timing.router_hold_timeout);
        self.smooth.shut(self.now, shard, pid, epoch, patience);
        let Some(stay) = self.processes[pid].stay_mut(activation) else {
            return Ok(());
        };
        if std::mem::replace(&mut stay.open, false) {
            self.gates.closed(shard, pid, activation);
        }
        self.tell_if_empty(pid, activation)
    }

    pub(crate) fn thaw(&mut self, pid: Pid, activation: ActivationId) -> CheckResult {
        self.coverage.thaws += 1;
        let Some(stay) = self.processes[pid].stay_mut(activation) else {
            return self.no_such(pid, activation, "thaws");
        };
        if stay.sealing || stay.closing.is_some() {
            return self.no_such(pid, activation, "thaws a sealed shard of");
        }
        stay.frozen = None;
        stay.open = true;
        let (shard, session, epoch) = (stay.shard, stay.session, stay.epoch);
        self.smooth.thawed(shard);
        self.gates
            .opened(self.now, shard, pid, activation, session, epoch)
    }

    pub(crate) fn seal(&mut self, pid: Pid, activation: ActivationId) -> CheckResult {
        let Some(stay) = self.processes[pid].stay_mut(activation) else {
            return self.no_such(pid, activation, "seals");
        };
        let in_flight = stay.in_flight;
        if stay.open || in_flight > 0 {
            let what = format!(
                "process {pid} seals shard {} while {in_flight} writes are in flight",
                stay.shard
            );
            return Err(Violation::new("P3", self.now, what));
        }
        stay.sealing = true;
        let shard = stay.shard;
        self.smooth.seals(shard);
        let (low, high) = self.app.drain;
        let takes = self.work_rng.between(low / 2, high);
        self.chore(pid, activation, takes, Chore::Sealed);
        Ok(())
    }

    pub(crate) fn catch_up(&mut self, pid: Pid, activation: ActivationId) -> CheckResult {
        if self.processes[pid].stay(activation).is_none() {
            return self.no_such(pid, activation, "catches up");
        }
        let (low, high) = self.app.catch_up;
        let takes = self.work_rng.between(low, high);
        self.chore(pid, activation, takes, Chore::CaughtUp);
        Ok(())
    }

    /// A successor owns its shard: whatever the last owner may still have on its way is refused from here on.
    pub(crate) fn own(&mut self, pid: Pid, activation: ActivationId, epoch: Epoch) -> CheckResult {
        self.coverage.moves += 1;
        let Some(stay) = self.processes[pid].stay_mut(activation) else {
            return self.no_such(pid, activation, "owns");
        };
        (stay.epoch, stay.succeeds) = (epoch, false);
        let (shard, session) = (stay.shard, stay.session);
        self.journal.fence(shard, epoch);
        self.epochs.shown(self.now, pid, shard, epoch, session)
    }

    fn no_such(&self, pid: Pid, activation: ActivationId, what: &str) -> CheckResult {
        let what =
            format!("process {pid} {what} {activation:?}, which it does not have in this state");
        Err(Violation::new("contract", self.now, what))
    }
}
