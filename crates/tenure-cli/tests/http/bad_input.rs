//! Everything that can be wrong: a clear answer each time, and nothing lost.

use std::time::Duration;

use rustix::process::Signal;

use crate::client::{Client, about};
use crate::load::{Load, check_journal};
use crate::test_cluster::{QUICK, SOON, TestCluster, free_port, until, with_ttl};

#[tokio::test]
async fn a_request_without_key_or_for_what_does_not_exist_is_told_so() {
    let site = TestCluster::new(2);
    let node = site.node("n1", &QUICK);
    let router = site.router("r1", &[]);
    site.settled(1).await;
    for at in [router.address, node.address] {
        let mut client = Client::new(at);
        let got = client.get("/count").await.with(400);
        assert_eq!(got.header("tenure-error"), "no_key");
        assert!(got.text().contains("header x-key"), "{}", got.text());
    }
    let mut client = Client::new(router.address);
    for (shard, status, word) in [
        ("nowhere/1", 404, "unknown_keyspace"),
        ("orders/77", 404, "unknown_shard"),
        ("/", 400, "no_key"),
    ] {
        let mut request = about("GET", "/count", "", "");
        request
            .headers_mut()
            .insert("x-shard", shard.parse().unwrap());
        let got = client.send(request).await.unwrap().with(status);
        assert_eq!(got.header("tenure-error"), word, "{}", got.text());
    }
    // A request may name its shard itself (D10).
    let mut request = about("POST", "/count", "", "1");
    request
        .headers_mut()
        .insert("x-shard", "1".parse().unwrap());
    let got = client.send(request).await.unwrap().with(200);
    assert_eq!(got.header("tenure-shard"), "orders/1");
}

#[tokio::test]
async fn what_cannot_be_held_is_answered_with_503_and_counted() {
    let site = TestCluster::new(2);
    let (made, said) = site.run(&["keyspace", "create", "orders", "--shards", "2"]);
    assert!(made, "{said}");
    let short = [
        "--set",
        "router_hold_timeout=100ms",
        "--drain-timeout",
        "200ms",
        "--set",
        "take_timeout=200ms",
        "--hold-max-age",
        "600ms",
        "--hold-max-requests",
        "4",
        "--hold-max-bytes",
        "20000",
    ];
    let router = site.router("r1", &short);
    let at = router.address;
    let ask = |body: String| {
        tokio::spawn(async move { Client::new(at).ask("POST", "/count", "a", &body).await })
    };
    // One shard may take up half: two requests, or 10,000 bytes.
    let large = ask("x".repeat(12_000)).await.unwrap().with(503);
    assert_eq!(large.header("tenure-error"), "hold_queue_full");
    assert!(large.text().contains("byte limit"), "{}", large.text());
    let all: Vec<_> = (0..5).map(|n| ask(n.to_string())).collect();
    let mut words = Vec::new();
    for task in all {
        let got = task.await.unwrap().with(503);
        assert_eq!(got.header("retry-after"), "1");
        words.push(got.header("tenure-error").to_owned());
    }
    words.sort();
    assert_eq!(
        words,
        [
            "hold_queue_full",
            "hold_queue_full",
            "hold_queue_full",
            "hold_timeout",
            "hold_timeout"
        ]
    );
    assert_eq!(router.metric("tenure_router_overflows_total ").await, 4.0);
    assert_eq!(router.metric("tenure_router_expired_total ").await, 2.0);
}

#[tokio::test]
async fn an_application_that_is_down_or_slow_is_named_and_the_node_says_that_it_is_not_ready() {
    let site = TestCluster::new(1);
    let app = free_port();
    let mut process = std::process::Command::new(env!("CARGO_BIN_EXE_tenure"));
    process
        .arg("__app")
        .arg(app.to_string())
        .arg(site.journals());
    let mut process = process.spawn().unwrap();
    let hooks = format!("http://{app}/hooks");
    let args = ["--hooks", &hooks, "--response-timeout", "400ms"];
    let node = site.gate("n1", &format!("http://{app}"), &args);
    let router = site.router("r1", &[]);
    site.settled(1).await;
    let mut health = Client::new(node.admin);
    health.get("/readyz").await.with(200);
    let mut client = Client::new(router.address);
    client.ask("POST", "/count", "a", "1").await.with(200);
    let got = client
        .ask("POST", "/slow?ms=1500", "a", "2")
        .await
        .with(504);
    assert_eq!(got.header("tenure-error"), "app_timeout");
    process.kill().unwrap();
    process.wait().unwrap();
    let got = client.ask("POST", "/count", "a", "3").await.with(503);
    let told = (got.header("tenure-error"), got.header("retry-after"));
    assert_eq!(told, ("app_unavailable", "1"));
    let got = health.get("/readyz").await.with(503);
    assert!(got.text().contains("application"), "{}", got.text());
    health.get("/livez").await.with(200);
}

