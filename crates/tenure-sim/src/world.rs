//! A whole cluster in one thread on virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_core::ids::{KeyspaceName, NodeName, ShardId, ShardName};
use tenure_core::keys::Key;
use tenure_core::machine::{Action, Event};
use tenure_core::node::{KeyspaceConfig, Node, NodeConfig, Timekeeper};
use tenure_core::record::{KeyspaceKind, RejoinMode, Role};
use tenure_core::rules::Rules;

use crate::check::acknowledged_writes::AcknowledgedWriteChecker;
use crate::check::epochs::EpochChecker;
use crate::check::failure_isolation::FailureIsolationChecker;
use crate::check::gates::GateChecker;
use crate::check::membership::MembershipChecker;
use crate::check::modes::NodeModeChecker;
use crate::check::move_refusals::MoveRefusalChecker;
use crate::check::order::ReleaseOrderChecker;
use crate::check::plans::PlanChecker;
use crate::check::recovery::{self, IdleTrafficChecker};
use crate::check::requests::RequestChecker;
use crate::check::store_replaced::StoreReplacementChecker;
use crate::check::{CheckResult, Violation};
use crate::clients::{Clients, Traffic};
use crate::clock::{Clock, Instant, SEC};
use crate::coverage::Coverage;
use crate::event_log::EventLog;
use crate::event_queue::{Pid, Queue, ScheduledEvent};
use crate::fault::Outage;
use crate::leases::Leases;
use crate::process::{DataDirectory, Process};
use crate::rng::Rng;
use crate::router::{RouterProcess, sessions_in};
use crate::run_config::{AppMix, Family, NetMix, RunConfig, WatchMix, nanos};
use crate::store::Store;
use crate::trace_recorder::Recording;

/// The name of the only keyspace of a simulated cluster.
pub const KEYSPACE: &str = "orders";

/// Variant of the protocol that the machines under test follow.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProtocolVariant {
    /// The rules that they follow.
    pub rules: Rules,
    /// Whether drivers take the lock of a copied data directory for proof that the former holder is dead.
    pub copied_lock_is_proof: bool,
    /// Whether routers send again what an owner has answered with an error.
    pub retries_answers: bool,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// The promise that was broken, if one was.
    pub violation: Option<Violation>,
    /// What happened how often.
    pub coverage: Coverage,
    /// The story, if it was kept.
    pub trace: EventLog,
}

/// A run in the making.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) plan: RunConfig,
    pub(crate) under: ProtocolVariant,
    pub(crate) queue: Queue,
    pub(crate) store: Store,
    pub(crate) leases: Leases,
    pub(crate) processes: Vec<Process>,
    pub(crate) directories: Vec<DataDirectory>,
    pub(crate) shards: Vec<Key>,
    pub(crate) shard_numbers: BTreeMap<ShardId, usize>,
    pub(crate) keyspaces: BTreeMap<KeyspaceName, KeyspaceConfig>,
    pub(crate) net: NetMix,
    pub(crate) watch: WatchMix,
    pub(crate) app: AppMix,
    pub(crate) outage: Option<(Outage, Instant)>,
    pub(crate) healed: bool,
    /// The store was restored and generations are not raised yet: no process starts.
    pub(crate) raising: bool,
    /// Nodes that were stopped for it.
    pub(crate) start_again: Vec<usize>,
    pub(crate) net_rng: Rng,
    pub(crate) watch_rng: Rng,
    pub(crate) app_rng: Rng,
    /// Of what the application does while it serves.
    pub(crate) work_rng: Rng,
    pub(crate) journal: AcknowledgedWriteChecker,
    pub(crate) clients: Clients,
    pub(crate) traffic: Traffic,
    pub(crate) requests: RequestChecker,
    pub(crate) smooth: MoveRefusalChecker,
    /// How often an ambush was sprung.
    pub(crate) ambushed: u32,
    pub(crate) gates: GateChecker,
    pub(crate) epochs: EpochChecker,
    pub(crate) order: ReleaseOrderChecker,
    pub(crate) plans: PlanChecker,
    pub(crate) estranged: StoreReplacementChecker,
    pub(crate) modes: NodeModeChecker,
    pub(crate) strangers: MembershipChecker,
    pub(crate) local: Option<FailureIsolationChecker>,
    rest: Option<IdleTrafficChecker>,
    /// Since when the cluster has been whole without a break.
    whole_since: Option<Instant>,
    pub(crate) coverage: Coverage,
    pub(crate) trace: EventLog,
    /// Whether the trace tells of transitions alone.
    pub(crate) transcript: bool,
    /// What each process would write down of itself, if that is wanted.
    pub(crate) recording: Option<Recording>,
}

