//! Moves under load on stores that are servers. The scenes are those of the processes on SQLite: nodes that keep a journal,
//! routers, and clients behind them.

use crate::backend::Backend;
use crate::moving_scenes::{self as scenes, Fault, Phase, Who, crossing};
use crate::place::direct;
use crate::test_cluster::TestCluster;
use crate::worker::Role;

crate::on_each_store! {
    etcd {
        no_request_fails_while_a_node_joins_one_is_drained_and_all_are_restarted_in_turn
        an_owner_that_is_killed_while_it_is_frozen_loses_nothing_that_was_acknowledged
    } long {
        a_target_that_sleeps_while_it_warms_loses_nothing_that_was_acknowledged
        a_router_that_is_paused_before_the_shards_freeze_loses_nothing_that_was_acknowledged
        every_participant_may_be_killed_or_paused_in_either_phase
    }
    nats {
        an_owner_that_is_killed_while_it_is_frozen_loses_nothing_that_was_acknowledged
        no_request_fails_while_a_node_joins_one_is_drained_and_all_are_restarted_in_turn
        a_router_that_is_paused_before_the_shards_freeze_loses_nothing_that_was_acknowledged
    } long {
        a_target_that_sleeps_while_it_warms_loses_nothing_that_was_acknowledged
        every_participant_may_be_killed_or_paused_in_either_phase
    }
    postgres {
        an_owner_that_is_killed_while_it_is_frozen_loses_nothing_that_was_acknowledged
        no_request_fails_while_a_node_joins_one_is_drained_and_all_are_restarted_in_turn
    } long {
        a_target_that_sleeps_while_it_warms_loses_nothing_that_was_acknowledged
        a_router_that_is_paused_before_the_shards_freeze_loses_nothing_that_was_acknowledged
        every_participant_may_be_killed_or_paused_in_either_phase
    }
    s3 {
        a_target_that_sleeps_while_it_warms_loses_nothing_that_was_acknowledged
    } long {
        no_request_fails_while_a_node_joins_one_is_drained_and_all_are_restarted_in_turn
        an_owner_that_is_killed_while_it_is_frozen_loses_nothing_that_was_acknowledged
        a_router_that_is_paused_before_the_shards_freeze_loses_nothing_that_was_acknowledged
        every_participant_may_be_killed_or_paused_in_either_phase
    }
}

/// Starts the server, and a site whose nodes keep a journal.
fn ledger<B: Backend>() -> (B, TestCluster) {
    let (server, site) = direct::<B>(scenes::SHARDS);
    (server, site.with_role(Role::Ledger))
}

// D2
fn no_request_fails_while_a_node_joins_one_is_drained_and_all_are_restarted_in_turn<B: Backend>() {
    let (_server, site) = ledger::<B>();
    scenes::planned(&site);
}

// D4
fn an_owner_that_is_killed_while_it_is_frozen_loses_nothing_that_was_acknowledged<B: Backend>() {
    let (_server, site) = ledger::<B>();
    crossing(&site, Who::Owner, Fault::Killed, Phase::Freezing);
}

// D4
fn a_target_that_sleeps_while_it_warms_loses_nothing_that_was_acknowledged<B: Backend>() {
    let (_server, site) = ledger::<B>();
    crossing(&site, Who::Target, Fault::Paused, Phase::Warming);
}

// D4, D5
fn a_router_that_is_paused_before_the_shards_freeze_loses_nothing_that_was_acknowledged<
    B: Backend,
>() {
    let (_server, site) = ledger::<B>();
    crossing(&site, Who::Router, Fault::Paused, Phase::Warming);
}

// D4, D5
fn every_participant_may_be_killed_or_paused_in_either_phase<B: Backend>() {
    for (who, fault, phase) in scenes::crossings() {
        println!("{who:?} {fault:?} {phase:?}");
        let (_server, site) = ledger::<B>();
        crossing(&site, who, fault, phase);
    }
}
