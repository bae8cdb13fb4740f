//! `tenure exec` on servers that are away, full, read-only, standing by or out of connections, at its start and while it runs.
//!
//! What cannot heal by itself ends a start at once; what can is waited for. Either way the cause and the way out are told, once;
//! and the judge finds that nobody worked who should not.
#![cfg(target_os = "linux")]

mod exec_support;

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use exec_support::{TestCluster, now, pass, run, until};
use serde_json::json;
use tenure_store::servers::etcd::{Etcd, EtcdOptions, EtcdRelease};
use tenure_store::servers::nats::{self, Nats};
use tenure_store::servers::postgres::Postgres;
use tenure_store::servers::proxy::TcpProxy;

const SHARDS: u32 = 4;
/// Within this a start that cannot succeed has ended, also on a busy machine; it takes a fraction of a second.
const AT_ONCE: Duration = Duration::from_secs(10);
/// The default ttl of the slower ones.
const TTL: Duration = Duration::from_millis(2500);

/// An `exec` that must end by itself, without having worked; gives what it said.
fn refused(site: &TestCluster, store: &str) -> String {
    let begun = Instant::now();
    let mut command = site.command_on("refused", store);
    command.args(["--", "true"]).stdout(Stdio::null());
    let (code, _, said) = run(&mut command);
    assert_eq!(code, 1, "{said}");
    assert!(begun.elapsed() < AT_ONCE, "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: "), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    last.to_owned()
}

#[track_caller]
fn assert_tells(said: &str, wanted: &[&str]) {
    for text in wanted {
        assert!(said.contains(text), "{text:?} is not in:\n{said}");
    }
}

/// Waits until a node has said all of this.
fn await_told(site: &TestCluster, node: &str, wanted: &[&str]) {
    until(&format!("{node} tells {wanted:?}"), || {
        let said = site.said(node);
        wanted.iter().all(|text| said.contains(text))
    });
}

/// How often a node has said this.
fn times(site: &TestCluster, node: &str, text: &str) -> usize {
    site.said(node).matches(text).count()
}

/// The epochs at which children have begun, by shard, latest last.
fn epochs(site: &TestCluster) -> BTreeSet<(String, u64)> {
    let starts = site
        .lines()
        .into_iter()
        .filter(|line| line["ev"] == "start");
    starts
        .map(|line| {
            let shard = line["shard"].as_str().unwrap().to_owned();
            (shard, line["epoch"].as_u64().unwrap())
        })
        .collect()
}

/// An `exec` that waits for its store with one warning, and works when the store is there.
fn waits_and_starts(store: &str, wanted: &[&str], heal: impl FnOnce()) {
    let site = TestCluster::new(SHARDS);
    let mut exec = site.beating_on("a", store);
    await_told(&site, "a", wanted);
    // Long enough for several tries.
    pass(TTL);
    assert_eq!(site.said("a").lines().count(), 1, "{}", site.said("a"));
    assert!(site.lines().is_empty(), "nobody works yet");
    heal();
    site.await_covered();
    assert!(exec.terminate().success(), "{}", site.said("a"));
    site.assert_clean();
}

#[test]
fn a_start_waits_for_an_etcd_that_is_away_and_says_for_what() {
    let mut etcd = Etcd::start(EtcdRelease::V3_4);
    let (url, address) = (etcd.url("shop"), etcd.endpoint(0));
    etcd.kill(0);
    let wanted = [&*address, "Connection refused", "check that it runs"];
    waits_and_starts(&url, &wanted, || etcd.restart(0));
}

#[test]
fn a_start_waits_for_a_nats_that_is_away_and_says_for_what() {
    let mut nats = Nats::start();
    let (url, address) = (nats.url("shop"), nats.endpoint(0));
    nats.kill(0);
    let wanted = [&*address, "Connection refused", "check that it runs"];
    waits_and_starts(&url, &wanted, || nats.restart(0));
}

#[test]
fn a_process_on_a_replicated_nats_bucket_has_the_longer_default_ttl_however_few_servers_its_url_names()
 {
    let nats = nats::NatsOptions::new().members(3).start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let opened = runtime.block_on(tenure_store::open(&nats.url("shop")));
    let store = opened.unwrap();
    let site = TestCluster::new(SHARDS);
    let one = format!("nats://{}/shop", nats.endpoint(0));
    let mut exec = site.beating_on("a", &one);
    site.await_covered();
    let sessions = runtime.block_on(store.list("")).unwrap().entries;
    let sessions = sessions.iter().filter(|e| e.key.contains("/sessions/"));
    let ttls: Vec<_> = sessions
        .map(|e| serde_json::from_slice::<serde_json::Value>(&e.value).unwrap())
        .map(|session| session["ttl_ms"].clone())
        .collect();
    assert_eq!(ttls, [json!(15_000)]);
    assert!(exec.terminate().success(), "{}", site.said("a"));
}

