//! The commands around a leader: plan, pin, cordon, sweep, and how a keyspace is planned.

mod test_cluster;

use std::sync::Arc;

use serde_json::Value;
use tenure_core::ids::{NodeName, SessionId};
use tenure_core::keys::Key;
use tenure_core::record::{PlanId, Record, ShardRecord};
use test_cluster::{Ran, TestCluster, has, head, keyspace, node_key, order, served, shard, tenure};

/// Two nodes that have four shards each.
fn settled_two() -> (TestCluster, [tenure::Node; 2]) {
    let shop = TestCluster::with_lively_orders(8);
    let nodes = ["a", "b"].map(|name| shop.node_with(name, 8, |b| b));
    shop.until(|status| has(status, "a") == 4 && has(status, "b") == 4);
    (shop, nodes)
}

fn planned(ran: &Ran) -> Value {
    ran.json()["keyspaces"][0].clone()
}

#[test]
fn a_plan_tells_moves_with_reasons_and_the_balance_before_and_after_and_changes_nothing() {
    let (shop, _nodes) = settled_two();
    let before = shop.record(&order(0));
    let now = planned(&shop.run(&["keyspace", "plan", "--json"]).with(0));
    assert_eq!(
        (&now["assigned_by"], &now["executed_by_leader"]),
        (&"leader".into(), &true.into())
    );
    assert_eq!(now["plan"]["changes"], Value::Array(Vec::new()));
    let asked = shop
        .run(&[
            "keyspace",
            "plan",
            "orders",
            "--what-if",
            "remove b",
            "--json",
        ])
        .with(0);
    let without = planned(&asked)["what_if"]["plan"].clone();
    let changes = without["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 4, "{without:#}");
    for change in changes {
        let told = (&change["action"], &change["to"], &change["reason"]);
        assert_eq!(told, (&"assign".into(), &"a".into(), &"owner_ended".into()));
    }
    let most = |when: &str| without["balance"][when]["most"].clone();
    assert_eq!((most("before"), most("after")), (4.into(), 8.into()));
    for (question, shares) in [
        ("add 2", [2, 2, 2, 2].as_slice()),
        ("weight b=300", &[2, 6]),
    ] {
        let asked = shop
            .run(&["keyspace", "plan", "--what-if", question, "--json"])
            .with(0);
        let nodes = planned(&asked)["what_if"]["plan"]["nodes"].clone();
        let nodes = nodes.as_array().unwrap().iter();
        let after: Vec<u64> = nodes.map(|n| n["shards"][1].as_u64().unwrap()).collect();
        assert_eq!(after, shares, "{question}");
    }
    let text = shop
        .run(&["keyspace", "plan", "--what-if", "drain a"])
        .with(0)
        .out;
    for part in [
        "what if drain a",
        "move",
        "from a to b: its owner is draining",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(shop.record(&order(0)), before);
}

#[test]
fn a_keyspace_that_nobody_plans_is_planned_with_a_word_of_that() {
    let shop = TestCluster::new();
    shop.run(&[
        "keyspace",
        "create",
        "orders",
        "--shards",
        "4",
        "--assigned-by",
        "rendezvous",
    ])
    .with(0);
    let text = shop.run(&["keyspace", "plan"]).with(0).out;
    assert!(
        text.contains("has assigned_by = rendezvous: no leader executes this plan"),
        "{text}"
    );
    assert!(text.contains("problem: no node accepts shards"), "{text}");
    let json = planned(&shop.run(&["keyspace", "plan", "--json"]).with(0));
    assert_eq!(json["executed_by_leader"], false);
    shop.run(&["keyspace", "plan", "users"])
        .with(1)
        .telling(&["there is no keyspace users; existing keyspaces: orders"]);
}

#[test]
fn of_several_keyspaces_those_are_answered_for_that_the_question_is_about() {
    let (shop, _nodes) = settled_two();
    shop.run(&["keyspace", "create", "logs", "--shards", "2"])
        .with(0);
    let asked = shop
        .run(&["keyspace", "plan", "--what-if", "pin orders/1=a", "--json"])
        .with(0)
        .json();
    let all = asked["keyspaces"].as_array().unwrap();
    let answered = |name: &str| {
        let of = all.iter().find(|k| k["keyspace"] == name).unwrap();
        !of["what_if"].is_null()
    };
    assert_eq!((answered("orders"), answered("logs")), (true, false));
}

#[test]
fn questions_that_make_no_sense_are_refused_with_what_is_known() {
    let (shop, _nodes) = settled_two();
    for (question, answer) in [
        ("weight a=0", "\"0\" is not a whole number of at least 1"),
        ("weight a=-2", "\"-2\" is not a whole number of at least 1"),
        ("frobnicate a", "use remove NODE"),
        ("", "is empty; use remove NODE"),
        (
            "remove nobody",
            "the node does not exist (existing nodes: a, b)",
        ),
        ("pin orders/99=a", "the shard does not exist"),
        ("pin users/1=a", "the plan is for keyspace orders"),
        ("cost orders/1=x", "\"x\" is not a whole number"),
        ("add 0", "between 1 and 100000"),
    ] {
        let ran = shop
            .run(&["keyspace", "plan", "--what-if", question])
            .with(2);
        assert!(ran.err.contains(answer), "{question}: {}", ran.err);
        assert_eq!(ran.out, "");
    }
}

#[test]
fn a_pin_moves_a_shard_and_keeps_it_there_until_it_is_taken_away() {
    let (shop, _nodes) = settled_two();
    let there = shop.status();
    let to = if shard(&there, 3)["owner"] == "a" {
        "b"
    } else {
        "a"
    };
    shop.run(&["shard", "pin", "orders/3", "--to", to])
        .with(0)
        .telling(&[&format!("pinned shard orders/3 to {to}")]);
    let moved = shop.until(|status| {
        let it = shard(status, 3);
        it["owner"] == to && it["state"] == "serving"
    });
    assert_eq!(shard(&moved, 3)["pin"], to);
    assert_eq!(moved["keyspaces"][0]["pinned"], 1);
    let again = shop
        .run(&["shard", "pin", "orders/3", "--to", to, "--json"])
        .with(0);
    assert_eq!(again.json()["changed"], false);
    let text = shop.run(&["status"]).with(0).out;
    assert!(text.contains("PINNED SHARD"), "{text}");
    shop.run(&["shard", "unpin", "orders/3"])
        .with(0)
        .telling(&["unpinned shard"]);
    shop.run(&["shard", "unpin", "orders/3"])
        .with(0)
        .telling(&["is not pinned"]);
    assert_eq!(shard(&shop.status(), 3)["pin"], Value::Null);
}

#[test]
fn pins_to_what_is_not_there_are_refused_or_warned_of() {
    let (shop, _nodes) = settled_two();
    shop.run(&["shard", "pin", "orders/8", "--to", "a"])
        .with(1)
        .telling(&["there is no shard orders/8; keyspace orders has the shards 0 to 7"]);
    shop.run(&["shard", "pin", "users/1", "--to", "a"])
        .with(1)
        .telling(&["there is no keyspace users"]);
    shop.run(&["shard", "pin", "orders", "--to", "a"]).with(2);
    shop.run(&["shard", "unpin", "orders/9"])
        .with(1)
        .telling(&["there is no shard orders/9"]);
    let owner = shard(&shop.status(), 2)["owner"].clone();
    shop.run(&["shard", "pin", "orders/2", "--to", "zeta"])
        .with(0)
        .telling(&["warning: node zeta does not exist yet (existing nodes: a, b)"]);
    let plan = planned(&shop.run(&["keyspace", "plan", "--json"]).with(0))["plan"].clone();
    assert_eq!(plan["stays"][0]["reason"], "pin_unknown", "{plan:#}");
    assert!(
        plan["problems"][0]
            .as_str()
            .unwrap()
            .contains("tenure shard unpin orders/2"),
        "{plan:#}"
    );
    assert_eq!(shard(&shop.status(), 2)["owner"], owner);
    shop.run(&[
        "keyspace",
        "create",
        "logs",
        "--shards",
        "2",
        "--assigned-by",
        "fair-share",
    ])
    .with(0);
    shop.run(&["shard", "pin", "logs/1", "--to", "a"])
        .with(1)
        .telling(&[
            "has assigned_by = fair-share; only shards of keyspaces assigned by the leader",
        ]);
}

#[test]
fn a_cordoned_node_keeps_what_it_has_and_gets_nothing_over_restarts_too() {
    let shop = TestCluster::with_lively_orders(8);
    let a = shop.node_with("a", 8, |b| b);
    shop.until(|status| has(status, "a") == 8);
    shop.run(&["node", "cordon", "b"])
        .with(1)
        .telling(&["there is no node b; existing nodes: a"]);
    shop.run(&["node", "cordon", "a"])
        .with(0)
        .telling(&["cordoned node a"]);
    assert_eq!(
        shop.run(&["node", "cordon", "a", "--json"]).with(0).json()["changed"],
        false
    );
    let status = shop.status();
    assert_eq!(
        (has(&status, "a"), &status["nodes"][0]["mode"]),
        (8, &"cordoned".into())
    );
    shop.stop(&a);
    let a = shop.node_with("a", 8, |b| b);
    let _b = shop.node_with("b", 8, |b| b);
    let status = shop.until(|status| has(status, "b") == 8);
    assert_eq!(status["nodes"][0]["cordoned"], true);
    shop.run(&["node", "uncordon", "a"])
        .with(0)
        .telling(&["uncordoned node a"]);
    shop.run(&["node", "uncordon", "a"])
        .with(0)
        .telling(&["node a is not cordoned"]);
    shop.until(|status| has(status, "a") == 4);
    drop(a);
}

/// The record of a shard, changed by hand.
fn lay(shop: &TestCluster, index: u32, change: impl FnOnce(&mut ShardRecord)) {
    let Record::Shard(record) = shop.record(&order(index)) else {
        panic!("no shard");
    };
    let mut record = (*record).clone();
    record.head = head(record.head.rev + 1);
    change(&mut record);
    shop.lay(&order(index), &Record::Shard(Arc::new(record)).encode());
}

const MARK: PlanId = PlanId { term: 3, seq: 7 };

fn with_ghosts() -> TestCluster {
    let shop = TestCluster::with_orders(4);
    for index in [1, 3] {
        lay(&shop, index, |record| {
            record.assigned = Some(NodeName::new("ghost").unwrap());
            record.plan = MARK;
        });
    }
    shop
}

#[test]
fn a_sweep_lists_what_is_stale_and_puts_it_right() {
    let shop = with_ghosts();
    let listed = shop
        .run(&["cluster", "gc", "--dry-run", "--json"])
        .with(0)
        .json();
    assert_eq!(
        listed["counts"],
        serde_json::json!({ "assigned_node_gone": 2 })
    );
    assert_eq!(listed["stale"][0]["key"], "shards/orders/1");
    assert_eq!(listed["removed"], 0);
    let text = shop.run(&["cluster", "gc", "--dry-run"]).with(0).out;
    assert!(
        text.starts_with("2 stale records: 2 assigned_node_gone\n"),
        "{text}"
    );
    let swept = shop.run(&["cluster", "gc", "--json"]).with(0).json();
    assert_eq!(
        (&swept["removed"], &swept["failed"]),
        (&2.into(), &0.into())
    );
    let Record::Shard(record) = shop.record(&order(1)) else {
        panic!("no shard");
    };
    assert_eq!((&record.assigned, record.plan), (&None, MARK));
    assert_eq!(
        shop.run(&["cluster", "gc"]).with(0).out,
        "no stale records\n"
    );
}

#[test]
fn a_tombstone_that_nothing_refers_to_is_swept_after_a_ttl_and_one_that_something_does_is_not() {
    let shop = TestCluster::with_lively_orders(2);
    for _ in 0..2 {
        let node = shop.node_with("a", 2, |b| b);
        shop.until(|status| served(status) == 2);
        shop.stop(&node);
    }
    let Record::Node(node) = shop.record(&node_key("a")) else {
        panic!("no node");
    };
    let listed = shop
        .run(&["cluster", "gc", "--dry-run", "--json"])
        .with(0)
        .json();
    assert_eq!(listed["counts"]["session_unused"], 1, "{listed:#}");
    let swept = shop
        .run(&["cluster", "gc", "--json"])
        .with(0)
        .telling(&["watching 1 tombstones for"]);
    let swept = swept.json();
    let buried = swept["stale"].as_array().unwrap().iter();
    let buried: Vec<&Value> = buried.filter(|s| s["outcome"] == "removed").collect();
    assert_eq!(buried.len(), 1, "{swept:#}");
    let id: SessionId = buried[0]["key"].as_str().unwrap()["sessions/".len()..]
        .parse()
        .unwrap();
    assert_ne!(id, node.session);
    assert!(shop.get(&Key::Session(id)).is_none());
    assert!(shop.get(&Key::Session(node.session)).is_some());
}

#[test]
fn a_sweep_that_fails_names_each_key_and_says_so_by_its_exit_code() {
    let shop = with_ghosts();
    let holder = rusqlite::Connection::open(shop.file()).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let ran = shop.run(&["cluster", "gc", "--json"]).with(1);
    drop(holder);
    let told = ran.json();
    assert_eq!((&told["failed"], &told["removed"]), (&2.into(), &0.into()));
    ran.telling(&[
        "error: cleanup of record shards/orders/1 failed: ",
        "error: cleanup of record shards/orders/3 failed: ",
        "locked",
    ]);
    shop.run(&["cluster", "gc"]).with(0);
}

#[test]
fn how_a_keyspace_is_planned_is_checked_as_a_whole_and_can_be_changed_and_shown() {
    let shop = TestCluster::new();
    let create = ["keyspace", "create", "orders", "--shards", "4"];
    let bad = [
        "--budget-total",
        "0",
        "--zones",
        "spread:0",
        "--balance-by",
        "cost",
        "--policy",
        "jump",
    ];
    shop.run(&[&create[..], &bad].concat()).with(2).telling(&[
        "budget_total: 0 would block all moves",
        "zones: the zone limit must be between 1 and 100 percent",
        "zones: only the sticky policy supports zones",
        "balance_by: only the sticky policy balances cost",
    ]);
    let worse = [
        "--policy",
        "coin",
        "--zones",
        "prefer",
        "--required-labels",
        "ssd",
        "--planning-settle-time",
        "2",
    ];
    shop.run(&[&create[..], &worse].concat()).with(2).telling(&[
        "--policy: unknown policy \"coin\"; use sticky, rendezvous or jump",
        "--zones: \"prefer\" is not a zone rule",
        "--required-labels: \"ssd\" is not a label",
        "--planning-settle-time: ",
    ]);
    assert!(
        shop.run(&["keyspace", "list"]).code != 0,
        "nothing was made"
    );
    shop.run(&[&create[..], &["--zones", "prefer:a,b", "--cool-down", "5m"]].concat())
        .with(0);
    shop.run(&create).with(0).telling(&["already exists"]);
    shop.run(&[&create[..], &["--cool-down", "1m"]].concat())
        .with(1)
        .telling(&["other planning settings", "tenure keyspace update orders"]);
    let set = |args: &[&str]| shop.run(&[&["keyspace", "update", "orders"], args].concat());
    set(&[]).with(2).telling(&["no setting is given"]);
    set(&["--unset", "ttl"])
        .with(2)
        .telling(&["--unset ttl: unknown planning setting"]);
    set(&["--cool-down", "1m", "--unset", "cool_down"])
        .with(2)
        .telling(&["also passed to --unset"]);
    set(&["--policy", "rendezvous"])
        .with(2)
        .telling(&["zones: only the sticky policy supports zones"]);
    let done = set(&["--policy", "rendezvous", "--unset", "zones", "--json"])
        .with(0)
        .json();
    assert_eq!(
        done["planning"],
        serde_json::json!({ "policy": "rendezvous", "cool_down_ms": 300_000 })
    );
    set(&["--policy", "rendezvous"])
        .with(0)
        .telling(&["already has these settings"]);
    let shown = shop.run(&["keyspace", "show", "orders"]).with(0).out;
    assert!(
        shown.contains("policy             rendezvous\ncool_down          5m"),
        "{shown}"
    );
    let status = shop.status();
    assert_eq!(status["keyspaces"][0]["planning"], done["planning"]);
    let listed = shop.run(&["keyspace", "list"]).with(0).out;
    assert!(listed.contains("rendezvous"), "{listed}");
    shop.run(&["keyspace", "update", "users", "--policy", "jump"])
        .with(1);
}

#[test]
fn what_is_unset_or_unknown_in_a_keyspaces_record_stays_as_it_was() {
    let shop = TestCluster::with_orders(2);
    let Record::Keyspace(record) = shop.record(&keyspace("orders")) else {
        panic!("no keyspace");
    };
    let mut record = (*record).clone();
    record.head = head(record.head.rev + 1);
    record.planning.unknown.insert("later".to_owned(), 7.into());
    shop.lay(
        &keyspace("orders"),
        &Record::Keyspace(Arc::new(record)).encode(),
    );
    shop.run(&["keyspace", "update", "orders", "--band-shards", "2"])
        .with(0);
    let plan = shop.status()["keyspaces"][0]["planning"].clone();
    assert_eq!(plan, serde_json::json!({ "band_shards": 2, "later": 7 }));
}

#[test]
fn a_node_says_its_labels_and_capacity_and_what_makes_no_sense_is_refused() {
    let exec = |args: &[&str]| {
        let all = ["exec", "--keyspace", "orders", "--shards", "2"];
        let store = ["--store", "sqlite:/nonexistent/x.db", "--cluster", "shop"];
        let output = tenure(&[&all[..], &store, args, &["--", "true"]].concat()).output();
        Ran::from(output.unwrap())
    };
    exec(&[
        "--weight",
        "-1",
        "--capacity",
        "many",
        "--labels",
        "ssd",
        "--set",
        "zones=spread:x",
    ])
    .with(2)
    .telling(&[
        "--capacity: \"many\" is not a whole number",
        "--labels: \"ssd\" is not a label; write NAME=VALUE",
        "--weight: \"-1\" is not a whole number",
        "--set zones: \"spread:x\" is not a zone rule",
    ]);
    exec(&["--set", "budget_total=0"])
        .with(2)
        .telling(&["budget_total: 0 would block all moves"]);
    let shop = TestCluster::with_lively_orders(8);
    let _a = shop.node_with("a", 8, |b| b.capacity(3).label("disk", "ssd"));
    let _b = shop.node_with("b", 8, |b| b.weight(0));
    let status = shop.until(|status| has(status, "a") == 3);
    assert_eq!(status["nodes"][0]["capacity"], 3);
    assert_eq!(status["nodes"][0]["labels"]["disk"], "ssd");
    let plan = planned(&shop.run(&["keyspace", "plan", "--json"]).with(0))["plan"].clone();
    let told = plan["problems"].to_string();
    assert!(
        told.contains("node b has weight 0 and is assigned no shards"),
        "{told}"
    );
    assert!(
        told.contains("5 shards exceed the capacity of the nodes"),
        "{told}"
    );
}
