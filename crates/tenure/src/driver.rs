//! The one driver loop: hands events to the node machine and carries out what it says, in order. Decides nothing.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{Epoch, KeyspaceName, SessionId, ShardId};
use tenure_core::keys::Key;
use tenure_core::machine::{Action, ActivationId, Close, Event, Refusal, Reply, Step};
use tenure_core::node::Node as Machine;
use tenure_core::router::{RecordVersion, ShardObservation};
use tenure_core::telemetry::NodeEvent;
use tenure_core::time::Time;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::AbortHandle;
use tracing::warn;

use crate::gate::LeaseCell;
use crate::handler_task::{AnyHandler, TaskContext};
use crate::local_shard::{ActivationCommand, ActivationStart, LocalShard};
use crate::metrics::Metrics;
use crate::router::RouterInput;
use crate::shard_table::{OwnerInfo, ShardTable};
use crate::store_error_log::StoreErrorLog;
use crate::store_io::StoreIo;
use crate::trace_writer::TraceWriter;

/// A machine that asks to be woken at once, again and again, must not keep the others of its thread from running.
const BREATH: Duration = Duration::from_millis(1);

/// What reaches the driver.
pub(crate) enum DriverInput {
    /// Something for the machine.
    Event(Event),
    /// Nothing is left of this stay.
    Ended(ActivationId),
    /// The node was dropped: stop without any ceremony.
    Abandon,
}

/// The way to the driver: one line for what keeps the session alive, and one for everything else. What the lease depends on
/// must not wait behind the answers for a hundred thousand shards.
#[derive(Clone)]
pub(crate) struct DriverSender {
    express: mpsc::UnboundedSender<DriverInput>,
    ordinary: mpsc::UnboundedSender<DriverInput>,
}

/// Where the driver hears them.
pub(crate) struct DriverReceiver {
    express: mpsc::UnboundedReceiver<DriverInput>,
    ordinary: mpsc::UnboundedReceiver<DriverInput>,
}

impl DriverSender {
    pub(crate) fn channel() -> (Self, DriverReceiver) {
        let (express, express_heard) = mpsc::unbounded_channel();
        let (ordinary, ordinary_heard) = mpsc::unbounded_channel();
        let heard = DriverReceiver {
            express: express_heard,
            ordinary: ordinary_heard,
        };
        (Self { express, ordinary }, heard)
    }

    pub(crate) fn send(&self, input: DriverInput) {
        let line = match input {
            DriverInput::Abandon => &self.express,
            _ => &self.ordinary,
        };
        // A driver that is gone has closed every gate; nothing is left to be told.
        let _ = line.send(input);
    }

    pub(crate) fn event(&self, event: Event) {
        self.send(DriverInput::Event(event));
    }

    /// Tells what the lease depends on: ahead of everything that waits.
    pub(crate) fn express(&self, event: Event) {
        let _ = self.express.send(DriverInput::Event(event));
    }
}

impl DriverReceiver {
    /// What is there already: what the lease depends on, or else, if `any`, whatever comes first.
    fn waiting(&mut self, any: bool) -> Option<DriverInput> {
        let express = self.express.try_recv().ok();
        express.or_else(|| any.then(|| self.ordinary.try_recv().ok()).flatten())
    }

    async fn next(&mut self) -> Option<DriverInput> {
        tokio::select! {
            biased;
            input = self.express.recv() => input,
            input = self.ordinary.recv() => input,
        }
    }
}

/// How a node stands as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeLifecycle {
    Starting,
    Running,
    Refused(Refusal),
    Stopped,
    /// The driver is gone although nobody asked it to stop in good order.
    Gone,
}

impl NodeLifecycle {
    pub(crate) fn is_over(&self) -> bool {
        !matches!(self, Self::Starting | Self::Running)
    }
}

