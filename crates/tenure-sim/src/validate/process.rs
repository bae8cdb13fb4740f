//! One process: hands its steps, one by one, to whoever checks something about them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_core::ids::{ClusterName, Version};
use tenure_core::keys::Key;
use tenure_core::machine::{Action, Event, Expect, Found, LeaseState, OpId, Reply, Request};
use tenure_core::reason::Reason;
use tenure_core::record::Record;
use tenure_core::telemetry::NodeEvent;
use tenure_core::time::Time;
use tenure_core::trace_format::{TraceBegin, TraceLine, TraceStep};

use super::cluster::{ClockName, ClockReading, Cluster};
use super::driver_contract::{Asked, DriverContractChecker};
use super::gates::Gates;
use super::replay::{self, Replay};
use super::report::{CheckKind, FindingSink, TracePosition};
use super::shards::KnownShards;

/// A process whose trace is being read.
pub(super) struct Process {
    cluster: ClusterName,
    clock: ClockName,
    name: String,
    n: u64,
    t: Time,
    wake: Option<Time>,
    life: Life,
    replay: Replay,
    conduct: DriverContractChecker,
    known: KnownShards,
    gates: Gates,
    /// Which transitions the writes under way are.
    writing: BTreeMap<OpId, &'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Going,
    Ended,
    /// What comes after is not known, or cannot be told from the rest.
    Lost,
}

impl Process {
    pub(super) fn begin(place: TracePosition, begin: TraceBegin, sink: &mut FindingSink) -> Self {
        let node = begin.config.name.clone();
        sink.report.processes += 1;
        sink.report.nodes.insert(node.to_string());
        // A clock without a name is nobody else's.
        let clock = begin.clock.clone().unwrap_or_else(|| place.to_string());
        Self {
            cluster: begin.cluster.clone(),
            clock: clock.into(),
            name: format!("node {node}, process {}", begin.process),
            n: 0,
            t: Time::ZERO,
            wake: None,
            life: Life::Going,
            replay: Replay::begin(&begin),
            conduct: DriverContractChecker::default(),
            known: KnownShards::new(node.clone()),
            gates: Gates::new(node),
            writing: BTreeMap::new(),
        }
    }

    pub(super) fn cluster(&self) -> &ClusterName {
        &self.cluster
    }

    pub(super) fn line(
        &mut self,
        place: TracePosition,
        line: TraceLine,
        cluster: &mut Cluster,
        sink: &mut FindingSink,
    ) {
        match (self.life, line) {
            (Life::Lost, _) | (_, TraceLine::Begin(_)) => {}
            (Life::Ended, _) => sink.found(
                &place,
                CheckKind::Trace,
                "the trace has a line after its `end` line",
            ),
            (Life::Going, TraceLine::Step(step)) => self.step(&place, &step, cluster, sink),
            (Life::Going, TraceLine::Gap(gap)) => {
                let what = format!(
                    "{place}: {}, from step {} on: {}",
                    self.name, gap.n, gap.reason
                );
                sink.report.gaps.push(what);
                self.life = Life::Lost;
            }
            (Life::Going, TraceLine::End(end)) => {
                self.pass(&place, end.t, sink);
                self.life = Life::Ended;
            }
        }
    }

    /// Nothing more comes of this process.
    pub(super) fn end(self, cluster: &mut Cluster, sink: &mut FindingSink) {
        if self.life == Life::Going {
            sink.report.cut_off += 1;
        }
        sink.report.unanswered += self.conduct.unanswered() as u64;
        cluster.opened(&self.clock, self.gates.end(self.t));
    }

    fn pass(&mut self, place: &TracePosition, t: Time, sink: &mut FindingSink) {
        if t < self.t {
            let what = format!("the clock of the process decreased from {} to {t}", self.t);
            sink.found(place, CheckKind::Driver, what);
        }
        if let Some(wake) = self.wake {
            sink.longest_wake_delay = sink.longest_wake_delay.max(t.since(wake));
        }
        self.t = self.t.max(t);
    }

    fn step(
        &mut self,
        place: &TracePosition,
        step: &TraceStep,
        cluster: &mut Cluster,
        sink: &mut FindingSink,
    ) {
        if step.n != self.n + 1 {
            let what = format!(
                "step {} follows step {}: steps are missing, the rest of the trace of this process is not checked",
                step.n, self.n
            );
            sink.found(place, CheckKind::Trace, what);
            self.life = Life::Lost;
            return;
        }
        self.n = step.n;
        self.pass(place, step.t, sink);
        self.wake = step.wake;
        sink.report.steps += 1;
        FindingSink::count(&mut sink.report.events, replay::kind(&step.event));
        match self.replay.step(step) {
            Ok(same) => sink.report.replayed += u64::from(same),
            Err(what) => sink.found(place, CheckKind::Replay, what),
        }
        match self.conduct.heard(step) {
            Ok(asked) => self.heard(place, &step.event, asked, cluster, sink),
            Err(what) => sink.found(place, CheckKind::Driver, what),
        }
        for action in &step.actions {
            self.conduct.told(step.t, action);
            self.gates.act(step.t, place, action);
            self.did(place, action, cluster, sink);
        }
    }

