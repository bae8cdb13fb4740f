//! Explores a scope to its last state.

use std::time::{Duration, Instant};

use serde::Serialize;
use stateright::{Checker, HasDiscoveries, Model};
use tenure_core::rules::Rules;

<<<<<<< HEAD
use super::canon::base;
use super::driver::{TTL, Telling};
use super::heal::Distances;
use super::laws::Ghost;
use super::scope::{Begin, Budget, Scope};
use super::sight::Sights;
use super::state::{Seat, Shelf, State};
use super::steps::Act;
use crate::clock::Clock;
=======
use super::explore::{Exploration, PROMISES};
use super::scope::Scope;

/// How often to look how far the checker is.
const LOOK: Duration = Duration::from_millis(20);
>>>>>>> w-model

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

/// Explores a scope; `told` hears now and then how far it has come.
pub fn check(scope: &Scope, options: &Options, mut told: impl FnMut(Progress)) -> Checked {
    let begun = Instant::now();
    let model = Exploration::new(scope, options.rules);
    let mut checker = model
        .checker()
        .threads(options.threads)
        .finish_when(HasDiscoveries::AnyFailures);
    if let Some(most) = options.most_states {
        checker = checker.target_state_count(most);
    }
    let checker = checker.spawn_bfs();
    // The checker can be asked, but tells nothing by itself.
    while !checker.is_done() {
        std::thread::sleep(LOOK);
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
        Some((name, path)) => {
            let (what, lines) = model.story(name, &path.clone().into_vec());
            (Some(what), lines)
        }
    };
    let sights = scope.sights.iter().map(|sight| sight.words());
    let unseen = sights
        .filter(|words| !discoveries.contains_key(words))
        .collect();
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
<<<<<<< HEAD

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
                                for (at, (p, q)) in xs
                                    .iter()
                                    .zip(&ys)
                                    .enumerate()
                                    .filter(|(_, (p, q))| p != q)
                                    .take(3)
                                {
                                    eprintln!(
                                        "  {at}: {p:?} {q:?} after {:?}",
                                        &xs[at.saturating_sub(10)..at]
                                    );
                                }
                                for n in 0..2 {
                                    let l = format!("{:#?}", first.seats[n]);
                                    let r = format!("{:#?}", state.seats[n]);
                                    for (l, r) in
                                        l.lines().zip(r.lines()).filter(|(l, r)| l != r).take(60)
                                    {
                                        eprintln!("   {l}  |  {r}");
                                    }
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
        eprintln!(
            "{name}: {} states, {compared} compared, {bad} differ",
            known.len()
        );
    }

    #[test]
    fn debug_futures() {
        let name = std::env::var("SCOPE").unwrap_or("delay".to_owned());
        same_futures(&name, 20000);
    }
}
=======
>>>>>>> w-model
