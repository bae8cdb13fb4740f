//! `tenure store check` on real stores, in good and in bad health.

mod test_cluster;

use rusqlite::Connection;
use serde_json::{Value, json};
use tenure_core::keys;
use tenure_store::servers::etcd::{Etcd, EtcdRelease};
use tenure_store::servers::nats;
use tenure_store::servers::postgres::Postgres;
use test_cluster::{TestCluster, ran};

fn finding<'a>(report: &'a Value, about: &str) -> &'a Value {
    let all = report["findings"].as_array().unwrap();
    let found = all.iter().find(|finding| finding["about"] == about);
    found.unwrap_or_else(|| panic!("{about} is not in {report:#}"))
}

#[track_caller]
fn level(report: &Value, about: &str) -> String {
    let finding = finding(report, about);
    let level = finding["level"].as_str().unwrap().to_owned();
    assert_eq!(finding["advice"].is_null(), level == "ok", "{finding}");
    level
}

/// Everything that is tried on every store.
const EVERYWHERE: [&str; 10] = [
    "reachable",
    "ttl",
    "read",
    "clock",
    "list",
    "create",
    "update",
    "conditions",
    "watch",
    "delete",
];

#[test]
fn a_healthy_sqlite_file_is_found_healthy_and_left_as_it_was() {
    let shop = TestCluster::with_orders(4);
    let before = shop.run(&["cluster", "list", "--json"]).with(0).json();
    let report = shop.run(&["store", "check", "--json"]).with(0).json();
    for about in EVERYWHERE {
        // On a machine that is busy otherwise, times may be worth a warning.
        let timed = ["read", "update"].contains(&about);
        let level = level(&report, about);
        assert!(level == "ok" || timed && level == "warn", "{report:#}");
    }
    for about in ["SQLite version", "journal mode", "synchronous", "integrity"] {
        assert_eq!(level(&report, about), "ok", "{report:#}");
    }
    assert_eq!(report["kind"], "sqlite");
    assert!(report["measures"]["update"]["p50_us"].as_u64().unwrap() > 0);
    assert!(report["measures"]["read"]["max_us"].as_u64().unwrap() > 0);
    let after = shop.run(&["cluster", "list", "--json"]).with(0).json();
    assert_eq!(before, after, "nothing is left behind");
    let text = shop.run(&["store", "check"]).with(0).out;
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(text.contains("ok    update"), "{text}");
}

#[test]
fn the_keys_of_an_examination_are_no_clusters() {
    assert_eq!(keys::cluster_of("=doctor/0123"), None);
    assert!(keys::cluster_of("doctor/0123").is_some());
}

#[test]
fn what_was_left_behind_by_an_examination_that_was_cut_short_is_told() {
    let shop = TestCluster::with_orders(1);
    let conn = Connection::open(shop.file()).unwrap();
    conn.execute(
        "INSERT INTO kv VALUES ('=doctor/left', x'7b7d', (SELECT revision + 1 FROM counter))",
        [],
    )
    .unwrap();
    let report = shop.run(&["store", "check", "--json"]).with(0).json();
    assert_eq!(level(&report, "list"), "warn");
    assert_eq!(report["verdict"], "warn");
}

#[test]
fn a_store_that_is_not_there_fails_until_it_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("shop.db").display());
    let report = ran(&["store", "check", "--json", "--store", &url])
        .with(1)
        .json();
    assert_eq!(level(&report, "reachable"), "fail");
    assert_eq!(report["verdict"], "fail");
    ran(&["store", "init", "--store", &url]).with(0);
    ran(&["store", "check", "--store", &url]).with(0);
}

#[test]
fn a_ttl_that_no_node_would_start_with_fails() {
    let shop = TestCluster::with_orders(1);
    let mut command = shop.command(&["store", "check", "--json"]);
    let output = command.env("TENURE_TTL", "50ms").output().unwrap();
    let report = test_cluster::Ran::from(output).with(1).json();
    assert_eq!(level(&report, "ttl"), "fail");
}

#[test]
fn a_bare_command_says_which_store_it_needs() {
    ran(&["store", "check"]).with(2).telling(&["--store"]);
    ran(&["store", "check", "--store", "memory:"]).with(2);
    ran(&["store", "check", "--store", "ftp://x"]).with(2);
}

