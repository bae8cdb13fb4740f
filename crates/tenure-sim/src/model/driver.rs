//! Carries out what machines want, exactly as the contract says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{Epoch, KeyspaceName, NodeName};
use tenure_core::keys::Key;
use tenure_core::machine::{
    Action, ActivationId, Close, Event, OpId, Reply, Request, StoreFailure,
};
use tenure_core::node::{Counters, KeyspaceConfig, Node, NodeConfig};
use tenure_core::record::{AssignedBy, KeyspaceKind, Role};
use tenure_core::router::{RecordVersion, ShardObservation as Seen};
use tenure_core::rules::Rules;
use tenure_core::time::Time;

use super::canonical::base;
use super::config::LastNodeKind;
use super::reachability::Sight;
use super::router::RouterProcess;
use super::state::{Activation, Lease, PendingStoreRequest, Process, State, UnansweredRequest};
use super::step_report::StepReport;
use super::timing::{REQUEST_TIMEOUT, shard, timing};
use crate::describe;
use crate::router::sessions_in;
use crate::world::named;

impl State {
    /// Starts a process in a seat.
    pub(crate) fn start(
        &mut self,
        n: usize,
        directory: bool,
        rules: Rules,
        telling: &mut StepReport,
    ) {
        let keyspace = KeyspaceConfig {
            kind: KeyspaceKind::Hashed(1),
            mode: AssignedBy::Rendezvous,
            plan: Default::default(),
            catches_up: false,
        };
        let seat = &mut self.seats[n];
        seat.incarnations += 1;
        if !directory {
            seat.directory = None;
        }
        let entropy = (n as u128 + 1) << 112 | u128::from(seat.incarnations) << 96;
        let config = NodeConfig {
            name: named(NodeName::new(format!("n{n}"))),
            role: match seat.part {
                _ if seat.router => Role::Router,
                LastNodeKind::Planner => Role::Planner,
                _ => Role::Node,
            },
            addresses: BTreeMap::new(),
            zone: None,
            weight: 100,
            labels: BTreeMap::new(),
            capacity: None,
            version: "model".to_owned(),
            keyspaces: match seat.part {
                _ if seat.router => BTreeMap::new(),
                LastNodeKind::Stranger | LastNodeKind::Planner => BTreeMap::new(),
                LastNodeKind::Elsewhere => {
                    let kind = KeyspaceKind::Named;
                    let other = named(KeyspaceName::new("elsewhere"));
                    [(other, KeyspaceConfig { kind, ..keyspace })].into()
                }
                LastNodeKind::Alike | LastNodeKind::Cordoned => {
                    [(shard().keyspace, keyspace)].into()
                }
            },
            timing: timing(),
            rules,
            policy: None,
            timekeeper: tenure_core::node::Timekeeper::Nodes,
            boot_id: None,
            entropy,
            last_session: seat.directory,
            rejoin: Default::default(),
            join: false,
            ephemeral: false,
        };
        let from = Counters {
            ops: base::OPS,
            runs: base::RUNS,
            nonces: base::NONCES,
        };
        seat.paused = false;
        seat.process = Some(Arc::new(Process {
            machine: Node::counting_from(Arc::new(config), from),
            entropy,
            wake: None,
            waiting: Vec::new(),
            stays: Vec::new(),
            leases: Vec::new(),
            inbox: Default::default(),
            desk: seat.router.then(|| RouterProcess::new(rules)),
            toks: Default::default(),
        }));
        self.step(n, Event::Tick, telling);
    }

    pub(super) fn process(&mut self, n: usize) -> Option<&mut Process> {
        self.seats[n].process.as_mut().map(Arc::make_mut)
    }

