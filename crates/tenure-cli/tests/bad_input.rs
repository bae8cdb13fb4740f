//! Bad input: each names the input and the way out, and nothing is lost or made by the way.

mod test_cluster;

use test_cluster::{TestCluster, keyspace, order, ran, tenure};

#[test]
fn a_store_that_does_not_exist_is_not_made_by_looking() {
    let shop = TestCluster::new();
    for args in [
        &["status"][..],
        &["shard", "lookup", "user-42"],
        &["shard", "lookup", "user-42"],
        &["keyspace", "list"],
        &["keyspace", "bump-generation", "--all", "--yes"],
        &["keyspace", "delete", "orders", "--yes"],
        &["cluster", "list"],
        &["cluster", "delete", "shop", "--yes"],
        &["shard", "repair", "orders/1", "--yes"],
        &["config", "validate"],
    ] {
        let ran = shop.run(args);
        assert!(!shop.file().exists(), "{args:?}");
        if args[0] != "config" {
            ran.with(2)
                .telling(&["shop.db does not exist", "check the path"]);
        }
    }
}

#[test]
fn a_wrong_url_is_named_with_what_would_work_and_without_its_secrets() {
    let check = |url: &str, wanted: &[&str]| {
        let ran = ran(&["--store", url, "status"]).with(2).telling(wanted);
        assert!(!ran.err.contains("hunter2"), "{}", ran.err);
    };
    check("shop.db", &["\"shop.db\" has no scheme", "sqlite:PATH"]);
    check(
        "redis://u:hunter2@h/0?password=hunter2",
        &["redis://…@h/0?…", "unknown scheme \"redis\"", "sqlite:PATH"],
    );
    check("sqlite:", &["\"sqlite:\" names no file"]);
    check(
        "memory:",
        &["\"memory:\" exists only within one process", "sqlite:PATH"],
    );
    ran(&["status"])
        .with(2)
        .telling(&["no store is given", "--store URL", "TENURE_STORE"]);
}

#[test]
fn a_path_that_cannot_be_used_is_named() {
    let shop = TestCluster::new();
    let dir = shop.dir.path().display();
    std::fs::write(
        shop.dir.path().join("text"),
        "not a database, but long enough to be read as one",
    )
    .unwrap();
    let create = |path: String, wanted: &[&str]| {
        let url = format!("sqlite:{path}");
        ran(&[
            "--store",
            &url,
            "--cluster",
            "shop",
            "keyspace",
            "create",
            "orders",
            "--shards",
            "4",
        ])
        .with(2)
        .telling(wanted);
    };
    create(
        format!("{dir}/nowhere/shop.db"),
        &[
            "nowhere/shop.db cannot be created",
            "does not exist; create it first",
        ],
    );
    create(format!("{dir}"), &["is a directory; name a file in it"]);
    create(format!("{dir}/text/shop.db"), &["text/shop.db"]);
}

#[test]
fn a_cluster_that_is_not_there_is_told_apart_from_those_that_are() {
    let shop = TestCluster::with_orders(4);
    let url = shop.url();
    ran(&["--store", &url, "--cluster", "ship", "status"])
        .with(1)
        .telling(&["holds no cluster \"ship\"", "existing clusters: shop"]);
    // Only looking, and only one there: no need to name it. Changing something is another matter.
    assert!(
        ran(&["--store", &url, "status"])
            .with(0)
            .out
            .contains("cluster shop")
    );
    ran(&["--store", &url, "keyspace", "create", "x", "--named"])
        .with(2)
        .telling(&["no cluster is given", "--cluster NAME"]);
    ran(&[
        "--store",
        &url,
        "--cluster",
        "ship",
        "keyspace",
        "create",
        "x",
        "--named",
    ])
    .with(0);
    ran(&["--store", &url, "status"])
        .with(2)
        .telling(&["several clusters", "ship, shop"]);
}

#[test]
fn a_ttl_below_the_stores_minimum_and_broken_relations_are_told_at_once() {
    let shop = TestCluster::new();
    shop.run(&[
        "config",
        "validate",
        "--set",
        "ttl=100ms",
        "--set",
        "release_batch=0",
    ])
    .with(2)
    .telling(&[
        "ttl: 100ms is below this store's minimum of 200ms (from flag)",
        "release_batch: must be at least 1",
    ]);
    shop.run(&[
        "config",
        "validate",
        "--set",
        "renew_interval=2s",
        "--set",
        "kill_grace=2s",
    ])
    .with(2)
    .telling(&[
        "renew_interval",
        "must be below ttl − lease_detach_margin",
        "lease_detach_margin",
        "lower kill_grace",
    ]);
    let checked = shop
        .run(&["config", "validate", "--set", "ttl=100ms", "--json"])
        .with(2)
        .json();
    assert_eq!(checked["ok"], false);
    assert_eq!(
        checked["problems"].as_array().unwrap().len(),
        1,
        "{checked}"
    );
}

#[test]
fn an_unknown_configuration_key_is_named_with_what_was_meant() {
    let shop = TestCluster::new();
    let file = shop.dir.path().join("shop.toml");
    std::fs::write(&file, "tll = \"3s\"\nlisten = 1\n").unwrap();
    let path = file.display().to_string();
    for args in [
        &["--config", &path, "config", "validate"][..],
        &["--config", &path, "status"],
    ] {
        shop.run(args).with(2).telling(&[
            "unknown key \"tll\"; did you mean \"ttl\"?",
            "unknown key \"listen\"",
            "shop.toml",
        ]);
    }
    let mut command = shop.command(&["config", "validate"]);
    let ran: test_cluster::Ran = command.env("TENURE_TLL", "3s").output().unwrap().into();
    ran.with(2)
        .telling(&["TENURE_TLL; did you mean TENURE_TTL?"]);
}

