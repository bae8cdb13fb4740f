//! Explores a scope to its last state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};
use tenure_core::rules::Rules;

use super::driver::{TTL, Telling};
use super::heal::Distances;
use super::laws::Ghost;
use super::scope::{Begin, Budget, Scope};
use super::sight::Sights;
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
    /// How many things were to be seen.
    pub sights: usize,
    /// What of them was not.
    pub unseen: Vec<&'static str>,
}

impl Checked {
    /// Whether every state was visited, keeps every promise, and everything that was to be seen was.
    pub fn holds(&self) -> bool {
        self.exhausted && self.violation.is_none() && self.unseen.is_empty()
    }
}

/// A promise that every state is to keep.
struct Promise {
    name: &'static str,
    holds: fn(&Exploration, &State) -> bool,
}

/// All that every state is to keep.
const PROMISES: &[Promise] = &[
    Promise {
        name: "P1",
        holds: |_, state| !state.breaks("P1"),
    },
    Promise {
        name: "P2",
        holds: |_, state| !state.breaks("P2"),
    },
    Promise {
        name: "A9",
        holds: |_, state| !state.breaks("A9"),
    },
    Promise {
        name: "record",
        holds: |_, state| !state.breaks("record"),
    },
    Promise {
        name: "contract",
        holds: |_, state| !state.breaks("contract"),
    },
    Promise {
        name: "P6",
        holds: |model, state| {
            state.broken.is_some() || !state.is_quiet() || model.distances.heals(state, model.rules)
        },
    },
];

/// A scope with what is found out about it.
#[derive(Debug)]
pub(crate) struct Exploration {
    scope: Scope,
    rules: Rules,
    pub(super) sights: Sights,
    distances: Distances,
}

impl Model for Exploration {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        let mut states = Vec::new();
        for clocks in self.scope.clocks {
            let nodes = clocks.len();
            match self.scope.begin {
                Begin::Empty => states.push(self.starting(clocks)),
                Begin::Rest { phases } => {
                    let all: Vec<usize> = (0..nodes).collect();
                    states.extend((0..phases).map(|after| self.at_rest(clocks, &all, after)));
                }
                Begin::Joining => states.extend((0..nodes).map(|joins| {
                    let others: Vec<usize> = (0..nodes).filter(|n| *n != joins).collect();
                    self.at_rest(clocks, &others, 1)
                })),
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
        let mut properties: Vec<Property<Self>> = PROMISES
            .iter()
            .map(|promise| Property {
                expectation: Expectation::Always,
                name: promise.name,
                condition: promise.holds,
            })
            .collect();
        properties.extend(self.scope.sights.iter().map(|sight| sight.property()));
        properties
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
        State {
            now: 1,
            seats: clocks.iter().map(seat).collect(),
            store: Arc::new(Shelf::new()),
            requests: Vec::new(),
            left: Budget::default(),
            ghost: Ghost::default(),
            broken: None,
            memory: self.scope.memory(),
        }
    }

    /// All nodes have just started, and the store is empty.
    fn starting(&self, clocks: &[i64]) -> State {
        let mut state = self.empty(clocks);
        for n in 0..clocks.len() {
            state.start(n, true, self.rules, &mut Telling::default());
        }
        state.left = self.scope.budget;
        state
    }

    /// These nodes have started, one after the other and out of step by `after`, and the shard is served.
    fn at_rest(&self, clocks: &[i64], nodes: &[usize], after: u64) -> State {
        let mut telling = Telling::default();
        let mut state = self.empty(clocks);
        for n in nodes {
            state.start(*n, true, self.rules, &mut telling);
            state.calm_until(state.now + 3 * TTL + after, self.rules, &mut telling);
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
    let broken = PROMISES
        .iter()
        .find_map(|promise| Some((promise.name, discoveries.get(promise.name)?)));
    let (violation, story) = match broken {
        None => (None, Vec::new()),
        Some((name, path)) => model.story(name, path.clone().into_vec()),
    };
    let sights = scope.sights.iter().map(|sight| sight.words());
    let unseen = sights.filter(|words| !discoveries.contains_key(words)).collect();
    let capped = options
        .most_states
        .is_some_and(|most| checker.state_count() >= most);
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
        sights: scope.sights.len(),
        unseen,
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

    fn exploration(name: &str) -> Exploration {
        Exploration {
            scope: *scope(name).unwrap(),
            rules: Rules::sound(),
            sights: Sights::default(),
            distances: Distances::default(),
        }
    }

    fn successors(model: &Exploration, state: &State) -> Vec<(Act, State)> {
        model.next_steps(state)
    }

    /// Walks a scope and compares, whenever it comes to a known state, where that leads with where it led before.
    fn same_futures(name: &str, most: usize) {
        let model = exploration(name);
        let mut known: std::collections::HashMap<u64, Vec<u64>> = Default::default();
        let mut samples: std::collections::HashMap<u64, State> = Default::default();
        let mut queue: std::collections::VecDeque<State> = model.init_states().into();
        let mut compared = 0;
        let mut bad = 0;
        while let Some(state) = queue.pop_front() {
            if known.len() >= most {
                break;
            }
            let print = state.print();
            let next = successors(&model, &state);
            let mut prints: Vec<u64> = next.iter().map(|(_, s)| s.print()).collect();
            prints.sort_unstable();
            prints.dedup();
            if let Some(before) = known.get(&print) {
                compared += 1;
                if *before != prints {
                    bad += 1;
                    if bad <= 3 {
                    let first = &samples[&print];
                    for ((a, x), (b, y)) in successors(&model, first).iter().zip(&next) {
                        let (xs, ys) = (x.all_words(), y.all_words());
                        if xs != ys {
                            eprintln!("{a:?} {b:?} {} {}", xs.len(), ys.len());
                            for (at, (p, q)) in xs.iter().zip(&ys).enumerate().filter(|(_, (p, q))| p != q).take(3) {
                                eprintln!("  {at}: {p:?} {q:?} after {:?}", &xs[at.saturating_sub(10)..at]);
                            }
                            for n in 0..2 { 
                              let l = format!("{:#?}", first.seats[n]); let r = format!("{:#?}", state.seats[n]);
                              for (l, r) in l.lines().zip(r.lines()).filter(|(l,r)| l != r).take(60) { eprintln!("   {l}  |  {r}"); }
                            }
                            break;
                        }
                    }
                    }
                }
            } else {
                known.insert(print, prints);
                samples.insert(print, state);
                queue.extend(next.into_iter().map(|(_, s)| s));
            }
        }
        eprintln!("{name}: {} states, {compared} compared, {bad} differ", known.len());
    }

    #[test]
    fn debug_futures() {
        let name = std::env::var("SCOPE").unwrap_or("delay".to_owned());
        same_futures(&name, 20000);
    }
}
