//! A few nodes on one clock, with a store that answers every request at once and tells every change to everyone.

mod leases;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::gate::admits;
use crate::ids::{KeyspaceName, NodeName, Revision, SessionId, ShardId, Version};
use crate::keys::Key;
use crate::machine::{
    Action, ActivationId, Event, Expect, Found, Refusal, Reply, Request, StoreListing,
};
use crate::node::{KeyspaceConfig, Node, NodeConfig, Timekeeper};
use crate::record::{
    AssignedBy, KeyspaceKind, KeyspaceRecord, MovesPaused, NodeMode, NodeRecord, PlanningSettings,
    Record, RecordError, Role, SessionRecord, ShardRecord,
};
use crate::rules::Rules;
use crate::settings::Settings;
use crate::telemetry::NodeEvent;
use crate::time::Time;

pub(super) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

struct Process {
    node: Node,
    name: NodeName,
    events: VecDeque<Event>,
    wake: Option<Time>,
    log: Vec<Action>,
    runs: BTreeMap<ActivationId, (ShardId, SessionId)>,
    open: BTreeSet<ActivationId>,
    closes_at: BTreeMap<SessionId, Time>,
    alive: bool,
    wedged: bool,
    lists: usize,
}

enum Job {
    Execute(usize, crate::machine::OpId, Request),
    Deliver(usize, Event),
}

pub(super) struct TestCluster {
    now: Time,
    config: NodeConfig,
    store: BTreeMap<Key, (Version, Result<Record, RecordError>)>,
    revision: u64,
    writes: usize,
    processes: Vec<Process>,
    failing: BTreeSet<ShardId>,
    overlaps: usize,
    /// (process, shard): loads there fail.
    pub(super) failing_at: BTreeSet<(usize, ShardId)>,
    /// Shards whose application cannot write out its state.
    pub(super) unsealable: BTreeSet<ShardId>,
    /// shards whose Close is not answered.
    pub(super) hold_drain: BTreeSet<ShardId>,
    pub(super) held: Vec<(usize, ActivationId)>,
    /// process: puts on shard keys fail as unavailable.
    pub(super) fail_shard_puts: BTreeSet<usize>,
    /// process: so many of its puts are refused.
    pub(super) denied_puts: BTreeMap<usize, usize>,
    /// process: gets watch events no more.
    pub(super) deaf: BTreeSet<usize>,
    pub(super) store_id: String,
    /// process: the outcome of its puts on shards is unknown; they land when told to.
    pub(super) unknown_puts: BTreeSet<usize>,
    /// The same of writes of sessions.
    pub(super) unknown_renewals: BTreeSet<usize>,
    pub(super) late: Vec<(usize, Request)>,
    /// process: its requests are not done, and end by their timeout.
    pub(super) cut: BTreeSet<usize>,
    pub(super) steps: usize,
    pub(super) latency: BTreeMap<usize, Duration>,
    jobs: BTreeMap<(Time, u64), Job>,
    job_count: u64,
    /// Loads as a successor, by process, and what it was told of the end of the owner's state.
    pub(super) warmed: Vec<(usize, ShardId)>,
    pub(super) caught_up: Vec<(usize, String)>,
    /// shards whose Warm is not answered.
    pub(super) hold_warm: BTreeSet<ShardId>,
    pub(super) claims: Vec<(ShardId, crate::ids::Epoch, SessionId)>,
    pub(super) leases: leases::Leases,
}

