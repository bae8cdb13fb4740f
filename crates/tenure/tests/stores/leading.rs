//! Leaders on stores that are servers. The scenes are those of the processes on SQLite.

use std::cell::RefCell;
use std::thread;

use tenure_store::servers::proxy::{TcpProxy, TrafficMode};

use crate::backend::Backend;
use crate::books::{await_books, books};
use crate::place::direct;
use crate::worker::Own;
use crate::{placing, scenes};

crate::on_each_store! {
    etcd {
        a_killed_leader_is_followed_by_another_and_no_record_names_it
        a_leader_that_is_cut_off_leaves_no_zombie_behind
    } long {
        weights_zones_pins_capacity_and_policies_decide_where_shards_are
        five_nodes_that_join_within_a_second_are_one_plan
        a_leader_that_slept_for_three_ttl_and_woke_changes_nothing
        a_leader_that_is_told_to_stop_deletes_nothing_and_a_standby_plans_within_a_second
    }
    nats {
        a_killed_leader_is_followed_by_another_and_no_record_names_it
        a_leader_that_is_told_to_stop_deletes_nothing_and_a_standby_plans_within_a_second
        weights_zones_pins_capacity_and_policies_decide_where_shards_are
    } long {
        five_nodes_that_join_within_a_second_are_one_plan
        a_leader_that_slept_for_three_ttl_and_woke_changes_nothing
        a_leader_that_is_cut_off_leaves_no_zombie_behind
    }
    postgres {
        a_killed_leader_is_followed_by_another_and_no_record_names_it
        five_nodes_that_join_within_a_second_are_one_plan
        a_leader_that_slept_for_three_ttl_and_woke_changes_nothing
    } long {
        weights_zones_pins_capacity_and_policies_decide_where_shards_are
        a_leader_that_is_told_to_stop_deletes_nothing_and_a_standby_plans_within_a_second
        a_leader_that_is_cut_off_leaves_no_zombie_behind
    }
    s3 {
        a_killed_leader_is_followed_by_another_and_no_record_names_it
    } long {
        weights_zones_pins_capacity_and_policies_decide_where_shards_are
        five_nodes_that_join_within_a_second_are_one_plan
        a_leader_that_slept_for_three_ttl_and_woke_changes_nothing
        a_leader_that_is_told_to_stop_deletes_nothing_and_a_standby_plans_within_a_second
        a_leader_that_is_cut_off_leaves_no_zombie_behind
    }
}

// D8
fn weights_zones_pins_capacity_and_policies_decide_where_shards_are<B: Backend>() {
    let servers = RefCell::new(Vec::new());
    let place = |shards| {
        let (server, site) = direct::<B>(shards);
        servers.borrow_mut().push(server);
        site
    };
    placing::weights_capacity_and_pins(place(16));
    placing::zones(place);
    placing::rendezvous_and_jump(place);
}

// E1, E2, E5
fn a_killed_leader_is_followed_by_another_and_no_record_names_it<B: Backend>() {
    let (_server, site) = direct::<B>(12);
    scenes::a_killed_leader(site, B::LATE);
}

// D1
fn five_nodes_that_join_within_a_second_are_one_plan<B: Backend>() {
    let (_server, site) = direct::<B>(21);
    scenes::five_joins(site);
}

// E2, E4
fn a_leader_that_slept_for_three_ttl_and_woke_changes_nothing<B: Backend>() {
    let (_server, site) = direct::<B>(8);
    scenes::a_leader_that_slept(site);
}

// E6
fn a_leader_that_is_told_to_stop_deletes_nothing_and_a_standby_plans_within_a_second<B: Backend>() {
    let (_server, site) = direct::<B>(8);
    scenes::a_leader_that_is_told_to_stop(site.with_ttl(B::TTL * 2));
}

// E4
fn a_leader_that_is_cut_off_leaves_no_zombie_behind<B: Backend>() {
    let (server, site) = direct::<B>(8);
    let a = site.start("a");
    site.await_settled(&["a"]);
    let way = TcpProxy::start(server.address());
    let leads_only = Own {
        leads_only: true,
        ..Own::default()
    };
    let _p = site.launch_as("p", "p", &server.url(way.port()), leads_only);
    site.await_start("p", 1);
    let mut a = a;
    a.kill();
    await_books(&site, "p leads", |books| books.leader() == Some("p"));
    let (_a, mut b) = (site.start("a"), site.start("b"));
    site.await_settled(&["a", "b"]);
    let term = books(&site).term();
    // The last that it hears of is that all is well; then b is gone.
    way.both_ways(TrafficMode::Hold);
    b.kill();
    site.await_settled(&["a"]);
    let next = await_books(&site, "another leads, and has swept", |books| {
        books.term() > term && books.naming("b").is_empty()
    });
    way.both_ways(TrafficMode::Pass);
    await_books(&site, "p is back", |books| {
        let mut live = books.sessions.values().filter(|s| s.is_live());
        live.any(|s| s.node.as_str() == "p")
    });
    thread::sleep(B::TTL);
    let after = books(&site);
    assert!(after.naming("b").is_empty(), "{}", site.scene());
    assert_eq!((after.term(), after.leader()), (next.term(), next.leader()));
    for (shard, mark) in after.plans() {
        assert!(mark >= next.plans()[&shard], "{shard}");
    }
    site.assert_clean();
}
