//! Records that somebody deletes by hand while they are in use.

use crate::backend::Backend;
use crate::place::{Place, measured};
use crate::site::between;
use crate::worker::{KEYSPACE, now};

crate::on_each_store! {
    a_live_session_that_is_deleted_by_hand_costs_a_new_epoch_and_no_overlap
    a_live_shard_that_is_deleted_by_hand_costs_a_new_epoch_and_no_overlap
}

// A11
fn a_live_session_that_is_deleted_by_hand_costs_a_new_epoch_and_no_overlap<B: Backend>() {
    if !crate::has_time() {
        return;
    }
    let (place, before) = Place::<B>::of_two();
    let sessions = before.sessions("a");
    let session = sessions.first().expect("a has shards");
    let deleted = now();
    place.server.delete(&format!("sessions/{session}"));
    let of_a = before.of("a");
    let after = place.site.await_served("at new epochs", |held| {
        of_a.iter()
            .all(|shard| held.0[shard].epoch > before.0[shard].epoch)
    });
    measured::<B>(
        "from the deletion of a session to served",
        between(deleted, after.last_start()),
    );
    let first = of_a.iter().map(|shard| after.0[shard].start).min();
    let first = between(deleted, first.unwrap_or_default());
    assert!(first >= B::TTL, "too soon: {first:?}");
    for shard in before.of("b") {
        let (is, was) = (&after.0[&shard], &before.0[&shard]);
        assert_eq!(is.owner(), was.owner(), "{}", place.site.scene());
    }
    place.site.await_settled(&["a", "b"]);
    place.site.assert_clean();
}

// A11
fn a_live_shard_that_is_deleted_by_hand_costs_a_new_epoch_and_no_overlap<B: Backend>() {
    if !crate::has_time() {
        return;
    }
    let (place, before) = Place::<B>::of_two();
    let of_a = before.of("a");
    let shard = of_a.first().expect("a has shards");
    let number = shard.rsplit('/').next().expect("keyspace and number");
    let deleted = now();
    place.server.delete(&format!("shards/{KEYSPACE}/{number}"));
    let was = before.0[shard].epoch;
    let after = place
        .site
        .await_served("at a new epoch", |held| held.0[shard].epoch > was);
    let took = between(deleted, after.0[shard].start);
    measured::<B>("from the deletion of a shard to served", took);
    assert!(took >= B::TTL, "too soon: {took:?}");
    for (other, was) in before.0.iter().filter(|(other, _)| *other != shard) {
        assert_eq!(after.0[other].owner(), was.owner(), "{other}");
    }
    place.site.await_settled(&["a", "b"]);
    place.site.assert_clean();
}
