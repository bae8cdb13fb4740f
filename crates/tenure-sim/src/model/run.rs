//! Explores a scope to its last state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use stateright::{Checker, HasDiscoveries, Model, Property};
use tenure_core::rules::Rules;

use super::driver::{TTL, Telling};
use super::heal::Distances;
use super::laws::Ghost;
use super::scope::{Budget, Scope};
use super::sight::{Sight, Sights};
use super::state::{Seat, Shelf, State};
use super::steps::Act;
use super::canon::base;
use crate::clock::Clock;

/// How to check.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many threads to use.
    pub threads: usize,
    /// The rules that the machines follow.
    pub rules: Rules,
    /// Stop after so many states, exhausted or not.
    pub most_states: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            rules: Rules::sound(),
            most_states: None,
        }
    }
}

/// How far a check has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Different states so far.
    pub states: usize,
    /// The longest way to one of them.
    pub depth: usize,
}

/// What came of a check.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// The scope.
    pub scope: &'static str,
    /// Whether every state was visited.
    pub exhausted: bool,
    /// Different states.
    pub states: usize,
    /// Steps that were taken to find them.
    pub steps: usize,
    /// The longest way to a state.
    pub depth: usize,
    /// How long it took.
    pub seconds: f64,
    /// The most steps without faults after which everything was whole, from the worst state.
    pub healed_within: u32,
    /// The promise that was broken, if one was.
    pub violation: Option<String>,
    /// How it came to that, one line per event.
    pub story: Vec<String>,
    /// What was to be seen and was not.
    pub unseen: Vec<&'static str>,
}

/// A scope with what is found out about it.
struct Exploration {
    scope: Scope,
    rules: Rules,
    sights: Sights,
    distances: Distances,
}

impl Model for Exploration {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        let mut states = Vec::new();
        for clocks in self.scope.clocks {
            if self.scope.from_start {
                states.push(self.empty(clocks));
            } else {
                states.extend((0..4).map(|after| self.at_rest(clocks, after)));
            }
        }
        states
    }

    fn actions(&self, state: &State, out: &mut Vec<Act>) {
        state.acts(&self.scope, out);
    }

    fn next_state(&self, state: &State, act: Act) -> Option<State> {
        let mut state = state.clone();
        let mut telling = Telling::default();
        state.apply_act(act, self.rules, &mut telling);
        self.sights.add(telling.sights);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("safe", |_, state: &State| state.broken.is_none()),
            Property::always("P6", |model: &Self, state: &State| {
                state.broken.is_some() || model.distances.heals(state, model.rules)
            }),
        ]
    }
}

impl Exploration {
    fn empty(&self, clocks: &[i64]) -> State {
        let seat = |rate_ppm: &i64| Seat {
            clock: Clock {
                offset: base::TIMES,
                rate_ppm: *rate_ppm,
            },
            directory: None,
            incarnations: 0,
            paused: false,
            process: None,
        };
        let mut state = State {
            now: 1,
            seats: clocks.iter().map(seat).collect(),
            store: Arc::new(Shelf::new()),
            requests: Vec::new(),
            left: self.scope.budget,
            ghost: Ghost::default(),
            broken: None,
            memory: self.scope.memory(),
        };
        if self.scope.from_start {
            for n in 0..clocks.len() {
                state.start(n, true, self.rules, &mut Telling::default());
            }
        }
        state
    }

    /// All nodes have started, one after the other and out of step by `after`, and the shard is served.
    fn at_rest(&self, clocks: &[i64], after: u64) -> State {
        let mut telling = Telling::default();
        let mut state = self.empty(clocks);
        state.left = Budget::default();
        for n in 0..clocks.len() {
            state.start(n, true, self.rules, &mut telling);
            state.calm_until(state.now + 2 * TTL + after, self.rules, &mut telling);
        }
        state.left = self.scope.budget;
        state
    }
}

/// Explores a scope; `told` hears now and then how far it has come.
pub fn check(scope: &Scope, options: &Options, mut told: impl FnMut(Progress)) -> Checked {
    let begun = Instant::now();
    let model = Exploration {
        scope: *scope,
        rules: options.rules,
        sights: Sights::default(),
        distances: Distances::default(),
    };
    let mut checker = model
        .checker()
        .threads(options.threads)
        .finish_when(HasDiscoveries::AnyFailures);
    if let Some(most) = options.most_states {
        checker = checker.target_state_count(most);
    }
    let checker = checker.spawn_bfs();
    while !checker.is_done() {
        std::thread::sleep(Duration::from_millis(50));
        told(Progress {
            states: checker.unique_state_count(),
            depth: checker.max_depth(),
        });
    }
    let checker = checker.join();
    let model = checker.model();
    let discoveries = checker.discoveries();
    let (violation, story) = match discoveries.iter().next() {
        None => (None, Vec::new()),
        Some((name, path)) => model.story(name, path.clone().into_vec()),
    };
    let capped = options
        .most_states
        .is_some_and(|most| checker.state_count() >= most);
    let unseen = |sight: &&Sight| !model.sights.has(**sight);
    Checked {
        scope: scope.name,
        exhausted: violation.is_none() && !capped,
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        seconds: begun.elapsed().as_secs_f64(),
        healed_within: model.distances.largest(),
        violation,
        story,
        unseen: scope.sights.iter().filter(unseen).map(|s| s.words()).collect(),
    }
}

impl Exploration {
    fn story(&self, name: &str, path: Vec<(State, Option<Act>)>) -> (Option<String>, Vec<String>) {
        let mut telling = Telling {
            lines: Some(Vec::new()),
            ..Telling::default()
        };
        let mut last = None;
        for (state, act) in path {
            let mut state = state;
            match act {
                Some(act) => state.apply_act(act, self.rules, &mut telling),
                None => last = Some(state),
            }
        }
        let breach = last.as_ref().and_then(|state| state.broken.clone());
        let what = breach.map_or_else(|| format!("{name} is broken"), |breach| breach.to_string());
        (Some(what), telling.lines.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::scope;

    #[test]
    fn debug_closing() {
        let model = Exploration {
            scope: *scope("crash").unwrap(),
            rules: Rules::sound(),
            sights: Sights::default(),
            distances: Distances::default(),
        };
        for victim in [None, Some(0), Some(1)] {
        for back in [None, Some(true), Some(false)] {
            eprintln!("victim {victim:?} back {back:?}");
        let mut state = model.at_rest(&[0, 0], 1);
        let mut telling = Telling::default();
        if let Some(n) = victim { state.die(n); state.left.crashes = 0; 
            state.calm_until(state.now + 3 * TTL, Rules::sound(), &mut telling);
        if let Some(b) = back { state.start(n, b, Rules::sound(), &mut telling); } }
        state.calm_until(state.now + 20 * TTL, Rules::sound(), &mut telling);
        let mut before = state.words().all(state.ghost.highest.0);
        for k in 0..3 {
            state.calm_until(state.now + 4 * TTL, Rules::sound(), &mut telling);
            let after = state.words().all(state.ghost.highest.0);
            eprintln!("{k}: {} {}", before.len(), after.len());
            for (at, (a, b)) in before.iter().zip(&after).enumerate().filter(|(_, (a, b))| a != b).take(3) {
                    eprintln!("  {at}: {a:?} {b:?}  after {:?}", &after[at.saturating_sub(12)..at.min(after.len())]);
            }
            before = after;
        }
        }}
    }
}
