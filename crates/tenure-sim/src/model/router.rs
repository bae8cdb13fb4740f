//! A router in the model: the machines that ship, and requests that are few enough to follow each of them everywhere.
//!
//! A request comes at any time between two messages. On its way to a node, and while it is worked on there, it may be late
//! like any message.

use std::hash::{Hash, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::ids::{Epoch, SessionId};
use tenure_core::machine::{ActivationId, Event as NodeEvent};
use tenure_core::record::Ownership;
use tenure_core::router::hold_queue::{ArrivalNo, FlightCounter, FlushMode, HoldQueue};
use tenure_core::router::{
    Action, Event, HoldReason, OwnerSessionState, RecordVersion, RefusalDecision, RequestRefusal,
    RouterMachine, RouterTiming, ShardObservation as Seen,
};
use tenure_core::rules::Rules;
use tenure_core::time::Time;

use super::canonical::base;
use super::reachability::Sight;
use super::state::State;
use super::step_report::StepReport;
use super::timing::shard;

/// Something that a line tells.
#[derive(Clone, Copy, Debug)]
enum TransportReport {
    Go(u8, bool),
    Drained(u64),
    Untried,
}

/// Where requests come and go.
#[derive(Debug, Default)]
struct ShardTransport {
    held: AtomicBool,
    in_flight: AtomicU64,
    told: Mutex<Vec<TransportReport>>,
}

impl ShardTransport {
    fn tell(&self, told: TransportReport) {
        if let Ok(mut all) = self.told.lock() {
            all.push(told);
        }
    }

    fn count_out(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Clone for ShardTransport {
    fn clone(&self) -> Self {
        // Whatever was told is heard before the step is over.
        Self {
            held: AtomicBool::new(self.held.load(Ordering::Relaxed)),
            in_flight: AtomicU64::new(self.in_flight()),
            told: Mutex::default(),
        }
    }
}

impl Hash for ShardTransport {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.held.load(Ordering::Relaxed), self.in_flight()).hash(state);
    }
}

impl FlightCounter for ShardTransport {
    type Waiter = u8;
    type Drained = u64;
    type Trial = ();

    fn hold(&self) {
        self.held.store(true, Ordering::Relaxed);
    }

    fn open(&self) {
        self.held.store(false, Ordering::Relaxed);
    }

    fn count_in(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn go(&self, waiter: u8, trial: Option<()>) {
        self.tell(TransportReport::Go(waiter, trial.is_some()));
    }

    fn drained(&self, hold: u64) {
        self.tell(TransportReport::Drained(hold));
    }

    fn untried(&self, (): ()) {
        self.tell(TransportReport::Untried);
    }
}

/// Stage of a request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestStage {
    /// It waits at the router.
    Waiting,
    /// It is on its way to a node.
    Away,
    /// A node works on it.
    In {
        seat: usize,
        activation: ActivationId,
    },
}

/// Request of a client that is not over.
#[derive(Clone, Debug, Hash)]
pub(crate) struct OpenRequest {
    number: u8,
    pub(crate) is: RequestStage,
    /// It comes to its node, or is answered, at some time.
    pub(crate) late: bool,
    /// It has waited.
    runs: bool,
    /// It was sent because another that had waited was answered. Others need not wait for its end.
    follows: bool,
    entered: bool,
    followed: bool,
    trial: bool,
    to: Option<SessionId>,
    mark: RecordVersion,
}

/// What a router has beside its node machine. All requests are of one key.
#[derive(Clone, Debug, Hash)]
pub(crate) struct RouterProcess {
    keeper: RouterMachine<()>,
    lines: HoldQueue<ShardTransport>,
    post: ShardTransport,
    route: (Option<SessionId>, RecordVersion),
    /// The epoch at which requests came to be held for a move.
    held_at: Option<Epoch>,
    /// A request that had waited is being answered in this step.
    answering: bool,
    pub(crate) asked: Vec<OpenRequest>,
    next: u8,
}

/// The line of all requests.
const LINE: u64 = 0;

impl RouterProcess {
    pub(crate) fn new(rules: Rules) -> Self {
        let unit = Duration::from_nanos;
        let pace = RouterTiming {
            settle: unit(2),
            pause_min: unit(1),
            pause_max: unit(4),
        };
        let post = ShardTransport::default();
        post.hold();
        Self {
            keeper: RouterMachine::with_pace(rules, pace).counting_from(base::HOLDS),
            lines: HoldQueue::new(rules),
            post,
            route: (None, RecordVersion::default()),
            held_at: None,
            answering: false,
            asked: Vec::new(),
            next: 0,
        }
    }

    pub(crate) fn wake(&self) -> Option<Time> {
        self.keeper.wake()
    }

    fn at(&mut self, number: u8) -> Option<&mut OpenRequest> {
        self.asked.iter_mut().find(|asked| asked.number == number)
    }
}

impl State {
    fn desk(&mut self, n: usize) -> Option<&mut RouterProcess> {
        self.process(n).and_then(|process| process.desk.as_mut())
    }

    /// Gives a router the state of these sessions in the view of its node machine.
    pub(crate) fn sessions_seen(
        &mut self,
        n: usize,
        sessions: &[SessionId],
        now: Time,
        telling: &mut StepReport,
    ) {
        let Some(process) = self.process(n) else {
            return;
        };
        let view = process.machine.view();
        let Some(desk) = process.desk.as_mut() else {
            return;
        };
        for session in sessions {
            if let Some(reach) = OwnerSessionState::of(view, *session) {
                desk.keeper.session(now, *session, reach);
            }
        }
        self.carry_on(n, telling);
    }

    /// A router's node machine has seen the shard's record.
    pub(crate) fn router_sees(
        &mut self,
        n: usize,
        sight: Seen,
        now: Time,
        telling: &mut StepReport,
    ) {
        let Some(desk) = self.desk(n) else { return };
        desk.route = (sight.owner.or(desk.route.0), sight.mark);
        desk.keeper.seen(now, (), &shard(), sight);
        self.carry_on(n, telling);
    }

    /// Has the transport do what the machine says, until it says nothing more.
    fn carry_on(&mut self, n: usize, telling: &mut StepReport) {
        let now = self.seats[n].time(self.now);
        loop {
            let Some(desk) = self.desk(n) else { return };
            let actions = desk.keeper.take_actions();
            let told = desk.post.told.get_mut().map(std::mem::take);
            let told = told.unwrap_or_default();
            if actions.is_empty() && told.is_empty() {
                return;
            }
            for ((), action) in actions {
                telling.line(|| format!("n{n} router: {action:?}"));
                desk.order(action, telling);
            }
            for told in told {
                let Some(desk) = self.desk(n) else { return };
                match told {
                    TransportReport::Go(number, trial) => {
                        let follows = desk.answering;
                        if let Some(asked) = desk.at(number) {
                            (asked.trial, asked.runs, asked.follows) = (trial, true, follows);
                        }
                        self.send_on(n, number, telling);
                    }
                    TransportReport::Drained(hold) => {
                        desk.keeper.step(now, (), Event::Drained(hold))
                    }
                    TransportReport::Untried => desk.keeper.step(now, (), Event::Answered),
                }
            }
        }
    }

    /// A request comes at a router.
    pub(crate) fn ask(&mut self, n: usize, telling: &mut StepReport) {
        let Some(desk) = self.desk(n) else { return };
        let number = desk.next;
        desk.next += 1;
        desk.asked.push(OpenRequest {
            number,
            is: RequestStage::Away,
            late: false,
            runs: false,
            follows: false,
            entered: false,
            followed: false,
            trial: false,
            to: None,
            mark: RecordVersion::default(),
        });
        let held = desk.post.held.load(Ordering::Relaxed);
        desk.post.count_in();
        if (!held && desk.route.0.is_some()) || desk.lines.passes(LINE) {
            self.send_on(n, number, telling);
        } else {
            self.wait(n, number, telling);
        }
        self.carry_on(n, telling);
    }

    fn wait(&mut self, n: usize, number: u8, telling: &mut StepReport) {
        let Some(desk) = self.desk(n) else { return };
        if let Some(asked) = desk.at(number) {
            (asked.is, asked.late, asked.trial) = (RequestStage::Waiting, false, false);
        }
        let ticket = ArrivalNo::new(u64::from(number));
        desk.lines.join(&desk.post, LINE, ticket, 0, number);
        desk.post.count_out();
        desk.lines.check_empty(&desk.post);
        let reason = desk.keeper.shard(()).and_then(|shard| shard.holding());
        if matches!(reason, Some(HoldReason::Freezing | HoldReason::Sealed)) {
            telling.saw(Sight::RequestHeld);
        }
    }

    /// A request leaves its router: none that came before it is left behind.
    fn send_on(&mut self, n: usize, number: u8, telling: &mut StepReport) {
        let Some(desk) = self.desk(n) else { return };
        let (to, mark) = desk.route;
        let behind = desk.asked.iter().any(|a| {
            a.number < number && (a.is == RequestStage::Waiting || (a.runs && !a.follows))
        });
        if let Some(asked) = desk.at(number) {
            (asked.is, asked.to, asked.mark) = (RequestStage::Away, to, mark);
        }
        telling.line(|| {
            format!(
                "n{n} router: sends request {number} at epoch {}",
                mark.epoch
            )
        });
        if behind {
            self.breach("P4", "a request overtakes one that had to wait");
        }
    }

    /// A request reaches its node: it is let in, or turned away.
    pub(crate) fn enter(&mut self, n: usize, at: usize, telling: &mut StepReport) {
        let Some(asked) = self.asked(n, at) else {
            return;
        };
        let (number, to, mark) = (asked.number, asked.to, asked.mark);
        let (entered, followed) = (asked.entered, asked.followed);
        let node = (0..self.seats.len()).find(|seat| {
            let process = self.seats[*seat].process.as_deref();
            process.is_some_and(|p| to.is_some_and(|to| p.machine.session() == Some(to)))
        });
        let open = node.and_then(|seat| {
            self.open_at(seat, mark.epoch)
                .map(|activation| (seat, activation))
        });
        if let Some((seat, activation)) = open {
            telling.line(|| format!("n{seat} lets request {number} in"));
            if entered {
                self.breach("P4", "a request is done a second time");
            }
            if let Some(asked) = self.desk(n).and_then(|desk| desk.asked.get_mut(at)) {
                (asked.is, asked.entered, asked.late) =
                    (RequestStage::In { seat, activation }, true, false);
            }
            return;
        }
        let (owner, word) = node.map_or_else(Default::default, |seat| self.word_of(seat));
        telling.line(|| format!("request {number} is turned away"));
        let now = self.seats[n].time(self.now);
        let turned_away = RequestRefusal {
            sent_by: mark,
            owner,
            mark: word,
            followed,
        };
        let Some(desk) = self.desk(n) else { return };
        match desk.keeper.refused(now, (), &turned_away) {
            RefusalDecision::Follow(session) => {
                if followed {
                    self.breach("P4", "a request follows a second refusal");
                }
                if let Some(asked) = self.desk(n).and_then(|desk| desk.at(number)) {
                    (asked.to, asked.mark) = (Some(session), word);
                    (asked.followed, asked.late) = (true, false);
                }
            }
            RefusalDecision::Wait => self.wait(n, number, telling),
        }
        self.carry_on(n, telling);
    }

    fn asked(&self, n: usize, at: usize) -> Option<&OpenRequest> {
        let desk = self.seats[n].process.as_deref()?.desk.as_ref()?;
        desk.asked.get(at)
    }

    /// The stay whose gate admits work at this epoch.
    fn open_at(&self, seat: usize, epoch: Epoch) -> Option<ActivationId> {
        let now = self.seats[seat].time(self.now);
        let process = self.seats[seat].process.as_deref()?;
        let mut stays = process.stays.iter();
        let stay = stays.find(|stay| stay.epoch == epoch && process.admits(stay, now))?;
        Some(stay.activation)
    }

    /// What a node says to whom it turns away: who serves, by the record that it has seen.
    fn word_of(&self, seat: usize) -> (Option<SessionId>, RecordVersion) {
        let process = self.seats[seat].process.as_deref();
        let Some(record) = process.and_then(|p| p.machine.view().shards.get(&shard())) else {
            return Default::default();
        };
        let serves = !matches!(
            record.ownership,
            Ownership::Owned { serving: false, .. } | Ownership::Sealed { .. }
        );
        let owner = record.owner().filter(|_| serves).map(|o| o.session);
        let mark = RecordVersion {
            epoch: record.epoch,
            rev: record.head.rev,
        };
        (owner, mark)
    }

    /// A node answers.
    pub(crate) fn serve(&mut self, n: usize, at: usize, telling: &mut StepReport) {
        let Some(RequestStage::In { seat, activation }) = self.asked(n, at).map(|asked| asked.is)
        else {
            return;
        };
        telling.line(|| format!("n{seat} answers a request"));
        self.over(n, at, true, telling);
        self.worked(seat, activation);
    }

    /// Ends a request, answered or failed: others may go.
    fn over(&mut self, n: usize, at: usize, answered: bool, telling: &mut StepReport) {
        let now = self.seats[n].time(self.now);
        let Some(desk) = self.desk(n).filter(|desk| at < desk.asked.len()) else {
            return;
        };
        let asked = desk.asked.remove(at);
        desk.post.count_out();
        if asked.runs {
            let ticket = ArrivalNo::new(u64::from(asked.number));
            desk.lines.over(&desk.post, LINE, ticket, answered);
        }
        desk.lines.check_empty(&desk.post);
        if asked.trial {
            desk.keeper.step(now, (), Event::Answered);
        }
        desk.answering = answered && asked.runs;
        self.carry_on(n, telling);
        if let Some(desk) = self.desk(n) {
            desk.answering = false;
        }
    }

    /// Whether a node works on a request.
    pub(crate) fn is_busy(&self, seat: usize, activation: ActivationId) -> bool {
        let desks = self.seats.iter().filter_map(|s| s.process.as_deref());
        let mut asked = desks.filter_map(|p| p.desk.as_ref()).flat_map(|d| &d.asked);
        asked.any(|asked| asked.is == RequestStage::In { seat, activation })
    }

    /// What a node was working on fails: it dies, or its work is cut.
    pub(crate) fn fail_requests(
        &mut self,
        seat: usize,
        activation: Option<ActivationId>,
        telling: &mut StepReport,
    ) {
        for n in 0..self.seats.len() {
            let hit = |asked: &OpenRequest| match asked.is {
                RequestStage::In {
                    seat: s,
                    activation: r,
                } => s == seat && activation.is_none_or(|activation| activation == r),
                _ => false,
            };
            while let Some(at) = self.desk(n).and_then(|d| d.asked.iter().position(hit)) {
                telling.line(|| format!("a request fails with n{seat}"));
                if self.strict {
                    self.breach("P4", "a request fails although no process died");
                }
                self.over(n, at, false, telling);
            }
        }
    }

    /// A router's own timer.
    pub(crate) fn router_tick(&mut self, n: usize, telling: &mut StepReport) {
        let now = self.seats[n].time(self.now);
        let Some(desk) = self.desk(n) else { return };
        let told = desk.keeper.tick(now);
        self.carry_on(n, telling);
        if let Some((held, _)) = told {
            self.step(n, NodeEvent::Hold(held), telling);
        }
    }
}

impl RouterProcess {
    fn order(&mut self, action: Action, telling: &mut StepReport) {
        match action {
            Action::Hold(reason) => {
                if reason == HoldReason::Freezing {
                    self.held_at = Some(self.route.1.epoch);
                }
                self.lines.hold(&self.post, reason);
            }
            Action::Drain(hold) => self.lines.drain(&self.post, hold),
            Action::Flush => {
                let waited = self.lines.held().0 > 0;
                match self.held_at.take().filter(|_| waited) {
                    Some(epoch) if epoch == self.route.1.epoch => {
                        telling.saw(Sight::FlushedAfterCancel);
                    }
                    Some(_) => telling.saw(Sight::FlushedAfterTake),
                    None => {}
                }
                self.lines.flush(&self.post, FlushMode::All);
            }
            Action::FlushOne => {
                self.lines.flush(&self.post, FlushMode::One(()));
            }
            Action::Switch(_) | Action::Publish(_) | Action::Retract => {}
        }
        self.lines.check_empty(&self.post);
    }
}