/// What a driver is made of.
pub(crate) struct DriverParts {
    pub(crate) machine: Machine,
    pub(crate) ground: TaskContext,
    pub(crate) handlers: BTreeMap<KeyspaceName, Arc<dyn AnyHandler>>,
    pub(crate) board: Arc<ShardTable>,
    pub(crate) io: StoreIo,
    pub(crate) inputs: DriverReceiver,
    pub(crate) life: Arc<watch::Sender<NodeLifecycle>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) trouble: Arc<StoreErrorLog>,
    pub(crate) notes: broadcast::Sender<Arc<NodeEvent>>,
    /// Writes every step down, if that was asked for.
    pub(crate) trace: Option<TraceWriter>,
    /// The router that this is the driver of.
    pub(crate) router: Option<mpsc::UnboundedSender<RouterInput>>,
    pub(crate) _heartbeat: RuntimeHeartbeat,
}

/// The sign of life from the application's runtime. Ends when dropped.
pub(crate) struct RuntimeHeartbeat(AbortHandle);

impl RuntimeHeartbeat {
    /// Begins to tell the machine, every so often, that the application's runtime runs tasks.
    pub(crate) fn begin(ground: &TaskContext, every: Duration) -> Self {
        let (inputs, clock) = (ground.inputs.clone(), ground.clock.clone());
        let task = ground.application.spawn(async move {
            loop {
                inputs.express(Event::Progress(clock.now()));
                clock.sleep(every).await;
            }
        });
        Self(task.abort_handle())
    }
}

impl Drop for RuntimeHeartbeat {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The driver.
pub(crate) struct Driver {
    parts: DriverParts,
    wake: Option<Time>,
    /// The last event was a wake-up.
    ticked: bool,
    pending: VecDeque<Event>,
    stays: HashMap<ActivationId, Arc<LocalShard>>,
    leases: HashMap<SessionId, Arc<LeaseCell>>,
    ending: Option<NodeLifecycle>,
}

impl Driver {
    pub(crate) fn new(parts: DriverParts) -> Self {
        Self {
            parts,
            wake: None,
            ticked: false,
            pending: VecDeque::from([Event::Tick]),
            stays: HashMap::new(),
            leases: HashMap::new(),
            ending: None,
        }
    }

    /// Runs until the node is over, and says so only when nothing of the driver is left.
    pub(crate) async fn run(self) {
        let mut last_words = LastWords {
            metrics: self.parts.metrics.clone(),
            life: self.parts.life.clone(),
            ending: NodeLifecycle::Gone,
        };
        last_words.ending = self.drive().await;
    }

    async fn drive(mut self) -> NodeLifecycle {
        loop {
            let event = match self.pending.pop_front() {
                Some(event) => event,
                None => match self.next().await {
                    Some(event) => event,
                    None => return NodeLifecycle::Gone,
                },
            };
            let keys = keys_in(&event);
            let step = self.step(event);
            for (key, present) in &keys {
                self.learn(key, *present);
            }
            self.carry_out(step);
            if let Some(ending) = self.ending.take() {
                return ending;
            }
        }
    }

    fn step(&mut self, event: Event) -> Step {
        let now = self.now();
        let Some(trace) = &mut self.parts.trace else {
            return self.parts.machine.step(now, event);
        };
        let told = event.clone();
        let step = self.parts.machine.step(now, event);
        trace.stepped(now, told, &step);
        step
    }

    fn now(&self) -> Time {
        self.parts.ground.clock.now()
    }

    /// The next event; `None` once the node was dropped.
    ///
    /// What the lease depends on comes first. A machine whose next wake-up is always due lets one input pass for each.
    async fn next(&mut self) -> Option<Event> {
        let clock = self.parts.ground.clock.clone();
        loop {
            let due = self.wake.is_some_and(|wake| self.now() >= wake);
            let waiting = match due {
                true => self.parts.inputs.waiting(std::mem::take(&mut self.ticked)),
                false => None,
            };
            let input = match waiting {
                Some(input) => input,
                None if due => {
                    (self.wake, self.ticked) = (None, true);
                    tokio::task::yield_now().await;
                    return Some(Event::Tick);
                }
                None => {
                    let wake = self.wake.unwrap_or(Time::NEVER);
                    tokio::select! {
                        biased;
                        input = self.parts.inputs.next() => input?,
                        () = clock.sleep_until(wake) => continue,
                    }
                }
            };
            match input {
                DriverInput::Event(event) => return Some(event),
                DriverInput::Ended(activation) => {
                    if let Some(event) = self.ended(activation) {
                        return Some(event);
                    }
                }
                DriverInput::Abandon => return None,
            }
        }
    }