#[tokio::test]
async fn a_node_that_is_cut_off_from_its_store_lives_but_is_not_ready_until_it_is_back() {
    let site = TestCluster::new(1);
    let node = site.node("n1", &with_ttl("2s"));
    site.settled(1).await;
    let store = rusqlite::Connection::open(site.dir.path().join("store.db")).unwrap();
    store.busy_timeout(SOON).unwrap();
    store.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let mut health = Client::new(node.admin);
    let limit = std::time::Instant::now() + SOON;
    loop {
        let got = health.get("/readyz").await;
        health.get("/livez").await.with(200);
        if got.status == 503 {
            assert!(got.text().contains("detached"), "{}", got.text());
            break;
        }
        assert!(std::time::Instant::now() < limit, "it never detached");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut gate = Client::new(node.address);
    let got = gate.ask("POST", "/count", "a", "1").await.with(421);
    assert_eq!(got.header("tenure-refused"), "not_ready");
    store.execute_batch("ROLLBACK").unwrap();
    while health.get("/readyz").await.status != 200 {
        assert!(std::time::Instant::now() < limit, "it never came back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A hook that fails, or does not answer, undoes the move: the old owner serves on.
async fn a_move_is_undone(first: (&[&str], &[&str]), second: &[&str], told: &str) {
    let site = TestCluster::new(4);
    let first_args = [&QUICK[..], first.0].concat();
    let old = site.node_with("n1", &first_args, first.1);
    let router = site.router("r1", &[]);
    site.settled(1).await;
    let load = Load::begin(&[router.address], 8, Duration::from_millis(40), 100_000);
    let short = [
        "--set",
        "load_retry_min=50ms",
        "--set",
        "load_retry_max=100ms",
    ];
    let second_args = [&QUICK[..], &short[..]].concat();
    let new = site.node_with("n2", &second_args, second);
    until("the hook has failed", || {
        (old.log().contains(told) || new.log().contains(told)).then_some(())
    })
    .await;
    let before = load.answered.load(std::sync::atomic::Ordering::Relaxed);
    let answered = load.answered.clone();
    until("requests go on", || {
        (answered.load(std::sync::atomic::Ordering::Relaxed) > before + 100).then_some(())
    })
    .await;
    load.stop();
    let outcomes = load.outcomes().await;
    let failed: Vec<_> = outcomes.iter().filter(|o| o.failed.is_some()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    check_journal(&site, &outcomes);
}

#[tokio::test]
async fn a_seal_that_fails_undoes_the_move_and_no_request() {
    a_move_is_undone(
        (&[], &["--fail", "seal"]),
        &[],
        "configured to fail at seal",
    )
    .await;
}

#[tokio::test]
async fn a_seal_that_hangs_undoes_the_move_and_no_request() {
    let slow: [&str; 2] = ["--hook-timeout", "300ms"];
    a_move_is_undone((&slow, &["--hang", "seal"]), &[], "seal did not respond").await;
}

#[tokio::test]
async fn an_application_without_hooks_is_served_too() {
    let site = TestCluster::new(2);
    let without = [
        "--without",
        "seal",
        "--without",
        "release",
        "--without",
        "catch_up",
    ];
    let mut first = site.node_with("n1", &QUICK, &without);
    let router = site.router("r1", &[]);
    let _second = site.node_with("n2", &QUICK, &without);
    let mut client = Client::new(router.address);
    client.ask("POST", "/count", "a", "1").await.with(200);
    first.stop().await;
    client.ask("POST", "/count", "a", "2").await.with(200);
}

#[test]
fn what_cannot_be_started_is_refused_with_the_way_out() {
    let site = TestCluster::new(1);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let check = |args: &[&str], wanted: &[&str]| {
        let (fine, said) = site.run(args);
        assert!(!fine, "{args:?}");
        for text in wanted {
            assert!(said.contains(text), "{text:?} is not in {said}");
        }
    };
    let node = ["sidecar", "--keyspace", "orders", "--shards", "1"];
    let with = |more: &[&'static str]| [&node[..], more].concat();
    check(
        &with(&["--listen", ":0", "--app", "localhost:1"]),
        &["--app", "http://HOST:PORT"],
    );
    check(
        &with(&[
            "--listen",
            ":0",
            "--app",
            "http://h:1",
            "--hooks",
            "ftp://h",
        ]),
        &["--hooks", "http://HOST:PORT"],
    );
    check(
        &with(&["--listen", "0.0.0.0:0", "--app", "http://h:1"]),
        &["--advertise"],
    );
    check(
        &with(&["--listen", ":0", "--app", "http://h:1", "--warm"]),
        &["--hooks"],
    );
    let router = ["router", "--keyspace", "orders", "--listen"];
    check(&[&router[..], &[&taken]].concat(), &[&taken, "listen"]);
    check(
        &[&router[..], &[":0", "--key-from", "body:x"]].concat(),
        &["header:NAME"],
    );
    check(
        &[&router[..], &[":0", "--hold-max-age", "1s"]].concat(),
        &["router_hold_timeout"],
    );
}

#[tokio::test]
async fn a_second_signal_does_not_wait_for_what_is_in_flight() {
    let site = TestCluster::new(1);
    let mut node = site.node("n1", &QUICK);
    let router = site.router("r1", &[]);
    site.settled(1).await;
    let at = router.address;
    tokio::spawn(async move {
        let request = about("POST", "/slow?ms=30000", "a", "1");
        let _ = Client::new(at).send(request).await;
    });
    let in_flight = "tenure_http_in_flight{role=\"sidecar\"}";
    while node.metric(in_flight).await < 1.0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    node.signal(Signal::TERM);
    let mut health = Client::new(node.admin);
    while health.get("/readyz").await.status != 503 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Signals that come together are one wish.
    tokio::time::sleep(Duration::from_millis(400)).await;
    let begun = std::time::Instant::now();
    node.signal(Signal::TERM);
    let status = node.ended().await;
    assert!(!status.success(), "{status}");
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
}
