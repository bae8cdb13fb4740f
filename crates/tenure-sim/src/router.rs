//! A simulated router: the machines that ship (`tenure_core::router`), and a transport whose requests wait as numbers.
//!
//! What the real driver does with atomics and tasks happens here in one thread: a request arrives, is counted in and passes or
//! waits; whoever may go is sent over a simulated network; reports reach the machine at once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tenure_core::ids::{SessionId, ShardId};
use tenure_core::keys::Key;
use tenure_core::machine::{Event as NodeEvent, Reply};
use tenure_core::router::hold_queue::{ArrivalNo, FlightCounter, FlushMode, HoldQueue};
use tenure_core::router::{
    Action, Event, HoldLimits, OwnerSessionState, RecordVersion, RefusalDecision, RequestRefusal,
    RouterMachine, ShardObservation,
};
use tenure_core::rules::Rules;

use crate::check::CheckResult;
use crate::check::requests::Failure;
use crate::clients::{Req, Stage};
use crate::clock::Instant;
use crate::event_queue::{Pid, ScheduledEvent};
use crate::run_config::nanos;
use crate::world::World;

/// Something that a line tells.
#[derive(Debug)]
enum TransportReport {
    Go(Req, bool),
    Drained(u64),
    Untried,
}

/// Where the requests of one shard come and go.
#[derive(Debug, Default)]
struct ShardTransport {
    held: Cell<bool>,
    in_flight: Cell<u64>,
    arrivals: Cell<u64>,
    shard: usize,
    /// What all shards of the router have told.
    told: Heard,
}

type Heard = Rc<RefCell<Vec<(usize, TransportReport)>>>;

impl ShardTransport {
    fn tell(&self, told: TransportReport) {
        self.told.borrow_mut().push((self.shard, told));
    }

    /// Counts a request in and numbers it; says whether it passes.
    fn arrive(&self) -> (ArrivalNo, bool) {
        let number = self.arrivals.replace(self.arrivals.get() + 1);
        self.count_in();
        (ArrivalNo::new(number), !self.held.get())
    }

    fn count_out(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
    }
}

impl FlightCounter for ShardTransport {
    type Waiter = Req;
    type Drained = u64;
    type Trial = ();

    fn hold(&self) {
        self.held.set(true);
    }

    fn open(&self) {
        self.held.set(false);
    }

    fn count_in(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    fn in_flight(&self) -> u64 {
        self.in_flight.get()
    }

    fn go(&self, waiter: Req, trial: Option<()>) {
        self.tell(TransportReport::Go(waiter, trial.is_some()));
    }

    fn drained(&self, hold: u64) {
        self.tell(TransportReport::Drained(hold));
    }

    fn untried(&self, (): ()) {
        self.tell(TransportReport::Untried);
    }
}

#[derive(Debug)]
struct Shard {
    post: ShardTransport,
    lines: HoldQueue<ShardTransport>,
    /// The owner, or the last one, and how new that is.
    route: (Option<SessionId>, RecordVersion),
}

impl Shard {
    fn new(rules: Rules, shard: usize, told: Heard) -> Self {
        let post = ShardTransport {
            held: Cell::new(true),
            shard,
            told,
            ..ShardTransport::default()
        };
        Self {
            post,
            lines: HoldQueue::new(rules),
            route: (None, RecordVersion::default()),
        }
    }
}

/// What a router process has beside its node machine.
#[derive(Debug)]
pub(crate) struct RouterProcess {
    keeper: RouterMachine<usize>,
    shards: BTreeMap<usize, Shard>,
    limits: HoldLimits,
    rules: Rules,
    told: Heard,
    /// How many wait, and how large they are.
    held: (u64, u64),
    /// It was asked to stop, and has told its node machine so.
    stopping: Option<bool>,
    tick_at: Instant,
}

impl RouterProcess {
    pub(crate) fn new(rules: Rules, limits: HoldLimits) -> Self {
        Self {
            keeper: RouterMachine::new(rules),
            shards: BTreeMap::new(),
            limits,
            rules,
            told: Heard::default(),
            held: (0, 0),
            stopping: None,
            tick_at: Instant::MAX,
        }
    }

    /// Whether clients may still come.
    pub(crate) fn is_open(&self) -> bool {
        self.stopping.is_none()
    }