#[test]
fn a_start_waits_for_a_postgres_that_is_away_and_says_for_what() {
    let mut postgres = Postgres::start();
    let (url, address) = (postgres.url(), postgres.address().to_string());
    postgres.kill();
    let wanted = [
        &*address,
        "Connection refused",
        "check that the server is up",
    ];
    waits_and_starts(&url, &wanted, || postgres.restart());
}

#[test]
fn a_start_waits_for_a_member_that_accepts_and_never_answers_and_can_be_stopped_meanwhile() {
    let etcd = Etcd::start(EtcdRelease::V3_4);
    etcd.freeze(0);
    let site = TestCluster::new(SHARDS);
    let mut exec = site.beating_on("a", &etcd.url("shop"));
    await_told(&site, "a", &[&etcd.endpoint(0), "does not answer", "check"]);
    assert!(exec.terminate().success(), "{}", site.said("a"));
    etcd.thaw(0);
    assert!(site.lines().is_empty(), "nobody has worked");
}

/// Turns on users of an etcd: one who may do everything below `shop/`, one who may only look.
fn with_users(etcd: &Etcd) -> impl Fn(&str) -> String {
    etcd.ask(0, &["role", "add", "root"]);
    for command in [
        "user add root:rootpw",
        "user grant-role root root",
        "role add looker",
        "role grant-permission looker --prefix=true read shop/",
        "user add looker:hunter2",
        "user grant-role looker looker",
        "role add worker",
        "role grant-permission worker --prefix=true readwrite shop/",
        "user add worker:hunter2",
        "user grant-role worker worker",
        "auth enable",
    ] {
        etcd.ctl(&command.split(' ').collect::<Vec<_>>());
    }
    let endpoint = etcd.endpoint(0);
    move |login| format!("etcd://{login}@{endpoint}/shop")
}

#[test]
fn wrong_passwords_and_missing_rights_end_a_start_on_etcd_and_are_told_while_it_runs() {
    let etcd = Etcd::start(EtcdRelease::V3_4);
    let url = with_users(&etcd);
    let site = TestCluster::new(SHARDS);
    let wrong = ["rejects this user and password", "ETCDCTL_PASSWORD"];
    assert_tells(&refused(&site, &url("worker:hunter21")), &wrong);
    assert_tells(&refused(&site, &etcd.url("shop")), &["requires a user"]);
    // Neither the first write of a cluster nor the first of a node: both are told apart from a store that is away.
    let grant = ["denies readwrite", "\"shop/", "grant-permission"];
    assert_tells(&refused(&site, &url("looker:hunter2")), &grant);
    let mut a = site.beating_on("a", &url("worker:hunter2"));
    site.await_covered();
    let elsewhere = TestCluster::new(SHARDS);
    assert_tells(&refused(&elsewhere, &url("looker:hunter2")), &grant);

    // A right that is taken away while two nodes run: who has a shard keeps it, and what cannot be taken is told.
    let mut b = site.beating_on("b", &url("worker:hunter2"));
    site.await_both();
    let root = ["--user=root:rootpw", "role"];
    let role = |args: &str| etcd.ctl(&[&root[..], &args.split(' ').collect::<Vec<_>>()].concat());
    role("grant-permission worker --prefix=true read shop/");
    b.kill();
    await_told(&site, "a", &["store request failed", grant[0], grant[2]]);
    assert!(
        times(&site, "a", "store request failed") <= 3,
        "{}",
        site.said("a")
    );
    role("grant-permission worker --prefix=true readwrite shop/");
    site.await_covered();
    assert!(a.terminate().success(), "{}", site.said("a"));
    site.assert_clean();
}

#[test]
fn wrong_passwords_missing_rights_and_missing_jetstream_end_a_start_on_nats() {
    let users = r#"authorization { users: [ { user: worker, password: hunter2 }
        { user: looker, password: hunter2, permissions: { publish: ["$JS.API.>"], subscribe: ["_INBOX.>"] } } ] }"#;
    let server = nats::NatsOptions::new().more(users);
    let server = server.operator("worker", "hunter2").start();
    let url = |login: &str| format!("nats://{login}@{}/shop", server.endpoint(0));
    let site = TestCluster::new(SHARDS);
    let wrong = ["rejects this user", "NATS_PASSWORD"];
    assert_tells(&refused(&site, &url("worker:hunter21")), &wrong);
    let grant = ["denies publishing", "$KV.shop.", "grant it"];
    assert_tells(&refused(&site, &url("looker:hunter2")), &grant);
    let mut a = site.beating_on("a", &url("worker:hunter2"));
    site.await_covered();
    assert!(a.terminate().success(), "{}", site.said("a"));
    site.assert_clean();

    let bare = nats::NatsOptions::new().without_jetstream().start();
    assert_tells(&refused(&site, &bare.url("shop")), &["no JetStream", "-js"]);
    let old = nats::NatsOptions::new()
        .release(nats::NatsRelease::V2_9)
        .start();
    assert_tells(&refused(&site, &old.url("shop")), &["too old", "use 2.10"]);
}

