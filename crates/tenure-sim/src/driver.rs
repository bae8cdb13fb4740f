//! The driver of a simulated process: carries out actions exactly as the contract says, with an application that takes
//! its time, fails, hangs and ignores being asked to stop.

use tenure_core::ids::{Epoch, SessionId, ShardId};
use tenure_core::machine::{Action, ActivationId, Close, Event, Request};
use tenure_core::record::{Record, Role};
use tenure_core::router::{RecordVersion, ShardObservation};
use tenure_core::telemetry::NodeEvent;

use crate::check::gates::Lease;
use crate::check::{CheckResult, Violation};
use crate::clock::{Instant, MS};
use crate::event_queue::{Pid, ScheduledEvent};
use crate::process::{Activation, LoadEnd, Work};
use crate::run_config::nanos;
use crate::world::World;

impl World {
    pub(crate) fn act(&mut self, pid: Pid, action: Action) -> CheckResult {
        if self.trace.on() {
            self.trace_action(pid, &action);
        }
        match action {
            Action::Store { op, request, .. } => {
                if let Request::Put {
                    record: Record::Shard(shard),
                    ..
                } = &request
                    && shard.owner().is_some()
                {
                    self.estranged.takes(self.now, pid, "claims a shard")?;
                }
                self.send(pid, op, request);
                Ok(())
            }
            Action::Remember(session) => {
                let directory = &mut self.directories[self.processes[pid].dir];
                if directory.holder == Some(pid) {
                    directory.session = Some(session);
                    directory.genuine = true;
                }
                Ok(())
            }
            Action::Lease {
                session,
                stop_time,
                deadline,
            } => {
                let clock = self.processes[pid].clock;
                self.gates.leased(
                    self.now,
                    Lease {
                        session,
                        pid,
                        clock,
                        closes_at: stop_time,
                        deadline,
                    },
                )
            }
            Action::Load {
                activation,
                shard,
                epoch,
                session,
                ..
            } => self.load(pid, activation, &shard, epoch, session, false),
            Action::Warm {
                activation,
                shard,
                epoch,
                session,
                ..
            } => self.load(pid, activation, &shard, epoch, session, true),
            Action::CatchUp { activation, .. } => self.catch_up(pid, activation),
            Action::Own { activation, epoch } => self.own(pid, activation, epoch),
            Action::Freeze {
                activation,
                move_id,
                ..
            } => self.freeze(pid, activation, move_id),
            Action::Thaw(activation) => self.thaw(pid, activation),
            Action::Seal(activation) => self.seal(pid, activation),
            Action::Open(activation) => self.open(pid, activation),
            Action::Close { activation, how } => self.close(pid, activation, how),
            Action::Report(note) => {
                self.coverage.note(&note);
                if self.raising && matches!(note, NodeEvent::StoreReplaced { .. }) {
                    self.estranged.noticed(pid);
                }
                Ok(())
            }
            Action::Seen {
                shard,
                owner,
                epoch,
                serving,
                moving,
                rev,
            } => {
                let Some(&number) = self.shard_numbers.get(&shard) else {
                    return Ok(());
                };
                self.epochs.seen(self.now, pid, number, epoch)?;
                if self.plan.routers == 0 {
                    return Ok(());
                }
                let mark = RecordVersion { epoch, rev };
                let owner = owner.map(|owner| owner.session);
                if self.processes[pid].router.is_none() {
                    let serves = owner.filter(|_| serving);
                    self.processes[pid].seen.insert(number, (serves, mark));
                    return Ok(());
                }
                let sight = ShardObservation {
                    mark,
                    owner,
                    serving,
                    moving,
                };
                self.router_sees(pid, number, &shard, sight)
            }
            Action::Started => Ok(()),
            Action::Refused(_) => {
                self.coverage.refusals += 1;
                self.exit(pid)
            }
            Action::Stopped => self.exit(pid),
        }
    }

    /// A process that says that it owns nothing leaves.
    fn exit(&mut self, pid: Pid) -> CheckResult {
        if let Some(shard) = self.gates.any_of(pid) {
            let what = format!("process {pid} leaves with the gate of shard {shard} open");
            return Err(Violation::new("P1", self.now, what));
        }
        self.leave(pid, true);
        Ok(())
    }