    fn at(&self, t: Time) -> ClockReading {
        ClockReading {
            clock: Arc::clone(&self.clock),
            t,
        }
    }

    fn heard(
        &mut self,
        place: &TracePosition,
        event: &Event,
        asked: Option<Asked>,
        cluster: &mut Cluster,
        sink: &mut FindingSink,
    ) {
        match (event, asked) {
            (Event::Changed { changes, .. }, _) => {
                for (key, found) in changes {
                    if let Some(found) = found {
                        self.found(place, key, found, cluster, sink);
                    }
                }
            }
            (Event::Reply { op, reply }, Some(asked)) => {
                sink.longest_answer = sink.longest_answer.max(self.t.since(asked.at));
                let kind = self.writing.remove(op);
                match (asked.request, reply) {
                    (Request::Get(key), Reply::Got(Some(found))) => {
                        self.found(place, &key, found, cluster, sink);
                    }
                    (_, Reply::Listed(listed)) => {
                        for (key, found) in &listed.entries {
                            self.found(place, key, found, cluster, sink);
                        }
                    }
                    (Request::KeepAlive(session), Reply::KeptAlive(LeaseState::Alive(_))) => {
                        cluster.kept(session, self.at(asked.at), place);
                    }
                    (put @ Request::Put { .. }, Reply::Won(version)) => {
                        if let Some(kind) = kind {
                            FindingSink::count(&mut sink.report.writes, kind);
                            sink.report.failovers += u64::from(is_failover(kind, &put));
                        }
                        self.won(place, put, version, asked.at, cluster, sink);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// A write of this process stands.
    fn won(
        &mut self,
        place: &TracePosition,
        put: Request,
        version: &Version,
        asked: Time,
        cluster: &mut Cluster,
        sink: &mut FindingSink,
    ) {
        let Request::Put {
            key,
            expect,
            record,
        } = put
        else {
            return;
        };
        match (&key, &record, &expect) {
            (Key::Shard(id), _, Expect::Version(old)) => {
                cluster.replaced(id, old, version, place, sink);
            }
            (Key::Session(id), Record::Session(record), _) => {
                // A tombstone without proof is no end: the holder may write over it.
                if let Some(ended) = record.ended.filter(|_| record.is_proven_end()) {
                    let (asked, now) = (self.at(asked), self.at(self.t));
                    cluster.buried(*id, ended.reason, asked, now, place);
                }
            }
            _ => {}
        }
        let won = Found {
            version: version.clone(),
            record: Ok(record),
        };
        self.found(place, &key, &won, cluster, sink);
    }

    /// A value is known to be, or to have been, in the store.
    fn found(
        &mut self,
        place: &TracePosition,
        key: &Key,
        found: &Found,
        cluster: &mut Cluster,
        sink: &mut FindingSink,
    ) {
        match (key, &found.record) {
            (Key::Shard(id), record) => {
                self.known.shard(id, found);
                if let Ok(Record::Shard(record)) = record {
                    cluster.shard(id, &found.version, record, place, sink);
                }
            }
            (Key::Session(id), Ok(Record::Session(record))) => {
                if record.is_proven_end() {
                    self.known.ended(*id);
                }
                cluster.session(*id, &found.version, record, place);
            }
            _ => {}
        }
    }

    fn did(
        &mut self,
        place: &TracePosition,
        action: &Action,
        cluster: &mut Cluster,
        sink: &mut FindingSink,
    ) {
        match action {
            Action::Remember(session) => self.known.act_for(*session),
            Action::Lease {
                session, deadline, ..
            } => cluster.leased(*session, self.at(*deadline), place),
            Action::Load {
                shard,
                epoch,
                session,
                ..
            } => cluster.loaded(shard, *epoch, *session, place),
            Action::Report(NodeEvent::Shard(transition)) => {
                FindingSink::count(&mut sink.report.transitions, transition.step.as_str());
            }
            Action::Store {
                op,
                request:
                    Request::Put {
                        key: Key::Shard(id),
                        expect,
                        record: Record::Shard(record),
                    },
                ..
            } => match self.known.transition(id, expect, record) {
                Ok(kind) => drop(self.writing.insert(*op, kind)),
                Err(what) => sink.found(place, CheckKind::Record, what),
            },
            _ => {}
        }
    }
}

/// Whether a write takes a shard from an owner whose session has ended.
fn is_failover(kind: &str, put: &Request) -> bool {
    match put {
        Request::Put {
            record: Record::Shard(record),
            ..
        } => {
            let reason = record.history.last().map(|past| past.reason);
            kind == "claim" && reason == Some(Reason::OwnerEnded)
        }
        _ => false,
    }
}