    fn shard(&mut self, shard: usize) -> &mut Shard {
        let (rules, told) = (self.rules, &self.told);
        let new = || Shard::new(rules, shard, Rc::clone(told));
        self.shards.entry(shard).or_insert_with(new)
    }

    fn is_idle(&self) -> bool {
        let idle = |s: &Shard| s.lines.is_idle(&s.post);
        self.shards.values().all(idle)
    }
}

/// The sessions whose records an event brings.
pub(crate) fn sessions_in(event: &NodeEvent) -> Vec<SessionId> {
    let session = |key: &Key| match key {
        Key::Session(id) => Some(*id),
        _ => None,
    };
    match event {
        NodeEvent::Reply {
            reply: Reply::Listed(listed),
            ..
        } => {
            let keys = listed.entries.iter().map(|(key, _)| key);
            keys.filter_map(session).collect()
        }
        NodeEvent::Changed { changes, .. } => {
            let keys = changes.iter().map(|(key, _)| key);
            keys.filter_map(session).collect()
        }
        _ => Vec::new(),
    }
}

impl World {
    fn desk(&mut self, pid: Pid) -> Option<&mut RouterProcess> {
        self.processes[pid].router.as_deref_mut()
    }

    /// Gives a router the state of these sessions in the view of its node machine.
    pub(crate) fn sessions_seen(&mut self, pid: Pid, sessions: &[SessionId]) -> CheckResult {
        let process = &mut self.processes[pid];
        let now = process.clock.at(self.now);
        let view = process.machine.view();
        let Some(desk) = process.router.as_deref_mut() else {
            return Ok(());
        };
        for session in sessions {
            if let Some(reach) = OwnerSessionState::of(view, *session) {
                desk.keeper.session(now, *session, reach);
            }
        }
        self.carry_on(pid)
    }

    /// A router's node machine has seen a shard's record.
    pub(crate) fn router_sees(
        &mut self,
        pid: Pid,
        shard: usize,
        id: &ShardId,
        sight: ShardObservation,
    ) -> CheckResult {
        let now = self.processes[pid].clock.at(self.now);
        let Some(desk) = self.desk(pid) else {
            return Ok(());
        };
        let route = &mut desk.shard(shard).route;
        *route = (sight.owner.or(route.0), sight.mark);
        desk.keeper.seen(now, shard, id, sight);
        self.carry_on(pid)
    }

    /// Has the transport do what the machine says, until it says nothing more.
    fn carry_on(&mut self, pid: Pid) -> CheckResult {
        let now = self.processes[pid].clock.at(self.now);
        loop {
            let Some(desk) = self.desk(pid) else {
                return Ok(());
            };
            let actions = desk.keeper.take_actions();
            let told = desk.told.take();
            if actions.is_empty() && told.is_empty() {
                break;
            }
            for (shard, action) in actions {
                if self.trace.on() {
                    self.tell_action(pid, shard, action);
                }
                self.order(pid, shard, action);
            }
            for (shard, told) in told {
                let event = match told {
                    TransportReport::Go(req, trial) => {
                        self.goes(pid, req, trial)?;
                        continue;
                    }
                    TransportReport::Drained(hold) => Event::Drained(hold),
                    TransportReport::Untried => Event::Answered,
                };
                if let Some(desk) = self.desk(pid) {
                    desk.keeper.step(now, shard, event);
                }
            }
        }
        self.plan_router_tick(pid);
        self.stop_if_idle(pid);
        Ok(())
    }

    fn tell_action(&mut self, pid: Pid, shard: usize, action: Action) {
        let what = match action {
            Action::Hold(reason) => format!("holds shard {shard}: {}", reason.as_str()),
            Action::Flush => format!("flushes shard {shard}"),
            Action::FlushOne => format!("probes shard {shard}"),
            _ if self.transcript => return,
            action => format!("-> shard {shard}: {action:?}"),
        };
        self.tell(pid, || what);
    }