impl TestCluster {
    pub(super) fn new(shards: u32) -> Self {
        let keyspace = KeyspaceConfig {
            kind: KeyspaceKind::Hashed(shards),
            mode: AssignedBy::Rendezvous,
            plan: PlanningSettings::default(),
            catches_up: false,
        };
        let config = NodeConfig {
            name: NodeName::new("unnamed").unwrap(),
            role: Role::Node,
            addresses: BTreeMap::new(),
            zone: None,
            weight: 100,
            labels: BTreeMap::new(),
            capacity: None,
            version: "test".to_owned(),
            keyspaces: BTreeMap::from([(KeyspaceName::new("orders").unwrap(), keyspace)]),
            timing: Settings {
                ttl: ms(3000),
                ..Settings::default()
            }
            .check(Duration::ZERO)
            .unwrap(),
            rules: Rules::sound(),
            policy: None,
            timekeeper: Timekeeper::default(),
            boot_id: None,
            entropy: 0,
            last_session: None,
            rejoin: Default::default(),
            join: false,
            ephemeral: false,
        };
        Self {
            now: Time(1_000_000_000),
            config,
            store: BTreeMap::new(),
            revision: 0,
            writes: 0,
            processes: Vec::new(),
            failing: BTreeSet::new(),
            overlaps: 0,
            failing_at: BTreeSet::new(),
            unsealable: BTreeSet::new(),
            hold_drain: BTreeSet::new(),
            held: Vec::new(),
            fail_shard_puts: BTreeSet::new(),
            denied_puts: BTreeMap::new(),
            deaf: BTreeSet::new(),
            cut: BTreeSet::new(),
            unknown_puts: BTreeSet::new(),
            unknown_renewals: BTreeSet::new(),
            late: Vec::new(),
            store_id: "uuid".to_owned(),
            steps: 0,
            latency: BTreeMap::new(),
            jobs: BTreeMap::new(),
            job_count: 0,
            claims: Vec::new(),
            warmed: Vec::new(),
            caught_up: Vec::new(),
            hold_warm: BTreeSet::new(),
            leases: leases::Leases::default(),
        }
    }

    pub(super) fn ttl(&self) -> Duration {
        self.config.timing.ttl
    }

    pub(super) fn mode(&mut self, mode: AssignedBy) {
        self.config
            .keyspaces
            .values_mut()
            .for_each(|k| k.mode = mode);
    }

    /// Everyone is on one machine and shares its clock.
    pub(super) fn share_clock(&mut self) {
        self.config.boot_id = Some("boot".to_owned());
    }

    pub(super) fn plan_spec(&mut self, change: impl Fn(&mut PlanningSettings)) {
        let keyspaces = self.config.keyspaces.values_mut();
        keyspaces.for_each(|k| change(&mut k.plan));
    }

    /// The last session that a process has noted down.
    pub(super) fn remembered(&self, i: usize) -> Option<SessionId> {
        self.log(i).iter().rev().find_map(|a| match a {
            Action::Remember(session) => Some(*session),
            _ => None,
        })
    }

    /// Pause of planned moves in the cluster record.
    pub(super) fn pause(&self) -> Option<MovesPaused> {
        match self.store.get(&Key::Cluster) {
            Some((_, Ok(Record::Cluster(record)))) => record.moves_paused.clone(),
            other => panic!("no cluster record: {other:?}"),
        }
    }

    /// Pauses planned moves, or resumes them (`None`).
    pub(super) fn pause_moves(&mut self, lasts: Option<Option<Duration>>) {
        let Some((_, Ok(Record::Cluster(record)))) = self.store.get(&Key::Cluster) else {
            panic!("no cluster")
        };
        let mut record = (**record).clone();
        record.head.rev += 1;
        record.moves_paused = lasts.map(|lasts| MovesPaused {
            reason: "incident 7".to_owned(),
            rev: record.head.rev,
            lasts,
        });
        self.set(Key::Cluster, Ok(Record::Cluster(Arc::new(record))));
    }

    /// As [`Self::run`] for a long time, in pieces that each may take many steps.
    pub(super) fn run_roughly(&mut self, time: Duration) {
        for _ in 0..100 {
            self.steps = 0;
            self.run(time / 100);
        }
    }

    pub(super) fn catch_up(&mut self, yes: bool) {
        let keyspaces = self.config.keyspaces.values_mut();
        keyspaces.for_each(|k| k.catches_up = yes);
    }

    pub(super) fn start(&mut self, name: &str) -> usize {
        self.start_with(name, |_| ())
    }

    pub(super) fn start_with(&mut self, name: &str, change: impl FnOnce(&mut NodeConfig)) -> usize {
        let mut config = self.config.clone();
        config.name = NodeName::new(name).unwrap();
        // Apart from each other in the bits that leases are named by, too.
        config.entropy = (self.processes.len() as u128 + 1) << 96;
        change(&mut config);
        self.processes.push(Process {
            name: config.name.clone(),
            node: Node::new(Arc::new(config)),
            events: VecDeque::from([Event::Tick]),
            wake: None,
            log: Vec::new(),
            runs: BTreeMap::new(),
            open: BTreeSet::new(),
            closes_at: BTreeMap::new(),
            alive: true,
            wedged: false,
            lists: 0,
        });
        self.processes.len() - 1
    }

