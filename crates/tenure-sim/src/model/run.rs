//! Explores a scope to its last state.

use std::time::{Duration, Instant};

use serde::Serialize;
use stateright::{Checker, HasDiscoveries, Model};
use tenure_core::rules::Rules;

use super::config::Scope;
use super::explore::{Exploration, PROMISES};

/// How often to look how far the checker is.
const LOOK: Duration = Duration::from_millis(20);

/// How to check.
#[derive(Clone, Copy, Debug)]
pub struct ModelOptions {
    /// How many threads to use.
    pub threads: usize,
    /// The rules that the machines follow.
    pub rules: Rules,
    /// Stop after so many states, exhausted or not.
    pub most_states: Option<usize>,
}

impl Default for ModelOptions {
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
pub struct ModelResult {
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
    /// All that was seen on the way.
    pub seen: Vec<&'static str>,
    /// What of the things that were to be seen was not.
    pub unseen: Vec<&'static str>,
}

impl ModelResult {
    /// Whether every state was visited, keeps every promise, and everything that was to be seen was.
    pub fn holds(&self) -> bool {
        self.exhausted && self.violation.is_none() && self.unseen.is_empty()
    }
}

/// Explores a scope; `told` hears now and then how far it has come.
pub fn check(scope: &Scope, options: &ModelOptions, mut told: impl FnMut(Progress)) -> ModelResult {
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
    ModelResult {
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
        seen: model.sights.all(),
        unseen,
    }
}
