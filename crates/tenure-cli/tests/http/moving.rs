//! Moves under load: what a request waits for, and what it does not (D3, D5).

use std::time::Duration;

use rustix::process::Signal;

use crate::client::Client;
use crate::load::{Load, check_journal, latencies};
use crate::test_cluster::{QUICK, TestCluster};

/// How long requests wait at most while half of the shards move to a node that takes so long to load each.
async fn longest_wait(load_time: &str) -> Duration {
    let site = TestCluster::new(4);
    let warm = [&QUICK[..], &["--warm"]].concat();
    let _first = site.node_with("n1", &warm, &["--load", load_time]);
    let router = site.router("r1", &[]);
    site.settled(1).await;
    // Not much: it is the moves that are to take time here, not the machine.
    let load = Load::begin(&[router.address], 8, Duration::from_millis(200), 1_000_000);
    let _second = site.node_with("n2", &warm, &["--load", load_time]);
    site.settled(2).await;
    load.stop();
    let outcomes = load.outcomes().await;
    let failed: Vec<_> = outcomes.iter().filter(|o| o.failed.is_some()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    check_journal(&site, &outcomes);
    println!("load of {load_time}: {}", latencies(&outcomes));
    outcomes.iter().map(|o| o.took).max().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_do_not_wait_for_a_load() {
    let quick = longest_wait("1ms").await;
    let slow = longest_wait("6s").await;
    // The same window, and what a busy machine adds to either.
    let noise = Duration::from_millis(700);
    assert!(
        slow < quick + noise,
        "{slow:?} with loads of 6s, {quick:?} with loads of 1ms"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_that_says_nothing_delays_a_move_by_the_freeze_timeout_only() {
    let site = TestCluster::new(4);
    let args = [&QUICK[..], &["--set", "router_hold_timeout=700ms"]].concat();
    let short = ["--set", "router_hold_timeout=700ms", "--ttl", "60s"];
    let _first = site.node("n1", &args);
    let router = site.router("r1", &short);
    let silent = site.router("r2", &short);
    site.settled(1).await;
    silent.signal(Signal::STOP);
    let load = Load::begin(&[router.address], 12, Duration::from_millis(200), 1_000_000);
    let _second = site.node("n2", &args);
    site.settled(2).await;
    load.stop();
    silent.signal(Signal::CONT);
    let outcomes = load.outcomes().await;
    let failed: Vec<_> = outcomes.iter().filter(|o| o.failed.is_some()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    check_journal(&site, &outcomes);
    let longest = outcomes.iter().map(|o| o.took).max().unwrap_or_default();
    assert!(
        longest >= Duration::from_millis(600),
        "nothing waited: {longest:?}"
    );
    // Without the timeout it would be the session of the silent one that is waited for: 60 s.
    assert!(longest < Duration::from_secs(10), "{longest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_identical_processes_need_no_router_of_their_own() {
    let site = TestCluster::new(6);
    let args = [&QUICK[..], &["--forward"]].concat();
    let mut nodes = ["n1", "n2", "n3"].map(|n| site.node(n, &args));
    site.settled(3).await;
    let mut seen = std::collections::BTreeSet::new();
    for (round, node) in nodes.iter().enumerate() {
        let mut client = Client::new(node.address);
        for key in 0..20 {
            let got = client
                .ask("POST", "/count", &format!("k{key}"), "1")
                .await
                .with(200);
            assert_eq!(got.text(), (round + 1).to_string());
            seen.insert(got.header("tenure-node").to_owned());
        }
    }
    assert_eq!(seen.len(), 3);
    // One after the other goes; what comes in elsewhere does not notice.
    let load = Load::begin(
        &[nodes[2].address],
        20,
        Duration::from_millis(50),
        1_000_000,
    );
    for (node, name) in nodes.iter_mut().zip(["n1", "n2"]) {
        node.stop().await;
        *node = site.node(name, &args);
    }
    load.stop();
    let outcomes = load.outcomes().await;
    let failed: Vec<_> = outcomes.iter().filter(|o| o.failed.is_some()).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_in_another_language_hands_its_state_over() {
    let python = std::process::Command::new("python3").arg("-V").output();
    if !python.is_ok_and(|ran| ran.status.success()) {
        tenure_store::servers::skipped("there is no python3");
        return;
    }
    let site = TestCluster::new(3);
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tenure-server/examples/counter.py"
    );
    let state = site.dir.path().join("state");
    let node = |name: &str| {
        let at = crate::test_cluster::free_port();
        let (app, hooks) = (format!("http://{at}"), format!("http://{at}/hooks"));
        let port = at.port().to_string();
        let mut args = QUICK.to_vec();
        args.extend(["--hooks", &hooks, "--", "python3", script, &port]);
        args.push(state.to_str().unwrap());
        site.gate(name, &app, &args)
    };
    let mut first = node("n1");
    let router = site.router("r1", &[]);
    site.settled(1).await;
    let load = Load::begin(&[router.address], 10, Duration::from_millis(50), 1_000_000);
    let _second = node("n2");
    site.settled(2).await;
    first.stop().await;
    site.settled(1).await;
    load.stop();
    let outcomes = load.outcomes().await;
    let failed: Vec<_> = outcomes.iter().filter(|o| o.failed.is_some()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    let mut client = Client::new(router.address);
    for key in (0..10).map(|k| format!("k{k}")) {
        let sent = outcomes.iter().filter(|o| o.key == key).count();
        let got = client.ask("GET", "/", &key, "").await.with(200);
        assert_eq!(got.text().trim(), sent.to_string(), "{key}");
    }
}
