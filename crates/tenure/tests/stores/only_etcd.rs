//! What only etcd can be met with: clusters that lose their leader, and leases that are revoked.

use std::thread;

use rustix::process::Signal;
use tenure_store::servers::etcd::{Etcd, EtcdOptions, EtcdRelease};

use crate::backend::{Backend, key_of};
use crate::place::{Place, SHARDS, measured};
use crate::test_cluster::{TestCluster, between};
use crate::worker::now;

// A13
#[test]
fn nodes_keep_their_shards_and_epochs_when_the_leader_of_three_members_is_killed() {
    let mut etcd = EtcdOptions::new(EtcdRelease::V3_4).members(3).start();
    let site = TestCluster::new(SHARDS).with_ttl(Etcd::TTL);
    let url = etcd.url("test");
    let _nodes = ["a", "b"].map(|node| site.launch(node, node, &url));
    let before = site.await_settled(&["a", "b"]);
    let leader = etcd.leader();
    etcd.kill(leader);
    let killed = now();
    // Until somebody leads, nobody's renewal counts.
    etcd.leader();
    measured::<Etcd>(
        "from SIGKILL of the leader to another",
        between(killed, now()),
    );
    let led = now();
    site.await_served("all serve under another leader", |held| {
        held.0.values().all(|h| h.last > led)
    });
    // Longer than any lease lasts that is not renewed: the new leader began them anew.
    thread::sleep(Etcd::TTL * 2);
    let after = site.await_settled(&["a", "b"]);
    assert_eq!(after.owners(), before.owners(), "{}", site.scene());
    let paused = after.0.iter();
    let paused = paused.filter(|(shard, h)| h.start != before.0[*shard].start);
    measured::<Etcd>(
        &format!("{} shards paused, until", paused.count()),
        between(killed, after.last_start()),
    );
    etcd.restart(leader);
    let after = site.await_settled(&["a", "b"]);
    assert_eq!(after.owners(), before.owners(), "{}", site.scene());
    site.assert_clean();
}

mod long {
    use super::*;

    #[test]
    fn the_shards_of_a_node_killed_beside_a_follower_are_served_by_another() {
        let mut etcd = EtcdOptions::new(EtcdRelease::V3_5).members(3).start();
        let site = TestCluster::new(SHARDS).with_ttl(Etcd::TTL);
        let url = etcd.url("test");
        let [a, _b] = ["a", "b"].map(|node| site.launch(node, node, &url));
        site.await_settled(&["a", "b"]);
        let follower = (etcd.leader() + 1) % 3;
        etcd.kill(follower);
        a.signal(Signal::KILL);
        let killed = now();
        let after = site.await_served("b has them all", |held| held.nodes() == ["b"]);
        measured::<Etcd>(
            "from SIGKILL of a node and a follower to a new owner",
            between(killed, after.last_start()),
        );
        site.assert_clean();
    }

    // A11. A lease that is revoked cannot be told from one that ran out: whoever revokes it vouches for its holder's death. Its
    // holder hears of it as soon as the others do, and the epochs are in order whoever is quicker.
    #[test]
    fn a_lease_that_is_revoked_by_hand_costs_a_new_epoch_and_everything_is_served_again() {
        let (place, before) = Place::<Etcd>::of_two();
        let sessions = before.sessions("a");
        let session = sessions.first().expect("a has shards");
        let key = key_of(&place.server, &format!("sessions/{session}"));
        let record = place.server.ctl(&["get", &key, "--write-out=json"]);
        let record: serde_json::Value = serde_json::from_str(&record).expect("etcdctl speaks JSON");
        let lease = record["kvs"][0]["lease"].as_i64().expect("a lease");
        let revoked = now();
        place
            .server
            .ctl(&["lease", "revoke", &format!("{lease:x}")]);
        let of_a = before.of("a");
        let after = place.site.await_served("at new epochs", |held| {
            of_a.iter()
                .all(|shard| held.0[shard].epoch > before.0[shard].epoch)
        });
        measured::<Etcd>(
            "from the revocation to served",
            between(revoked, after.last_start()),
        );
        measured::<Etcd>(
            "the holder worked on for",
            place.worked_on_after(revoked, Some(session)),
        );
        place.site.await_settled(&["a", "b"]);
        let verdict = place.site.verdict();
        println!("against: {:?}", verdict.against());
        place.site.assert_clean();
    }
}