    fn order(&mut self, pid: Pid, shard: usize, action: Action) {
        let Some(desk) = self.desk(pid) else {
            return;
        };
        let Shard { post, lines, .. } = desk.shard(shard);
        match action {
            Action::Hold(reason) => lines.hold(post, reason),
            Action::Drain(hold) => lines.drain(post, hold),
            Action::Flush => {
                let flushed = lines.flush(post, FlushMode::All);
                self.coverage.flushed += flushed;
            }
            Action::FlushOne => {
                lines.flush(post, FlushMode::One(()));
            }
            // Requests read where to go when they go; what is held is told by the machine's tick.
            Action::Switch(_) | Action::Publish(_) | Action::Retract => {}
        }
        if let Some(desk) = self.desk(pid) {
            let Shard { post, lines, .. } = desk.shard(shard);
            lines.check_empty(post);
        }
    }

    /// A client's request arrives at a router.
    pub(crate) fn arrives(&mut self, pid: Pid, req: Req) -> CheckResult {
        let (shard, key) = (self.clients.of(req).shard, self.clients.of(req).key);
        let Some(desk) = self.desk(pid) else {
            return Ok(());
        };
        let s = desk.shard(shard);
        let (ticket, passed) = s.post.arrive();
        let has_route = s.route.0.is_some();
        let passes = (passed && has_route) || s.lines.passes(key);
        self.clients.of_mut(req).ticket = ticket;
        if passes {
            self.clients.of_mut(req).stage = Stage::Passing;
            return self.send_on(pid, req);
        }
        self.waits(pid, req)?;
        self.carry_on(pid)
    }

    /// A request goes to its place in its line.
    fn waits(&mut self, pid: Pid, req: Req) -> CheckResult {
        let request = self.clients.of(req);
        let (shard, key, ticket) = (request.shard, request.key, request.ticket);
        let bytes = request.bytes;
        let now = self.now;
        let Some(desk) = self.desk(pid) else {
            return Ok(());
        };
        let (held, limits) = (desk.held, desk.limits);
        let Shard { post, lines, .. } = desk.shard(shard);
        if limits.room(lines.held(), held, bytes).is_err() {
            let at_limit = lines.held().0 * 2 >= limits.count || held.0 >= limits.count;
            return self.fails(pid, req, Failure::Full(at_limit));
        }
        lines.join(post, key, ticket, bytes, req);
        post.count_out();
        lines.check_empty(post);
        desk.held = (desk.held.0 + 1, desk.held.1 + bytes);
        let age = nanos(limits.age);
        let request = self.clients.of_mut(req);
        request.stage = Stage::Waiting(now);
        if request.deadline.is_none() {
            request.deadline = Some(now + age);
            self.queue
                .push(now + age, ScheduledEvent::HeldTooLong { pid, req });
        }
        self.coverage.held += 1;
        self.requests.waits(req);
        Ok(())
    }

    /// A request that has waited goes.
    fn goes(&mut self, pid: Pid, req: Req, trial: bool) -> CheckResult {
        let now = self.now;
        let request = self.clients.of_mut(req);
        let Stage::Waiting(since) = request.stage else {
            return Ok(());
        };
        request.held += now - since;
        request.stage = Stage::Running;
        request.trial = trial;
        let bytes = request.bytes;
        if let Some(desk) = self.desk(pid) {
            desk.held = (desk.held.0 - 1, desk.held.1 - bytes);
        }
        self.send_on(pid, req)
    }

    /// A request goes to whoever owns its shard by what the router knows.
    fn send_on(&mut self, pid: Pid, req: Req) -> CheckResult {
        let shard = self.clients.of(req).shard;
        let Some(desk) = self.desk(pid) else {
            return Ok(());
        };
        let (owner, mark) = desk.shard(shard).route;
        self.requests.sent(self.now, req)?;
        match owner {
            Some(owner) => {
                self.travel(pid, req, owner, mark);
                Ok(())
            }
            None => self.fails(pid, req, Failure::NoRoute),
        }
    }

    /// A request was held for as long as may be.
    pub(crate) fn held_too_long(&mut self, pid: Pid, req: Req) -> CheckResult {
        let request = self.clients.of(req);
        let Stage::Waiting(_) = request.stage else {
            return Ok(());
        };
        let (shard, key, ticket) = (request.shard, request.key, request.ticket);
        let Some(desk) = self.desk(pid) else {
            return Ok(());
        };
        let Shard { post, lines, .. } = desk.shard(shard);
        let Some(bytes) = lines.give_up(post, key, ticket) else {
            return Ok(());
        };
        lines.check_empty(post);
        let reason = lines.reason();
        desk.held = (desk.held.0 - 1, desk.held.1 - bytes);
        self.fails(pid, req, Failure::TooLong(reason))?;
        self.carry_on(pid)
    }

