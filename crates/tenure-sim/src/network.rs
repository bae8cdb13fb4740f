//! What passes between processes and the store: requests, answers, and the watch.

use std::collections::BTreeMap;

use tenure_core::keys::Key;
use tenure_core::machine::{Event, Found, OpId, Reply, Request, StoreFailure};
use tenure_core::record::Record;

use crate::check::CheckResult;
use crate::clock::Instant;
use crate::event_queue::{Pid, ScheduledEvent};
use crate::fault::Outage;
use crate::run_config::{Family, nanos};
use crate::world::World;

impl World {
    /// Sends a request, and begins to wait for its answer.
    pub(crate) fn send(&mut self, pid: Pid, op: OpId, request: Request) {
        let process = &mut self.processes[pid];
        let write = !matches!(
            request,
            Request::Get(_) | Request::List | Request::Revision | Request::CheckLease(_)
        );
        process.pending.push((op, write));
        process.writes += u64::from(matches!(request, Request::Put { .. }));
        process.lists += u64::from(matches!(request, Request::List));
        let patience = nanos(self.plan.timing.request_timeout);
        self.queue
            .push(self.now + patience, ScheduledEvent::Timeout { pid, op });
        if process.cut_requests_until > self.now || self.net_rng.permille(self.net.lose_request) {
            return;
        }
        if self.net_rng.permille(self.net.refuse) {
            return self.reply(pid, op, refused());
        }
        if self.net_rng.permille(self.net.duplicate) {
            let after = self.net_rng.skewed(0, self.net.late_max);
            let request = request.clone();
            self.queue.push(
                self.now + after,
                ScheduledEvent::Arrive { pid, op, request },
            );
        }
        let mut after = self.delay(pid);
        if self.net_rng.permille(self.net.late) {
            after += self.net_rng.skewed(0, self.net.late_max);
        }
        self.queue.push(
            self.now + after,
            ScheduledEvent::Arrive { pid, op, request },
        );
    }

    /// A request is at the store: it takes effect now, unless the store is away.
    pub(crate) fn arrive(&mut self, pid: Pid, op: OpId, request: Request) -> CheckResult {
        match self.outage {
            Some((Outage::Refuse, until)) if until > self.now => {
                self.reply(pid, op, refused());
                return Ok(());
            }
            Some((Outage::Hang, until)) if until > self.now => {
                let at = until + self.delay(pid);
                self.queue
                    .push(at, ScheduledEvent::Arrive { pid, op, request });
                return Ok(());
            }
            Some((Outage::Forget, until)) if until > self.now => return Ok(()),
            _ => {}
        }
        let key = match &request {
            Request::Put { key, .. } | Request::Delete { key, .. } => Some(key.clone()),
            _ => None,
        };
        let lease = self
            .refuse_unleased(&request)
            .or_else(|| self.lease_request(&request));
        if let Some(reply) = lease {
            if self.processes[pid].alive {
                self.reply(pid, op, reply);
            }
            return Ok(());
        }
        let applied = self.store.apply(request);
        if let (Some(key), Some(_)) = (key, &applied.changed) {
            self.changed(&key)?;
        }
        if self.processes[pid].alive {
            self.reply(pid, op, applied.reply);
        }
        Ok(())
    }

