//! Makes faults happen, and undoes them all when the time has come.

use std::sync::Arc;

use tenure_core::ids::{KeyspaceName, SessionId};
use tenure_core::keys::Key;
use tenure_core::machine::Event;
use tenure_core::record::{Record, ShardRecord};

use crate::check::CheckResult;
use crate::clients::Traffic;
use crate::clock::{Clock, SEC};
use crate::event_queue::{Pid, ScheduledEvent};
use crate::fault::{Cut, Fault, Mode, Target};
use crate::lifecycle::OperatorAction;
use crate::process::DataDirectory;
use crate::run_config::{AppMix, Family, NetMix, WatchMix};
use crate::world::{KEYSPACE, World, named};

impl World {
    pub(crate) fn fault(&mut self, fault: Fault) -> CheckResult {
        *self.coverage.faults.entry(fault.kind()).or_default() += 1;
        self.tell_world(|| format!("fault: {fault}"));
        match fault {
            Fault::Restart { node, dir } => return self.restart(node, dir),
            Fault::Twin { node, copy } => return self.twin(node, copy),
            Fault::Outage { how, span } => {
                self.outage = Some((how, self.now + span));
                return Ok(());
            }
            Fault::Delete { target } => return self.delete(target),
            Fault::Corrupt { target } => return self.corrupt(target),
            Fault::ComesBack { target } => return self.comes_back(target),
            Fault::Hand { node, hand } => return self.lay_hand_on(node, hand),
            Fault::Mode { node, mode } => return self.tell_mode(node, mode),
            Fault::Sever {
                node,
                other,
                how,
                span,
            } => {
                self.clients.sever(node, other, how, self.now + span);
                return Ok(());
            }
            Fault::Operator(act) => return self.operate(act),
            Fault::Restore {
                back,
                wait,
                exchanged,
                running,
            } => return self.restore(back, wait, exchanged, running),
            _ => {}
        }
        if let Some(pid) = self.target(&fault) {
            return self.hit(pid, fault);
        }
        Ok(())
    }

    /// The newest live process that a fault is meant for.
    fn target(&self, fault: &Fault) -> Option<Pid> {
        let node = match *fault {
            Fault::Pause { node, .. }
            | Fault::PauseMidway { node, .. }
            | Fault::Kill { node }
            | Fault::Stop { node }
            | Fault::Cut { node, .. }
            | Fault::Slow { node, .. }
            | Fault::WatchBreaks { node, .. }
            | Fault::WatchMute { node, .. }
            | Fault::Wedge { node, .. } => node,
            _ => return None,
        };
        self.newest(node)
    }

    pub(crate) fn newest(&self, node: usize) -> Option<Pid> {
        self.processes
            .iter()
            .rposition(|process| process.alive && process.node == node)
    }

    fn hit(&mut self, pid: Pid, fault: Fault) -> CheckResult {
        let now = self.now;
        let process = &mut self.processes[pid];
        match fault {
            Fault::Pause { span, .. } => self.pause(pid, span),
            Fault::PauseMidway { after, span, .. } => process.stop_after = Some((after, span)),
            Fault::Kill { .. } => self.die(pid),
            Fault::Stop { .. } if process.router.is_some() => self.stop_router(pid),
            Fault::Stop { .. } => {
                self.queue.push(
                    now,
                    ScheduledEvent::Tell {
                        pid,
                        event: Box::new(Event::Stop),
                    },
                );
            }
            Fault::Cut { how, span, .. } => {
                if how != Cut::Replies {
                    process.cut_requests_until = process.cut_requests_until.max(now + span);
                }
                if how != Cut::Requests {
                    process.cut_replies_until = process.cut_replies_until.max(now + span);
                }
            }
            Fault::Slow { by, span, .. } => process.slow = (by, now + span),
            Fault::WatchBreaks { span, .. } => self.break_watch(pid, span),
            Fault::WatchMute { span, .. } => process.watch.mute_until = now + span,
            Fault::Wedge { span, .. } => process.wedged_until = now + span,
            _ => {}
        }
        Ok(())
    }

