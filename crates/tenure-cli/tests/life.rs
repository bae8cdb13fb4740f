//! The commands around the life of a node: drain, activate, evict, move, rebalance, freeze, and named shards (C6, C7).

mod test_cluster;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure::RejoinMode;
use test_cluster::{TestCluster, has, problems};

fn settled_two() -> (TestCluster, [tenure::Node; 2]) {
    let shop = TestCluster::with_lively_orders(8);
    let nodes = ["a", "b"].map(|name| shop.node_with(name, 8, |b| b));
    shop.until(|status| has(status, "a") == 4 && has(status, "b") == 4);
    (shop, nodes)
}

#[test]
fn a_drain_moves_everything_tells_how_far_it_is_and_stays_until_an_activation() {
    let (shop, _nodes) = settled_two();
    let first = shop
        .run(&["node", "drain", "b", "--json"])
        .with(0)
        .telling(&["node b is draining", "drained(operator), 0 shards left"]);
    let told = first.json();
    assert_eq!(
        (&told["mode"], &told["shards"]),
        (&"drained(operator)".into(), &0.into())
    );
    assert_eq!(told["changed"], true);
    let status = shop.status();
    assert_eq!((has(&status, "a"), has(&status, "b")), (8, 0));
    assert_eq!(
        problems(&status),
        Vec::<String>::new(),
        "an operator's wish is no problem"
    );
    let again = shop.run(&["node", "drain", "b", "--json"]).with(0);
    assert_eq!(again.json()["changed"], false);
    let active = shop.run(&["node", "resume", "b", "--json"]).with(0).json();
    assert_eq!(
        (&active["was"], &active["changed"]),
        (&"drained(operator)".into(), &true.into())
    );
    shop.until(|status| has(status, "b") == 4);
    let again = shop.run(&["node", "resume", "b", "--json"]).with(0).json();
    assert_eq!(again["changed"], false);
    shop.run(&["node", "drain", "c"])
        .with(1)
        .telling(&["there is no node c", "a, b"]);
}