    /// A key of the store has a new value: the checkers see it, and the watches tell of it.
    pub(crate) fn changed(&mut self, key: &Key) -> CheckResult {
        let found = self.store.newest(key).cloned();
        let record = found.as_ref().and_then(|found| found.record.as_ref().ok());
        self.leases.written(key, record);
        if self.trace.on() && !self.transcript {
            let line = crate::describe::stored(key, found.as_ref());
            self.tell_world(|| line);
        }
        if self.plan.family != Family::Polled {
            for pid in 0..self.processes.len() {
                let process = &mut self.processes[pid];
                if process.alive && process.watch.up && !process.watch.under_way {
                    process.watch.under_way = true;
                    let at = self.now + self.told_after(pid);
                    self.queue.push(at, ScheduledEvent::Watch(pid));
                }
            }
        }
        match (key, found.map(|found| found.record)) {
            (Key::Shard(id), Some(Ok(Record::Shard(record)))) => {
                let Some(&shard) = self.shard_numbers.get(id) else {
                    return Ok(());
                };
                self.look_for_ambush(&record);
                self.traffic_follows(shard);
                self.coverage.shard_writes += 1;
                let phase = record.ownership.moving().map(|(_, phase)| phase);
                self.smooth.written(self.now, shard, record.epoch, phase);
                self.plans.written(self.now, shard, Some(record.plan))?;
                self.epochs.written(self.now, shard, &record)?;
                self.strangers
                    .shard_written(self.now, shard, &record, &self.plan)?;
                self.order
                    .shard_written(self.now, shard, &record, &self.processes, &self.gates)
            }
            (Key::Shard(id), _) => match self.shard_numbers.get(id) {
                Some(&shard) => self.plans.written(self.now, shard, None),
                None => Ok(()),
            },
            (Key::Leader, Some(Ok(Record::Leader(record)))) => {
                self.plans.led(self.now, Some(&record))
            }
            (Key::Leader, _) => self.plans.led(self.now, None),
            (Key::Session(id), Some(Ok(Record::Session(record)))) if record.ended.is_some() => self
                .order
                .session_ended(self.now, *id, &record, &self.processes, &self.gates),
            (Key::Node(name), found) => {
                let record = match &found {
                    Some(Ok(Record::Node(record))) => Some(&**record),
                    _ => None,
                };
                if let Some(node) = self.plan.node_named(name) {
                    let cordoned = record.is_some_and(|record| record.cordoned);
                    self.strangers.node_written(self.now, node, cordoned);
                }
                let operator = self.operators_nonce().writer;
                self.modes.written(self.now, name, record, operator)
            }
            _ => Ok(()),
        }
    }

    fn reply(&mut self, pid: Pid, op: OpId, reply: Reply) {
        if self.processes[pid].cut_replies_until > self.now
            || self.net_rng.permille(self.net.lose_reply)
        {
            return;
        }
        let at = self.now + self.delay(pid);
        self.queue
            .push(at, ScheduledEvent::Reply { pid, op, reply });
    }

    pub(crate) fn answered(&mut self, pid: Pid, op: OpId, reply: Reply) -> CheckResult {
        let pending = &mut self.processes[pid].pending;
        let Some(n) = pending.iter().position(|(waiting, _)| *waiting == op) else {
            return Ok(());
        };
        pending.swap_remove(n);
        self.step(pid, Event::Reply { op, reply })
    }

    pub(crate) fn timed_out(&mut self, pid: Pid, op: OpId) -> CheckResult {
        let pending = &mut self.processes[pid].pending;
        let Some(n) = pending.iter().position(|(waiting, _)| *waiting == op) else {
            return Ok(());
        };
        let (_, write) = pending.swap_remove(n);
        let failure = if write {
            self.coverage.unknown_outcomes += 1;
            StoreFailure::Unknown("timed out".to_owned())
        } else {
            StoreFailure::Unavailable("timed out".to_owned())
        };
        self.step(
            pid,
            Event::Reply {
                op,
                reply: Reply::Failed(failure),
            },
        )
    }