    /// Stops a process for a while.
    pub(crate) fn pause(&mut self, pid: Pid, span: u64) {
        let process = &mut self.processes[pid];
        let until = (self.now + span).max(process.paused_until.unwrap_or(0));
        process.paused_until = Some(until);
        self.queue.push(until, ScheduledEvent::Resume(pid));
        self.tell(pid, || "is paused".to_owned());
    }

    /// Lets a stopped process run: first it finishes what it was about to do, then it handles what it missed.
    pub(crate) fn resume(&mut self, pid: Pid) -> CheckResult {
        let process = &mut self.processes[pid];
        let due = process.paused_until.is_some_and(|until| until <= self.now);
        if !process.alive || !due {
            return Ok(());
        }
        process.paused_until = None;
        process.resumed_at = self.now;
        let midway = std::mem::take(&mut process.midway);
        let mut missed = std::mem::take(&mut process.missed);
        self.tell(pid, || "is resumed".to_owned());
        self.carry_out(pid, midway.into_iter())?;
        if self.plan.shuffle {
            for n in (1..missed.len()).rev() {
                missed.swap(n, self.app_rng.below(n as u64 + 1) as usize);
            }
        }
        for due in missed {
            self.queue.push(self.now, due);
        }
        Ok(())
    }

    /// Starts a process on the node's own machine, if none of its name is alive.
    pub(crate) fn restart(&mut self, node: usize, dir: bool) -> CheckResult {
        if self.newest(node).is_some() || self.raising {
            return Ok(());
        }
        let last = self
            .processes
            .iter()
            .rposition(|process| process.node == node);
        let (clock, old) = last.map_or((self.plan.clocks[node], node), |pid| {
            (self.processes[pid].clock, self.processes[pid].dir)
        });
        let dir = if dir { old } else { self.new_directory(None) };
        self.start(node, clock, dir)
    }

    fn twin(&mut self, node: usize, copy: bool) -> CheckResult {
        if self.raising {
            return Ok(());
        }
        let old = self
            .newest(node)
            .map_or(node, |pid| self.processes[pid].dir);
        let dir = if copy {
            self.new_directory(self.directories[old].session)
        } else {
            self.new_directory(None)
        };
        let pid = self.processes.len() as u64;
        let mut rng = self.plan.rng(2000 + pid);
        let mut clock = self.plan.clocks[node];
        if self.plan.family != Family::OneMachine {
            // A machine of its own: its rate may be anything that this run's machines may have.
            let other = *rng.pick(&self.plan.clocks);
            clock = Clock {
                offset: rng.between(1, 1_000_000) * SEC,
                rate_ppm: other.rate_ppm,
            };
        }
        self.start(node, clock, dir)
    }

    fn new_directory(&mut self, copied: Option<SessionId>) -> usize {
        self.directories.push(DataDirectory {
            session: copied,
            genuine: copied.is_none(),
            holder: None,
        });
        self.directories.len() - 1
    }

    fn delete(&mut self, target: Target) -> CheckResult {
        let Some(key) = self.key_of(target) else {
            return Ok(());
        };
        if self.would_come_back(&key) {
            return Ok(());
        }
        if self.store.remove(key.clone()).is_some() {
            self.changed(&key)
        } else {
            Ok(())
        }
    }

    fn corrupt(&mut self, target: Target) -> CheckResult {
        let Some(key) = self.key_of(target) else {
            return Ok(());
        };
        if self.store.corrupt(key.clone()).is_some() {
            self.changed(&key)
        } else {
            Ok(())
        }
    }

    fn comes_back(&mut self, target: Target) -> CheckResult {
        let Some(key) = self.key_of(target) else {
            return Ok(());
        };
        if self.store.make_again(&key) {
            self.changed(&key)
        } else {
            Ok(())
        }
    }

    /// Whether the loss of this key would be undone by a write from before it: then nothing is left that knows how far
    /// epochs had come. `docs/simulation.md` names this limit.
    fn would_come_back(&self, key: &Key) -> bool {
        matches!(key, Key::Shard(_)) && self.queue.creates(key)
    }

