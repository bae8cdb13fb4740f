//! Nodes that die and nodes that stand still.

use std::thread;

use rustix::process::Signal;

use crate::backend::Backend;
use crate::place::{Place, measured};
use crate::test_cluster::{SLACK, between};
use crate::worker::now;

crate::on_each_store! {
    etcd {
        the_shards_of_a_killed_owner_are_served_by_another_within_the_promised_time
    } long {
        an_owner_that_wakes_after_its_lease_writes_nothing_and_takes_part_again
        a_node_that_is_told_to_stop_hands_over_at_once
    }
    nats {
        the_shards_of_a_killed_owner_are_served_by_another_within_the_promised_time
        an_owner_that_wakes_after_its_lease_writes_nothing_and_takes_part_again
    } long {
        a_node_that_is_told_to_stop_hands_over_at_once
    }
    postgres {
        the_shards_of_a_killed_owner_are_served_by_another_within_the_promised_time
        a_node_that_is_told_to_stop_hands_over_at_once
    } long {
        an_owner_that_wakes_after_its_lease_writes_nothing_and_takes_part_again
    }
    s3 {
        the_shards_of_a_killed_owner_are_served_by_another_within_the_promised_time
    } long {
        an_owner_that_wakes_after_its_lease_writes_nothing_and_takes_part_again
        a_node_that_is_told_to_stop_hands_over_at_once
    }
}

// B2
fn the_shards_of_a_killed_owner_are_served_by_another_within_the_promised_time<B: Backend>() {
    let (mut place, before) = Place::<B>::of_two();
    let killed = now();
    place.nodes.get_mut("a").expect("a node").kill();
    let site = &place.site;
    let after = site.await_served("b has them all", |held| held.nodes() == ["b"]);
    let took = between(killed, after.last_start());
    measured::<B>("from SIGKILL to a new owner", took);
    let promised = B::TTL.mul_f64(1.2) + B::LATE;
    assert!(took <= promised + SLACK, "{took:?}\n{}", site.scene());
    for (shard, was) in &before.0 {
        let is = &after.0[shard];
        let expected = match was.node.as_str() {
            "a" => is.epoch > was.epoch,
            _ => is.owner() == was.owner(),
        };
        assert!(expected, "{shard}: {was:?}, then {is:?}\n{}", site.scene());
    }
    site.assert_clean();
}

// A1, A6
fn an_owner_that_wakes_after_its_lease_writes_nothing_and_takes_part_again<B: Backend>() {
    let (place, before) = Place::<B>::of_two();
    let site = &place.site;
    place.nodes["a"].pause();
    let paused = now();
    let without = site.await_served("b has them all", |held| held.nodes() == ["b"]);
    measured::<B>(
        "from SIGSTOP of an owner to a new one",
        between(paused, without.last_start()),
    );
    thread::sleep(B::TTL / 2);
    let woken = now();
    place.nodes["a"].signal(Signal::CONT);
    let after = site.await_settled(&["a", "b"]);
    measured::<B>(
        "from SIGCONT to its share",
        between(woken, after.last_start()),
    );
    let lost = before.sessions("a");
    assert!(after.sessions("a").is_disjoint(&lost), "{after:?}");
    for shard in before.of("a") {
        let epochs = [&before, &without].map(|held| held.0[&shard].epoch);
        assert!(epochs[0] < epochs[1], "{shard}: {epochs:?}");
    }
    let late = site.look(|logs| {
        let of_lost = |l: &&crate::logs::Line| lost.contains(l.session.as_str());
        logs.lines
            .iter()
            .filter(of_lost)
            .filter(|l| l.t > paused)
            .count()
    });
    assert_eq!(late, 0, "lines of the lost session\n{}", site.scene());
    site.assert_clean();
}

// A7
fn a_node_that_is_told_to_stop_hands_over_at_once<B: Backend>() {
    let (mut place, before) = Place::<B>::of_two();
    let site = &place.site;
    let told = now();
    place.nodes["a"].signal(Signal::TERM);
    let after = site.await_served("b has them all", |held| held.nodes() == ["b"]);
    let took = between(told, after.last_start());
    measured::<B>("from SIGTERM to a new owner", took);
    assert!(took < B::TTL / 2, "{took:?}\n{}", site.scene());
    for shard in before.of("a") {
        let (is, was) = (&after.0[&shard], &before.0[&shard]);
        assert!(is.epoch > was.epoch, "{shard}: {was:?}, then {is:?}");
    }
    let ended = place.nodes.get_mut("a").expect("a node").wait();
    assert_eq!(ended.code(), Some(0), "{}", place.site.said("a"));
    place.site.assert_clean();
}
