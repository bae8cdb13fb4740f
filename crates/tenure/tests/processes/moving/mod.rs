//! Moves with real processes: nodes that keep a journal, routers, and clients behind them, on SQLite. `tests/stores` plays the scenes on servers.
//!
//! Loads and seals take long enough here for a fault to fall into the phase that it is meant for; the records say when that
//! is. What was acknowledged must be in the journal, in order per key, and the judge must see one owner at any time.
//! A few crossings are tried in every run; all of them in the module `long`.

mod clients;
mod entities;
mod scenes;

use crate::test_cluster::TestCluster;
use crate::worker::Role;
use scenes::{Fault, Phase, Who, crossing, crossings, planned};

fn sqlite() -> TestCluster {
    TestCluster::new(scenes::SHARDS).with_role(Role::Ledger)
}

// D2
#[test]
fn no_request_fails_while_a_node_joins_one_is_drained_and_all_are_restarted_in_turn() {
    planned(&sqlite());
}

// D4
#[test]
fn an_owner_that_is_killed_while_it_is_frozen_loses_nothing_that_was_acknowledged() {
    crossing(&sqlite(), Who::Owner, Fault::Killed, Phase::Freezing);
}

// D4
#[test]
fn an_owner_that_sleeps_while_it_is_frozen_and_wakes_later_loses_nothing_that_was_acknowledged() {
    crossing(&sqlite(), Who::Owner, Fault::Paused, Phase::Freezing);
}

// D4
#[test]
fn a_target_that_is_killed_while_it_warms_leaves_the_shard_with_its_owner() {
    crossing(&sqlite(), Who::Target, Fault::Killed, Phase::Warming);
}

mod long {
    use super::*;

    // D4, D5
    #[test]
    fn every_participant_may_be_killed_or_paused_in_either_phase() {
        for (who, fault, phase) in crossings() {
            println!("{who:?} {fault:?} {phase:?}");
            crossing(&sqlite(), who, fault, phase);
        }
    }
}