    /// Hands an event to a machine and carries out what it answers.
    pub(crate) fn step(&mut self, n: usize, event: Event, telling: &mut StepReport) {
        let now = self.seats[n].time(self.now);
        let settles = self.seats[n]
            .process
            .as_deref()
            .and_then(|p| unsettled(p, &event));
        if !matches!(event, Event::Tick | Event::Progress(_)) {
            telling.line(|| format!("n{n} {}", describe::event(&event)));
        }
        self.heard(n, &event, telling);
        let Some(process) = self.process(n) else {
            return;
        };
        let sessions = match &process.desk {
            Some(_) => sessions_in(&event),
            None => Vec::new(),
        };
        let step = process.machine.step(now, event);
        // A wake-up in the past comes a moment later.
        process.wake = step.wake.map(|at| at.max(now + Duration::from_nanos(1)));
        let first = process.waiting.len();
        if !sessions.is_empty() {
            self.sessions_seen(n, &sessions, now, telling);
        }
        for action in step.actions {
            self.act(n, action, now, telling);
        }
        let Some(process) = self.process(n) else {
            return;
        };
        if let Some((key, nonce)) = settles {
            let reads = process.waiting.iter_mut().skip(first);
            for waiting in reads.filter(|w| !w.write && w.key.as_ref() == Some(&key)) {
                waiting.settles = Some(nonce);
            }
        }
        process.toks = Default::default();
        self.check_gates();
    }

    fn heard(&mut self, n: usize, event: &Event, telling: &mut StepReport) {
        let Event::Reply { op, reply } = event else {
            return;
        };
        let Some(process) = self.process(n) else {
            return;
        };
        let Some(at) = process.waiting.iter().position(|w| w.op == *op) else {
            return;
        };
        let waited = process.waiting.remove(at);
        match (reply, waited.settles) {
            (Reply::Got(found), Some(nonce)) => {
                let own = found
                    .as_ref()
                    .and_then(|f| f.record.as_ref().ok())
                    .is_some_and(|r| r.head().nonce == nonce);
                telling.saw(if own {
                    Sight::UnknownOwn
                } else {
                    Sight::UnknownNot
                });
            }
            (Reply::Lost, _) => telling.saw(Sight::RaceLost),
            _ => {}
        }
    }