    /// A node does not own the shard at the request's epoch.
    pub(crate) fn turned_away(
        &mut self,
        pid: Pid,
        req: Req,
        owner: Option<SessionId>,
        mark: RecordVersion,
    ) -> CheckResult {
        let now = self.processes[pid].clock.at(self.now);
        let request = self.clients.of_mut(req);
        request.trial = false;
        let (shard, sent_by, followed) = (request.shard, request.sent_by, request.followed);
        let turned_away = RequestRefusal {
            sent_by,
            owner,
            mark,
            followed,
        };
        let Some(desk) = self.desk(pid) else {
            return Ok(());
        };
        match desk.keeper.refused(now, shard, &turned_away) {
            RefusalDecision::Follow(session) => {
                self.clients.of_mut(req).followed = true;
                self.coverage.followed += 1;
                self.requests.followed(self.now, req)?;
                self.travel(pid, req, session, mark);
            }
            RefusalDecision::Wait => self.waits(pid, req)?,
        }
        self.carry_on(pid)
    }

    /// Ends a request, answered or failed: others of its key may go.
    pub(crate) fn is_over(&mut self, pid: Pid, req: Req, answered: bool) -> CheckResult {
        let request = self.clients.of_mut(req);
        let (shard, key, ticket) = (request.shard, request.key, request.ticket);
        let stage = std::mem::replace(&mut request.stage, Stage::Over);
        let trial = std::mem::take(&mut request.trial);
        let now = self.processes[pid].clock.at(self.now);
        let Some(desk) = self.desk(pid) else {
            return Ok(());
        };
        let Shard { post, lines, .. } = desk.shard(shard);
        match stage {
            Stage::Passing => post.count_out(),
            Stage::Running => {
                post.count_out();
                lines.over(post, key, ticket, answered);
            }
            Stage::Waiting(_) | Stage::Over => {}
        }
        lines.check_empty(post);
        if trial {
            desk.keeper.step(now, shard, Event::Answered);
        }
        self.carry_on(pid)
    }

    /// A router is asked to stop: it takes nothing more, and ends when it has finished what it has.
    pub(crate) fn stop_router(&mut self, pid: Pid) {
        let Some(desk) = self.desk(pid) else {
            return;
        };
        if desk.stopping.is_none() {
            desk.stopping = Some(false);
            for shard in desk.shards.values_mut() {
                shard.post.hold();
                shard.lines.stop();
            }
        }
        self.stop_if_idle(pid);
    }

    fn stop_if_idle(&mut self, pid: Pid) {
        let Some(desk) = self.desk(pid) else {
            return;
        };
        if desk.stopping == Some(false) && desk.is_idle() {
            desk.stopping = Some(true);
            let event = Box::new(NodeEvent::Stop);
            self.queue
                .push(self.now, ScheduledEvent::Tell { pid, event });
        }
    }

    fn plan_router_tick(&mut self, pid: Pid) {
        let clock = self.processes[pid].clock;
        let now = self.now;
        let Some(desk) = self.desk(pid) else {
            return;
        };
        let Some(wake) = desk.keeper.wake() else {
            return;
        };
        let at = clock.when(wake).max(now + 1);
        if at < desk.tick_at {
            desk.tick_at = at;
            self.queue.push(at, ScheduledEvent::RouterTick(pid));
        }
    }

    pub(crate) fn router_tick(&mut self, pid: Pid) -> CheckResult {
        let now = self.processes[pid].clock.at(self.now);
        let Some(desk) = self.desk(pid) else {
            return Ok(());
        };
        desk.tick_at = Instant::MAX;
        let told = desk.keeper.tick(now);
        self.carry_on(pid)?;
        if let Some((held, news)) = told {
            self.coverage.published += u64::from(news);
            if news && self.trace.on() {
                let moves: usize = held.values().map(BTreeMap::len).sum();
                self.tell(pid, || format!("acknowledges {moves} held shards"));
            }
            self.step(pid, NodeEvent::Hold(held))?;
        }
        Ok(())
    }
}