#[test]
fn a_nats_without_room_stops_work_in_time_and_is_told_once() {
    let server = nats::NatsOptions::new()
        .storage("max_file_store: 4MB")
        .start();
    let site = TestCluster::new(SHARDS);
    let mut a = site.beating_on("a", &server.url("shop"));
    site.await_covered();
    let before = epochs(&site);
    let stream =
        json!({ "name": "big", "subjects": ["big"], "storage": "file", "num_replicas": 1 });
    server.ask("$JS.API.STREAM.CREATE.big", &stream);
    // The last little room, too.
    for size in [64 << 10, 256] {
        while server.ask("big", &json!("x".repeat(size)))["error"].is_null() {}
    }
    let full = now();
    await_told(
        &site,
        "a",
        &["lease renewal failed", "has no room", "max_file_store"],
    );
    until("children end in time", || site.alive().is_empty());
    assert!(now() - full < TTL.as_nanos() as u64 * 2);
    assert!(times(&site, "a", "has no room") <= 3, "{}", site.said("a"));
    server.ask("$JS.API.STREAM.DELETE.big", &json!({}));
    site.await_covered();
    assert_eq!(epochs(&site), before, "nobody else can have had them");
    assert!(a.terminate().success(), "{}", site.said("a"));
    site.assert_clean();
}

#[test]
fn wrong_passwords_and_missing_rights_end_a_start_on_postgres_and_are_told_while_it_runs() {
    let postgres = Postgres::start();
    postgres.sql(
        "CREATE ROLE worker LOGIN PASSWORD 'hunter2'; CREATE ROLE viewer LOGIN PASSWORD 'hunter2';
         GRANT CREATE ON DATABASE postgres TO worker",
    );
    postgres.set_access("host all postgres all trust\nhost all all all scram-sha-256\n");
    let url = |login: &str| postgres.url().replace("postgres@", &format!("{login}@"));
    let site = TestCluster::new(SHARDS);
    let wrong = [
        "password authentication failed",
        "PGPASSWORD",
        "pg_hba.conf",
    ];
    assert_tells(&refused(&site, &url("worker:hunter21")), &wrong);
    let unmade = ["cannot be created", "store init"];
    assert_tells(&refused(&site, &url("viewer:hunter2")), &unmade);
    let mut a = site.beating_on("a", &url("worker:hunter2"));
    site.await_covered();
    postgres.sql(
        "GRANT USAGE ON SCHEMA tenure TO viewer; GRANT SELECT ON ALL TABLES IN SCHEMA tenure TO viewer",
    );
    let grant = ["permission denied", "grant it", "docs/stores/postgres.md"];
    let elsewhere = TestCluster::new(SHARDS);
    assert_tells(&refused(&elsewhere, &url("viewer:hunter2")), &grant);

    // A right that is taken away: renewals need it too, so work ends in time, and comes back with it.
    let before = epochs(&site);
    postgres.sql("ALTER TABLE tenure.kv OWNER TO postgres; REVOKE ALL ON tenure.kv FROM worker");
    let revoked = now();
    await_told(&site, "a", &["lease renewal failed", grant[0], grant[1]]);
    until("children end in time", || site.alive().is_empty());
    assert!(now() - revoked < TTL.as_nanos() as u64 * 2);
    postgres.sql("ALTER TABLE tenure.kv OWNER TO worker");
    site.await_covered();
    assert_eq!(epochs(&site), before, "nobody else can have had them");
    assert!(a.terminate().success(), "{}", site.said("a"));
    site.assert_clean();
}

/// Fills an etcd until it raises its alarm.
fn fill(etcd: &Etcd) {
    let value = "x".repeat(100 << 10);
    let full = (0..400).any(|n| {
        let done = etcd.ask(0, &["put", &format!("big/{n}"), &value]);
        !done.status.success()
    });
    assert!(full, "8 MiB are full at some point");
}

