//! A server that stands still, dies and comes back.

use std::thread;
use std::time::Duration;

use crate::backend::Backend;
use crate::logs::Holders;
use crate::place::{Place, measured};
use crate::test_cluster::between;
use crate::worker::now;

crate::on_each_store! {
    etcd {
        work_stops_in_time_when_the_server_stands_still_for_long_and_comes_back_to_the_same_nodes
        nobody_notices_a_server_that_stands_still_for_less_than_half_the_ttl
    } long {
        a_server_that_is_killed_and_restarted_at_once_changes_no_owner_and_no_epoch
        a_server_that_is_gone_for_longer_than_the_ttl_finds_the_same_owners
    }
    nats {
        a_server_that_is_killed_and_restarted_at_once_changes_no_owner_and_no_epoch
    } long {
        nobody_notices_a_server_that_stands_still_for_less_than_half_the_ttl
        work_stops_in_time_when_the_server_stands_still_for_long_and_comes_back_to_the_same_nodes
        a_server_that_is_gone_for_longer_than_the_ttl_finds_the_same_owners
    }
    postgres {
        a_server_that_is_gone_for_longer_than_the_ttl_finds_the_same_owners
    } long {
        nobody_notices_a_server_that_stands_still_for_less_than_half_the_ttl
        work_stops_in_time_when_the_server_stands_still_for_long_and_comes_back_to_the_same_nodes
        a_server_that_is_killed_and_restarted_at_once_changes_no_owner_and_no_epoch
    }
    s3 {
    } long {
        nobody_notices_a_server_that_stands_still_for_less_than_half_the_ttl
        work_stops_in_time_when_the_server_stands_still_for_long_and_comes_back_to_the_same_nodes
        a_server_that_is_killed_and_restarted_at_once_changes_no_owner_and_no_epoch
        a_server_that_is_gone_for_longer_than_the_ttl_finds_the_same_owners
    }
}

// A2, A3
fn nobody_notices_a_server_that_stands_still_for_less_than_half_the_ttl<B: Backend>() {
    let (place, before) = Place::<B>::of_two();
    for _ in 0..3 {
        place.server.stand_still();
        thread::sleep(B::TTL.mul_f64(0.4));
        place.server.go_on();
        let woken = now();
        place.await_work_after(woken);
        // The next pause finds renewed leases.
        thread::sleep(B::TTL / 2);
    }
    let after = place.assert_same_owners(&before);
    assert_eq!(starts(&after), starts(&before), "no gate was closed");
    place.site.assert_clean();
}

fn starts(held: &Holders) -> Vec<u64> {
    held.0.values().map(|h| h.start).collect()
}

// A1, A3, A5
fn work_stops_in_time_when_the_server_stands_still_for_long_and_comes_back_to_the_same_nodes<
    B: Backend,
>() {
    let (place, before) = Place::<B>::of_two();
    place.server.stand_still();
    // Whatever was confirmed was sent before this.
    let stopped = now();
    thread::sleep(B::TTL * 2);
    let worked_on = place.worked_on_after(stopped, None);
    let woken = now();
    place.server.go_on();
    assert_in_time::<B>(worked_on);
    measured::<B>("worked on without the server", worked_on);
    let after = place.await_work_after(woken);
    measured::<B>(
        "from SIGCONT of the server to served",
        between(woken, after.last_start()),
    );
    if B::OUTLASTS_STANDSTILL {
        place.assert_same_owners(&before);
    } else {
        let after = place.site.await_settled(&["a", "b"]);
        for node in ["a", "b"] {
            assert_eq!(after.of(node), before.of(node), "{}", place.site.scene());
        }
    }
    place.site.assert_clean();
}

/// Gates close three quarters of the ttl after the last confirmed renewal was sent, and not much before.
fn assert_in_time<B: Backend>(worked_on: Duration) {
    assert!(worked_on <= B::TTL.mul_f64(0.75), "{worked_on:?}");
    assert!(worked_on >= B::TTL / 4, "nobody stops early: {worked_on:?}");
}

// A5
fn a_server_that_is_killed_and_restarted_at_once_changes_no_owner_and_no_epoch<B: Backend>() {
    restarted::<B>(Duration::ZERO);
}

// A5
fn a_server_that_is_gone_for_longer_than_the_ttl_finds_the_same_owners<B: Backend>() {
    restarted::<B>(B::TTL.mul_f64(1.5));
}

fn restarted<B: Backend>(pause: Duration) {
    let (mut place, before) = Place::<B>::of_two();
    place.server.crash();
    let gone = now();
    thread::sleep(pause);
    let (worked_on, woken) = (place.worked_on_after(gone, None), now());
    place.server.come_back();
    let back = now();
    if pause > B::TTL {
        assert_in_time::<B>(worked_on);
    }
    let after = place.await_work_after(back);
    println!("down for {:?}", between(gone, back));
    // Nothing starts again where nothing had to stop.
    measured::<B>(
        "from the start of the server until the last shard had started again",
        between(woken, after.last_start()),
    );
    // Leases begin anew when an etcd server starts; elsewhere the judges were shut out as well as the judged.
    place.assert_same_owners(&before);
    place.site.assert_clean();
}