/// Runs a plan to its end, or to the first broken promise.
pub fn run(plan: RunConfig, under: ProtocolVariant, trace: EventLog) -> Outcome {
    let mut world = World::new(plan, under, trace);
    let violation = world.run_until(Instant::MAX).err();
    if let Some(violation) = &violation {
        world
            .trace
            .line(world.now, "check", format_args!("VIOLATION {violation}"));
    }
    world.coverage.refused_effects += world.epochs.refused;
    world.coverage.simulated_seconds += world.now / SEC;
    Outcome {
        violation,
        coverage: world.coverage,
        trace: world.trace,
    }
}

impl World {
    pub(crate) fn new(plan: RunConfig, under: ProtocolVariant, trace: EventLog) -> Self {
        let (ids, keyspaces) = keyspaces(&plan);
        let count = ids.len();
        let clocks_hold = plan.clocks_hold();
        let mut world = Self {
            now: 0,
            under,
            queue: Queue::default(),
            store: Store::new(plan.family == Family::Polled),
            leases: Leases::new(plan.rng(5), store_rate(&plan)),
            processes: Vec::new(),
            directories: Vec::new(),
            shards: ids.iter().cloned().map(Key::Shard).collect(),
            shard_numbers: ids.into_iter().enumerate().map(|(n, id)| (id, n)).collect(),
            keyspaces,
            net: plan.net.clone(),
            watch: plan.watch.clone(),
            app: plan.app.clone(),
            outage: None,
            healed: false,
            raising: false,
            start_again: Vec::new(),
            net_rng: plan.rng(2),
            watch_rng: plan.rng(3),
            app_rng: plan.rng(4),
            work_rng: plan.rng(9),
            journal: AcknowledgedWriteChecker::new(count),
            clients: Clients::new(&plan),
            traffic: plan.traffic,
            requests: RequestChecker::default(),
            smooth: MoveRefusalChecker::new(count),
            ambushed: 0,
            gates: GateChecker::new(count, clocks_hold),
            epochs: EpochChecker::new(count),
            order: ReleaseOrderChecker::new(count, clocks_hold),
            plans: PlanChecker::new(count),
            estranged: StoreReplacementChecker::default(),
            modes: NodeModeChecker::new(plan.manual),
            strangers: MembershipChecker::new(count, plan.nodes),
            local: None,
            rest: None,
            whole_since: None,
            coverage: Coverage::default(),
            trace,
            transcript: false,
            recording: None,
            plan,
        };
        world.schedule();
        world
    }

    fn schedule(&mut self) {
        for (node, at) in self.plan.starts.clone().into_iter().enumerate() {
            self.directories.push(DataDirectory {
                session: None,
                genuine: true,
                holder: None,
            });
            self.queue.push(at, ScheduledEvent::Start { node });
        }
        let mut rng = self.plan.rng(8);
        let latest = self.latest_creation();
        for shard in self.named_shards() {
            let at = rng.between(SEC, 15 * SEC).min(latest);
            self.queue.push(at, ScheduledEvent::Create(shard));
        }
        self.coverage.other_keyspaces += self.plan.others.len() as u64;
        self.coverage.mixed += u64::from(!self.plan.serves.is_empty());
        self.coverage.planners += self.plan.planners as u64;
        if self.plan.routers > 0 {
            self.queue.push(SEC, ScheduledEvent::Traffic);
        }
        for n in 0..self.plan.faults.len() {
            self.queue
                .push(self.plan.faults[n].0, ScheduledEvent::Fault(n));
        }
        if self.plan.heal_at < Instant::MAX {
            self.queue.push(self.plan.heal_at, ScheduledEvent::Heal);
        }
        if self.plan.class.is_local() {
            self.queue
                .push(30 * SEC - 1, ScheduledEvent::Look { again: false });
        }
    }