#[test]
fn an_interrupted_drain_goes_on_and_says_so() {
    let shop = TestCluster::with_lively_orders(8);
    let _only = shop.node("a", 8);
    let mut child = shop
        .command(&["node", "drain", "a"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("8 shards left") {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "no progress");
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(
        rest.contains("interrupted") && rest.contains("tenure node resume a"),
        "{rest}"
    );
    assert_eq!(shop.status()["nodes"][0]["mode"], "draining");
    let limit = shop
        .run(&["node", "drain", "a", "--wait-timeout", "300ms"])
        .with(1);
    limit.telling(&["still has 8 shards", "tenure node resume a"]);
}

#[test]
fn a_move_puts_a_shard_where_it_is_wanted_and_says_what_it_cannot_do() {
    let (shop, _nodes) = settled_two();
    let status = shop.status();
    let shards = status["shards"].as_array().unwrap();
    let at_a = shards.iter().find(|s| s["owner"] == "a").unwrap();
    let id = format!("orders/{}", at_a["shard"].as_str().unwrap());
    let moved = shop
        .run(&["shard", "move", &id, "--to", "b", "--json"])
        .with(0);
    let moved = moved.telling(&["is served by b"]).json();
    assert_eq!(
        (&moved["changed"], &moved["served"]),
        (&true.into(), &true.into())
    );
    let again = shop
        .run(&["shard", "move", &id, "--to", "b", "--json"])
        .with(0)
        .json();
    assert_eq!(again["changed"], false);
    let refused = |args: &[&str], said: &str| {
        shop.run(args).with(1).telling(&[said]);
    };
    refused(
        &["shard", "move", "orders/99", "--to", "b"],
        "there is no shard orders/99",
    );
    refused(&["shard", "move", &id, "--to", "z"], "there is no node z");
    shop.run(&["node", "cordon", "a"]).with(0);
    refused(
        &["shard", "move", &id, "--to", "a"],
        "tenure node uncordon a",
    );
    shop.run(&["node", "uncordon", "a"]).with(0);
    shop.run(&["cluster", "pause-moves", "--reason", "incident 7"])
        .with(0);
    refused(
        &["shard", "move", &id, "--to", "a"],
        "tenure cluster resume-moves",
    );
    shop.run(&["cluster", "resume-moves"]).with(0);
    shop.run(&[
        "keyspace",
        "create",
        "other",
        "--shards",
        "2",
        "--assigned-by",
        "rendezvous",
    ])
    .with(0);
    refused(
        &["shard", "move", "other/0", "--to", "a"],
        "has assigned_by = rendezvous",
    );
    refused(
        &["keyspace", "rebalance", "other"],
        "has assigned_by = rendezvous",
    );
}

#[test]
fn a_frozen_cluster_says_why_and_a_rebalance_evens_out_without_the_usual_waits() {
    let shop = TestCluster::new();
    let create = [
        "keyspace",
        "create",
        "orders",
        "--shards",
        "8",
        "--planning-settle-time",
        "1h",
    ];
    shop.run(&create).with(0);
    let _a = shop.node("a", 8);
    let frozen = shop
        .run(&["cluster", "pause-moves", "--reason", "incident 7", "--json"])
        .with(0);
    assert_eq!(frozen.json()["changed"], true);
    assert_eq!(
        shop.run(&["cluster", "pause-moves", "--reason", "incident 7", "--json"])
            .json()["changed"],
        false
    );
    assert_eq!(shop.status()["moves_paused"]["reason"], "incident 7");
    let text = shop.run(&["status"]).with(0).out;
    assert!(text.contains("moves paused: incident 7"), "{text}");
    // A pause with a duration ends by itself: the node that runs removes it.
    shop.run(&["cluster", "pause-moves", "--reason", "brief", "--for", "2s"])
        .with(0);
    let text = shop.run(&["status"]).with(0).out;
    assert!(text.contains("moves paused (for 2s): brief"), "{text}");
    shop.until(|status| status["moves_paused"].is_null());
    shop.run(&["cluster", "pause-moves", "--reason", "incident 7"])
        .with(0);
    shop.run(&["keyspace", "rebalance"])
        .with(1)
        .telling(&["incident 7", "tenure cluster resume-moves"]);
    shop.run(&["cluster", "resume-moves"]).with(0);
    let _b = shop.node_with("b", 8, |b| b);
    let dry = shop
        .run(&["keyspace", "rebalance", "--dry-run", "--json"])
        .with(0)
        .json();
    assert_eq!(
        dry["keyspaces"][0]["plan"]["changes"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
    assert_eq!(has(&shop.status(), "b"), 0, "a dry run changes nothing");
    shop.run(&["keyspace", "rebalance", "--wait-timeout", "30s"])
        .with(0)
        .telling(&["keyspace orders is balanced"]);
    let status = shop.status();
    assert_eq!((has(&status, "a"), has(&status, "b")), (4, 4));
}

#[test]
fn a_node_that_comes_back_late_is_a_problem_until_it_is_activated() {
    let shop = TestCluster::with_lively_orders(8);
    let manual = |b: tenure::Builder| b.rejoin(RejoinMode::Manual);
    let a = shop.node_with("a", 8, manual);
    let _b = shop.node_with("b", 8, manual);
    // Who dies before that may have been dead before the other's start.
    let knows = |name: &str| match shop.record(&test_cluster::node_key(name)) {
        tenure_core::record::Record::Node(node) => !node.unsure,
        _ => false,
    };
    shop.until(|status| has(status, "a") == 4 && knows("a") && knows("b"));
    drop(a);
    shop.until(|status| has(status, "b") == 8);
    let _a = shop.node_with("a", 8, manual);
    let status = shop.until(|status| status["problems"] != serde_json::json!([]));
    assert_eq!(problems(&status), ["drained nodes/a"]);
    let text = shop.run(&["status"]).with(0).out;
    for part in ["drained(stale_restart)", "tenure node resume a"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    shop.run(&["node", "resume", "a"])
        .with(0)
        .telling(&["was drained(stale_restart)"]);
    let status = shop.until(|status| has(status, "a") == 4);
    assert_eq!(problems(&status), Vec::<String>::new());
}

/// A real `tenure exec` over named shards.
struct Exec(Child);

impl Drop for Exec {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn exec(shop: &TestCluster, node: &str, more: &[&str], notify: Option<&std::path::Path>) -> Exec {
    let out = shop.dir.path().join("out");
    let script = format!(
        "echo \"$TENURE_SHARD $TENURE_EPOCH $TENURE_META\" >> {}; exec sleep 600",
        out.display()
    );
    let data = shop.dir.path().join(format!("{node}.d"));
    let fixed = [
        "exec",
        "--node",
        node,
        "--ttl",
        "1500ms",
        "--keyspace",
        "topics",
        "--named",
    ];
    let data = data.to_str().unwrap();
    let args = [
        &fixed[..],
        &["--data-dir", data],
        more,
        &["--", "sh", "-c", &script],
    ]
    .concat();
    let mut command = shop.command(&args);
    if let Some(path) = notify {
        command
            .env("NOTIFY_SOCKET", path)
            .env("WATCHDOG_USEC", "400000");
    }
    Exec(command.stderr(Stdio::null()).spawn().unwrap())
}

fn heard(socket: &UnixDatagram) -> String {
    let mut text = [0; 256];
    let n = socket
        .recv(&mut text)
        .expect("a service manager hears something");
    String::from_utf8_lossy(&text[..n]).into_owned()
}

#[test]
fn exec_runs_a_child_per_named_shard_with_what_is_attached_and_tells_its_service_manager() {
    let shop = TestCluster::new();
    shop.run(&["keyspace", "create", "topics", "--named"])
        .with(0);
    let meta = shop.dir.path().join("meta");
    std::fs::write(&meta, "{\"retention\":7}").unwrap();
    let meta = meta.to_str().unwrap();
    shop.run(&[
        "shard",
        "create",
        "topics/eu/payments",
        "--metadata-file",
        meta,
    ])
    .with(0)
    .telling(&["1 of 1 shards created"]);
    let path = shop.dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let mut node = exec(&shop, "a", &["--admin-addr", "127.0.0.1:0"], Some(&path));
    assert_eq!(heard(&socket), "READY=1");
    assert_eq!(heard(&socket), "WATCHDOG=1");
    assert_eq!(heard(&socket), "WATCHDOG=1");
    let out = || std::fs::read_to_string(shop.dir.path().join("out")).unwrap_or_default();
    let until = |what: &str, ready: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !ready() {
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "never: {what}\n{}",
                out()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until("its child runs", &|| {
        out().contains("eu/payments 4294967297 {\"retention\":7}")
    });
    shop.run(&["shard", "delete", "topics/eu/payments", "--yes"])
        .with(0)
        .telling(&["1 of 1 shards deleted"]);
    assert_eq!(shop.run(&["shard", "list", "topics"]).with(0).out, "");
    shop.run(&["shard", "create", "topics/eu/payments"]).with(0);
    until("its child runs again, above", &|| {
        out().contains("eu/payments 4294967298")
    });
    // preStop: it gives away what it has, and stops; its mode is not touched.
    let mut drain = shop.command(&["node", "stop", "--self", "--wait-timeout", "20s"]);
    let ran = drain.env("TENURE_NODE", "a").output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(node.0.wait().unwrap().code(), Some(0));
    let nodes = shop.status()["nodes"].clone();
    assert_eq!(nodes[0]["reason"], serde_json::Value::Null, "{nodes}");
    let mut again = exec(&shop, "a", &[], Some(&path));
    while heard(&socket) != "READY=1" {}
    until("its next incarnation serves", &|| {
        out().contains("eu/payments 4294967299")
    });
    kill_process(Pid::from_child(&again.0), Signal::TERM).unwrap();
    while heard(&socket) != "STOPPING=1" {}
    assert_eq!(again.0.wait().unwrap().code(), Some(0));
}

#[test]
fn probes_of_exec_tell_alive_from_ready() {
    let shop = TestCluster::new();
    shop.run(&["keyspace", "create", "topics", "--named"])
        .with(0);
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let _node = exec(&shop, "a", &["--admin-addr", &format!(":{port}")], None);
    let probe = |path: &str| -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes())
            .ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.split(' ').nth(1).map(str::to_owned)
    };
    let until = |path: &str, wanted: &str| {
        let begun = Instant::now();
        while probe(path).as_deref() != Some(wanted) {
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "{path} is never {wanted}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until("/readyz", "200");
    until("/livez", "200");
    // Nobody can renew while somebody else holds the store's only lock.
    let lock = rusqlite::Connection::open(shop.file()).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    until("/readyz", "503");
    assert_eq!(
        probe("/livez").as_deref(),
        Some("200"),
        "restarting it would not help"
    );
    lock.execute_batch("ROLLBACK").unwrap();
    until("/readyz", "200");
}

#[test]
fn many_shards_are_created_and_deleted_by_the_list() {
    let shop = TestCluster::new();
    shop.run(&["keyspace", "create", "topics", "--named"])
        .with(0);
    let names: String = (0..2500).map(|n| format!("tenant/{n}\n")).collect();
    let list = |args: &[&str]| {
        let mut child = shop
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(names.as_bytes())
            .unwrap();
        test_cluster::Ran::from(child.wait_with_output().unwrap())
    };
    let made = list(&["shard", "create", "topics", "--file", "-", "--json"]).with(0);
    assert_eq!(made.json()["changed"], 2500);
    let again = list(&["shard", "create", "topics", "--file", "-", "--json"])
        .with(0)
        .json();
    assert_eq!(
        (&again["changed"], &again["unchanged"]),
        (&0.into(), &2500.into())
    );
    let listed = shop.run(&["shard", "list", "topics"]).with(0).out;
    assert_eq!(listed.lines().count(), 2500);
    let gone = list(&[
        "shard", "delete", "topics", "--yes", "--file", "-", "--json",
    ])
    .with(0);
    assert_eq!(gone.json()["changed"], 2500);
    shop.run(&["shard", "create", "topics"])
        .with(2)
        .telling(&["KEYSPACE/NAME"]);
    shop.run(&["shard", "create", "nope/x"])
        .with(1)
        .telling(&["there is no keyspace nope"]);
}

#[test]
fn an_eviction_ends_the_process_in_good_order() {
    let (shop, nodes) = settled_two();
    let evicted = shop
        .run(&["node", "stop", "b", "--yes", "--json"])
        .with(0)
        .telling(&["node b has stopped"]);
    assert_eq!(evicted.json()["changed"], true);
    shop.runtime.block_on(nodes[1].ended()).unwrap();
    shop.until(|status| has(status, "a") == 8);
    let again = shop
        .run(&["node", "stop", "b", "--yes", "--json"])
        .with(0)
        .telling(&["node b is not running"]);
    assert_eq!(again.json()["changed"], false);
}
