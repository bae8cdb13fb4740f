//! `tenure status` and `owner`: what they show of clusters in every condition.

mod test_cluster;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tenure::{Handler, Hashed, Node, Result, Shard};
use tenure_core::ids::{Epoch, NodeName, SessionId};
use tenure_core::keys::Key;
use tenure_core::reason::Reason;
use tenure_core::record::{LoadFailure, Move, Owner, Ownership, Quarantine, Record, ShardRecord};
use test_cluster::{TTL, TestCluster, order, problems, served, shard};
use tokio::sync::Semaphore;

fn fields(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

#[track_caller]
fn has(value: &Value, wanted: &[&str]) {
    for field in wanted {
        assert!(fields(value).contains(field), "{field} is not in {value}");
    }
}

#[test]
fn the_json_has_the_fields_that_others_build_on() {
    let shop = TestCluster::new();
    let (n1, n2) = (shop.node("n1", 8), shop.node("n2", 8));
    let status = shop.until(|s| served(s) == 8 && s["nodes"][1]["shards"] != 0);
    has(
        &status["nodes"][0],
        &[
            "name",
            "mode",
            "session",
            "addresses",
            "zone",
            "weight",
            "shards",
        ],
    );
    has(
        &status["keyspaces"][0],
        &[
            "name",
            "kind",
            "assigned_by",
            "shards",
            "owned",
            "unowned",
            "moving",
        ],
    );
    has(
        &status["shards"][0],
        &[
            "keyspace", "shard", "epoch", "owner", "state", "phase", "target",
        ],
    );
    let node = &status["nodes"][0];
    assert_eq!(
        (&node["name"], &node["mode"], &node["zone"]),
        (&json!("n1"), &json!("active"), &json!("eu"))
    );
    assert_eq!(node["addresses"], json!({"http": "http://127.0.0.1/n1"}));
    assert_eq!(node["weight"], 100);
    let counted: u64 = [0, 1]
        .iter()
        .map(|n: &usize| status["nodes"][*n]["shards"].as_u64().unwrap())
        .sum();
    assert_eq!(counted, 8);
    assert_eq!(status["keyspaces"][0]["owned"], 8);
    assert_eq!(status["problems"], json!([]));
    shop.stop(&n1);
    shop.stop(&n2);
}

#[test]
fn a_node_whose_session_is_over_is_gone() {
    let shop = TestCluster::new();
    let node = shop.node("n1", 4);
    shop.stop(&node);
    let status = shop.status();
    assert_eq!(status["nodes"][0]["mode"], "gone");
    assert_eq!(status["nodes"][0]["lease"], "resigned");
    assert_eq!(status["keyspaces"][0]["unowned"], 4);
    let text = shop.run(&["status"]).with(0).out;
    assert!(
        text.contains("0 nodes (1 gone)") && text.contains("orders/0..3  free"),
        "{text}"
    );
    assert_eq!(
        status["problems"],
        json!([{
            "kind": "unserved",
            "key": "keyspaces/orders",
            "problem": "4 shards are not served: no live node serves the keyspace (no_node): 0, 1, 2, 3",
            "help": "start a node that serves the keyspace"
        }])
    );
}

#[test]
fn a_node_that_is_stopping_is_leaving_and_serves_still() {
    let shop = TestCluster::new();
    drop(shop.node("n1", 4));
    let session = shop.status()["nodes"][0]["session"].clone();
    let key = Key::Session(session.as_str().unwrap().parse().unwrap());
    let Record::Session(record) = shop.record(&key) else {
        panic!("a session record");
    };
    let mut record = (*record).clone();
    record.head.rev += 1;
    record.stopping = true;
    record.boot_clock = None;
    shop.lay(&key, &Record::Session(record.into()).encode());
    let status = shop.status();
    assert_eq!(
        (&status["nodes"][0]["mode"], &status["nodes"][0]["lease"]),
        (&json!("stopping"), &json!("stopping"))
    );
    assert_eq!(status["keyspaces"][0]["owned"], 4);
}

#[test]
fn a_node_that_crashed_is_overdue_once_its_lease_has_run_out() {
    let shop = TestCluster::new();
    drop(shop.node("n1", 4));
    let status = shop.until(|s| s["nodes"][0]["lease"] == "overdue");
    let found = problems(&status);
    assert_eq!(found.len(), 2, "{status:#}");
    assert_eq!(found[0], "unserved keyspaces/orders");
    assert!(found[1].starts_with("overdue sessions/"));
    shop.run(&["shard", "lookup", "user-42"])
        .with(0)
        .telling(&["the lease of n1 expired"]);
}

/// A handler that finishes loading some shards only with a permit.
struct Slow(Arc<Semaphore>);

impl Handler for Slow {
    type State = ();

    async fn load(&self, shard: &Shard) -> Result<()> {
        if ["2", "5"].contains(&shard.name().as_str()) {
            self.0.acquire().await.unwrap().forget();
        }
        Ok(())
    }
}

#[test]
fn shards_that_do_not_come_to_be_served_are_a_problem_after_three_ttl() {
    let shop = TestCluster::with_orders(8);
    let loads = Arc::new(Semaphore::new(0));
    let node = Node::builder(shop.url(), "shop").name("n1").ttl(TTL);
    let node = node.keyspace("orders", Hashed(8), Slow(Arc::clone(&loads)));
    let _starts = shop.runtime.spawn(node.start());
    let status = shop.until(|s| served(s) == 6);
    assert_eq!(problems(&status), Vec::<String>::new(), "not at once");
    let status = shop.until(|s| !problems(s).is_empty());
    assert_eq!(problems(&status), ["unserved keyspaces/orders"]);
    assert_eq!(
        status["problems"][0]["problem"],
        "2 shards are not served for longer than three ttl: their owners have not loaded them (loading): 2, 5"
    );
    let text = shop.run(&["status"]).with(0).out;
    assert!(text.contains("2 shards are not served"), "{text}");
    let admin = || async {
        let admin = tenure::AdminClient::open(&shop.url(), "shop")
            .await
            .unwrap();
        admin.unserved().await.unwrap()
    };
    let found = shop.runtime.block_on(admin());
    let [(keyspace, stuck)] = &found.into_iter().collect::<Vec<_>>()[..] else {
        panic!("one keyspace");
    };
    assert_eq!(
        (keyspace.as_str(), stuck.len(), stuck[0].count),
        ("orders", 1, 2)
    );
    loads.add_permits(2);
    shop.until(|s| served(s) == 8 && problems(s).is_empty());
    assert!(shop.runtime.block_on(admin()).is_empty());
}

#[test]
fn the_owner_of_a_key_is_told_and_nobody_is_an_answer_too() {
    let shop = TestCluster::with_orders(64);
    let ran = shop
        .run(&["shard", "lookup", "user-42", "--json"])
        .with(1)
        .telling(&["no node owns shard orders/14"]);
    assert_eq!(ran.json()["owner"], Value::Null);
    let node = shop.node("n1", 64);
    let answer = shop
        .run(&["shard", "lookup", "user-42", "--json"])
        .with(0)
        .json();
    assert_eq!(
        (&answer["owner"], &answer["shard"], &answer["state"]),
        (&json!("n1"), &json!("14"), &json!("serving"))
    );
    let status = shop.status();
    assert_eq!(answer["session"], status["nodes"][0]["session"]);
    assert_eq!(answer["epoch"], shard(&status, 14)["epoch"]);
    let text = shop.run(&["shard", "show", "orders/14"]).with(0).out;
    assert!(
        text.contains("owner    n1") && text.contains("http http://127.0.0.1/n1"),
        "{text}"
    );
    shop.run(&["shard", "lookup"]).with(2);
    shop.stop(&node);
}

/// Replaces a shard's record by one that differs in this.
fn edit(shop: &TestCluster, index: u32, change: impl FnOnce(&mut ShardRecord)) {
    let Record::Shard(record) = shop.record(&order(index)) else {
        panic!("a shard record");
    };
    let mut record = (*record).clone();
    record.head.rev += 1;
    change(&mut record);
    shop.lay(&order(index), &Record::Shard(record.into()).encode());
}

#[test]
fn every_exception_is_listed_with_what_helps_and_none_is_fatal() {
    let shop = TestCluster::new();
    let node = shop.node("n1", 16);
    let status = shop.until(|s| served(s) == 16);
    drop(node);
    let by = Owner {
        node: NodeName::new("n1").unwrap(),
        session: status["nodes"][0]["session"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap(),
    };
    let other = |name: &str| Owner {
        node: NodeName::new(name).unwrap(),
        session: SessionId(9),
    };
    edit(&shop, 1, |r| {
        r.ownership = Ownership::FREE;
        r.quarantine = Some(Quarantine {
            reason: "disk on fire".to_owned(),
        });
        r.failures = vec![LoadFailure {
            node: by.node.clone(),
            session: by.session,
            error: "cannot read it".to_owned(),
        }];
    });
    shop.lay(&order(2), b"{ not json");
    shop.delete(&order(3));
    edit(&shop, 4, |r| {
        r.ownership = Ownership::Owned {
            by: by.clone(),
            serving: false,
        }
    });
    let mv = Move {
        id: 1,
        to: other("n2"),
        reason: Reason::Planned,
        more: false,
    };
    edit(&shop, 5, |r| {
        r.ownership = Ownership::Warming {
            by: by.clone(),
            mv: mv.clone(),
        }
    });
    edit(&shop, 6, |r| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let then = now.as_millis() as u64 - 5 * 60 * 1000;
        r.unknown.insert("written_ms".to_owned(), then.into());
        r.ownership = Ownership::Sealed {
            by: by.clone(),
            mv,
            seal: "x".to_owned(),
        }
    });
    edit(&shop, 7, |r| {
        r.ownership = Ownership::Owned {
            by: other("n3"),
            serving: true,
        }
    });

    let status = shop.status();
    let state = |i| shard(&status, i)["state"].as_str().unwrap().to_owned();
    assert_eq!(
        [1, 2, 3, 4, 5, 6, 7].map(state),
        [
            "quarantined",
            "unreadable",
            "missing",
            "loading",
            "warming",
            "sealed",
            "serving"
        ]
    );
    assert_eq!(
        (&shard(&status, 5)["phase"], &shard(&status, 5)["target"]),
        (&json!("warming"), &json!("n2"))
    );
    let age = |i| shard(&status, i)["phase_age_ms"].as_u64();
    assert!(
        (300_000..360_000).contains(&age(6).unwrap()),
        "{:?}",
        age(6)
    );
    assert_eq!(age(4), None);
    assert_eq!(shard(&status, 6)["waits_for"], "n2 to take it");
    assert_eq!(
        shard(&status, 1)["failures"],
        json!([{"node": "n1", "error": "cannot read it"}])
    );
    let keyspace = &status["keyspaces"][0];
    assert_eq!(
        (
            &keyspace["shards"],
            &keyspace["unowned"],
            &keyspace["moving"]
        ),
        (&json!(16), &json!(3), &json!(2))
    );
    let found = problems(&status);
    for wanted in [
        "quarantined shards/orders/1",
        "unreadable shards/orders/2",
        "missing shards/orders/3",
        "missing sessions/00000000000000000000000000000009",
    ] {
        assert!(
            found.contains(&wanted.to_owned()),
            "{wanted} is not in {found:?}"
        );
    }
    let text = shop.run(&["status"]).with(0).out;
    for wanted in [
        "disk on fire; n1: cannot read it",
        "tenure shard repair orders/1",
        "write the record again after the longest ttl",
        "tenure shard repair orders/2",
        "orders/5",
        "n2",
        "5min",
    ] {
        assert!(text.contains(wanted), "{wanted} is not in\n{text}");
    }
    assert!(!text.contains("orders/8"), "{text}");
    assert!(
        shop.run(&["status", "--shards"])
            .with(0)
            .out
            .contains("orders/8 ")
    );
    shop.run(&["shard", "show", "orders/2"])
        .with(1)
        .telling(&["corrupt record"]);
}

#[test]
fn damaged_records_of_every_kind_are_listed() {
    let shop = TestCluster::new();
    let node = shop.node("n1", 4);
    shop.stop(&node);
    let session = shop.status()["nodes"][0]["session"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let keys = [
        Key::Cluster,
        Key::Leader,
        test_cluster::keyspace("orders"),
        test_cluster::node_key("n1"),
        Key::Session(session),
        order(0),
    ];
    for key in &keys {
        shop.lay(key, b"garbage");
    }
    let wanted: Vec<String> = keys.iter().map(|key| format!("unreadable {key}")).collect();
    assert_eq!(problems(&shop.status()), wanted);
}

#[test]
fn ten_thousand_shards_are_readable_in_80_columns() {
    let shop = TestCluster::with_orders(10_000);
    let long = "x".repeat(180);
    shop.run(&["keyspace", "create", &long, "--shards", "50"])
        .with(0);
    let owner = |n: u32| Owner {
        node: NodeName::new(format!("node-{}", n % 2)).unwrap(),
        session: SessionId(u128::from(n % 2)),
    };
    for index in 0..60 {
        edit(&shop, index, |r| {
            r.epoch = Epoch(r.epoch.0 + 1);
            r.ownership = Ownership::Owned {
                by: owner(index),
                serving: index < 10,
            };
        });
    }
    let text = shop.run(&["status"]).with(0).out;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() < 60, "{} lines:\n{text}", lines.len());
    for line in &lines {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(
        lines[1].contains("10050 shards: 60 owned, 9990 unowned"),
        "{text}"
    );
    assert!(text.contains("more; --shards lists all"), "{text}");
    assert_eq!(
        shop.run(&["status", "--json"]).with(0).json()["shards"]
            .as_array()
            .unwrap()
            .len(),
        10_050
    );
}

/// A watch that ends with its test, however that ends.
struct Watching(Child);

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_watch_shows_changes_as_blocks_and_ends_well_with_ctrl_c() {
    let shop = TestCluster::with_orders(4);
    let child = shop
        .command(&["status", "--watch", "--interval", "10ms"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Watching(child);
    let mut lines = BufReader::new(child.0.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    assert!(lines.any(|line| line.contains("4 unowned")));
    let node = shop.node("n1", 4);
    assert!(lines.any(|line| line.contains("4 owned, 0 unowned")));
    shop.stop(&node);
    assert!(lines.any(|line| line.contains("0 owned, 4 unowned")));
    let pid = rustix::process::Pid::from_child(&child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    child
        .0
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!(said, "");
}

/// How the only node is.
fn mode(status: &Value) -> &str {
    status["nodes"][0]["mode"].as_str().unwrap()
}

#[test]
fn a_watch_as_json_has_one_document_per_line_and_none_without_a_change() {
    let shop = TestCluster::new();
    let node = shop.node("n1", 2);
    let child = shop
        .command(&["status", "--watch", "--json", "--interval", "10ms"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Watching(child);
    let mut documents = BufReader::new(child.0.stdout.take().unwrap())
        .lines()
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let first = documents.next().unwrap();
    // Renewals go on all the while; the next document is the next that says something else.
    std::thread::sleep(test_cluster::TTL);
    shop.stop(&node);
    let second = documents.next().unwrap();
    assert_ne!(first, second);
    assert_eq!((served(&first), mode(&first)), (2, "active"));
    // It may be caught while it leaves; what comes after is that it is gone.
    let (gone, mut before) = (|d: &Value| mode(d) == "gone", second);
    while !gone(&before) {
        let next = documents.next().unwrap();
        assert_ne!(next, before);
        before = next;
    }
    assert_eq!(served(&before), 0);
}
