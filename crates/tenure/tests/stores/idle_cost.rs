//! What a cluster costs that has nothing to do.

use std::thread;
use std::time::{Duration, Instant};

use tenure_store::servers::etcd::Etcd;
use tenure_store::servers::nats::Nats;
use tenure_store::servers::postgres::Postgres;
use tenure_store::servers::s3::S3Service;

use crate::backend::Backend;
use crate::place::Place;
use crate::test_cluster::{TestCluster, until};
use crate::worker::Own;

const NODES: [&str; 3] = ["a", "b", "c"];
const SHARDS: u32 = 32;

/// Ttl of the nodes. A shorter one expires while a busy machine stalls for two seconds, and a lost session is not rest.
fn ttl<B: Backend>() -> Duration {
    B::TTL.max(Duration::from_secs(5))
}

/// Number of writes of three nodes at rest, and the time in which they were counted.
fn writes_at_rest<B: Backend>(most: impl Fn(Duration) -> u64) -> (u64, Duration) {
    let server = B::launch();
    let site = TestCluster::new(SHARDS).with_ttl(ttl::<B>());
    let (place, _) = Place::<B>::settled_as(server, site, &NODES, B::url, &Own::default());
    // A start has one more write to make: a node that found others records that they live when the lease of a dead one would
    // have ended, 1.2 ttl and a second later. The cluster is at rest when a longer time has passed with renewals alone.
    let calm = ttl::<B>() * 3 / 2;
    until("calm", || {
        let (known, begun) = (place.server.writes(), Instant::now());
        thread::sleep(calm);
        place.server.writes() - known <= most(begun.elapsed())
    });
    // Where moves take their time, the last of them may come after everybody has something.
    let before = place.site.await_settled(&NODES);
    let (known, begun) = (place.server.writes(), Instant::now());
    thread::sleep(ttl::<B>() * 2);
    let (writes, lasted) = (place.server.writes() - known, begun.elapsed());
    println!(
        "measured {}: {writes} writes in {lasted:.2?} by {} nodes with {SHARDS} shards, {:.0} renewals each",
        B::NAME,
        NODES.len(),
        lasted.div_duration_f64(ttl::<B>() / 6)
    );
    print!("{}", place.server.written_after(known));
    place.assert_same_owners(&before);
    place.site.assert_clean();
    (writes, lasted)
}

fn at_most_one_write_per_node_and_renewal<B: Backend>() {
    let renewals = |lasted: Duration| {
        let each = lasted.div_duration_f64(ttl::<B>() / 6).ceil() as u64 + 1;
        each * NODES.len() as u64
    };
    let (writes, lasted) = writes_at_rest::<B>(renewals);
    assert!(writes > 0, "nobody renews");
    assert!(writes <= renewals(lasted), "{writes} in {lasted:?}");
}

#[test]
fn the_revision_of_etcd_does_not_move_at_rest() {
    let (writes, _) = writes_at_rest::<Etcd>(|_| 0);
    assert_eq!(writes, 0);
}

mod long {
    use super::*;

    #[test]
    fn nats_takes_at_most_one_write_per_node_and_renewal() {
        at_most_one_write_per_node_and_renewal::<Nats>();
    }

    #[test]
    fn postgres_takes_at_most_one_write_per_node_and_renewal() {
        at_most_one_write_per_node_and_renewal::<Postgres>();
    }

    #[test]
    fn a_bucket_takes_at_most_one_write_per_node_and_renewal() {
        at_most_one_write_per_node_and_renewal::<S3Service>();
    }
}