    fn carry_out(&mut self, step: Step) {
        let mut actions = step.actions;
        for action in actions.drain(..) {
            self.act(action);
        }
        self.parts.machine.give_back(actions);
        self.parts.io.flush();
        let soonest = self.now() + BREATH;
        self.wake = step.wake.map(|wake| wake.max(soonest));
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Store {
                op,
                connection: lane,
                request,
            } => self.parts.io.ask(op, lane, request),
            Action::Remember(session) => self.remember(session),
            Action::Lease {
                session,
                stop_time,
                deadline,
            } => {
                self.lease(session).extend(stop_time, deadline);
                self.parts.metrics.deadline(deadline);
            }
            Action::Load {
                activation,
                shard,
                epoch,
                session,
                meta,
            } => self.begin(activation, shard, epoch, session, meta, true),
            Action::Warm {
                activation,
                shard,
                epoch,
                session,
                meta,
            } => self.begin(activation, shard, epoch, session, meta, false),
            Action::CatchUp { activation, seal } => {
                self.on_stay(activation, |s| s.order(ActivationCommand::CatchUp(seal)))
            }
            Action::Own { activation, epoch } => self.on_stay(activation, |s| s.own(epoch)),
            Action::Freeze {
                activation,
                move_id,
                cancel_at: cut_at,
            } => self.on_stay(activation, |s| s.freeze(move_id, cut_at)),
            Action::Thaw(activation) => self.on_stay(activation, LocalShard::thaw),
            Action::Seal(activation) => {
                self.on_stay(activation, |s| s.order(ActivationCommand::Seal))
            }
            Action::Open(activation) => self.on_stay(activation, LocalShard::open),
            Action::Close { activation, how } => self.close(activation, how),
            Action::Seen {
                shard,
                owner,
                epoch,
                serving,
                moving,
                rev,
            } => {
                let mark = RecordVersion { epoch, rev };
                let sight = ShardObservation {
                    mark,
                    owner: owner.as_ref().map(|owner| owner.session),
                    serving,
                    moving,
                };
                self.tell_router(|| RouterInput::Shard {
                    shard: shard.clone(),
                    owner: owner.clone(),
                    sight,
                });
                let seen = OwnerInfo {
                    owner,
                    epoch,
                    serving,
                    rev,
                };
                self.parts.board.seen(&shard, seen);
            }
            Action::Report(note) => self.tell(note),
            Action::Started => {
                self.parts.life.send_replace(NodeLifecycle::Running);
            }
            Action::Refused(refusal) => self.ending = Some(NodeLifecycle::Refused(refusal)),
            Action::Stopped => self.ending = Some(NodeLifecycle::Stopped),
        }
    }

    fn on_stay(&self, activation: ActivationId, order: impl FnOnce(&LocalShard)) {
        if let Some(stay) = self.stays.get(&activation) {
            order(stay);
        }
    }

    fn remember(&self, session: SessionId) {
        let Some(dir) = &self.parts.ground.data_dir else {
            return;
        };
        if let Err(error) = dir.remember(session) {
            // What it costs is a wait for the ttl at the next start.
            warn!(%session, %error, "writing the session to the data directory failed, the next start has to wait for the ttl");
        }
    }

    /// The cell of a session's lease. Cells of sessions that nothing refers to any more go.
    fn lease(&mut self, session: SessionId) -> Arc<LeaseCell> {
        if !self.leases.contains_key(&session) {
            self.leases.retain(|_, cell| Arc::strong_count(cell) > 1);
        }
        self.leases.entry(session).or_default().clone()
    }

    /// Has the application load a shard: one that is owned, or one that another node still serves.
    fn begin(
        &mut self,
        activation: ActivationId,
        shard: ShardId,
        epoch: Epoch,
        session: SessionId,
        meta: Option<String>,
        owned: bool,
    ) {
        let lease = self.lease(session);
        let begin = ActivationStart {
            run: activation,
            shard,
            epoch,
            session,
            meta,
            lease,
            owned,
        };
        let Some(handler) = self.parts.handlers.get(&begin.shard.keyspace) else {
            let error = format!(
                "this node has no handler for keyspace {}",
                begin.shard.keyspace
            );
            self.pending
                .push_back(Event::LoadFailed { activation, error });
            return;
        };
        let stay = handler.begin(begin, &self.parts.ground);
        self.parts.board.began(&stay);
        self.stays.insert(activation, stay);
    }

