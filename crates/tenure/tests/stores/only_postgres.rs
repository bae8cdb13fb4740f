//! What only PostgreSQL can be met with: connections that it ends, and connections that it refuses.

use std::thread;
use std::time::Duration;

use tenure_store::servers::postgres::Postgres;

use crate::backend::Backend;
use crate::place::{Place, SHARDS, measured};
use crate::test_cluster::{between, until};
use crate::worker::now;

const END_ALL: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";

#[test]
fn connections_that_the_server_ends_cost_no_owner_and_no_epoch() {
    let (place, before) = Place::<Postgres>::of_two();
    for _ in 0..5 {
        place.server.sql(END_ALL);
        place.await_work_after(now());
        thread::sleep(Duration::from_millis(300));
    }
    place.assert_same_owners(&before);
    place.site.assert_clean();
}

mod long {
    use super::*;

    #[test]
    fn a_server_without_a_connection_to_spare_is_told_and_nobody_loses_a_shard() {
        let server = Postgres::start();
        server.sql("CREATE ROLE shop LOGIN; GRANT CREATE ON DATABASE postgres TO shop");
        let url = |_: &Postgres, port| format!("postgres://shop@127.0.0.1:{port}/postgres");
        let (place, before) = Place::settled_on(server, &["a", "b"], SHARDS, url);
        place.server.sql("ALTER ROLE shop CONNECTION LIMIT 0");
        place.server.sql(END_ALL);
        let (ended, said) = (now(), "too many connections");
        thread::sleep(Postgres::TTL * 2);
        let worked_on = place.worked_on_after(ended, None);
        assert!(worked_on <= Postgres::TTL.mul_f64(0.75), "{worked_on:?}");
        for node in ["a", "b"] {
            until(&format!("{node} says why"), || {
                place.site.said(node).contains(said)
            });
        }
        place.server.sql("ALTER ROLE shop CONNECTION LIMIT -1");
        let spared = now();
        let after = place.await_work_after(spared);
        measured::<Postgres>(
            "from connections to spare to served",
            between(spared, after.last_start()),
        );
        place.assert_same_owners(&before);
        place.site.assert_clean();
    }
}