    /// Lets everything happen that is due up to this instant.
    pub(crate) fn run_until(&mut self, until: Instant) -> CheckResult {
        while let Some((at, due)) = self.queue.pop() {
            if at > until.min(self.plan.end_at) {
                self.queue.push(at, due);
                break;
            }
            self.now = at;
            self.coverage.events += 1;
            self.happen(due)?;
        }
        let until = until.min(self.plan.end_at);
        if self.now < until && until < Instant::MAX {
            self.now = until;
        }
        if until == self.plan.end_at && until < Instant::MAX {
            return self.finish();
        }
        Ok(())
    }

    fn happen(&mut self, due: ScheduledEvent) -> CheckResult {
        if let Some(pid) = due.pid() {
            let process = &mut self.processes[pid];
            if !process.alive {
                if let ScheduledEvent::Enter { req, sending, .. } = due {
                    self.nobody_there(req, sending);
                }
                return Ok(());
            }
            if process.paused_until.is_some() {
                process.missed.push(due);
                return Ok(());
            }
        }
        match due {
            ScheduledEvent::Nothing => Ok(()),
            ScheduledEvent::Create(shard) => self.create(shard),
            ScheduledEvent::Raise => self.raise(),
            ScheduledEvent::Start { node } if self.raising => {
                self.queue
                    .push(self.now + SEC, ScheduledEvent::Start { node });
                Ok(())
            }
            ScheduledEvent::Start { node } => {
                let clock = self.plan.clocks[node];
                self.start(node, clock, node)
            }
            ScheduledEvent::Tick(pid) => self.tick(pid),
            ScheduledEvent::Progress(pid) => self.progress(pid),
            ScheduledEvent::Arrive { pid, op, request } => self.arrive(pid, op, request),
            ScheduledEvent::Reply { pid, op, reply } => self.answered(pid, op, reply),
            ScheduledEvent::Timeout { pid, op } => self.timed_out(pid, op),
            ScheduledEvent::Watch(pid) => self.watch_tells(pid),
            ScheduledEvent::WatchAgain(pid) => self.watch_again(pid),
            ScheduledEvent::LeaseEnds(id) => self.lease_ends(id),
            ScheduledEvent::Poll(pid) => self.poll(pid),
            ScheduledEvent::LoadEnds { pid, activation } => self.load_ends(pid, activation),
            ScheduledEvent::WorkEnds { pid, activation } => self.work_ends(pid, activation),
            ScheduledEvent::Chore {
                pid,
                activation,
                chore,
            } => self.do_chore(pid, activation, chore),
            ScheduledEvent::Traffic => self.traffic(),
            ScheduledEvent::Burst { shard } => self.burst(shard, 1),
            ScheduledEvent::RouterTick(pid) => self.router_tick(pid),
            ScheduledEvent::HeldTooLong { pid, req } => self.held_too_long(pid, req),
            ScheduledEvent::Enter { pid, req, sending } => self.enters(pid, req, sending),
            ScheduledEvent::Served {
                pid,
                activation,
                req,
            } => self.served(pid, activation, req),
            ScheduledEvent::Answer {
                pid,
                req,
                sending,
                answer,
            } => self.is_answered(pid, req, sending, answer),
            ScheduledEvent::Tell { pid, event } => self.step(pid, *event),
            ScheduledEvent::Resume(pid) => self.resume(pid),
            ScheduledEvent::Strike(fault) => self.fault(fault),
            ScheduledEvent::Fault(n) => self.fault(self.plan.faults[n].1),
            ScheduledEvent::Heal => self.heal(),
            ScheduledEvent::Look { again } => self.look(again),
        }
    }

