//! Nodes that are cut off from the server, without a reset: segments are lost, and nobody is told.

use std::thread;

use tenure_store::servers::proxy::{TcpProxy, TrafficMode};

use crate::backend::Backend;
use crate::place::{Place, measured};
use crate::test_cluster::between;
use crate::worker::now;

crate::on_each_store! {
    etcd {
        a_node_that_is_cut_off_for_less_than_the_ttl_keeps_its_shards_and_epochs
    } long {
        a_node_whose_questions_are_lost_for_less_than_the_ttl_keeps_its_shards_and_epochs
        a_node_whose_answers_are_lost_for_less_than_the_ttl_keeps_its_shards_and_epochs
        the_shards_of_a_node_that_is_cut_off_for_long_move_and_the_node_comes_back
        the_shards_of_a_node_whose_questions_are_lost_for_long_move_and_the_node_comes_back
        the_shards_of_a_node_whose_answers_are_lost_for_long_move_and_the_node_comes_back
    }
    nats {
        a_node_that_is_cut_off_for_less_than_the_ttl_keeps_its_shards_and_epochs
        the_shards_of_a_node_that_is_cut_off_for_long_move_and_the_node_comes_back
    } long {
        a_node_whose_questions_are_lost_for_less_than_the_ttl_keeps_its_shards_and_epochs
        a_node_whose_answers_are_lost_for_less_than_the_ttl_keeps_its_shards_and_epochs
        the_shards_of_a_node_whose_questions_are_lost_for_long_move_and_the_node_comes_back
        the_shards_of_a_node_whose_answers_are_lost_for_long_move_and_the_node_comes_back
    }
    postgres {
        a_node_that_is_cut_off_for_less_than_the_ttl_keeps_its_shards_and_epochs
        the_shards_of_a_node_whose_answers_are_lost_for_long_move_and_the_node_comes_back
    } long {
        a_node_whose_questions_are_lost_for_less_than_the_ttl_keeps_its_shards_and_epochs
        a_node_whose_answers_are_lost_for_less_than_the_ttl_keeps_its_shards_and_epochs
        the_shards_of_a_node_that_is_cut_off_for_long_move_and_the_node_comes_back
        the_shards_of_a_node_whose_questions_are_lost_for_long_move_and_the_node_comes_back
    }
    s3 {
        a_node_that_is_cut_off_for_less_than_the_ttl_keeps_its_shards_and_epochs
    } long {
        a_node_whose_questions_are_lost_for_less_than_the_ttl_keeps_its_shards_and_epochs
        a_node_whose_answers_are_lost_for_less_than_the_ttl_keeps_its_shards_and_epochs
        the_shards_of_a_node_that_is_cut_off_for_long_move_and_the_node_comes_back
        the_shards_of_a_node_whose_questions_are_lost_for_long_move_and_the_node_comes_back
        the_shards_of_a_node_whose_answers_are_lost_for_long_move_and_the_node_comes_back
    }
}

type Way = fn(&TcpProxy, TrafficMode);

/// Of the ttl: short of what nobody notices, and short of the ttl by what renewals and reconnecting take.
const SHORT: [f64; 2] = [0.45, 0.65];

// C1, A2
fn a_node_that_is_cut_off_for_less_than_the_ttl_keeps_its_shards_and_epochs<B: Backend>() {
    cut_short::<B>(TcpProxy::both_ways);
}

// C1
fn a_node_whose_questions_are_lost_for_less_than_the_ttl_keeps_its_shards_and_epochs<B: Backend>() {
    cut_short::<B>(TcpProxy::to_server);
}

// C1
fn a_node_whose_answers_are_lost_for_less_than_the_ttl_keeps_its_shards_and_epochs<B: Backend>() {
    cut_short::<B>(TcpProxy::to_client);
}

// C2
fn the_shards_of_a_node_that_is_cut_off_for_long_move_and_the_node_comes_back<B: Backend>() {
    cut_for_long::<B>(TcpProxy::both_ways);
}

// C2
fn the_shards_of_a_node_whose_questions_are_lost_for_long_move_and_the_node_comes_back<
    B: Backend,
>() {
    cut_for_long::<B>(TcpProxy::to_server);
}

// C2
fn the_shards_of_a_node_whose_answers_are_lost_for_long_move_and_the_node_comes_back<B: Backend>() {
    cut_for_long::<B>(TcpProxy::to_client);
}

fn cut_short<B: Backend>(way: Way) {
    let (place, before) = Place::<B>::of_two();
    for part in SHORT {
        way(&place.proxies["a"], TrafficMode::Hold);
        thread::sleep(B::TTL.mul_f64(part));
        place.proxies["a"].heal();
        place.await_work_after(now());
        // The next cut finds a renewed lease.
        thread::sleep(B::TTL / 2);
    }
    let after = place.assert_same_owners(&before);
    let paused = after
        .0
        .iter()
        .filter(|(shard, h)| h.start != before.0[*shard].start);
    println!("{}: {} shards paused", B::NAME, paused.count());
    place.site.assert_clean();
}

fn cut_for_long<B: Backend>(way: Way) {
    let (place, before) = Place::<B>::of_two();
    let site = &place.site;
    way(&place.proxies["a"], TrafficMode::Lose);
    // Whatever was confirmed was sent before this.
    let cut = now();
    let without = site.await_served("b has them all", |held| held.nodes() == ["b"]);
    let moved = between(cut, without.last_start());
    measured::<B>("from the cut to a new owner", moved);
    assert!(moved <= B::TTL * 3 + B::LATE, "too late: {moved:?}");
    let lost = before.sessions("a");
    for session in &lost {
        let worked_on = place.worked_on_after(cut, Some(session));
        assert!(worked_on <= B::TTL.mul_f64(0.75), "{worked_on:?}");
    }
    thread::sleep(B::TTL / 2);
    place.proxies["a"].heal();
    let healed = now();
    let after = site.await_settled(&["a", "b"]);
    let back = between(healed, after.last_start());
    measured::<B>("from healing to its share", back);
    assert!(back <= B::TTL * 6, "too late: {back:?}");
    assert!(after.sessions("a").is_disjoint(&lost), "{after:?}");
    for (shard, was) in &before.0 {
        let is = &without.0[shard];
        let expected = match was.node.as_str() {
            "a" => is.epoch > was.epoch,
            _ => is.owner() == was.owner(),
        };
        assert!(expected, "{shard}: {was:?}, then {is:?}\n{}", site.scene());
    }
    site.assert_clean();
}
