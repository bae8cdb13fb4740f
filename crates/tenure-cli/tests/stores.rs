//! Stores that are servers, as the command meets them: away, locked, or readable alone. Each is told with the way out.

mod test_cluster;

use std::time::{Duration, Instant};

use tenure_store::servers::etcd::{Etcd, EtcdRelease};
use tenure_store::servers::free_port;
use tenure_store::servers::postgres::Postgres;
use test_cluster::{Ran, ran};

/// Long enough for every attempt that a start makes, short enough for a person.
const TIMEOUT: Duration = Duration::from_secs(30);

fn status(url: &str) -> Ran {
    run(url, &["status"])
}

fn create(url: &str) -> Ran {
    run(url, &["keyspace", "create", "orders", "--shards", "4"])
}

/// A keyspace that is not there yet.
fn create_other(url: &str) -> Ran {
    run(url, &["keyspace", "create", "users", "--shards", "4"])
}

/// What a command says that did not succeed.
fn refused(ran: Ran) -> String {
    assert_ne!(ran.code, 0, "{}", ran.out);
    ran.err
}

fn exec(url: &str) -> Ran {
    run(
        url,
        &[
            "exec",
            "--keyspace",
            "orders",
            "--shards",
            "4",
            "--",
            "true",
        ],
    )
}

fn run(url: &str, args: &[&str]) -> Ran {
    let begun = Instant::now();
    let ran = ran(&[&["--store", url, "--cluster", "shop"], args].concat());
    assert!(begun.elapsed() < TIMEOUT, "{args:?}: {}", ran.err);
    assert!(!ran.err.contains("hunter2"), "{}", ran.err);
    ran
}

#[test]
fn a_server_that_is_away_is_named() {
    let port = free_port();
    for url in [
        format!("etcd://127.0.0.1:{port}/test"),
        format!("nats://shop:hunter2@127.0.0.1:{port}/test"),
        format!("postgres://shop:hunter2@127.0.0.1:{port}/app"),
    ] {
        for ran in [status(&url), create(&url)] {
            let address = format!("127.0.0.1:{port}");
            ran.with(1)
                .telling(&[&address, "Connection refused", "; check that"]);
        }
    }
}

#[test]
fn a_wrong_password_and_a_missing_right_are_told_by_etcd() {
    let etcd = Etcd::start(EtcdRelease::V3_4);
    let ready = etcd.url("shop");
    create(&ready).with(0);
    etcd.ask(0, &["role", "add", "root"]);
    for command in [
        "user add root:rootpw",
        "user grant-role root root",
        "role add looker",
        "role grant-permission looker --prefix=true read shop/",
        "user add looker:hunter2",
        "user grant-role looker looker",
    ] {
        etcd.ctl(&command.split(' ').collect::<Vec<_>>());
    }
    etcd.ctl(&["auth", "enable"]);
    let url = |login: &str| format!("etcd://{login}@{}/shop", etcd.endpoint(0));
    let wrong = url("looker:hunter21");
    let told = ["rejects this user and password", "ETCDCTL_USER"];
    status(&wrong).with(2).telling(&told);
    exec(&wrong).with(1).telling(&told);
    let looker = url("looker:hunter2");
    status(&looker).with(0);
    let told = refused(create_other(&looker));
    assert!(told.contains("role grant-permission"), "{told}");
}

#[test]
fn a_wrong_password_and_a_missing_right_are_told_by_postgres() {
    let postgres = Postgres::start();
    create(&postgres.url()).with(0);
    postgres.sql(
        "CREATE ROLE viewer LOGIN PASSWORD 'hunter2'; GRANT USAGE ON SCHEMA tenure TO viewer;
        GRANT SELECT ON ALL TABLES IN SCHEMA tenure TO viewer",
    );
    postgres.set_access("host all postgres all trust\nhost all all all scram-sha-256\n");
    let url = |login: &str| postgres.url().replace("postgres@", &format!("{login}@"));
    let wrong = url("viewer:hunter21");
    for told in [status(&wrong), exec(&wrong)].map(refused) {
        assert!(told.contains("password"), "{told}");
        assert!(told.contains("~/.pgpass"), "{told}");
    }
    let viewer = url("viewer:hunter2");
    status(&viewer).with(0);
    let told = refused(create_other(&viewer));
    assert!(told.contains("permission denied"), "{told}");
    assert!(told.contains("grant it"), "{told}");
}
