use std::collections::{HashMap, VecDeque};

use super::*;
use crate::model::scope;

fn exploration(name: &str) -> Exploration {
    Exploration::new(scope(name).unwrap(), Rules::sound())
}

/// Walks the first states of a scope and compares, whenever it comes to a state that counts as known, where that leads with
/// where the known one led.
fn check_futures(name: &str, most: usize) {
    let model = exploration(name);
    let mut known: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut queue: VecDeque<State> = model.init_states().into();
    let mut compared = 0;
    while let Some(state) = queue.pop_front() {
        let print = state.print();
        let next = model.next_states(&state);
        let mut prints: Vec<u64> = next.iter().map(State::print).collect();
        prints.sort_unstable();
        prints.dedup();
        if let Some(before) = known.get(&print) {
            compared += 1;
            assert_eq!(*before, prints, "{name}");
        } else if known.len() < most {
            known.insert(print, prints);
            queue.extend(next);
        }
    }
    assert!(compared > 0, "{name}");
}

#[test]
fn states_that_count_as_the_same_have_the_same_futures() {
    for name in [
        "rest",
        "start",
        "delay",
        "join",
        "crash",
        "pause",
        "removal",
        "loss",
        "router",
        "router-delay",
    ] {
        check_futures(name, 10_000);
    }
}

#[test]
fn a_cluster_at_rest_comes_back_to_the_same_state_and_an_hour_makes_no_difference() {
    let model = exploration("rest");
    let mut state = model.init_states().remove(0);
    let mut telling = StepReport::default();
    let ticks = 2 * 8;
    state.calm_until(state.now + 40 * ticks, Rules::sound(), &mut telling);
    let print = state.print();
    for _ in 0..3 {
        state.calm_until(state.now + ticks, Rules::sound(), &mut telling);
        assert_eq!(state.print(), print);
    }
    state.calm_until(state.now + 4, Rules::sound(), &mut telling);
    assert_ne!(state.print(), print, "half a tick makes a difference");
}

#[test]
fn what_a_machine_decides_by_makes_a_difference() {
    let model = exploration("crash");
    let state = model.init_states().remove(0);
    let next = model.next_states(&state);
    let print = state.print();
    assert!(next.iter().all(|next| next.print() != print));
    let mut broke = state.clone();
    broke.left.crashes = 0;
    assert_ne!(broke.print(), print);
    let mut paused = state.clone();
    paused.seats[0].paused = true;
    assert_ne!(paused.print(), print);
    let mut raised = state;
    raised.ghost.highest.0 += 1;
    assert_ne!(raised.print(), print);
}