    fn act(&mut self, n: usize, action: Action, now: Time, telling: &mut StepReport) {
        match &action {
            Action::Report(note) => {
                telling.sights |= Sight::of(note);
                telling.line(|| format!("n{n} {}", describe::note(note)));
            }
            Action::Lease {
                stop_time,
                deadline,
                ..
            } => telling.line(|| {
                let (gates, end) = (stop_time.since(now), deadline.since(now));
                format!(
                    "n{n} -> its gates close in {}, its lease ends in {}",
                    gates.as_nanos(),
                    end.as_nanos()
                )
            }),
            Action::Seen { .. } => {}
            other => telling.line(|| format!("n{n} {}", describe::action(other))),
        }
        match action {
            Action::Store { op, request, .. } => self.send(n, op, request, now),
            Action::Remember(session) => self.seats[n].directory = Some(session),
            Action::Lease {
                session,
                stop_time,
                deadline,
            } => {
                if let Some(process) = self.process(n) {
                    let stays = std::mem::take(&mut process.stays);
                    process.leases.retain(|lease| {
                        lease.session != session && stays.iter().any(|s| s.session == lease.session)
                    });
                    process.stays = stays;
                    process.leases.push(Lease {
                        session,
                        closes_at: stop_time,
                        deadline,
                    });
                }
            }
            Action::Load {
                activation,
                epoch,
                session,
                ..
            } => {
                self.check_shown(epoch, session);
                let Some(process) = self.process(n) else {
                    return;
                };
                let busy = !process.stays.is_empty();
                process.stays.push(Activation {
                    activation,
                    epoch,
                    session,
                    loaded: false,
                    open: false,
                    closing: false,
                    frozen: None,
                });
                process.post(Event::Loaded(activation));
                if busy {
                    self.breach(
                        "A9",
                        "the shard is loaded while older work of it still runs",
                    );
                }
            }
            Action::Open(activation) => {
                let stay = self.process(n).and_then(|p| {
                    p.stays
                        .iter_mut()
                        .find(|stay| stay.activation == activation)
                });
                match stay {
                    Some(stay) if stay.loaded && !stay.closing => stay.open = true,
                    _ => self.breach(
                        "contract",
                        "a gate is opened that is not loaded, or is closed",
                    ),
                }
            }
            Action::Close { activation, how } => {
                if how == Close::Cancel {
                    self.fail_requests(n, Some(activation), telling);
                }
                let busy = self.is_busy(n, activation);
                let Some(process) = self.process(n) else {
                    return;
                };
                let Some(stay) = process
                    .stays
                    .iter_mut()
                    .find(|stay| stay.activation == activation)
                else {
                    return;
                };
                stay.open = false;
                if !std::mem::replace(&mut stay.closing, true) {
                    process
                        .inbox
                        .retain(|letter| *letter.event != Event::Loaded(activation));
                    if !busy {
                        process.post(Event::Drained(activation));
                    }
                }
            }
            Action::Warm {
                activation,
                epoch,
                session,
                ..
            } => {
                let Some(process) = self.process(n) else {
                    return;
                };
                process.stays.push(Activation {
                    activation,
                    epoch,
                    session,
                    loaded: false,
                    open: false,
                    closing: false,
                    frozen: None,
                });
                process.post(Event::Loaded(activation));
            }
            Action::CatchUp { activation, .. } => self.post(n, Event::CaughtUp(activation)),
            Action::Own { activation, epoch } => self.own(n, activation, epoch),
            Action::Freeze {
                activation,
                move_id,
                ..
            } => {
                self.set_open(n, activation, false);
                self.set_frozen(n, activation, Some(move_id));
                self.worked(n, activation);
            }
            Action::Thaw(activation) => {
                self.set_frozen(n, activation, None);
                self.set_open(n, activation, true);
            }
            Action::Seal(activation) => {
                if self.is_busy(n, activation) {
                    self.breach("P3", "a shard is sealed while a request is worked on");
                }
                let seal = String::new();
                self.post(n, Event::Sealed { activation, seal });
            }
            Action::Refused(_) | Action::Stopped => self.leave(n, telling),
            Action::Seen {
                owner,
                epoch,
                serving,
                moving,
                rev,
                ..
            } => {
                let sight = Seen {
                    mark: RecordVersion { epoch, rev },
                    owner: owner.map(|owner| owner.session),
                    serving,
                    moving,
                };
                self.router_sees(n, sight, now, telling);
            }
            Action::Report(_) | Action::Started => {}
        }
    }

    fn post(&mut self, n: usize, event: Event) {
        if let Some(process) = self.process(n) {
            process.post(event);
        }
    }

    fn set_open(&mut self, n: usize, activation: ActivationId, open: bool) {
        let stays = self.process(n).map(|p| &mut p.stays);
        let stay = stays.and_then(|s| s.iter_mut().find(|stay| stay.activation == activation));
        match stay {
            Some(stay) if stay.loaded && !stay.closing => stay.open = open,
            _ => self.breach("contract", "a gate is shut or opened that is closed"),
        }
    }

    fn set_frozen(&mut self, n: usize, activation: ActivationId, frozen: Option<u64>) {
        let stays = self.process(n).map(|p| &mut p.stays);
        if let Some(stay) =
            stays.and_then(|s| s.iter_mut().find(|stay| stay.activation == activation))
        {
            stay.frozen = frozen;
        }
    }

    /// Says that nothing is in flight, if that is so and being waited for.
    pub(super) fn worked(&mut self, n: usize, activation: ActivationId) {
        if self.is_busy(n, activation) {
            return;
        }
        let Some(process) = self.process(n) else {
            return;
        };
        let Some(stay) = process
            .stays
            .iter_mut()
            .find(|stay| stay.activation == activation)
        else {
            return;
        };
        if stay.closing {
            let told = Event::Drained(activation);
            if !process.inbox.iter().any(|letter| *letter.event == told) {
                process.post(told);
            }
        } else if let Some(move_id) = stay.frozen.take() {
            process.post(Event::Frozen {
                activation,
                move_id,
            });
        }
    }

