//! Leaders on stores that are servers. The scenes are those of the processes on SQLite.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use tenure_store::servers::etcd::Etcd;
use tenure_store::servers::proxy::{Flow, Proxy};

use crate::backend::Backend;
use crate::books::{await_books, books};
use crate::site::Site;
use crate::worker::Own;
use crate::{placing, scenes};

/// A server, and a site whose nodes come to it straight.
fn on_etcd(shards: u32) -> (Etcd, Site) {
    let server = Etcd::launch();
    let site = apart(&server, shards);
    (server, site)
}

/// A site with a part of the server to itself.
fn apart(server: &Etcd, shards: u32) -> Site {
    static SITES: AtomicU32 = AtomicU32::new(0);
    let number = SITES.fetch_add(1, Ordering::Relaxed);
    let url = format!("{}-{number}", Backend::url(server, server.address().port()));
    Site::new(shards).with_ttl(Etcd::TTL).with_store(url)
}

// D8
#[test]
fn weights_zones_pins_capacity_and_policies_decide_where_shards_are() {
    if crate::has_time() {
        let server = Etcd::launch();
        let place = |shards| apart(&server, shards);
        placing::weights_capacity_and_pins(place(16));
        placing::zones(place);
        placing::rendezvous_and_jump(place);
    }
}

// E1, E2, E5
#[test]
fn a_killed_leader_is_followed_by_another_and_no_record_names_it() {
    let (_server, site) = on_etcd(12);
    scenes::a_killed_leader(site, Etcd::LATE);
}

// D1
#[test]
fn five_nodes_that_join_within_a_second_are_one_plan() {
    if crate::has_time() {
        let (_server, site) = on_etcd(21);
        scenes::five_joins(site);
    }
}

// E2, E4
#[test]
fn a_leader_that_slept_for_three_ttl_and_woke_changes_nothing() {
    if crate::has_time() {
        let (_server, site) = on_etcd(8);
        scenes::a_leader_that_slept(site);
    }
}

// E6
#[test]
fn a_leader_that_is_told_to_stop_deletes_nothing_and_a_standby_plans_within_a_second() {
    if crate::has_time() {
        let (_server, site) = on_etcd(8);
        scenes::a_leader_that_is_told_to_stop(site.with_ttl(Etcd::TTL * 2));
    }
}

/// The site's store, by another way.
fn through(site: &Site, server: &Etcd, way: &Proxy) -> String {
    let port = |port: u16| format!(":{port}/");
    site.store()
        .replace(&port(server.address().port()), &port(way.port()))
}

// E4
#[test]
fn a_leader_that_is_cut_off_leaves_no_zombie_behind() {
    if !crate::has_time() {
        return;
    }
    let (server, site) = on_etcd(8);
    let a = site.start("a");
    site.await_settled(&["a"]);
    let way = Proxy::start(server.address());
    let leads_only = Own {
        leads_only: true,
        ..Own::default()
    };
    let _p = site.launch_as("p", "p", &through(&site, &server, &way), leads_only);
    site.await_start("p", 1);
    let mut a = a;
    a.kill();
    await_books(&site, "p leads", |books| books.leader() == Some("p"));
    let (_a, mut b) = (site.start("a"), site.start("b"));
    site.await_settled(&["a", "b"]);
    let term = books(&site).term();
    // The last that it hears of is that all is well; then b is gone.
    way.both_ways(Flow::Hold);
    b.kill();
    site.await_settled(&["a"]);
    let next = await_books(&site, "another leads, and has swept", |books| {
        books.term() > term && books.naming("b").is_empty()
    });
    way.both_ways(Flow::Pass);
    await_books(&site, "p is back", |books| {
        let mut live = books.sessions.values().filter(|s| s.is_live());
        live.any(|s| s.node.as_str() == "p")
    });
    thread::sleep(Etcd::TTL);
    let after = books(&site);
    assert!(after.naming("b").is_empty(), "{}", site.scene());
    assert_eq!((after.term(), after.leader()), (next.term(), next.leader()));
    for (shard, mark) in after.plans() {
        assert!(mark >= next.plans()[&shard], "{shard}");
    }
    site.assert_clean();
}
