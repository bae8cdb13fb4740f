//! A scope as something to explore: how it begins, what follows from a state, and what must hold.

use std::sync::Arc;

use stateright::{Expectation, Model, Property};
use tenure_core::rules::Rules;

use super::canonical::base;
use super::config::{Begin, Budget, LastNodeKind, Scope};
use super::invariants::HighestEpoch;
use super::liveness::Distances;
use super::reachability::Sights;
use super::state::{ModelNode, State};
use super::step_report::StepReport;
use super::store::ModelStore;
use super::timing::TTL;
use super::transitions::ModelAction;
use crate::clock::Clock;

/// Invariant that every state is to keep.
pub(super) struct StateInvariant {
    pub(super) name: &'static str,
    pub(super) holds: fn(&Exploration, &State) -> bool,
}

/// All that every state is to keep.
pub(super) const PROMISES: &[StateInvariant] = &[
    StateInvariant {
        name: "P1",
        holds: |_, state| !state.breaks("P1"),
    },
    StateInvariant {
        name: "P2",
        holds: |_, state| !state.breaks("P2"),
    },
    StateInvariant {
        name: "P3",
        holds: |_, state| !state.breaks("P3"),
    },
    StateInvariant {
        name: "P4",
        holds: |_, state| !state.breaks("P4"),
    },
    StateInvariant {
        name: "A9",
        holds: |_, state| !state.breaks("A9"),
    },
    StateInvariant {
        name: "record",
        holds: |_, state| !state.breaks("record"),
    },
    StateInvariant {
        name: "cordon",
        holds: |_, state| !state.breaks("cordon"),
    },
    StateInvariant {
        name: "contract",
        holds: |_, state| !state.breaks("contract"),
    },
    StateInvariant {
        name: "P6",
        holds: |model, state| {
            state.broken.is_some() || !state.is_quiet() || model.distances.heals(state, model.rules)
        },
    },
];

/// A scope with what is found out about it.
#[derive(Debug)]
pub(crate) struct Exploration {
    pub(super) scope: Scope,
    pub(super) rules: Rules,
    pub(super) sights: Sights,
    pub(super) distances: Distances,
}

impl Model for Exploration {
    type State = State;
    type Action = ModelAction;

    fn init_states(&self) -> Vec<State> {
        let beginnings = self.beginnings();
        beginnings
            .iter()
            .map(|beginning| self.begin(beginning, &mut StepReport::default()))
            .collect()
    }

    fn actions(&self, state: &State, out: &mut Vec<ModelAction>) {
        state.acts(&self.scope, out);
    }

    fn next_state(&self, state: &State, act: ModelAction) -> Option<State> {
        let mut state = state.clone();
        let mut telling = StepReport::default();
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

/// One way in which a scope begins.
#[derive(Clone, Debug)]
pub(super) struct Beginning {
    clocks: &'static [i64],
    /// Those that have started, one after the other.
    nodes: Vec<usize>,
    /// How long each was given to find its place; none if all have just started.
    each: Option<u64>,
}

impl Exploration {
    pub(super) fn new(scope: &Scope, rules: Rules) -> Self {
        Self {
            scope: *scope,
            rules,
            sights: Sights::default(),
            distances: Distances::default(),
        }
    }

    /// All ways in which the scope begins.
    pub(super) fn beginnings(&self) -> Vec<Beginning> {
        let mut all = Vec::new();
        for clocks in self.scope.clocks {
            let nodes = || 0..clocks.len();
            let mut add = |nodes, each| {
                all.push(Beginning {
                    clocks,
                    nodes,
                    each,
                })
            };
            match self.scope.begin {
                Begin::Empty => add(nodes().collect(), None),
                Begin::Rest { phases } => {
                    (0..phases).for_each(|after| add(nodes().collect(), Some(3 * TTL + after)));
                }
                Begin::Joining => (0..self.scope.nodes).for_each(|joins| {
                    let others = nodes().filter(|n| *n != joins).collect();
                    add(others, Some(3 * TTL + 1));
                }),
            }
        }
        all
    }

    /// The state at one of the beginnings.
    pub(super) fn begin(&self, beginning: &Beginning, telling: &mut StepReport) -> State {
        let seat = |(n, rate_ppm): (usize, &i64)| ModelNode {
            clock: Clock {
                offset: base::TIMES,
                rate_ppm: *rate_ppm,
            },
            directory: None,
            incarnations: 0,
            paused: false,
            router: n >= self.scope.nodes,
            part: match n + 1 == self.scope.nodes {
                true => self.scope.last,
                false => LastNodeKind::Alike,
            },
            process: None,
        };
        let mut state = State {
            now: 1,
            seats: beginning.clocks.iter().enumerate().map(seat).collect(),
            store: Arc::new(ModelStore::new()),
            requests: Vec::new(),
            left: Budget::default(),
            ghost: HighestEpoch::default(),
            broken: None,
            memory: self.scope.memory(),
            strict: self.scope.budget.crashes == 0 && self.scope.budget.pauses == 0,
        };
        for n in &beginning.nodes {
            state.start(*n, true, self.rules, telling);
            if let Some(each) = beginning.each {
                state.calm_until(state.now + each, self.rules, telling);
            }
        }
        if self.scope.last == LastNodeKind::Cordoned {
            state.cordon(self.scope.nodes - 1, telling);
            state.calm_until(state.now + TTL, self.rules, telling);
        }
        state.left = self.scope.budget;
        state
    }
}

#[cfg(test)]
mod tests;