    /// A successor owns what it has loaded.
    fn own(&mut self, n: usize, activation: ActivationId, epoch: Epoch) {
        let stays = self.process(n).map(|p| &mut p.stays);
        if let Some(stay) =
            stays.and_then(|s| s.iter_mut().find(|stay| stay.activation == activation))
        {
            stay.epoch = epoch;
            let session = stay.session;
            self.check_shown(epoch, session);
        }
    }

    /// A process that says that it owns nothing leaves.
    fn leave(&mut self, n: usize, telling: &mut StepReport) {
        let open = self
            .process(n)
            .is_some_and(|p| p.stays.iter().any(|stay| stay.open));
        if open {
            self.breach("P1", "a process leaves with its gate open");
        }
        self.die(n, telling);
    }

    /// A process is gone. What it sent may still arrive.
    pub(crate) fn die(&mut self, n: usize, telling: &mut StepReport) {
        self.fail_requests(n, None, telling);
        let seat = &mut self.seats[n];
        seat.paused = false;
        seat.process = None;
        for sent in self.requests.iter_mut().filter(|sent| sent.seat == n) {
            sent.late = true;
        }
    }

    fn send(&mut self, n: usize, op: OpId, request: Request, now: Time) {
        let (key, write, nonce) = match &request {
            Request::Put { key, record, .. } => {
                (Some(key.clone()), true, Some(record.head().nonce))
            }
            Request::Delete { key, .. } => (Some(key.clone()), true, None),
            Request::Get(key) => (Some(key.clone()), false, None),
            _ => (None, false, None),
        };
        let until = now + REQUEST_TIMEOUT;
        let Some(process) = self.process(n) else {
            return;
        };
        process.waiting.push(UnansweredRequest {
            op,
            key,
            write,
            until,
            nonce,
            settles: None,
        });
        let entropy = process.entropy;
        self.requests.push(PendingStoreRequest {
            seat: n,
            entropy,
            op,
            request: Arc::new(request),
            late: false,
        });
    }

    /// The first request of a process whose time is over, or else the time itself.
    pub(crate) fn wake(&mut self, n: usize, telling: &mut StepReport) {
        let now = self.seats[n].time(self.now);
        let Some(process) = self.seats[n].process.as_deref() else {
            return;
        };
        let router = process.desk.as_ref().and_then(RouterProcess::wake);
        if router.is_some_and(|at| at <= now) {
            return self.router_tick(n, telling);
        }
        let event = match process.waiting.iter().find(|w| w.until <= now) {
            Some(waiting) => {
                let failure = if waiting.write {
                    StoreFailure::Unknown("timed out".to_owned())
                } else {
                    StoreFailure::Unavailable("timed out".to_owned())
                };
                Event::Reply {
                    op: waiting.op,
                    reply: Reply::Failed(failure),
                }
            }
            None => Event::Progress(now),
        };
        self.step(n, event, telling);
    }

    /// Hands a letter of the inbox to the machine.
    pub(crate) fn hear(&mut self, n: usize, letter: usize, telling: &mut StepReport) {
        let Some(letter) = self.process(n).and_then(|p| p.inbox.remove(letter)) else {
            return;
        };
        let event = Arc::unwrap_or_clone(letter.event);
        if let Some(process) = self.process(n) {
            match &event {
                Event::Reply { op, .. } if !process.waits_for(*op) => return,
                Event::Loaded(activation) => {
                    for stay in process
                        .stays
                        .iter_mut()
                        .filter(|stay| stay.activation == *activation)
                    {
                        stay.loaded = true;
                    }
                }
                Event::Drained(activation) => {
                    process.stays.retain(|stay| stay.activation != *activation)
                }
                _ => {}
            }
        }
        self.step(n, event, telling);
    }
}

/// The key and mark of a write, if this event says that its outcome is unknown.
fn unsettled(process: &Process, event: &Event) -> Option<(Key, tenure_core::ids::Nonce)> {
    let Event::Reply {
        op,
        reply: Reply::Failed(StoreFailure::Unknown(_)),
    } = event
    else {
        return None;
    };
    let waiting = process.waiting.iter().find(|w| w.op == *op)?;
    Some((waiting.key.clone()?, waiting.nonce?))
}