    fn close(&mut self, activation: ActivationId, how: Close) {
        match self.stays.get(&activation) {
            Some(stay) => {
                stay.close(how);
                self.parts.board.ended(&stay.shard, activation);
            }
            // It ended by itself before, as after a failed load.
            None => self.pending.push_back(Event::Drained(activation)),
        }
    }

    /// Forgets a stay of which nothing is left. Tells the machine if it asked for that.
    fn ended(&mut self, activation: ActivationId) -> Option<Event> {
        let stay = self.stays.remove(&activation)?;
        self.parts.board.ended(&stay.shard, activation);
        stay.gate.is_closed().then_some(Event::Drained(activation))
    }

    fn tell(&mut self, note: NodeEvent) {
        self.parts.trouble.log(&note);
        self.parts.metrics.note(&note);
        if matches!(note, NodeEvent::Renewed { .. }) {
            self.parts.metrics.waiting(&self.parts.machine.waiting());
        }
        // Nobody has to listen.
        let _ = self.parts.notes.send(Arc::new(note));
    }

    /// Takes over what the machine's view says of a session or a keyspace, after an event that brought its record.
    ///
    /// The view decides what is newer, not the message: after a store was restored, a record may lawfully be older.
    fn learn(&self, key: &Key, present: bool) {
        let view = self.parts.machine.view();
        match key {
            Key::Session(session) => {
                let record = view.sessions.get(session);
                let live = record.filter(|r| r.is_live());
                let addresses = live.filter(|_| present).map(|r| &r.addresses);
                let news = self.parts.board.addresses_of(*session, addresses);
                // A record that is gone or cannot be read says nothing about the session.
                if news && present && record.is_some() {
                    self.tell_router(|| RouterInput::Session {
                        session: *session,
                        at: live.map(|r| (r.node.clone(), r.addresses.clone())),
                    });
                }
            }
            Key::Keyspace(name) => {
                if let Some(record) = view.keyspaces.get(name) {
                    self.tell_router(|| RouterInput::Keyspace {
                        name: name.clone(),
                        kind: (!record.deleted).then_some(record.kind),
                    });
                }
            }
            _ => {}
        }
    }

    fn tell_router(&self, told: impl FnOnce() -> RouterInput) {
        if let Some(router) = &self.parts.router {
            // One that is gone needs to know nothing.
            let _ = router.send(told());
        }
    }
}

/// The sessions and keyspaces whose records an event brings, and whether each has a value there.
fn keys_in(event: &Event) -> Vec<(Key, bool)> {
    let wanted = |key: &Key| matches!(key, Key::Session(_) | Key::Keyspace(_));
    match event {
        Event::Reply {
            reply: Reply::Listed(listed),
            ..
        } => {
            let keys = listed.entries.iter().map(|(key, _)| key);
            let wanted = keys.filter(|key| wanted(key));
            wanted.map(|key| (key.clone(), true)).collect()
        }
        Event::Changed { changes, .. } => {
            let wanted = changes.iter().filter(|(key, _)| wanted(key));
            wanted
                .map(|(key, found)| (key.clone(), found.is_some()))
                .collect()
        }
        _ => Vec::new(),
    }
}

impl Drop for Driver {
    /// However the driver ends, no work outlives it for longer than it takes to drop.
    fn drop(&mut self) {
        for stay in self.stays.values() {
            stay.close(Close::Cancel);
            self.parts.board.ended(&stay.shard, stay.run);
        }
        let now = self.now();
        if let Some(trace) = &mut self.parts.trace {
            trace.ended(now);
        }
    }
}

/// Publishes how the node ended, also when the driver panicked.
struct LastWords {
    metrics: Arc<Metrics>,
    life: Arc<watch::Sender<NodeLifecycle>>,
    ending: NodeLifecycle,
}

impl Drop for LastWords {
    fn drop(&mut self) {
        self.metrics.over();
        self.life.send_replace(self.ending.clone());
    }
}
