//! Records that somebody deletes by hand while they are in use (A11).
//!
//! Whoever misses its record stops at once; nobody begins before the ttl has passed with its drift; and it is never the same
//! epoch again. A deleted session, shard and keyspace differ only in whom they concern.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::backend::Backend;
use crate::logs::Holders;
use crate::place::{Place, measured};
use crate::test_cluster::between;
use crate::worker::{KEYSPACE, now};

crate::on_each_store! {
    etcd {
        a_keyspace_in_use_that_is_deleted_by_hand_costs_new_epochs_and_no_overlap
    } long {
        a_live_session_that_is_deleted_by_hand_costs_a_new_epoch_and_no_overlap
        a_live_shard_that_is_deleted_by_hand_costs_a_new_epoch_and_no_overlap
    }
    nats {
        a_live_shard_that_is_deleted_by_hand_costs_a_new_epoch_and_no_overlap
    } long {
        a_live_session_that_is_deleted_by_hand_costs_a_new_epoch_and_no_overlap
        a_keyspace_in_use_that_is_deleted_by_hand_costs_new_epochs_and_no_overlap
    }
    postgres {
        a_live_session_that_is_deleted_by_hand_costs_a_new_epoch_and_no_overlap
    } long {
        a_live_shard_that_is_deleted_by_hand_costs_a_new_epoch_and_no_overlap
        a_keyspace_in_use_that_is_deleted_by_hand_costs_new_epochs_and_no_overlap
    }
    s3 {
        a_live_shard_that_is_deleted_by_hand_costs_a_new_epoch_and_no_overlap
    } long {
        a_live_session_that_is_deleted_by_hand_costs_a_new_epoch_and_no_overlap
        a_keyspace_in_use_that_is_deleted_by_hand_costs_new_epochs_and_no_overlap
    }
}

/// `ttl × (1 + drift)`, by which alone a judge may go.
fn proof<B: Backend>() -> Duration {
    B::TTL + B::TTL / 100
}

// A11
fn a_live_session_that_is_deleted_by_hand_costs_a_new_epoch_and_no_overlap<B: Backend>() {
    let (place, before) = Place::<B>::of_two();
    let sessions = before.sessions("a");
    let session = sessions.first().expect("a has shards");
    let key = format!("sessions/{session}");
    deleted(&place, &before, "a session", &key, &before.of("a"));
}

// A11
fn a_live_shard_that_is_deleted_by_hand_costs_a_new_epoch_and_no_overlap<B: Backend>() {
    let (place, before) = Place::<B>::of_two();
    let shard = before.of("a").pop_first().expect("a has shards");
    let number = shard.rsplit('/').next().expect("keyspace and number");
    let key = format!("shards/{KEYSPACE}/{number}");
    deleted(&place, &before, "a shard", &key, &BTreeSet::from([shard]));
}

// A11
fn a_keyspace_in_use_that_is_deleted_by_hand_costs_new_epochs_and_no_overlap<B: Backend>() {
    let (place, before) = Place::<B>::of_two();
    let (key, all) = (format!("keyspaces/{KEYSPACE}"), before.0.keys().cloned());
    deleted(&place, &before, "a keyspace", &key, &all.collect());
}

/// Deletes a key, and looks at what becomes of the shards that it concerns and of the others.
fn deleted<B: Backend>(
    place: &Place<B>,
    before: &Holders,
    what: &str,
    key: &str,
    concerned: &BTreeSet<String>,
) {
    let deleted = now();
    place.server.delete(key);
    let newer = |held: &Holders, shard: &String| held.0[shard].epoch > before.0[shard].epoch;
    let after = place.site.await_served("at new epochs", |held| {
        concerned.iter().all(|shard| newer(held, shard))
    });

    let worked_on = between(deleted, last_work(place, before, concerned));
    measured::<B>(&format!("worked on without {what}"), worked_on);
    // The holder's next read is a renewal away at most; the rest is for a busy machine.
    assert!(worked_on <= B::TTL / 2, "{worked_on:?}");

    let starts = || concerned.iter().map(|shard| after.0[shard].start);
    let first = between(deleted, starts().min().unwrap_or_default());
    assert!(first >= proof::<B>(), "too soon: {first:?}");
    let last = between(deleted, starts().max().unwrap_or_default());
    measured::<B>(&format!("from the deletion of {what} to served"), last);
    assert!(last <= proof::<B>() * 4 + B::LATE, "too late: {last:?}");

    for (shard, was) in before.0.iter().filter(|(s, _)| !concerned.contains(*s)) {
        let is = &after.0[shard];
        // Where looks take their time, a node that came back may have been given its share by then: by a move, one epoch on.
        let moved = is.node != was.node && is.epoch == was.epoch + 1;
        let same = is.owner() == was.owner() || (B::POLLS && moved);
        assert!(
            same,
            "{shard}: {was:?}, then {is:?}\n{}",
            place.site.scene()
        );
    }
    place.site.await_settled(&["a", "b"]);
    place.site.assert_clean();
}

/// When these shards were last worked on at their old epochs.
fn last_work<B: Backend>(place: &Place<B>, before: &Holders, shards: &BTreeSet<String>) -> u64 {
    let last = place.site.look(|logs| {
        let old = |l: &&crate::logs::Line| {
            shards.contains(&l.shard) && l.epoch == before.0[&l.shard].epoch
        };
        logs.lines.iter().filter(old).map(|l| l.t).max()
    });
    last.unwrap_or_default()
}
