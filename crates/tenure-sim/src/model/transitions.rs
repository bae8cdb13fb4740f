//! Which steps there are, and what each does.
//!
//! A read, the decision on it and the write that follows are three steps: a request arrives at the store, its answer is
//! heard, the next request arrives. What is not late happens at once, in this order:
//!
//! 1. Every process that runs hears what has come for it, in the order in which it came, and what is due by its clock.
//! 2. Requests arrive at the store: those of one process in the order of sending, those of several in *every* order.
//! 3. When nothing is left to do, time passes until the next thing is due.
//!
//! Processes share nothing but the store, so that the order in which they hear things at one instant makes no difference.
//! Misfortune may strike before any of this: a message is held and then comes at any later point of 2 or 3, or never; a
//! process dies or stands still just before it hears something, before anything arrives, or before time passes.

use tenure_core::keys::Key;
use tenure_core::machine::{Event, Request};
use tenure_core::rules::Rules;

use super::config::{Back, Scope};
use super::reachability::Sight;
use super::router::{RequestStage, RouterProcess};
use super::state::State;
use super::step_report::StepReport;
use super::timing::shard;
use crate::clock::Instant;

/// Action that leads from one state of the model to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelAction {
    /// A process hears a letter of its inbox.
    Hear(usize, usize),
    /// Something is due by the clock of a process.
    Wake(usize),
    /// A request arrives at the store.
    Land(usize),
    /// A request reaches its node.
    Enter(usize, usize),
    /// A node answers a request.
    Serve(usize, usize),
    /// A request is late, on its way or in its node.
    HoldAsked(usize, usize),
    /// A request comes at a router.
    Ask(usize),
    /// Time passes.
    Pass,
    /// A letter is held.
    HoldLetter(usize, usize),
    /// A request is held.
    HoldRequest(usize),
    /// A process dies.
    Crash(usize),
    /// A process stands still.
    Pause(usize),
    /// It goes on.
    Resume(usize),
    /// A process is asked to stop.
    Stop(usize),
    /// A process is started where one is gone.
    Start(usize, Back),
    /// An operator removes the shard's record.
    Remove,
    /// An operator removes the record of a process's session.
    Lose(usize),
}

/// What a request does next.
fn going(n: usize, at: usize, is: RequestStage) -> ModelAction {
    match is {
        RequestStage::In { .. } => ModelAction::Serve(n, at),
        RequestStage::Away | RequestStage::Waiting => ModelAction::Enter(n, at),
    }
}

/// Whether two requests can see or hinder one another.
fn conflict(a: &Request, b: &Request) -> bool {
    let key = |request: &Request| match request {
        Request::Get(key) | Request::Put { key, .. } | Request::Delete { key, .. } => {
            Some(key.clone())
        }
        _ => None,
    };
    let writes =
        |request: &Request| matches!(request, Request::Put { .. } | Request::Delete { .. });
    let same = match (key(a), key(b)) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    };
    same && (writes(a) || writes(b))
}

impl State {
    /// What happens next if nothing goes wrong; several where requests of several processes race.
    fn calm(&self, out: &mut Vec<ModelAction>) {
        for (n, seat) in self.seats.iter().enumerate() {
            let Some(process) = seat.running() else {
                continue;
            };
            let due = process.is_due(seat.time(self.now));
            let letter = process.inbox.iter().position(|letter| !letter.late);
            if let Some(letter) = letter {
                out.push(ModelAction::Hear(n, letter));
            }
            if due {
                out.push(ModelAction::Wake(n));
            }
            if out.is_empty()
                && let Some(desk) = &process.desk
                && let Some(at) = desk
                    .asked
                    .iter()
                    .position(|a| !a.late && a.is != RequestStage::Waiting)
            {
                out.push(going(n, at, desk.asked[at].is));
            }
            if !out.is_empty() {
                return;
            }
        }
        for n in 0..self.seats.len() {
            let first = self
                .requests
                .iter()
                .position(|sent| sent.seat == n && !sent.late);
            let Some(first) = first else { continue };
            if !self.races(first) {
                out.clear();
                out.push(ModelAction::Land(first));
                return;
            }
            out.push(ModelAction::Land(first));
        }
        if out.is_empty() && self.next_instant().is_some() {
            out.push(ModelAction::Pass);
        }
    }

    /// Whether it makes a difference in which order this request and one of another process arrive.
    fn races(&self, at: usize) -> bool {
        let this = &self.requests[at];
        self.requests.iter().any(|other| {
            other.seat != this.seat && !other.late && conflict(&this.request, &other.request)
        })
    }

