//! P6: from every state, when faults stop, everything comes back within a bounded number of steps.
//!
//! Stated so because a checker that looks for runs which never get there must know the cycles of the whole graph. Here each
//! state in which nothing is left to do but to let time pass is followed along one schedule without faults until the
//! cluster is whole; from every other state such a one is reached within its instant. The states on the way are
//! remembered with their distance, so that none is walked twice.

use std::collections::HashMap;
use std::sync::Mutex;

use tenure_core::keys::Key;
use tenure_core::record::{Ownership, Record};
use tenure_core::rules::Rules;

use super::config::{Budget, LastNodeKind};
use super::state::{ModelNode, State};
use super::step_report::StepReport;
use super::timing::shard;
use super::transitions::ModelAction;

/// Within how many steps a state must be whole.
pub(crate) const BOUND: u32 = 1_000;

const PARTS: u64 = 64;

/// How far each state is from being whole.
#[derive(Debug)]
pub(crate) struct Distances(Vec<Mutex<HashMap<u64, u32>>>);

impl Default for Distances {
    fn default() -> Self {
        Self((0..PARTS).map(|_| Mutex::default()).collect())
    }
}

impl Distances {
    fn part(&self, state: u64) -> &Mutex<HashMap<u64, u32>> {
        &self.0[(state % PARTS) as usize]
    }

    fn get(&self, state: u64) -> Option<u32> {
        self.part(state).lock().ok()?.get(&state).copied()
    }

    fn set(&self, state: u64, distance: u32) {
        if let Ok(mut part) = self.part(state).lock() {
            part.insert(state, distance);
        }
    }

    /// The largest distance that was found.
    pub(crate) fn largest(&self) -> u32 {
        let parts = self.0.iter().filter_map(|part| part.lock().ok());
        parts
            .filter_map(|part| part.values().max().copied())
            .max()
            .unwrap_or(0)
    }

    /// Whether the state becomes whole in time, once faults stop.
    pub(crate) fn heals(&self, state: &State, rules: Rules) -> bool {
        let mut telling = StepReport::default();
        let mut state = state.healed(rules, &mut telling);
        let (mut steps, mut path) = (0, Vec::new());
        let distance = loop {
            if state.is_quiet() {
                if state.is_whole() {
                    break 0;
                }
                let print = state.print();
                if let Some(known) = self.get(print) {
                    break known;
                }
                path.push((print, steps));
            }
            state.keep_going(rules, &mut telling);
            let Some(act) = state.first_calm().filter(|_| steps < BOUND) else {
                return false;
            };
            state.apply_act(act, rules, &mut telling);
            steps += 1;
            if state.broken.is_some() {
                return false;
            }
        };
        for (print, after) in path {
            self.set(print, distance + steps - after);
        }
        distance + steps <= BOUND
    }
}

impl State {
    /// This state at the moment when faults stop: what is late arrives, who stands still goes on, and if nobody is left who
    /// could serve the shard, the first node starts.
    pub(crate) fn healed(&self, rules: Rules, telling: &mut StepReport) -> Self {
        let mut state = self.clone();
        state.left = Budget::default();
        for sent in &mut state.requests {
            sent.late = false;
        }
        for n in 0..state.seats.len() {
            let seat = &mut state.seats[n];
            if let Some(process) = &mut seat.process
                && process.inbox.iter().any(|letter| letter.late)
            {
                for letter in &mut std::sync::Arc::make_mut(process).inbox {
                    letter.late = false;
                }
            }
            if let Some(process) = &mut seat.process
                && process.desk.is_some()
                && let Some(desk) = &mut std::sync::Arc::make_mut(process).desk
            {
                for asked in &mut desk.asked {
                    asked.late = false;
                }
            }
            if seat.paused {
                state.resume(n, telling);
            }
        }
        state.keep_going(rules, telling);
        state
    }

    /// Starts the first node if nobody is left who could serve the shard: one that was stopping may end after faults have.
    pub(crate) fn keep_going(&mut self, rules: Rules, telling: &mut StepReport) {
        let owns_nothing =
            |s: &ModelNode| s.router || s.part != LastNodeKind::Alike || s.process.is_none();
        if self.seats.iter().all(owns_nothing) {
            self.start(0, false, rules, telling);
        }
    }

    /// Whether nothing is left to do but to let time pass.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self.first_calm(), None | Some(ModelAction::Pass))
    }

    /// Whether nothing is missing.
    pub(crate) fn is_whole(&self) -> bool {
        self.missing().is_none()
    }

    /// What is missing for the cluster to be whole: every process has a live session and no other session is live; the
    /// shard's record says that one of them serves it, and its gate is open at that epoch.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        let mut sessions = Vec::new();
        for seat in &self.seats {
            if let Some(process) = &seat.process {
                let Some(session) = process.machine.session() else {
                    return Some("a process has no session");
                };
                sessions.push((session, seat, process));
            }
        }
        let mut desks = sessions.iter().filter_map(|(_, _, p)| p.desk.as_ref());
        if desks.any(|desk| !desk.asked.is_empty()) {
            return Some("a request is not answered");
        }
        let mut live = 0;
        for (key, found) in &self.store.keys {
            if let (Key::Session(id), Ok(Record::Session(record))) = (key, &found.record)
                && record.is_live()
            {
                live += 1;
                if !sessions.iter().any(|(session, ..)| session == id) {
                    return Some("the session of a departed process is not ended");
                }
            }
        }
        if live < sessions.len() {
            return Some("the session of a process is not live");
        }
        let found = self.store.keys.get(&Key::Shard(shard()));
        let Some(Ok(Record::Shard(record))) = found.map(|found| &found.record) else {
            return Some("the shard has no record");
        };
        let Ownership::Owned { by, serving: true } = &record.ownership else {
            return Some("the shard's record does not say that it is served");
        };
        let open = sessions.iter().any(|(session, seat, process)| {
            let now = seat.time(self.now);
            let mut stays = process.stays.iter();
            *session == by.session
                && stays.any(|stay| stay.epoch == record.epoch && process.admits(stay, now))
        });
        (!open).then_some("no gate is open at the epoch of the shard's record")
    }
}