    /// Starts a process of this name on a machine with this clock and with this data directory.
    pub(crate) fn start(&mut self, node: usize, clock: Clock, dir: usize) -> CheckResult {
        let pid = self.processes.len();
        let directory = self.directories[dir];
        let holder_dead = directory
            .holder
            .is_none_or(|pid| !self.processes[pid].alive);
        let proof = directory.genuine || self.under.copied_lock_is_proof;
        let mut entropy = self.plan.rng(1000 + pid as u64);
        let config = NodeConfig {
            name: named(NodeName::new(self.plan.name(node))),
            role: self.plan.role(node),
            addresses: BTreeMap::new(),
            zone: None,
            weight: 100,
            labels: BTreeMap::new(),
            capacity: None,
            version: "sim".to_owned(),
            keyspaces: match self.plan.role(node) {
                // A router takes every keyspace as it finds it, and so does who only plans.
                Role::Router | Role::Planner => BTreeMap::new(),
                Role::Shadow => self.keyspaces.clone(),
                Role::Node => self.keyspaces_of(node),
            },
            timing: self.plan.timing.clone(),
            rules: self.under.rules,
            policy: None,
            timekeeper: if self.keeps_time() {
                Timekeeper::Store
            } else {
                Timekeeper::Nodes
            },
            boot_id: (self.plan.family == Family::OneMachine).then(|| "boot".to_owned()),
            entropy: u128::from(entropy.bits()) << 64 | u128::from(entropy.bits() >> 16 << 16),
            last_session: directory.session.filter(|_| holder_dead && proof),
            rejoin: match self.plan.manual {
                true => RejoinMode::Manual,
                false => RejoinMode::Auto,
            },
            join: false,
            ephemeral: false,
        };
        if holder_dead {
            self.directories[dir].holder = Some(pid);
        }
        self.tell(pid, || {
            format!(
                "start {}, last session {:?}",
                config.name, config.last_session
            )
        });
        if let Some(recording) = &mut self.recording {
            recording.began(&config, clock, self.plan.family);
        }
        let machine = Node::new(Arc::new(config));
        let told = self.store.history.len();
        self.processes
            .push(Process::new(node, clock, machine, dir, told));
        self.processes[pid].since = self.now;
        if self.plan.role(node) == Role::Router {
            let desk = RouterProcess::new(self.under.rules, self.plan.hold_limits());
            self.processes[pid].router = Some(Box::new(desk));
        }
        self.coverage.starts += 1;
        if self.plan.family == Family::Polled {
            let first = self.watch_rng.below(self.watch.poll.max(1));
            self.queue.push(self.now + first, ScheduledEvent::Poll(pid));
        }
        self.queue.push(self.now, ScheduledEvent::Progress(pid));
        self.step(pid, Event::Tick)
    }

    /// Settings of the keyspaces that a node serves.
    fn keyspaces_of(&self, node: usize) -> BTreeMap<KeyspaceName, KeyspaceConfig> {
        let names = self.plan.keyspaces().enumerate();
        let served = names.filter(|(keyspace, _)| self.plan.serves(node, *keyspace));
        let named = served.map(|(_, name)| named(KeyspaceName::new(name)));
        named
            .filter_map(|name| Some((name.clone(), self.keyspaces.get(&name)?.clone())))
            .collect()
    }

    fn tick(&mut self, pid: Pid) -> CheckResult {
        let process = &mut self.processes[pid];
        if self.now >= process.tick_at {
            process.tick_at = Instant::MAX;
        }
        if self.now < process.wake {
            self.plan_tick(pid);
            return Ok(());
        }
        if process.spins(self.now) {
            let what = format!("process {pid} asks to be woken again and again");
            return Err(Violation::new("contract", self.now, what));
        }
        self.step(pid, Event::Tick)
    }

    fn progress(&mut self, pid: Pid) -> CheckResult {
        let process = &self.processes[pid];
        let again = self.now + nanos(self.plan.timing.stall_limit) / 3;
        self.queue.push(again, ScheduledEvent::Progress(pid));
        if process.wedged_until > self.now {
            return Ok(());
        }
        let now = process.clock.at(self.now);
        self.step(pid, Event::Progress(now))
    }

