//! The life of a node, with real processes on SQLite. The scenes are those of the stores that are servers, too.

mod operator;
mod scenes;

use std::time::Duration;

use tenure::RejoinMode;

use crate::test_cluster::{LONG_TTL, TestCluster};
use scenes::*;

// C3
#[test]
fn a_node_killed_and_started_again_within_the_ttl_is_active_although_its_operator_wants_to_be_asked()
 {
    a_restart_within_the_ttl(TestCluster::new(8).with_ttl(LONG_TTL));
}

// C4, C7
#[test]
fn a_node_started_again_after_the_ttl_is_drained_until_it_is_activated_and_so_is_one_that_joins() {
    a_restart_after_the_ttl(TestCluster::new(8), Duration::ZERO);
}

// C2
#[test]
fn an_owner_that_slept_for_longer_than_its_ttl_comes_back_drained_where_its_operator_wants_to_be_asked()
 {
    an_owner_that_slept(TestCluster::new(8), RejoinMode::Manual);
}

// C10
#[test]
fn a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_and_nobody_is_drained() {
    a_whole_cluster(
        TestCluster::new(9),
        [1, 2, 0],
        RejoinMode::Manual,
        Duration::ZERO,
    );
}

// C5
#[test]
fn a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_by_itself() {
    a_whole_cluster(
        TestCluster::new(9),
        [2, 1, 0],
        RejoinMode::Auto,
        Duration::ZERO,
    );
}

// C7
#[test]
fn operators_drain_activate_freeze_rebalance_move_and_evict_and_it_shows() {
    operators(TestCluster::new(8));
}

// C7
#[test]
fn a_node_that_sleeps_is_evicted_when_its_ttl_proves_it_gone_and_not_before() {
    an_eviction_of_one_that_sleeps(TestCluster::new(8));
}

mod long {
    use super::*;

    // C2
    #[test]
    fn an_owner_that_slept_for_longer_than_its_ttl_comes_back_by_itself() {
        an_owner_that_slept(TestCluster::new(8), RejoinMode::Auto);
    }

    // C5, C10
    #[test]
    fn a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_in_every_order() {
        for order in ORDERS {
            for rejoin in [RejoinMode::Auto, RejoinMode::Manual] {
                a_whole_cluster(TestCluster::new(9), order, rejoin, Duration::ZERO);
            }
        }
    }
}
