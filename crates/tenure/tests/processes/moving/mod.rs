//! Moves with real processes: nodes that keep a journal, routers, and clients behind them, on SQLite and etcd.
//!
//! Loads and seals take long enough here for a fault to fall into the phase that it is meant for; the records say when that
//! is. What was acknowledged must be in the journal, in order per key, and the judge must see one owner at any time.
//! A few crossings are tried in every run; all of them with `TENURE_LONG=1`.

mod clients;
mod scenes;

use tenure_store::servers::etcd::{Etcd, Release};

use crate::site::Site;
use crate::worker::Role;
use scenes::{Fault, Phase, Who, crossing, planned};

fn sqlite() -> Site {
    Site::new(scenes::SHARDS).with_role(Role::Ledger)
}

/// With the server that it is on.
fn etcd() -> (Etcd, Site) {
    let server = Etcd::start(Release::V3_4);
    let url = server.url("moving");
    // No lease of etcd's is shorter.
    let site = sqlite()
        .with_store(url)
        .with_ttl(std::time::Duration::from_secs(2));
    (server, site)
}

fn has_time() -> bool {
    let long = std::env::var_os("TENURE_LONG").is_some_and(|v| v == "1");
    if !long {
        println!("skipped: it takes its time, and is run with TENURE_LONG=1");
    }
    long
}

// D2
#[test]
fn no_request_fails_while_a_node_joins_one_is_drained_and_all_are_restarted_in_turn() {
    planned(&sqlite());
}

// D2
#[test]
fn no_request_fails_while_nodes_join_drain_and_restart_on_etcd() {
    if has_time() {
        let (_server, site) = etcd();
        planned(&site);
    }
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

// D4
#[test]
fn an_owner_that_is_killed_while_it_is_frozen_loses_nothing_on_etcd() {
    let (_server, site) = etcd();
    crossing(&site, Who::Owner, Fault::Killed, Phase::Freezing);
}

// D4, D5
#[test]
fn every_participant_may_be_killed_or_paused_in_either_phase() {
    if has_time() {
        every_crossing(sqlite);
    }
}

// D4, D5
#[test]
fn every_participant_may_be_killed_or_paused_in_either_phase_on_etcd() {
    if has_time() {
        let (server, _) = etcd();
        let mut count = 0;
        every_crossing(|| {
            count += 1;
            let url = server.url(&format!("moving-{count}"));
            sqlite()
                .with_store(url)
                .with_ttl(std::time::Duration::from_secs(2))
        });
    }
}

fn every_crossing(mut site: impl FnMut() -> Site) {
    for who in [Who::Owner, Who::Target, Who::Leader, Who::Router] {
        for fault in [Fault::Killed, Fault::Paused] {
            for phase in [Phase::Warming, Phase::Freezing] {
                println!("{who:?} {fault:?} {phase:?}");
                crossing(&site(), who, fault, phase);
            }
        }
    }
}
