//! What a leader does, with real processes on SQLite. The scenes are those of the stores that are servers, too.

pub(crate) mod books;
mod placing;
mod scenes;

use std::time::Duration;

use crate::site::{LONG_TTL, Site};
use scenes::*;

fn site(shards: u32) -> Site {
    Site::new(shards)
}

#[test]
fn five_nodes_that_join_within_a_second_are_one_plan() {
    five_joins(site(21), "a leave and a crash");
}

#[test]
fn a_killed_leader_is_followed_by_another_and_no_record_names_it() {
    a_killed_leader(site(12), Duration::ZERO);
}

#[test]
fn a_leader_that_slept_for_three_ttl_and_woke_changes_nothing() {
    a_leader_that_slept(site(8));
}

#[test]
fn a_leader_that_is_told_to_stop_deletes_nothing_and_a_standby_plans_within_a_second() {
    a_leader_that_is_told_to_stop(site(8).with_ttl(LONG_TTL));
}
