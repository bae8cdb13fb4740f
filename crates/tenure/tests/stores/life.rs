//! The life of a node on a store that is a server. The scenes are those of the processes on SQLite; here nodes are also cut
//! off: by packets that are really dropped where that is allowed, and by a proxy that loses them.

use std::thread;
use std::time::Duration;

use tenure::Rejoin;
use tenure_store::servers::etcd::Etcd;
use tenure_store::servers::proxy::Flow;

use crate::backend::Backend;
use crate::life_scenes as scenes;
use crate::packets::Dropped;
use crate::place::{Place, SHARDS, measured};
use crate::site::{Site, between};
use crate::worker::now;

/// A server, and a site whose nodes come to it straight.
fn on_etcd(shards: u32) -> (Etcd, Site) {
    let server = Etcd::launch();
    let url = Backend::url(&server, server.address().port());
    let site = Site::new(shards).with_ttl(Etcd::TTL).with_store(url);
    (server, site)
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
fn cut_off(place: &Place<Etcd>, cut: Cut, part: Option<f64>) -> bool {
    let proxy = &place.proxies["a"];
    let dropped = match cut {
        Cut::Packets => match Dropped::at(proxy.port()) {
            Some(dropped) => Some(dropped),
            None => return false,
        },
        Cut::Proxy => {
            let flow = if part.is_some() {
                Flow::Hold
            } else {
                Flow::Lose
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
            measured::<Etcd>(
                "from the cut to a new owner",
                between(begun, held.last_start()),
            );
            thread::sleep(Etcd::TTL / 2);
        }
    }
    proxy.heal();
    drop(dropped);
    true
}

fn two(rejoin: Rejoin, ttl: Duration) -> Place<Etcd> {
    let server = Etcd::launch();
    let own = scenes::comes_back(rejoin);
    let site = Site::new(SHARDS).with_ttl(ttl);
    let (place, _) = Place::settled_as(server, site, &["a", "b"], Backend::url, &own);
    place
}

// C1
fn cut_short(cut: Cut) {
    // Where packets are dropped, the first to be sent again after healing is TCP's to choose: up to as long again as the cut
    // was. A longer ttl leaves room for that.
    let ttl = match cut {
        Cut::Packets => Etcd::TTL * 3,
        Cut::Proxy => Etcd::TTL,
    };
    let place = two(Rejoin::Manual, ttl);
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
fn cut_for_long(cut: Cut, rejoin: Rejoin) {
    let mut place = two(rejoin, Etcd::TTL);
    let url = Backend::url(&place.server, place.server.address().port());
    place.site = place.site.with_store(url);
    scenes::everybody_knows_who_lives(&place.site, &["a", "b"]);
    if !cut_off(&place, cut, None) {
        return;
    }
    scenes::comes_back_expired(&place.site, rejoin);
}

#[test]
fn packets_dropped_for_less_than_the_ttl_change_no_owner_no_epoch_and_no_mode() {
    cut_short(Cut::Packets);
}

#[test]
fn packets_lost_on_the_way_for_less_than_the_ttl_change_no_owner_no_epoch_and_no_mode() {
    if crate::has_time() {
        cut_short(Cut::Proxy);
    }
}

#[test]
fn a_node_whose_packets_are_dropped_for_long_comes_back_drained_where_its_operator_wants_to_be_asked()
 {
    cut_for_long(Cut::Packets, Rejoin::Manual);
}

#[test]
fn a_node_whose_packets_are_dropped_or_lost_for_long_comes_back_as_it_should() {
    if crate::has_time() {
        cut_for_long(Cut::Packets, Rejoin::Auto);
        cut_for_long(Cut::Proxy, Rejoin::Manual);
        cut_for_long(Cut::Proxy, Rejoin::Auto);
    }
}

// C3
#[test]
fn a_node_killed_and_started_again_within_the_ttl_is_active_although_its_operator_wants_to_be_asked()
 {
    if crate::has_time() {
        let (_server, site) = on_etcd(8);
        scenes::a_restart_within_the_ttl(site);
    }
}

// C4, C7
#[test]
fn a_node_started_again_after_the_ttl_is_drained_until_it_is_activated_and_so_is_one_that_joins() {
    let (_server, site) = on_etcd(8);
    scenes::a_restart_after_the_ttl(site, Etcd::LATE);
}

// C10
#[test]
fn a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_and_nobody_is_drained() {
    let (_server, site) = on_etcd(9);
    scenes::a_whole_cluster(site, [2, 0, 1], Rejoin::Manual, Etcd::LATE);
}

// C5, C10
#[test]
fn a_whole_cluster_killed_for_longer_than_the_ttl_comes_back_in_every_order() {
    if crate::has_time() {
        for order in scenes::ORDERS {
            for rejoin in [Rejoin::Auto, Rejoin::Manual] {
                let (_server, site) = on_etcd(9);
                scenes::a_whole_cluster(site, order, rejoin, Etcd::LATE);
            }
        }
    }
}

// C7
#[test]
fn operators_drain_activate_freeze_rebalance_move_and_evict_and_it_shows() {
    if crate::has_time() {
        let (_server, site) = on_etcd(8);
        scenes::operators(site);
        let (_server, site) = on_etcd(8);
        scenes::an_eviction_of_one_that_sleeps(site);
    }
}