    /// Hands an event to the machine and carries out what it answers.
    pub(crate) fn step(&mut self, pid: Pid, event: Event) -> CheckResult {
        let process = &mut self.processes[pid];
        let now = process.clock.at(self.now);
        if self.trace.on() && !self.transcript && !matches!(event, Event::Tick | Event::Progress(_))
        {
            self.trace_event(pid, &event);
        }
        let sessions = match &self.processes[pid].router {
            Some(_) => sessions_in(&event),
            None => Vec::new(),
        };
        let told = self.recording.is_some().then(|| event.clone());
        let step = self.processes[pid].machine.step(now, event);
        if let (Some(recording), Some(event)) = (&mut self.recording, told) {
            recording.stepped(pid, now, event, &step);
        }
        let process = &mut self.processes[pid];
        if process.woken_at != step.wake {
            process.woken_at = step.wake;
            process.wake = step
                .wake
                .map_or(Instant::MAX, |time| process.clock.when(time));
        }
        self.plan_tick(pid);
        if !sessions.is_empty() {
            self.sessions_seen(pid, &sessions)?;
        }
        let mut actions = step.actions;
        if !actions.is_empty() {
            self.carry_out(pid, actions.drain(..))?;
        }
        self.processes[pid].machine.give_back(actions);
        Ok(())
    }

    pub(crate) fn carry_out(
        &mut self,
        pid: Pid,
        mut actions: impl Iterator<Item = Action>,
    ) -> CheckResult {
        while let Some(action) = actions.next() {
            self.act(pid, action)?;
            let process = &mut self.processes[pid];
            if !process.alive {
                return Ok(());
            }
            match &mut process.stop_after {
                None => {}
                Some((0, span)) => {
                    let span = *span;
                    process.stop_after = None;
                    process.midway.extend(actions);
                    self.pause(pid, span);
                    return Ok(());
                }
                Some((after, _)) => *after -= 1,
            }
        }
        Ok(())
    }

    /// Puts a tick into the queue if none is there early enough. A wake-up in the past comes a moment later.
    fn plan_tick(&mut self, pid: Pid) {
        let process = &mut self.processes[pid];
        if process.wake == Instant::MAX {
            return;
        }
        let late = if self.plan.jitter == 0 {
            0
        } else {
            self.app_rng.below(self.plan.jitter)
        };
        let at = process.wake.max(self.now + 1) + late;
        if at < process.tick_at {
            process.tick_at = at;
            self.queue.push(at, ScheduledEvent::Tick(pid));
        }
    }

    /// Latest creation of a named shard. Where only ticks lead to a claim, one must follow before the cluster is expected to be
    /// whole.
    fn latest_creation(&self) -> Instant {
        let timing = &self.plan.timing;
        if !self.plan.class.is_local() || timing.claim_watch_enabled {
            return Instant::MAX;
        }
        let tick = nanos(timing.tick_interval) + 2 * SEC;
        (30 * SEC).saturating_sub(tick).max(SEC)
    }