    /// Lets everything happen that happens within this time.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let mut idle = true;
            for i in 0..self.processes.len() {
                while let Some(event) = self.processes[i].events.pop_front() {
                    self.step(i, event);
                    idle = false;
                }
            }
            if !idle {
                continue;
            }
            let live = self.processes.iter().enumerate().filter(|(_, p)| p.alive);
            let next = live.filter_map(|(i, p)| p.wake.map(|at| (at, i))).min();
            let job = self.jobs.first_key_value().map(|(k, _)| *k);
            if let Some(at) = self.next_expiry()
                && at <= end
                && next.is_none_or(|(wake, _)| at <= wake)
                && job.is_none_or(|(due, _)| at <= due)
            {
                self.now = self.now.max(at);
                self.expire();
                continue;
            }
            if let Some(key) = job
                && key.0 <= end
                && next.is_none_or(|(at, _)| key.0 <= at)
            {
                self.now = self.now.max(key.0);
                let job = self.jobs.remove(&key).unwrap();
                self.do_job(job);
                continue;
            }
            match next {
                Some((at, i)) if at <= end => {
                    self.now = self.now.max(at);
                    self.step(i, Event::Tick);
                }
                _ => break,
            }
        }
        self.now = end;
    }

    fn job(&mut self, at: Time, job: Job) {
        self.job_count += 1;
        self.jobs.insert((at, self.job_count), job);
    }

    fn do_job(&mut self, job: Job) {
        match job {
            Job::Execute(i, op, request) => {
                let reply = self.answer(i, request);
                let at = self.now + self.latency.get(&i).copied().unwrap_or_default() / 2;
                self.job(at, Job::Deliver(i, Event::Reply { op, reply }));
            }
            Job::Deliver(i, event) => self.step(i, event),
        }
    }

    fn step(&mut self, i: usize, event: Event) {
        if !self.processes[i].alive {
            return;
        }
        if !self.processes[i].wedged {
            let now = self.now;
            let _ = self.processes[i]
                .node
                .step(now, Event::Progress(now))
                .actions
                .drain(..)
                .map(|a| self.act(i, a))
                .count();
        }
        self.steps += 1;
        assert!(self.steps < 2_000_000, "hot loop");
        let step = self.processes[i].node.step(self.now, event);
        self.processes[i].wake = step.wake;
        for action in step.actions {
            self.act(i, action);
        }
        self.check();
    }

    fn act(&mut self, i: usize, action: Action) {
        self.processes[i].log.push(action.clone());
        match action {
            Action::Store { op, request, .. } if self.cut.contains(&i) => {
                let why = "no answer in time".to_owned();
                let failure = match request {
                    Request::Put { .. } | Request::Delete { .. } => {
                        crate::machine::StoreFailure::Unknown(why)
                    }
                    _ => crate::machine::StoreFailure::Unavailable(why),
                };
                let reply = Reply::Failed(failure);
                let at = self.now + self.config.timing.request_timeout;
                self.job(at, Job::Deliver(i, Event::Reply { op, reply }));
            }
            Action::Store { op, request, .. } if self.latency.contains_key(&i) => {
                let at = self.now + self.latency[&i] / 2;
                self.job(at, Job::Execute(i, op, request));
            }
            Action::Store { op, request, .. } => {
                let reply = self.answer(i, request);
                self.processes[i]
                    .events
                    .push_back(Event::Reply { op, reply });
            }
            Action::Load {
                activation,
                shard,
                session,
                epoch,
                ..
            } => {
                self.claims.push((shard.clone(), epoch, session));
                let fails =
                    self.failing.contains(&shard) || self.failing_at.contains(&(i, shard.clone()));
                let process = &mut self.processes[i];
                process.runs.insert(activation, (shard, session));
                process.events.push_back(match fails {
                    true => Event::LoadFailed {
                        activation,
                        error: "no".to_owned(),
                    },
                    false => Event::Loaded(activation),
                });
            }
            Action::Warm {
                activation,
                shard,
                session,
                ..
            } => {
                self.warmed.push((i, shard.clone()));
                let fails = self.failing_at.contains(&(i, shard.clone()));
                let silent = self.hold_warm.contains(&shard);
                let process = &mut self.processes[i];
                process.runs.insert(activation, (shard, session));
                let error = "no".to_owned();
                match fails {
                    true => process
                        .events
                        .push_back(Event::LoadFailed { activation, error }),
                    false if silent => self.held.push((i, activation)),
                    false => process.events.push_back(Event::Loaded(activation)),
                }
            }
            Action::CatchUp { activation, seal } => {
                self.caught_up.push((i, seal));
                self.processes[i]
                    .events
                    .push_back(Event::CaughtUp(activation));
            }
            Action::Open(activation) | Action::Thaw(activation) => {
                self.processes[i].open.insert(activation);
            }
            Action::Freeze {
                activation,
                move_id,
                ..
            } => {
                self.processes[i].open.remove(&activation);
                let shard = self.processes[i].runs[&activation].0.clone();
                match self.hold_drain.contains(&shard) {
                    true => self.held.push((i, activation)),
                    false => self.processes[i].events.push_back(Event::Frozen {
                        activation,
                        move_id,
                    }),
                }
            }
            Action::Seal(activation) => {
                let seal = format!("sealed by {}", self.processes[i].name);
                let error = "no".to_owned();
                let shard = &self.processes[i].runs[&activation].0;
                let event = match self.unsealable.contains(shard) {
                    true => Event::SealFailed { activation, error },
                    false => Event::Sealed { activation, seal },
                };
                self.processes[i].events.push_back(event);
            }
            Action::Close { activation, .. } => {
                self.processes[i].open.remove(&activation);
                let shard = self.processes[i].runs[&activation].0.clone();
                if self.hold_drain.contains(&shard) {
                    self.held.push((i, activation));
                    return;
                }
                self.processes[i]
                    .events
                    .push_back(Event::Drained(activation));
            }
            Action::Lease {
                session, stop_time, ..
            } => {
                self.processes[i].closes_at.insert(session, stop_time);
            }
            _ => {}
        }
    }

    fn answer(&mut self, i: usize, request: Request) -> Reply {
        if let Some(reply) = self.cut_off(i, &request) {
            return reply;
        }
        match request {
            Request::Get(key) => Reply::Got(self.found(&key)),
            Request::Revision => Reply::Revision(Revision(self.revision)),
            Request::List => {
                self.processes[i].lists += 1;
                let entries = self
                    .store
                    .keys()
                    .map(|k| (k.clone(), self.found(k).unwrap()))
                    .collect();
                Reply::Listed(StoreListing {
                    entries,
                    revision: Revision(self.revision),
                    store: self.store_id.clone(),
                })
            }
            Request::Put {
                key,
                expect,
                record,
            } => {
                let unknown = match key {
                    Key::Shard(_) => self.unknown_puts.contains(&i),
                    Key::Session(_) => self.unknown_renewals.contains(&i),
                    _ => false,
                };
                if unknown {
                    self.late.push((
                        i,
                        Request::Put {
                            key,
                            expect,
                            record,
                        },
                    ));
                    return Reply::Failed(crate::machine::StoreFailure::Unknown("x".into()));
                }
                if let Some(left) = self.denied_puts.get_mut(&i).filter(|left| **left > 0) {
                    *left -= 1;
                    return Reply::Failed(crate::machine::StoreFailure::Denied("read only".into()));
                }
                if self.fail_shard_puts.contains(&i) && matches!(key, Key::Shard(_)) {
                    return Reply::Failed(crate::machine::StoreFailure::Unavailable("x".into()));
                }
                let there = self.store.get(&key).map(|(version, _)| version.clone());
                if expect != there.map_or(Expect::Absent, Expect::Version) {
                    return Reply::Lost;
                }
                if self.lacks_lease(&key, &record) {
                    return Reply::Failed(crate::machine::StoreFailure::Denied("no lease".into()));
                }
                self.writes += 1;
                let lease = record.lease(&key);
                let version = self.set(key.clone(), record.stored());
                self.attach(&key, lease);
                Reply::Won(version)
            }
            Request::CreateLease { .. } | Request::KeepAlive(_) | Request::CheckLease(_) => {
                self.lease_request(i, request)
            }
            Request::Delete { key, version } => {
                if self.store.get(&key).is_none_or(|(v, _)| *v != version) {
                    return Reply::Lost;
                }
                self.delete(key);
                Reply::Won(version)
            }
        }
    }

    fn found(&self, key: &Key) -> Option<Found> {
        self.store.get(key).map(|(version, record)| Found {
            version: version.clone(),
            record: record.clone(),
        })
    }

    fn set(&mut self, key: Key, record: Result<Record, RecordError>) -> Version {
        self.revision += 1;
        let version = Version::Number(self.revision);
        self.attach(&key, None);
        self.store.insert(key.clone(), (version.clone(), record));
        self.publish(key);
        version
    }

    fn publish(&mut self, key: Key) {
        let changes = vec![(key.clone(), self.found(&key))];
        for (i, process) in self.processes.iter_mut().enumerate() {
            if self.deaf.contains(&i) {
                continue;
            }
            let upto = Revision(self.revision);
            let event = Event::Changed {
                changes: changes.clone(),
                upto,
            };
            match self.latency.get(&i) {
                None => process.events.push_back(event),
                Some(latency) => {
                    self.job_count += 1;
                    self.jobs.insert(
                        (self.now + *latency / 2, self.job_count),
                        Job::Deliver(i, event),
                    );
                }
            }
        }
    }

    /// P1 at this instant.
    fn check(&mut self) {
        let mut open = BTreeSet::new();
        for process in self.processes.iter().filter(|p| p.alive) {
            for activation in &process.open {
                let (shard, session) = &process.runs[activation];
                if admits(true, self.now, process.closes_at[session]) && !open.insert(shard.clone())
                {
                    self.overlaps += 1;
                }
            }
        }
    }

    pub(super) fn count(&self) -> usize {
        self.processes.len()
    }

    pub(super) fn overlaps(&self) -> usize {
        self.overlaps
    }

    pub(super) fn send(&mut self, i: usize, event: Event) {
        self.processes[i].events.push_back(event);
    }

    pub(super) fn kill(&mut self, i: usize) {
        self.processes[i].alive = false;
    }

    pub(super) fn wedge(&mut self, i: usize) {
        self.processes[i].wedged = true;
    }

    pub(super) fn fail_loads_of(&mut self, id: &ShardId) {
        self.failing.insert(id.clone());
    }

    pub(super) fn delete(&mut self, key: Key) {
        self.revision += 1;
        self.store.remove(&key);
        self.attach(&key, None);
        self.publish(key);
    }

    pub(super) fn land(&mut self) {
        self.unknown_puts.clear();
        self.unknown_renewals.clear();
        for (i, request) in std::mem::take(&mut self.late) {
            self.answer(i, request);
        }
    }

    pub(super) fn wipe(&mut self) {
        let keys: Vec<_> = self.store.keys().cloned().collect();
        for key in keys {
            self.delete(key);
        }
    }

    pub(super) fn reset_store(&mut self) {
        self.store.clear();
        self.revision = 1;
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        self.store.keys().cloned().collect()
    }

    pub(super) fn raw(&self, key: &Key) -> Found {
        self.found(key).unwrap()
    }

    pub(super) fn raw_set(&mut self, key: Key, record: Record) -> Version {
        self.set(key, Ok(record))
    }

    /// Another value under the version that the key has: the store was put back and has come that far again.
    pub(super) fn replace(&mut self, key: Key, record: Record) {
        let version = self.raw(&key).version;
        self.store.insert(key.clone(), (version, Ok(record)));
        self.publish(key);
    }

    pub(super) fn corrupt(&mut self, key: Key) {
        self.set(key, Err(RecordError::Corrupt("garbage".to_owned())));
    }

    pub(super) fn keyspace_key(&self) -> Key {
        Key::Keyspace(KeyspaceName::new("orders").unwrap())
    }

    pub(super) fn edit_keyspace(&mut self, change: impl FnOnce(&mut KeyspaceRecord)) {
        let key = self.keyspace_key();
        let Some((_, Ok(Record::Keyspace(record)))) = self.store.get(&key) else {
            panic!("no keyspace")
        };
        let mut record = (**record).clone();
        record.head.rev += 1;
        change(&mut record);
        self.set(key, Ok(Record::Keyspace(Arc::new(record))));
    }

    pub(super) fn set_mode(&mut self, name: &str, mode: NodeMode) {
        self.edit_node(name, |record| record.mode = mode);
    }

    pub(super) fn edit_node(&mut self, name: &str, change: impl FnOnce(&mut NodeRecord)) {
        let key = Key::Node(NodeName::new(name).unwrap());
        let Some((_, Ok(Record::Node(record)))) = self.store.get(&key) else {
            panic!("no node")
        };
        let mut record = (**record).clone();
        record.head.rev += 1;
        change(&mut record);
        self.set(key, Ok(Record::Node(Arc::new(record))));
    }

    pub(super) fn edit_shard(&mut self, id: &ShardId, change: impl FnOnce(&mut ShardRecord)) {
        let mut record = self.shard(id).clone();
        record.head.rev += 1;
        change(&mut record);
        self.set(Key::Shard(id.clone()), Ok(Record::Shard(Arc::new(record))));
    }

    pub(super) fn damage(&mut self, key: Key, damage: RecordError) -> Version {
        self.set(key, Err(damage))
    }

    /// Reports this load for every shard that a process serves.
    pub(super) fn report_costs(&mut self, i: usize, load: impl Fn(&ShardId) -> u32) {
        let runs: Vec<_> = self.processes[i].open.iter().copied().collect();
        for activation in runs {
            let cost = load(&self.processes[i].runs[&activation].0);
            self.send(i, Event::Cost { activation, cost });
        }
    }

    pub(super) fn node(&self, i: usize) -> &Node {
        &self.processes[i].node
    }

    pub(super) fn log(&self, i: usize) -> &[Action] {
        &self.processes[i].log
    }

    pub(super) fn notes(&self, i: usize) -> impl Iterator<Item = &NodeEvent> {
        self.log(i).iter().filter_map(|a| match a {
            Action::Report(note) => Some(note),
            _ => None,
        })
    }

    pub(super) fn started(&self, i: usize) -> bool {
        self.log(i).contains(&Action::Started)
    }

    pub(super) fn refusal(&self, i: usize) -> Option<&Refusal> {
        self.log(i).iter().find_map(|a| match a {
            Action::Refused(refusal) => Some(refusal),
            _ => None,
        })
    }

    pub(super) fn served_by(&self, i: usize) -> BTreeSet<ShardId> {
        let process = &self.processes[i];
        let open = process
            .open
            .iter()
            .map(|activation| &process.runs[activation]);
        open.filter(|(_, session)| admits(true, self.now, process.closes_at[session]))
            .map(|(id, _)| id.clone())
            .collect()
    }

    pub(super) fn serving(&self, i: usize) -> usize {
        let served = self.served_by(i);
        for id in &served {
            let owner = self.shard(id).owner().unwrap();
            assert_eq!(
                owner.node, self.processes[i].name,
                "{id} is served by its owner"
            );
        }
        served.len()
    }

    pub(super) fn writes(&self) -> usize {
        self.writes
    }

    pub(super) fn lists(&self, i: usize) -> usize {
        self.processes[i].lists
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Record> {
        self.store
            .get(key)
            .and_then(|(_, record)| record.as_ref().ok())
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.store
            .values()
            .filter_map(|(_, record)| record.as_ref().ok())
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = &ShardRecord> {
        self.records().filter_map(|r| match r {
            Record::Shard(record) => Some(&**record),
            _ => None,
        })
    }

    pub(super) fn shard(&self, id: &ShardId) -> &ShardRecord {
        match self.get(&Key::Shard(id.clone())) {
            Some(Record::Shard(record)) => record,
            other => panic!("{id}: {other:?}"),
        }
    }

    pub(super) fn session(&self, id: SessionId) -> &SessionRecord {
        match self.get(&Key::Session(id)) {
            Some(Record::Session(record)) => record,
            other => panic!("{id}: {other:?}"),
        }
    }
}