    fn key_of(&self, target: Target) -> Option<Key> {
        Some(match target {
            Target::Shard(n) => self.shards.get(n)?.clone(),
            Target::Keyspace => Key::Keyspace(named(KeyspaceName::new(KEYSPACE))),
            Target::Node(n) => self.node_key(n),
            Target::Leader => Key::Leader,
            Target::Session(n) => match &self.store.get(&self.node_key(n))?.record {
                Ok(Record::Node(record)) => Key::Session(record.session),
                _ => return None,
            },
        })
    }

    /// From here on nothing goes wrong any more; what was broken for good is made good.
    pub(crate) fn heal(&mut self) -> CheckResult {
        self.healed = true;
        self.tell_world(|| "healed".to_owned());
        self.net = NetMix::calm();
        self.watch = WatchMix {
            poll: self.watch.poll,
            ..WatchMix::calm()
        };
        self.app = AppMix::calm();
        self.outage = None;
        self.clients.heal();
        for shard in self.named_shards() {
            self.queue.push(self.now, ScheduledEvent::Create(shard));
        }
        self.traffic = Traffic {
            every: self.traffic.every,
            held: self.traffic.held,
            ..Traffic::calm()
        };
        for pid in 0..self.processes.len() {
            let process = &mut self.processes[pid];
            if !process.alive {
                continue;
            }
            process.cut_requests_until = 0;
            process.cut_replies_until = 0;
            process.slow = (0, 0);
            process.wedged_until = 0;
            process.stop_after = None;
            process.watch.mute_until = 0;
            if !process.watch.up {
                self.queue.push(self.now, ScheduledEvent::WatchAgain(pid));
            }
            if process.paused_until.is_some() {
                process.paused_until = Some(self.now);
                self.resume(pid)?;
            }
        }
        self.repair();
        for node in 0..self.plan.processes() {
            if self.plan.revive[node] {
                self.restart(node, true)?;
            }
        }
        self.activate()?;
        self.operate(OperatorAction::Thaw)?;
        self.keep_going()?;
        if let Some(after) = self.plan.second_raise() {
            self.queue.push(self.now + after, ScheduledEvent::Raise);
        }
        self.queue
            .push(self.now, ScheduledEvent::Look { again: true });
        if !self.plan.class.is_local() {
            self.queue.push(
                self.now + self.plan.heal_bound(),
                ScheduledEvent::Look { again: false },
            );
        }
        Ok(())
    }

    /// Sees to it that somebody is there who may be given shards, for every keyspace.
    pub(crate) fn keep_going(&mut self) -> CheckResult {
        for keyspace in 0..=self.plan.others.len() {
            let nodes = 0..self.plan.nodes;
            let serves = |node: &usize| self.plan.serves(*node, keyspace);
            let nodes: Vec<usize> = nodes.filter(serves).collect();
            if !nodes.iter().any(|node| self.newest(*node).is_some()) {
                self.restart(nodes[0], true)?;
            }
            if self.somebody_takes(keyspace) {
                continue;
            }
            for node in nodes {
                self.tell_mode(node, Mode::Active)?;
                self.operate(OperatorAction::Cordon { node, yes: false })?;
            }
        }
        Ok(())
    }

    /// Operator actions during healing: removes unreadable records except shard records, which nodes restore, and lifts
    /// quarantines.
    pub(crate) fn repair(&mut self) {
        let broken: Vec<(Key, Option<ShardRecord>)> = self
            .store
            .iter()
            .filter_map(|(key, found)| match &found.record {
                Err(_) if !matches!(key, Key::Shard(_)) => Some((key.clone(), None)),
                Ok(Record::Shard(record)) if record.quarantine.is_some() => {
                    Some((key.clone(), Some(ShardRecord::clone(record))))
                }
                _ => None,
            })
            .collect();
        for (key, record) in broken {
            if self.would_come_back(&key) {
                continue;
            }
            match record {
                None => {
                    self.store.remove(key.clone());
                }
                Some(mut record) => {
                    record.head = record.head.next(self.operators_nonce());
                    record.quarantine = None;
                    record.failures.clear();
                    self.store
                        .overwrite(key.clone(), Record::Shard(Arc::new(record)));
                }
            }
            self.tell_world(|| format!("an operator repairs {key}"));
            // Repairs cannot break a promise: they name no owner and keep the epoch.
            let _ = self.changed(&key);
        }
    }
}