/// Makes room, as `docs/stores/etcd.md` says.
fn make_room(etcd: &Etcd) {
    etcd.ctl(&["del", "--prefix", "big/"]);
    let said = etcd.ctl(&["get", "none", "--write-out=json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let revision = said["header"]["revision"].to_string();
    etcd.ctl(&["compact", "--physical", &revision]);
    etcd.ctl(&["defrag"]);
    etcd.ctl(&["alarm", "disarm"]);
}

const FULL: [&str; 3] = ["NOSPACE", "defragment", "alarm disarm"];

#[test]
fn a_start_waits_for_an_etcd_without_space_and_says_so() {
    let options = EtcdOptions::new(EtcdRelease::V3_4).arg("--quota-backend-bytes=8388608");
    let etcd = options.start();
    fill(&etcd);
    waits_and_starts(&etcd.url("shop"), &FULL, || make_room(&etcd));
}

#[test]
fn an_etcd_without_space_costs_no_owner_and_what_cannot_be_taken_is_told() {
    let options = EtcdOptions::new(EtcdRelease::V3_4).arg("--quota-backend-bytes=8388608");
    let etcd = options.start();
    let site = TestCluster::new(SHARDS);
    let mut a = site.beating_on("a", &etcd.url("shop"));
    let mut b = site.beating_on("b", &etcd.url("shop"));
    site.await_both();
    fill(&etcd);
    let (before, filled) = (epochs(&site), now());
    pass(TTL);
    assert!(site.starts("a", filled).is_empty() && site.starts("b", filled).is_empty());
    b.kill();
    await_told(&site, "a", &FULL);
    pass(TTL);
    assert_eq!(epochs(&site), before, "nothing was taken");
    // Once for the cause; the leader's own words name the records that it could not put right.
    let causes = times(&site, "a", "store request failed");
    assert_eq!(causes, 1, "{}", site.said("a"));
    make_room(&etcd);
    site.await_covered();
    assert!(a.terminate().success(), "{}", site.said("a"));
    site.assert_clean();
}

#[test]
fn a_history_that_was_compacted_under_a_watch_is_listed_anew() {
    let etcd = Etcd::start(EtcdRelease::V3_4);
    let proxy = TcpProxy::start(([127, 0, 0, 1], etcd.port(0)).into());
    let through = format!("etcd://{}/shop", proxy.address());
    let site = TestCluster::new(SHARDS);
    let mut a = site.beating_on("a", &through);
    site.await_covered();
    let before = epochs(&site);
    proxy.refuse();
    proxy.reset();
    for n in 0..5 {
        etcd.ctl(&["put", "shop/other", &n.to_string()]);
    }
    let said = etcd.ctl(&["get", "none", "--write-out=json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    etcd.ctl(&[
        "compact",
        "--physical",
        &said["header"]["revision"].to_string(),
    ]);
    proxy.heal();
    pass(TTL);
    assert_eq!(epochs(&site), before);
    // It sees what comes after: another node gets its share.
    let mut b = site.beating_on("b", &etcd.url("shop"));
    site.await_both();
    for exec in [&mut a, &mut b] {
        assert!(exec.terminate().success(), "{}", site.said("a"));
    }
    site.assert_clean();
}

#[test]
fn a_postgres_in_recovery_ends_a_start_and_stops_work_in_time() {
    let mut postgres = Postgres::start();
    let site = TestCluster::new(SHARDS);
    let mut a = site.beating_on("a", &postgres.url());
    site.await_covered();
    let before = epochs(&site);
    postgres.write("standby.signal", "", 0o600);
    postgres.stop();
    postgres.restart();
    let wanted = ["is a standby (in recovery)", "name the primary"];
    let elsewhere = TestCluster::new(SHARDS);
    assert_tells(&refused(&elsewhere, &postgres.url()), &wanted);
    await_told(&site, "a", &wanted);
    until("children end in time", || site.alive().is_empty());
    std::fs::remove_file(postgres.dir().join("data/standby.signal")).unwrap();
    postgres.stop();
    postgres.restart();
    site.await_covered();
    assert_eq!(epochs(&site), before, "nobody else can have had them");
    assert!(a.terminate().success(), "{}", site.said("a"));
    site.assert_clean();
}

#[test]
fn a_start_waits_for_a_postgres_without_a_connection_to_spare_and_says_so() {
    let settings = ["max_connections=6", "superuser_reserved_connections=2"];
    let postgres = Postgres::start_with(&settings);
    postgres.sql("CREATE ROLE shop LOGIN; GRANT CREATE ON DATABASE postgres TO shop");
    let url = postgres.url().replace("postgres@", "shop@");
    // Each of them has one connection.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let open = || runtime.block_on(tenure_store::open(&url)).unwrap();
    let crowd = [open(), open(), open(), open()];
    let wanted = ["53300", "raise max_connections"];
    waits_and_starts(&url, &wanted, || drop(crowd));
}
