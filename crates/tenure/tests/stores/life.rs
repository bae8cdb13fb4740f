//! The life of a node on a store that is a server. The scenes are those of the processes on SQLite; here nodes are also cut
//! off: by packets that are really dropped where that is allowed, and by a proxy that loses them.

use std::thread;
use std::time::Duration;

use tenure::RejoinMode;
use tenure_store::servers::proxy::TrafficMode;

use crate::backend::Backend;
use crate::dropped_packets::Dropped;
use crate::life_scenes as scenes;
use crate::place::{Place, SHARDS, direct, measured};
use crate::test_cluster::{TestCluster, between};
use crate::worker::now;

crate::on_each_store! {
    etcd {
        packets_dropped_for_less_than_the_ttl_change_no_owner_no_epoch_and_no_mode
        a_node_whose_packets_are_dropped_for_long_comes_back_drained_where_its_operator_wants_to_be_asked
        a_node_started_again_after_the_ttl_is_drained_until_it_is_activated_and_so_is_one_that_joins
        a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_and_nobody_is_drained
    } long {
        packets_lost_on_the_way_for_less_than_the_ttl_change_no_owner_no_epoch_and_no_mode
        a_node_whose_packets_are_dropped_for_long_comes_back_by_itself
        a_node_whose_packets_are_lost_for_long_comes_back_as_it_should
        an_owner_that_slept_for_longer_than_its_ttl_comes_back_as_it_should
        a_node_killed_and_started_again_within_the_ttl_is_active_although_its_operator_wants_to_be_asked
        a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_by_itself
        a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_in_every_order
        operators_drain_activate_freeze_rebalance_move_and_evict_and_it_shows
        a_node_that_sleeps_is_evicted_when_its_ttl_proves_it_gone_and_not_before
    }
    nats {
        a_node_killed_and_started_again_within_the_ttl_is_active_although_its_operator_wants_to_be_asked
        a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_and_nobody_is_drained
        operators_drain_activate_freeze_rebalance_move_and_evict_and_it_shows
    } long {
        packets_dropped_for_less_than_the_ttl_change_no_owner_no_epoch_and_no_mode
        packets_lost_on_the_way_for_less_than_the_ttl_change_no_owner_no_epoch_and_no_mode
        a_node_whose_packets_are_dropped_for_long_comes_back_drained_where_its_operator_wants_to_be_asked
        a_node_whose_packets_are_dropped_for_long_comes_back_by_itself
        a_node_whose_packets_are_lost_for_long_comes_back_as_it_should
        an_owner_that_slept_for_longer_than_its_ttl_comes_back_as_it_should
        a_node_started_again_after_the_ttl_is_drained_until_it_is_activated_and_so_is_one_that_joins
        a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_by_itself
        a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_in_every_order
        a_node_that_sleeps_is_evicted_when_its_ttl_proves_it_gone_and_not_before
    }
    postgres {
        a_node_started_again_after_the_ttl_is_drained_until_it_is_activated_and_so_is_one_that_joins
        a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_by_itself
    } long {
        packets_dropped_for_less_than_the_ttl_change_no_owner_no_epoch_and_no_mode
        packets_lost_on_the_way_for_less_than_the_ttl_change_no_owner_no_epoch_and_no_mode
        a_node_whose_packets_are_dropped_for_long_comes_back_drained_where_its_operator_wants_to_be_asked
        a_node_whose_packets_are_dropped_for_long_comes_back_by_itself
        a_node_whose_packets_are_lost_for_long_comes_back_as_it_should
        an_owner_that_slept_for_longer_than_its_ttl_comes_back_as_it_should
        a_node_killed_and_started_again_within_the_ttl_is_active_although_its_operator_wants_to_be_asked
        a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_and_nobody_is_drained
        a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_in_every_order
        operators_drain_activate_freeze_rebalance_move_and_evict_and_it_shows
        a_node_that_sleeps_is_evicted_when_its_ttl_proves_it_gone_and_not_before
    }
    s3 {
        a_node_killed_and_started_again_within_the_ttl_is_active_although_its_operator_wants_to_be_asked
    } long {
        packets_dropped_for_less_than_the_ttl_change_no_owner_no_epoch_and_no_mode
        packets_lost_on_the_way_for_less_than_the_ttl_change_no_owner_no_epoch_and_no_mode
        a_node_whose_packets_are_dropped_for_long_comes_back_drained_where_its_operator_wants_to_be_asked
        a_node_whose_packets_are_dropped_for_long_comes_back_by_itself
        a_node_whose_packets_are_lost_for_long_comes_back_as_it_should
        an_owner_that_slept_for_longer_than_its_ttl_comes_back_as_it_should
        a_node_started_again_after_the_ttl_is_drained_until_it_is_activated_and_so_is_one_that_joins
        a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_and_nobody_is_drained
        a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_by_itself
        a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_in_every_order
        operators_drain_activate_freeze_rebalance_move_and_evict_and_it_shows
        a_node_that_sleeps_is_evicted_when_its_ttl_proves_it_gone_and_not_before
    }
}

/// Of the ttl: short of what nobody notices, and short of the ttl by what renewals and reconnecting take.
const SHORT: [f64; 2] = [0.4, 0.5];

/// How nodes are cut off.
#[derive(Clone, Copy)]
enum Cut {
    /// The kernel drops their packets.
    Packets,
    /// A proxy on their way loses what they send and get.
    Proxy,
}

