//! What a leader does, with real processes on SQLite. The scenes are those of the stores that are servers, too.

pub(crate) mod books;
mod placing;
mod scenes;

use std::time::Duration;

use crate::test_cluster::{LONG_TTL, TestCluster};
use scenes::*;

// D1
#[test]
fn five_nodes_that_join_within_a_second_are_one_plan() {
    five_joins(TestCluster::new(21));
}

// E1, E2, E5
#[test]
fn a_killed_leader_is_followed_by_another_and_no_record_names_it() {
    a_killed_leader(TestCluster::new(12), Duration::ZERO);
}

// E2, E4
#[test]
fn a_leader_that_slept_for_three_ttl_and_woke_changes_nothing() {
    a_leader_that_slept(TestCluster::new(8));
}

// E6
#[test]
fn a_leader_that_is_told_to_stop_deletes_nothing_and_a_standby_plans_within_a_second() {
    a_leader_that_is_told_to_stop(TestCluster::new(8).with_ttl(LONG_TTL));
}

// D8
#[test]
fn weights_capacity_and_pins_decide_and_no_more_moves_than_must() {
    placing::weights_capacity_and_pins(TestCluster::new(16));
}

// D8
#[test]
fn zones_are_spread_over_or_preferred() {
    placing::zones(TestCluster::new);
}

// D8
#[test]
fn by_rendezvous_and_by_jump_shards_move_to_a_new_node_alone() {
    placing::rendezvous_and_jump(TestCluster::new);
}
