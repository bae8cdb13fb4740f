//! What only NATS can be met with: clusters that lose their leader.

use std::thread;

use tenure_store::servers::nats::{Nats, NatsOptions};

use crate::backend::Backend;
use crate::place::{SHARDS, measured};
use crate::test_cluster::{TestCluster, between};
use crate::worker::now;

mod long {
    use super::*;

    #[test]
    fn work_goes_on_through_an_election_at_the_default_ttl_of_a_replicated_bucket() {
        let mut nats = NatsOptions::new().members(3).start();
        let url = nats.url("test");
        let ttl = tenure_store::describe(&url).unwrap().default_ttl;
        let site = TestCluster::new(SHARDS).with_ttl(ttl);
        let _nodes = ["a", "b"].map(|node| site.launch(node, node, &url));
        site.await_settled(&["a", "b"]);
        let killed = now();
        let leader = nats.leader("test");
        nats.kill(leader);
        nats.leader("test");
        let led = now();
        measured::<Nats>(
            "from SIGKILL of the leader to the next one",
            between(killed, led),
        );
        thread::sleep(ttl);
        let after = site.await_settled(&["a", "b"]);
        assert!(after.last_start() < killed, "{}", site.scene());
        site.assert_clean();
    }

    #[test]
    fn nodes_come_back_to_their_shards_when_the_leader_of_three_servers_is_killed() {
        let mut nats = NatsOptions::new().members(3).start();
        let site = TestCluster::new(SHARDS).with_ttl(Nats::TTL);
        let url = nats.url("test");
        let _nodes = ["a", "b"].map(|node| site.launch(node, node, &url));
        let before = site.await_settled(&["a", "b"]);
        let leader = nats.leader("test");
        nats.kill(leader);
        let killed = now();
        // Until somebody leads, nobody's renewal counts: work stops, and nobody can judge anybody.
        nats.leader("test");
        let led = now();
        let after = site.await_served("all serve under another leader", |held| {
            held.0.values().all(|h| h.last > led)
        });
        // Nothing starts again where nothing had to stop.
        measured::<Nats>(
            "from SIGKILL of the leader until the last shard had started again",
            between(killed, after.last_start()),
        );
        // Longer than any lease lasts that is not renewed.
        thread::sleep(Nats::TTL * 2);
        let after = site.await_settled(&["a", "b"]);
        assert_eq!(after.owners(), before.owners(), "{}", site.scene());
        site.assert_clean();
    }
}