/// Cuts node `a` off for this part of the ttl, or until somebody else has its shards.
fn cut_off<B: Backend>(place: &Place<B>, cut: Cut, part: Option<f64>) -> bool {
    let proxy = &place.proxies["a"];
    let dropped = match cut {
        Cut::Packets => match Dropped::at(proxy.port()) {
            Some(dropped) => Some(dropped),
            None => return false,
        },
        Cut::Proxy => {
            let flow = if part.is_some() {
                TrafficMode::Hold
            } else {
                TrafficMode::Lose
            };
            proxy.both_ways(flow);
            None
        }
    };
    let begun = now();
    match part {
        Some(part) => thread::sleep(place.site.ttl().mul_f64(part)),
        None => {
            let site = &place.site;
            let held = site.await_served("b has them all", |held| held.nodes() == ["b"]);
            measured::<B>(
                "from the cut to a new owner",
                between(begun, held.last_start()),
            );
            thread::sleep(B::TTL / 2);
        }
    }
    proxy.heal();
    drop(dropped);
    true
}

fn two<B: Backend>(rejoin: RejoinMode, ttl: Duration) -> Place<B> {
    let server = B::launch();
    let own = scenes::comes_back(rejoin);
    let site = TestCluster::new(SHARDS).with_ttl(ttl);
    let (place, _) = Place::settled_as(server, site, &["a", "b"], B::url, &own);
    place
}

// C1
fn cut_short<B: Backend>(cut: Cut) {
    // Where packets are dropped, the first to be sent again after healing is TCP's to choose: up to as long again as the cut
    // was. A longer ttl leaves room for that.
    let ttl = match cut {
        Cut::Packets => B::TTL * 3,
        Cut::Proxy => B::TTL,
    };
    let place = two::<B>(RejoinMode::Manual, ttl);
    let before = place.site.await_settled(&["a", "b"]);
    for part in SHORT {
        if !cut_off(&place, cut, Some(part)) {
            return;
        }
        place.await_work_after(now());
        thread::sleep(ttl / 2);
    }
    place.assert_same_owners(&before);
    place.site.assert_clean();
}

// C2
fn cut_for_long<B: Backend>(cut: Cut, rejoin: RejoinMode) {
    let mut place = two::<B>(rejoin, B::TTL);
    let url = place.server.url(place.server.address().port());
    place.site = place.site.with_store(url);
    scenes::everybody_knows_who_lives(&place.site, &["a", "b"]);
    if !cut_off(&place, cut, None) {
        return;
    }
    scenes::comes_back_expired(&place.site, rejoin);
}

// C1
fn packets_dropped_for_less_than_the_ttl_change_no_owner_no_epoch_and_no_mode<B: Backend>() {
    cut_short::<B>(Cut::Packets);
}

// C1
fn packets_lost_on_the_way_for_less_than_the_ttl_change_no_owner_no_epoch_and_no_mode<
    B: Backend,
>() {
    cut_short::<B>(Cut::Proxy);
}

// C2
fn a_node_whose_packets_are_dropped_for_long_comes_back_drained_where_its_operator_wants_to_be_asked<
    B: Backend,
>() {
    cut_for_long::<B>(Cut::Packets, RejoinMode::Manual);
}

// C2
fn a_node_whose_packets_are_dropped_for_long_comes_back_by_itself<B: Backend>() {
    cut_for_long::<B>(Cut::Packets, RejoinMode::Auto);
}

// C2
fn a_node_whose_packets_are_lost_for_long_comes_back_as_it_should<B: Backend>() {
    cut_for_long::<B>(Cut::Proxy, RejoinMode::Manual);
    cut_for_long::<B>(Cut::Proxy, RejoinMode::Auto);
}

// C2
fn an_owner_that_slept_for_longer_than_its_ttl_comes_back_as_it_should<B: Backend>() {
    for rejoin in [RejoinMode::Manual, RejoinMode::Auto] {
        let (_server, site) = direct::<B>(SHARDS);
        scenes::an_owner_that_slept(site, rejoin);
    }
}

// C3
fn a_node_killed_and_started_again_within_the_ttl_is_active_although_its_operator_wants_to_be_asked<
    B: Backend,
>() {
    let (_server, site) = direct::<B>(SHARDS);
    scenes::a_restart_within_the_ttl(site);
}

// C4, C7
fn a_node_started_again_after_the_ttl_is_drained_until_it_is_activated_and_so_is_one_that_joins<
    B: Backend,
>() {
    let (_server, site) = direct::<B>(SHARDS);
    scenes::a_restart_after_the_ttl(site, B::LATE);
}

// C10
fn a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_and_nobody_is_drained<B: Backend>() {
    let (_server, site) = direct::<B>(9);
    scenes::a_whole_cluster(site, [2, 0, 1], RejoinMode::Manual, B::LATE);
}

// C5
fn a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_by_itself<B: Backend>() {
    let (_server, site) = direct::<B>(9);
    scenes::a_whole_cluster(site, [1, 0, 2], RejoinMode::Auto, B::LATE);
}

// C5, C10
fn a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_in_every_order<B: Backend>() {
    for order in scenes::ORDERS {
        for rejoin in [RejoinMode::Auto, RejoinMode::Manual] {
            let (_server, site) = direct::<B>(9);
            scenes::a_whole_cluster(site, order, rejoin, B::LATE);
        }
    }
}

// C7
fn operators_drain_activate_freeze_rebalance_move_and_evict_and_it_shows<B: Backend>() {
    let (_server, site) = direct::<B>(SHARDS);
    scenes::operators(site);
}

// C7
fn a_node_that_sleeps_is_evicted_when_its_ttl_proves_it_gone_and_not_before<B: Backend>() {
    let (_server, site) = direct::<B>(SHARDS);
    scenes::an_eviction_of_one_that_sleeps(site);
}