#[test]
fn a_nats_server_is_examined_down_to_its_fsync_interval() {
    let server = nats::NatsOptions::new()
        .storage("sync_interval: always")
        .start();
    let url = server.url("shop");
    let report = ran(&["store", "check", "--json", "--store", &url])
        .with(1)
        .json();
    assert_eq!(level(&report, "reachable"), "fail");
    let found = finding(&report, "reachable")["found"].to_string();
    assert!(found.contains("tenure store init"), "{found}");

    let watched = format!("{url}?monitor=127.0.0.1:{}", server.monitor(0));
    let report = ran(&["store", "init", "--json", "--store", &watched]);
    let report = report.with(0).json();
    for about in EVERYWHERE {
        assert_ne!(level(&report, about), "fail", "{report:#}");
    }
    for about in ["server version", "storage", "reads", "fsync", "room"] {
        assert_eq!(level(&report, about), "ok", "{report:#}");
    }
    assert_eq!(level(&report, "copies"), "warn", "{report:#}");
    assert_eq!(report["kind"], "nats");
}

#[test]
fn a_postgresql_server_is_examined_down_to_its_settings() {
    let postgres = Postgres::start_with(&["fsync=on"]);
    let url = postgres.url();
    let report = ran(&["store", "check", "--json", "--store", &url])
        .with(1)
        .json();
    assert_eq!(level(&report, "reachable"), "fail");
    let advice = finding(&report, "reachable")["found"].to_string();
    assert!(advice.contains("tenure store init"), "{advice}");

    let report = ran(&["store", "init", "--json", "--store", &url]);
    let report = report.with(0).json();
    for about in EVERYWHERE {
        assert_ne!(level(&report, about), "fail", "{report:#}");
    }
    for about in [
        "server version",
        "fsync",
        "full_page_writes",
        "synchronous_commit",
        "replication",
        "connections",
        "encryption",
    ] {
        assert_eq!(level(&report, about), "ok", "{report:#}");
    }
    assert_eq!(report["kind"], "postgres");
    assert_eq!(report["store"], json!(url));
    assert_eq!(postgres.sql("SELECT count(*) FROM tenure.kv"), "0");
}

#[test]
fn what_endangers_confirmed_writes_in_postgresql_is_told_with_the_way_out() {
    let postgres = Postgres::start_with(&["fsync=off", "full_page_writes=off"]);
    let url = postgres.url();
    ran(&["store", "init", "--store", &url]).with(1);
    let _standby = Postgres::standby_of(&postgres);
    while postgres.sql("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") != "1"
    {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let report = ran(&["store", "check", "--json", "--store", &url])
        .with(1)
        .json();
    assert_eq!(level(&report, "fsync"), "fail");
    assert_eq!(level(&report, "full_page_writes"), "warn");
    assert_eq!(level(&report, "replication"), "warn");
    let replication = finding(&report, "replication");
    assert!(
        replication["advice"]
            .to_string()
            .contains("keyspace bump-generation"),
        "{replication}"
    );
}

#[test]
fn a_user_who_may_only_look_fails_at_the_first_write() {
    let postgres = Postgres::start();
    ran(&["store", "init", "--store", &postgres.url()]);
    postgres.sql("CREATE ROLE viewer LOGIN; GRANT USAGE ON SCHEMA tenure TO viewer; GRANT SELECT ON ALL TABLES IN SCHEMA tenure TO viewer");
    let url = postgres.url().replace("postgres@", "viewer:hunter2@");
    let ran = ran(&["store", "check", "--json", "--store", &url]).with(1);
    assert!(!ran.out.contains("hunter2") && !ran.err.contains("hunter2"));
    let report = ran.json();
    for about in ["reachable", "read", "list"] {
        assert_ne!(level(&report, about), "fail");
    }
    assert_eq!(level(&report, "create"), "fail");
    let found = finding(&report, "create")["found"].to_string();
    assert!(found.contains("permission denied"), "{found}");
}

#[test]
fn an_etcd_server_is_examined_with_its_leases_and_members() {
    let etcd = Etcd::start(EtcdRelease::V3_4);
    let url = etcd.url("shop");
    let report = ran(&["store", "check", "--json", "--store", &url])
        .with(0)
        .json();
    for about in EVERYWHERE {
        assert_ne!(level(&report, about), "fail", "{report:#}");
    }
    assert_eq!(report["kind"], "etcd");
    assert_eq!(level(&report, "alarms"), "ok");
    assert_eq!(level(&report, "database size"), "ok");
    // 3.4.23 confirms keep-alives that it should not, and one member is few.
    assert_eq!(level(&report, "server version"), "warn");
    assert_eq!(level(&report, "members"), "warn");
    assert_eq!(
        etcd.ctl(&["get", "--prefix", "", "--keys-only"]).trim(),
        "",
        "nothing is left behind"
    );
}