    /// All steps that there are.
    pub(crate) fn acts(&self, scope: &Scope, out: &mut Vec<ModelAction>) {
        if self.broken.is_some() {
            return;
        }
        self.calm(out);
        let left = self.left;
        match out[..] {
            [ModelAction::Land(at)] if left.removals == 0 && left.losses == 0 => {
                // Nobody else has to do with it: what may strike others can strike them later.
                if left.delays > 0 {
                    out.push(ModelAction::HoldRequest(at));
                }
                self.late(out);
                self.asks(out);
                self.strike(self.requests[at].seat, out);
            }
            [ModelAction::Enter(n, at) | ModelAction::Serve(n, at)] => {
                if left.delays > 0 {
                    out.push(ModelAction::HoldAsked(n, at));
                }
                for n in 0..self.seats.len() {
                    self.strike(n, out);
                }
            }
            [ModelAction::Hear(n, _) | ModelAction::Wake(n), ..] => {
                if let ModelAction::Hear(_, letter) = out[0]
                    && left.delays > 0
                {
                    out.push(ModelAction::HoldLetter(n, letter));
                }
                self.strike(n, out);
            }
            _ => {
                let quiet = !matches!(out[..], [ModelAction::Land(_), ..]);
                if left.delays > 0 {
                    for at in 0..out.len() {
                        if let ModelAction::Land(request) = out[at] {
                            out.push(ModelAction::HoldRequest(request));
                        }
                    }
                }
                self.late(out);
                self.asks(out);
                for n in 0..self.seats.len() {
                    self.strike(n, out);
                    if quiet {
                        self.change_of_fortune(n, scope, out);
                    }
                }
                if left.removals > 0 && self.store.keys.contains_key(&Key::Shard(shard())) {
                    out.push(ModelAction::Remove);
                }
                if left.losses > 0 {
                    let sessions = (0..self.seats.len()).filter(|n| self.session_key(*n).is_some());
                    out.extend(sessions.map(ModelAction::Lose));
                }
            }
        }
    }

    /// The record of the session that a process has, if it is there.
    fn session_key(&self, n: usize) -> Option<Key> {
        let session = self.seats[n].process.as_ref()?.machine.session()?;
        Some(Key::Session(session)).filter(|key| self.store.keys.contains_key(key))
    }

    fn late(&self, out: &mut Vec<ModelAction>) {
        let requests = self.requests.iter().enumerate();
        out.extend(
            requests
                .filter(|(_, s)| s.late)
                .map(|(at, _)| ModelAction::Land(at)),
        );
        for (n, seat) in self.seats.iter().enumerate() {
            let letters = seat.running().into_iter().flat_map(|p| p.inbox.iter());
            let late = letters.enumerate().filter(|(_, letter)| letter.late);
            out.extend(late.map(|(at, _)| ModelAction::Hear(n, at)));
            let desk = seat.running().and_then(|p| p.desk.as_ref());
            let asked = desk.into_iter().flat_map(|desk| desk.asked.iter());
            let late = asked.enumerate().filter(|(_, asked)| asked.late);
            out.extend(late.map(|(at, asked)| going(n, at, asked.is)));
        }
    }

    /// A request may come.
    fn asks(&self, out: &mut Vec<ModelAction>) {
        for (n, seat) in self.seats.iter().enumerate() {
            if self.left.requests > 0 && seat.running().is_some_and(|p| p.desk.is_some()) {
                out.push(ModelAction::Ask(n));
            }
        }
    }

    fn strike(&self, n: usize, out: &mut Vec<ModelAction>) {
        if self.seats[n].process.is_none() {
            return;
        }
        if self.left.crashes > 0 {
            out.push(ModelAction::Crash(n));
        }
        if self.left.pauses > 0 && !self.seats[n].paused {
            out.push(ModelAction::Pause(n));
        }
    }

    fn change_of_fortune(&self, n: usize, scope: &Scope, out: &mut Vec<ModelAction>) {
        let seat = &self.seats[n];
        if seat.incarnations == 0 {
            out.push(ModelAction::Start(n, Back::Without));
        } else if seat.process.is_none() {
            for back in scope.back {
                if *back == Back::Without || seat.directory.is_some() {
                    out.push(ModelAction::Start(n, *back));
                }
            }
        } else if seat.paused {
            out.push(ModelAction::Resume(n));
        } else if self.left.stops > 0 {
            out.push(ModelAction::Stop(n));
        }
    }

    /// When the next thing is due by some clock. That of a process that stands still counts: that is when it misses
    /// something.
    fn next_instant(&self) -> Option<Instant> {
        let mut next = None::<Instant>;
        for seat in &self.seats {
            let Some(process) = &seat.process else {
                continue;
            };
            let router = process.desk.as_ref().and_then(RouterProcess::wake);
            let wake = process.wake.into_iter().chain(router);
            let waiting = process.waiting.iter().map(|w| w.until);
            let gates = process
                .leases
                .iter()
                .flat_map(|l| [l.closes_at, l.deadline])
                .filter(|_| seat.paused);
            let at = wake
                .chain(waiting)
                .chain(gates)
                .map(|at| seat.clock.when(at))
                .filter(|at| *at > self.now && *at < Instant::MAX)
                .min();
            next = next.into_iter().chain(at).min();
        }
        next
    }