    /// A process is killed, with all that it ran.
    pub(crate) fn die(&mut self, pid: Pid) {
        self.leave(pid, false);
    }

    fn leave(&mut self, pid: Pid, clean: bool) {
        let process = &mut self.processes[pid];
        process.alive = false;
        process.paused_until = None;
        let missed = std::mem::take(&mut process.missed);
        process.midway.clear();
        process.stays.clear();
        self.gates.died(pid);
        self.died_with(pid, missed, clean);
        self.processes[pid].router = None;
    }

    fn load(
        &mut self,
        pid: Pid,
        activation: ActivationId,
        shard: &ShardId,
        epoch: Epoch,
        session: SessionId,
        succeeds: bool,
    ) -> CheckResult {
        let Some(&number) = self.shard_numbers.get(shard) else {
            let what = format!("process {pid} loads {shard}, which does not exist");
            return Err(Violation::new("contract", self.now, what));
        };
        if self.plan.role(self.processes[pid].node) != Role::Node {
            let what = format!("process {pid} only looks on, and loads {shard}");
            return Err(Violation::new("contract", self.now, what));
        }
        if !succeeds {
            self.epochs.shown(self.now, pid, number, epoch, session)?;
            self.journal.fence(number, epoch);
        }
        let busy = |stay: &&Activation| stay.shard == number && stay.work != Work::Failed;
        if let Some(stay) = self.processes[pid].stays.iter().find(busy) {
            let what = format!(
                "process {pid} loads shard {number} while its work there at epoch {} still runs",
                stay.epoch
            );
            return Err(Violation::new("A9", self.now, what));
        }
        let end = if self.app_rng.permille(self.app.load_hangs) {
            LoadEnd::Hangs
        } else if self.app_rng.permille(self.app.load_fails) {
            LoadEnd::Fails
        } else {
            LoadEnd::Loaded
        };
        let (low, high) = self.app.load;
        let ends_at = self.now + self.app_rng.between(low, high);
        self.processes[pid].stays.push(Activation {
            activation,
            shard: number,
            epoch,
            session,
            work: Work::Loading(end),
            open: false,
            closing: None,
            succeeds,
            known: 0,
            in_flight: 0,
            frozen: None,
            sealing: false,
            requests: Vec::new(),
        });
        if end != LoadEnd::Hangs {
            self.queue
                .push(ends_at, ScheduledEvent::LoadEnds { pid, activation });
        }
        Ok(())
    }

    pub(crate) fn load_ends(&mut self, pid: Pid, activation: ActivationId) -> CheckResult {
        let process = &mut self.processes[pid];
        if process.wedged_until > self.now {
            self.queue.push(
                process.wedged_until,
                ScheduledEvent::LoadEnds { pid, activation },
            );
            return Ok(());
        }
        let Some(stay) = process.stay_mut(activation) else {
            return Ok(());
        };
        let Work::Loading(end) = stay.work else {
            return Ok(());
        };
        if end == LoadEnd::Fails {
            stay.work = Work::Failed;
            if stay.closing.is_some() {
                return Ok(());
            }
            return self.step(
                pid,
                Event::LoadFailed {
                    activation,
                    error: "the disk is on fire".to_owned(),
                },
            );
        }
        stay.work = Work::Ready;
        stay.known = self.journal.read(stay.shard);
        self.step(pid, Event::Loaded(activation))
    }

    fn open(&mut self, pid: Pid, activation: ActivationId) -> CheckResult {
        let wrong = |what: &str| {
            Err(Violation::new(
                "contract",
                self.now,
                format!("process {pid} opens {activation:?}, {what}"),
            ))
        };
        let Some(stay) = self.processes[pid].stay_mut(activation) else {
            return wrong("which it does not have");
        };
        if stay.work != Work::Ready {
            return wrong("which is not loaded");
        }
        if stay.closing.is_some() {
            return wrong("which it has closed");
        }
        stay.open = true;
        self.estranged.takes(self.now, pid, "opens a gate")?;
        let (shard, session, epoch, known) = (stay.shard, stay.session, stay.epoch, stay.known);
        self.write_later(pid, activation);
        self.coverage.gates_opened += 1;
        self.coverage.named_shards_served += u64::from(self.is_named_shard(shard));
        self.epochs.shown(self.now, pid, shard, epoch, session)?;
        self.epochs.effect(shard, epoch);
        if self.app_rng.permille(self.app.run_ends) {
            let event = Box::new(Event::LoopEnded {
                activation,
                error: None,
            });
            let at = self.now + self.app_rng.skewed(MS, nanos(self.plan.timing.ttl));
            self.queue.push(at, ScheduledEvent::Tell { pid, event });
        }
        self.gates
            .opened(self.now, shard, pid, activation, session, epoch)?;
        // A process that was stopped on its way here opens a gate that its clock has closed: it admits nothing.
        if !self.gates.admits_run(self.now, shard, pid, activation) {
            return Ok(());
        }
        if !self.plan.reads_tail {
            self.journal.opened_unread(shard, known);
            return Ok(());
        }
        self.journal.opened(self.now, pid, shard, known)
    }

