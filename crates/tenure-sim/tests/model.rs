//! Every state of the small scopes keeps every promise, and nothing that was to happen is missing.

use tenure_sim::model::{ModelOptions, SCOPES, check, scope};

/// Explores a scope on one thread, so that the figures are the same each time.
fn holds(name: &str) {
    let scope = scope(name).expect("there is such a scope");
    let options = ModelOptions {
        threads: 1,
        ..ModelOptions::default()
    };
    let checked = check(scope, &options, |_| {});
    println!(
        "{name}: {} states, depth {}, heals in {}",
        checked.states, checked.depth, checked.healed_within
    );
    let story = checked.story.join("\n");
    assert_eq!(checked.violation, None, "{story}");
    assert_eq!(checked.unseen, Vec::<&str>::new());
    assert!(checked.holds(), "{checked:?}");
}

#[test]
fn a_cluster_at_rest_is_closed_under_everything_that_happens() {
    holds("rest");
}

#[test]
fn two_nodes_that_start_at_once_share_an_empty_store() {
    holds("start");
}

#[test]
fn one_late_message_breaks_nothing() {
    holds("delay");
}

#[test]
fn a_node_may_stop_and_come_back() {
    holds("stop");
}

#[test]
fn a_node_may_stand_still_for_any_time() {
    holds("pause");
}

#[test]
fn a_removed_record_is_made_anew() {
    holds("removal");
}

#[test]
fn a_lost_session_is_over_and_nothing_is_taken_from_it_early() {
    holds("loss");
}

#[test]
fn a_node_that_does_not_serve_the_keyspace_takes_no_part_in_it() {
    holds("stranger");
}

#[test]
fn nodes_of_different_keyspaces_leave_each_others_shards_alone() {
    holds("elsewhere");
}

#[test]
fn a_process_that_only_plans_takes_no_shard() {
    holds("planner");
}

#[test]
fn a_cordoned_node_gets_no_shard() {
    holds("cordon");
}

#[test]
fn a_third_node_may_join() {
    holds("three-join");
}

#[test]
fn requests_through_a_router_are_held_and_sent_on_when_a_shard_moves() {
    holds("router");
}

#[test]
fn every_everyday_scope_has_its_test() {
    let tested = [
        "rest",
        "start",
        "delay",
        "stop",
        "pause",
        "removal",
        "loss",
        "stranger",
        "elsewhere",
        "planner",
        "cordon",
        "three-join",
        "router",
    ];
    let everyday: Vec<&str> = SCOPES
        .iter()
        .filter(|scope| scope.everyday)
        .map(|scope| scope.name)
        .collect();
    assert_eq!(everyday, tested);
}

#[test]
fn a_check_that_is_cut_short_does_not_count_as_exhausted() {
    let options = ModelOptions {
        threads: 1,
        most_states: Some(2_000),
        ..ModelOptions::default()
    };
    let checked = check(scope("crash").expect("there is one"), &options, |_| {});
    assert!(!checked.exhausted && !checked.holds());
    assert_eq!(checked.violation, None);
}

mod long {
    use super::*;

    #[test]
    fn the_large_scopes_hold() {
        for scope in SCOPES.iter().filter(|scope| !scope.everyday) {
            holds(scope.name);
        }
    }
}