    /// Does a step.
    pub(crate) fn apply_act(&mut self, act: ModelAction, rules: Rules, telling: &mut StepReport) {
        match act {
            ModelAction::Hear(n, letter) => self.hear(n, letter, telling),
            ModelAction::Wake(n) => self.wake(n, telling),
            ModelAction::Land(at) => self.land(at, telling),
            ModelAction::Pass => self.pass(telling),
            ModelAction::Ask(n) => {
                self.left.requests -= 1;
                telling.line(|| "a request comes".to_owned());
                self.ask(n, telling);
            }
            ModelAction::Enter(n, at) => self.enter(n, at, telling),
            ModelAction::Serve(n, at) => self.serve(n, at, telling),
            ModelAction::HoldAsked(n, at) => {
                self.left.delays -= 1;
                telling.line(|| "fault: a request is late".to_owned());
                let desk = self.process(n).and_then(|p| p.desk.as_mut());
                if let Some(asked) = desk.and_then(|desk| desk.asked.get_mut(at)) {
                    asked.late = true;
                }
            }
            ModelAction::HoldLetter(n, at) => {
                self.left.delays -= 1;
                telling.line(|| format!("fault: n{n} does not hear this yet"));
                self.hold(n, at);
            }
            ModelAction::HoldRequest(at) => {
                self.left.delays -= 1;
                let sent = &mut self.requests[at];
                sent.late = true;
                let (n, op) = (sent.seat, sent.op);
                telling.line(|| {
                    format!(
                        "fault: request {} of n{n} is late",
                        op.0 - super::canonical::base::OPS
                    )
                });
            }
            ModelAction::Crash(n) => {
                self.left.crashes -= 1;
                telling.line(|| format!("fault: n{n} dies"));
                self.die(n, telling);
            }
            ModelAction::Pause(n) => {
                self.left.pauses -= 1;
                telling.line(|| format!("fault: n{n} stands still"));
                self.seats[n].paused = true;
            }
            ModelAction::Resume(n) => {
                telling.line(|| format!("n{n} goes on"));
                self.resume(n, telling);
            }
            ModelAction::Stop(n) => {
                self.left.stops -= 1;
                telling.line(|| format!("n{n} is asked to stop"));
                self.step(n, Event::Stop, telling);
            }
            ModelAction::Start(n, back) => {
                telling.line(|| format!("n{n} starts: {back:?}"));
                self.start(n, back == Back::WithDirectory, rules, telling);
            }
            ModelAction::Remove => {
                self.left.removals -= 1;
                telling.line(|| "fault: an operator removes the shard's record".to_owned());
                self.remove(&Key::Shard(shard()), telling);
            }
            ModelAction::Lose(n) => {
                self.left.losses -= 1;
                telling.line(|| format!("fault: an operator removes the session's record of n{n}"));
                if let Some(key) = self.session_key(n) {
                    self.remove(&key, telling);
                }
            }
        }
        self.forget_idle_messages();
        if let Some(breach) = &self.broken {
            telling.line(|| format!("VIOLATION {breach}"));
        }
    }

    fn hold(&mut self, n: usize, at: usize) {
        if let Some(process) = self.seats[n].process.as_mut() {
            let letter = std::sync::Arc::make_mut(process).inbox.get_mut(at);
            if let Some(letter) = letter {
                letter.late = true;
            }
        }
    }

    pub(crate) fn resume(&mut self, n: usize, telling: &mut StepReport) {
        let seat = &mut self.seats[n];
        let now = seat.time(self.now);
        if let Some(process) = seat.process.as_deref()
            && process
                .stays
                .iter()
                .any(|stay| stay.open && !process.admits(stay, now))
        {
            telling.saw(Sight::GateRanOut);
        }
        seat.paused = false;
    }

    fn pass(&mut self, telling: &mut StepReport) {
        if let Some(next) = self.next_instant() {
            self.now = next;
            telling.line(|| format!("-- {next}"));
        }
    }

    /// Lets time pass, with what happens in it, until this instant.
    pub(crate) fn calm_until(&mut self, until: Instant, rules: Rules, telling: &mut StepReport) {
        loop {
            match self.first_calm() {
                Some(ModelAction::Pass) if self.next_instant().is_none_or(|next| next > until) => {
                    break;
                }
                Some(act) => self.apply_act(act, rules, telling),
                None => break,
            }
        }
        self.now = until;
    }

    /// The first of the steps in which nothing goes wrong.
    pub(crate) fn first_calm(&self) -> Option<ModelAction> {
        let mut acts = Vec::new();
        self.calm(&mut acts);
        acts.first().copied()
    }
}