    fn look(&mut self, again: bool) -> CheckResult {
        let every = nanos(self.plan.timing.ttl) / 4;
        if again {
            self.queue
                .push(self.now + every, ScheduledEvent::Look { again: true });
        }
        if self.local.is_none() && self.plan.class.is_local() {
            let local = FailureIsolationChecker::before(
                self.now,
                &self.plan,
                self.missing(),
                &self.processes,
                &self.gates,
            )?;
            self.queue
                .push(local.by(), ScheduledEvent::Look { again: false });
            self.local = Some(local);
        }
        if let Some(mut local) = self.local.take() {
            local.look(self.now, || self.missing(), &self.gates)?;
            self.local = Some(local);
        }
        if !self.healed {
            return Ok(());
        }
        if self.now >= self.plan.heal_at + self.plan.notice_time() {
            self.demand_one_owner(self.plan.clocks_hold());
        }
        self.repair();
        self.keep_going()?;
        if self.rest.is_some() {
            return Ok(());
        }
        let raise = self.plan.second_raise();
        let missing = if raise.is_some_and(|after| self.now <= self.plan.heal_at + after) {
            Some("an operator is about to raise generations".to_owned())
        } else {
            self.missing()
        };
        self.whole_since = if missing.is_none() {
            self.whole_since.or(Some(self.now))
        } else {
            None
        };
        let by = self.plan.heal_at + self.plan.heal_bound();
        let settled = self
            .whole_since
            .is_some_and(|since| self.now >= since + self.plan.settle_time());
        match missing {
            Some(missing) if self.now >= by => Err(Violation::new("P6", self.now, missing)),
            None if settled => {
                self.rest = Some(IdleTrafficChecker::begin(
                    self.now,
                    self.shards.len(),
                    &self.processes,
                    &self.gates,
                ));
                self.plan.end_at = self.now + self.plan.rest_window();
                self.tell_world(|| "everything is served; at rest from here on".to_owned());
                Ok(())
            }
            None if self.now >= by => {
                // Served in time; what nodes may still do then is waited for.
                self.plan.end_at = self.now + self.plan.settle_time() + self.plan.rest_window();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> CheckResult {
        if let Some(missing) = self.missing() {
            return Err(Violation::new("P6", self.now, missing));
        }
        if let Some(rest) = &self.rest {
            rest.end(self.now, &self.plan, &self.processes, &self.gates)?;
            let before = self.now.saturating_sub(nanos(self.plan.timing.ttl));
            self.requests.end(self.now, before)?;
        }
        if let Some(local) = &self.local {
            local.end(self.now, &self.processes, &self.gates)?;
        }
        Ok(())
    }

    /// Whether nothing may happen any more.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// What keeps the cluster from being whole.
    pub(crate) fn missing(&self) -> Option<String> {
        recovery::missing(
            self.now,
            &self.shards,
            &self.processes,
            &self.store,
            &self.gates,
        )
    }

    /// Writes a line about a process into the trace.
    pub(crate) fn tell(&mut self, pid: Pid, what: impl FnOnce() -> String) {
        if self.trace.on() {
            let node = self.processes.get(pid).map(|process| process.node);
            let who = node.map_or_else(
                || format!("p{pid}"),
                |node| format!("{}/p{pid}", self.plan.name(node)),
            );
            self.trace.line(self.now, &who, format_args!("{}", what()));
        }
    }

    /// Writes a line about the world into the trace.
    pub(crate) fn tell_world(&mut self, what: impl FnOnce() -> String) {
        if self.trace.on() {
            self.trace
                .line(self.now, "world", format_args!("{}", what()));
        }
    }
}

/// All shards in the order of their numbers, and what nodes expect of the keyspaces.
fn keyspaces(plan: &RunConfig) -> (Vec<ShardId>, BTreeMap<KeyspaceName, KeyspaceConfig>) {
    let first = (KEYSPACE, false, plan.shards, plan.mode);
    let others = plan.others.iter();
    let others = others.map(|other| (other.name, other.named, other.shards, other.mode));
    let (mut ids, mut configs) = (Vec::new(), BTreeMap::new());
    for (name, is_named, shards, mode) in std::iter::once(first).chain(others) {
        let name = named(KeyspaceName::new(name));
        let shard = |n| match is_named {
            true => named(ShardName::new(format!("room {n}"))),
            false => ShardName::index(n),
        };
        ids.extend((0..shards).map(|n| ShardId::new(name.clone(), shard(n))));
        let kind = if is_named {
            KeyspaceKind::Named
        } else {
            KeyspaceKind::Hashed(shards)
        };
        let config = KeyspaceConfig {
            kind,
            mode,
            plan: plan.spec.clone(),
            catches_up: plan.catches_up,
        };
        configs.insert(name, config);
    }
    (ids, configs)
}

/// The rate of the store's own clock: as far off as any other may be.
fn store_rate(plan: &RunConfig) -> i64 {
    let bound = plan.timing.clock_drift_max_permille * 490;
    let bound = u64::from(bound);
    plan.rng(6).below(2 * bound + 1) as i64 - bound as i64
}

/// Unwraps a name that is known to be good.
pub(crate) fn named<T, E: std::fmt::Display>(name: Result<T, E>) -> T {
    match name {
        Ok(name) => name,
        Err(problem) => panic!("the simulator made a bad name: {problem}"),
    }
}