#[test]
fn file_environment_and_flag_go_before_each_other_through_the_binary() {
    let shop = TestCluster::new();
    let file = shop.dir.path().join("shop.toml");
    std::fs::write(&file, "ttl = \"7s\"\nzone = \"file\"\nweight = 7\n").unwrap();
    let mut command = tenure(&["config", "show", "--json", "--set", "ttl=9s"]);
    command
        .env("TENURE_CONFIG", &file)
        .env("TENURE_ZONE", "env")
        .env("TENURE_TTL", "8s");
    let ran: test_cluster::Ran = command.output().unwrap().into();
    let shown = ran.with(0).json();
    let setting = |name: &str| {
        let all = shown["settings"].as_array().unwrap();
        let found = all.iter().find(|s| s["name"] == name).unwrap();
        format!("{} {}", found["value"], found["source"])
    };
    assert_eq!(setting("ttl"), "\"9s\" \"flag\"");
    assert_eq!(setting("zone"), "\"env\" \"env\"");
    assert_eq!(setting("weight"), "7 \"file\"");
    assert_eq!(setting("renew_interval"), "\"1500ms\" \"default\"");
}

#[test]
fn a_keyspace_that_differs_is_refused_with_the_way_out() {
    let shop = TestCluster::with_orders(8);
    for other in [
        &["--shards", "16"][..],
        &["--shards", "8", "--assigned-by", "fair-share"],
        &["--named"],
    ] {
        let args = [&["keyspace", "create", "orders"], other].concat();
        shop.run(&args).with(1).telling(&[
            "orders exists as hashed(8) with assigned_by = leader",
            "another name",
            "tenure keyspace delete orders",
        ]);
    }
    shop.run(&["keyspace", "create", "x", "--shards", "0"])
        .with(2);
    shop.run(&["keyspace", "create", "x"]).with(2);
    shop.run(&[
        "keyspace",
        "create",
        "x",
        "--shards",
        "1",
        "--assigned-by",
        "loud",
    ])
    .with(2)
    .telling(&["loud", "leader, rendezvous or fair-share"]);
    shop.run(&["keyspace", "create", "", "--shards", "1"])
        .with(2)
        .telling(&["is empty"]);
}

#[test]
fn a_record_of_a_newer_format_is_named_and_never_rewritten() {
    let shop = TestCluster::with_orders(4);
    let newer = br#"{"format":99,"soul":"unknown"}"#;
    shop.lay(&order(1), newer);
    shop.lay(&keyspace("later"), newer);
    let status = shop.status();
    assert_eq!(
        test_cluster::problems(&status),
        [
            "newer_format keyspaces/later",
            "newer_format shards/orders/1",
            "unserved keyspaces/orders"
        ]
    );
    assert_eq!(test_cluster::shard(&status, 1)["state"], "unreadable");
    shop.run(&["shard", "repair", "orders/1", "--yes"])
        .with(1)
        .telling(&["format 99", "upgrade this program", "not changed"]);
    for args in [
        &["keyspace", "create", "later", "--shards", "4"][..],
        &["keyspace", "bump-generation", "later", "--yes"],
        &["keyspace", "delete", "later", "--yes"],
    ] {
        shop.run(args).with(1).telling(&["later", "format 99"]);
    }
    shop.run(&["cluster", "repair-record", "keyspaces/later", "--yes"])
        .with(1)
        .telling(&["format 99", "not changed"]);
    for key in [order(1), keyspace("later")] {
        assert_eq!(&*shop.get(&key).unwrap().value, newer);
    }
}

#[test]
fn what_does_not_exist_is_named_with_what_does() {
    let shop = TestCluster::with_orders(4);
    shop.run(&["shard", "lookup", "k", "--keyspace", "ordres"])
        .with(1)
        .telling(&["no keyspace ordres", "existing keyspaces: orders"]);
    shop.run(&["shard", "repair", "orders", "--yes"])
        .with(2)
        .telling(&["\"orders\"", "KEYSPACE/SHARD"]);
    shop.run(&["shard", "repair", "orders/4", "--yes"])
        .with(2)
        .telling(&["no shard orders/4", "0 to 3"]);
    shop.run(&["shard", "repair", "orders/01", "--yes"])
        .with(2)
        .telling(&["no shard orders/01"]);
    shop.run(&["shard", "repair"])
        .with(2)
        .telling(&["KEYSPACE/SHARD"]);
    shop.run(&["cluster", "repair-record", "orders", "--yes"])
        .with(2)
        .telling(&["'orders'", "keyspaces/NAME"]);
    shop.run(&["cluster", "repair-record", "nodes/n9", "--yes"])
        .with(1)
        .telling(&["no record nodes/n9"]);
    shop.run(&["shard", "show", "orders/9"])
        .with(1)
        .telling(&["shard orders/9 has no record"]);
}

#[test]
fn nothing_is_removed_without_a_word() {
    let shop = TestCluster::with_orders(4);
    shop.run(&["keyspace", "delete", "orders"])
        .with(2)
        .telling(&["keyspace orders will be deleted", "--yes"]);
    shop.run(&["cluster", "delete", "shop"])
        .with(2)
        .telling(&["6 records of cluster shop", "--yes"]);
    assert_eq!(shop.status()["keyspaces"][0]["name"], "orders");
}