    /// A delivery of the watch: everything since the last one, with what watches do to it.
    pub(crate) fn watch_tells(&mut self, pid: Pid) -> CheckResult {
        let process = &mut self.processes[pid];
        process.watch.under_way = false;
        if !process.watch.up {
            return Ok(());
        }
        if process.cut_replies_until > self.now {
            process.watch.under_way = true;
            let at = process.cut_replies_until + self.told_after(pid);
            self.queue.push(at, ScheduledEvent::Watch(pid));
            return Ok(());
        }
        if self.watch_rng.permille(self.watch.breaks) {
            let span = self.watch_rng.skewed(0, nanos(self.plan.timing.ttl));
            self.break_watch(pid, span);
            return Ok(());
        }
        let late = process
            .watch
            .mute_until
            .max(if self.watch_rng.permille(self.watch.late) {
                self.now + self.watch_rng.below(2 * nanos(self.plan.timing.ttl))
            } else {
                0
            });
        if late > self.now {
            process.watch.under_way = true;
            self.queue.push(late, ScheduledEvent::Watch(pid));
            return Ok(());
        }
        let (mut from, upto) = (process.watch.told, self.store.history.len());
        process.watch.told = upto;
        if from == upto {
            return Ok(());
        }
        if self.watch_rng.permille(self.watch.repeat) {
            from -= self.watch_rng.below(8.min(from as u64) + 1) as usize;
        }
        let mut changes: Vec<(Key, Option<Found>)> = self.store.history[from..upto]
            .iter()
            .map(|change| (change.key.clone(), change.now.clone()))
            .collect();
        if self.watch_rng.permille(self.watch.drop) {
            let lost = self.watch_rng.below(changes.len() as u64) as usize;
            changes.remove(lost);
        }
        let upto = tenure_core::ids::Revision(upto as u64);
        self.step(pid, Event::Changed { changes, upto })
    }

    /// Ends a watch, to begin anew after a while.
    pub(crate) fn break_watch(&mut self, pid: Pid, span: u64) {
        let process = &mut self.processes[pid];
        if process.watch.up {
            process.watch.up = false;
            self.queue
                .push(self.now + span, ScheduledEvent::WatchAgain(pid));
        }
    }

    pub(crate) fn watch_again(&mut self, pid: Pid) -> CheckResult {
        let process = &mut self.processes[pid];
        if process.watch.up {
            return Ok(());
        }
        let away = self.outage.map_or(0, |(_, until)| until);
        let until = away
            .max(process.cut_replies_until)
            .max(process.cut_requests_until);
        if until > self.now {
            self.queue.push(until, ScheduledEvent::WatchAgain(pid));
            return Ok(());
        }
        process.watch.up = true;
        process.watch.told = self.store.history.len();
        self.step(pid, Event::WatchGap)
    }

    /// A poller asks for what has changed, and tells the newest value of each key.
    pub(crate) fn poll(&mut self, pid: Pid) -> CheckResult {
        self.queue
            .push(self.now + self.watch.poll, ScheduledEvent::Poll(pid));
        let process = &mut self.processes[pid];
        let away = self.outage.is_some_and(|(_, until)| until > self.now);
        let cut = process
            .cut_replies_until
            .max(process.cut_requests_until)
            .max(process.watch.mute_until);
        let (from, upto) = (process.watch.told, self.store.history.len());
        if away || cut > self.now || from == upto {
            return Ok(());
        }
        process.watch.told = upto;
        let newest: BTreeMap<&Key, &Option<Found>> = self.store.history[from..upto]
            .iter()
            .map(|change| (&change.key, &change.now))
            .collect();
        let changes = newest
            .into_iter()
            .map(|(key, now)| (key.clone(), now.clone()))
            .collect();
        let upto = tenure_core::ids::Revision(upto as u64);
        self.step(pid, Event::Changed { changes, upto })
    }

    fn delay(&mut self, pid: Pid) -> u64 {
        let (low, high) = self.net.delay;
        let mut after = self.net_rng.between(low, high);
        if self.net_rng.permille(self.net.spike) {
            after += self.net_rng.below(self.net.spike_max + 1);
        }
        after + self.slowness(pid)
    }

    fn told_after(&mut self, pid: Pid) -> Instant {
        let (low, high) = self.watch.delay;
        self.watch_rng.between(low, high) + self.slowness(pid)
    }

    fn slowness(&mut self, pid: Pid) -> u64 {
        let (by, until) = self.processes[pid].slow;
        if until > self.now {
            self.net_rng.below(by + 1)
        } else {
            0
        }
    }
}

fn refused() -> Reply {
    Reply::Failed(StoreFailure::Unavailable("refused".to_owned()))
}