    fn close(&mut self, pid: Pid, activation: ActivationId, how: Close) -> CheckResult {
        let grace = nanos(self.plan.timing.kill_grace);
        let cut_after = self.app_rng.below(grace.min(self.app.drain.1) + 1);
        let drain_after = if self.app_rng.permille(self.app.stubborn) {
            Instant::MAX
        } else {
            self.app_rng.between(self.app.drain.0, self.app.drain.1)
        };
        let now = self.now;
        let Some(stay) = self.processes[pid].stay_mut(activation) else {
            return Ok(()); // repeated after it was answered
        };
        let was_open = std::mem::replace(&mut stay.open, false);
        let sharper =
            stay.closing.is_none() || (stay.closing == Some(Close::Drain) && how == Close::Cancel);
        let shard = stay.shard;
        if sharper {
            stay.closing = Some(how);
            let after = match (how, stay.work) {
                (_, Work::Failed) => 0,
                (Close::Cancel, _) => cut_after,
                (Close::Drain, _) => drain_after,
            };
            let ends_at = now.saturating_add(after);
            if how == Close::Cancel || ends_at < Instant::MAX {
                self.queue
                    .push(ends_at, ScheduledEvent::WorkEnds { pid, activation });
            }
        }
        if was_open {
            let epoch = self.processes[pid]
                .stay(activation)
                .map_or(Epoch(0), |stay| stay.epoch);
            self.epochs.effect(shard, epoch);
            self.gates.closed(shard, pid, activation);
            if let Some(local) = &self.local {
                local.closed(now, shard, pid)?;
            }
        }
        Ok(())
    }

    pub(crate) fn work_ends(&mut self, pid: Pid, activation: ActivationId) -> CheckResult {
        let process = &mut self.processes[pid];
        let Some(n) = process
            .stays
            .iter()
            .position(|stay| stay.activation == activation)
        else {
            return Ok(());
        };
        if process.wedged_until > self.now && process.stays[n].closing != Some(Close::Cancel) {
            self.queue.push(
                process.wedged_until,
                ScheduledEvent::WorkEnds { pid, activation },
            );
            return Ok(());
        }
        // What clients asked for is finished, unless it is cut.
        if process.stays[n].closing == Some(Close::Drain) && !process.stays[n].requests.is_empty() {
            self.queue
                .push(self.now + MS, ScheduledEvent::WorkEnds { pid, activation });
            return Ok(());
        }
        let stay = process.stays.remove(n);
        self.cut_off(stay.requests, stay.closing);
        self.step(pid, Event::Drained(activation))
    }

    fn trace_action(&mut self, pid: Pid, action: &Action) {
        match action {
            Action::Report(NodeEvent::Renewed { .. }) if self.transcript => {}
            Action::Report(note) => {
                let line = crate::describe::note(note);
                self.tell(pid, || line);
            }
            Action::Refused(reason) => {
                let line = format!("refused: {reason}");
                self.tell(pid, || line);
            }
            Action::Stopped => self.tell(pid, || "stopped".to_owned()),
            Action::Started => self.tell(pid, || "started".to_owned()),
            _ if self.transcript => {}
            action => {
                let line = crate::describe::action(action);
                self.tell(pid, || line);
            }
        }
    }

    pub(crate) fn trace_event(&mut self, pid: Pid, event: &Event) {
        let line = crate::describe::event(event);
        self.tell(pid, || line);
    }
}
