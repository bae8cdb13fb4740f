//! Clusters whose processes differ: workers of two queues, nodes of two keyspaces, a router, a process that only plans, and
//! cordoned nodes. Real processes on SQLite.

mod queue_support;

use std::fs::File;
use std::process::Stdio;
use std::time::{Duration, Instant};

use queue_support::*;
use serde_json::Value;

const LEASED: &[&str] = &["TENURE_WORKER_OWNERSHIP_TTL_SECS=2"];
const TTL: Duration = Duration::from_secs(2);

/// The state and owner of each shard of a keyspace, as `tenure status` has them.
fn shards(site: &TestCluster, keyspace: &str) -> Vec<(String, Option<String>)> {
    let ran = site.run(&["status", "--json"]);
    if ran.out.is_empty() {
        return Vec::new();
    }
    let status = ran.json();
    let all = status["shards"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    all.iter()
        .filter(|shard| shard["keyspace"] == keyspace)
        .map(|shard| (text(&shard["state"]).unwrap(), text(&shard["owner"])))
        .collect()
}

/// Counts the shards of a keyspace that a node serves.
fn serves(site: &TestCluster, keyspace: &str, node: &str) -> usize {
    let all = shards(site, keyspace).into_iter();
    all.filter(|(state, owner)| state == "serving" && owner.as_deref() == Some(node))
        .count()
}

fn until_serves(site: &TestCluster, keyspace: &str, node: &str, count: usize) {
    until(&format!("{node} serves {count} of {keyspace}"), || {
        serves(site, keyspace, node) == count
    });
}

fn problems(site: &TestCluster) -> Vec<Value> {
    let status = site.run(&["status", "--json"]).json();
    status["problems"].as_array().cloned().unwrap_or_default()
}

/// A worker of a queue that runs `true` for each task.
fn worker(site: &TestCluster, queue: &str, name: &str) -> Process {
    let log = File::create(site.path(&format!("{name}.err"))).unwrap();
    let mut command = site.command(&["worker", queue, "--node", name]);
    add_options(&mut command, LEASED);
    command.stderr(log).stdout(Stdio::null());
    Process::spawn(command.args(["--", "true"]))
}

/// An `exec` node of a keyspace of eight shards whose children sleep.
fn exec(site: &TestCluster, keyspace: &str, name: &str, options: &[&str]) -> Process {
    let log = File::create(site.path(&format!("{name}.err"))).unwrap();
    let mut command = site.command(&["exec", "--keyspace", keyspace, "--node", name]);
    command
        .args(["--shards", "8", "--ttl", "2s", "--drain-timeout", "60s"])
        .args(options)
        .stderr(log)
        .stdout(Stdio::null());
    Process::spawn(command.args(["--", "sleep", "1000"]))
}

const QUICK: &[&str] = &[
    "--set",
    "planning_settle_time=250ms",
    "--set",
    "cool_down=0ms",
    "--set",
    "rejoin_after=0ms",
];

/// Bound for a stop. About 0.1 s is usual; a stop that waits for `drain_timeout` takes 10 s for workers and 60 s for `exec`.
const STOP: Duration = Duration::from_secs(2);

/// Stops a process within [`STOP`] and prints the time that it took.
fn stop_at_once(process: &mut Process, name: &str) {
    let begun = Instant::now();
    assert!(process.terminate().success());
    let took = begun.elapsed();
    eprintln!("{name} stopped in {took:?}");
    assert!(took < STOP, "{name} took {took:?} to stop");
}

/// Runs a command that must end by itself. One that starts and stays fails the test instead of blocking it.
fn run_to_end(site: &TestCluster, args: &[&str]) -> Ran {
    let log = site.path("run_to_end.err");
    let mut command = site.command(args);
    command.stdout(Stdio::null());
    command.stderr(File::create(&log).unwrap());
    let status = Process::spawn(&mut command).wait();
    Ran {
        code: status.code().unwrap_or(-1),
        out: String::new(),
        err: std::fs::read_to_string(log).unwrap(),
    }
}

#[test]
fn two_queues_of_one_cluster_have_all_their_tasks_done_by_one_worker_each() {
    let site = TestCluster::new();
    for queue in ["a", "b"] {
        site.queue(&["create", queue]).with(0);
        for _ in 0..12 {
            site.run(&["task", "submit", queue, "x"]).with(0);
        }
    }
    let mut first = worker(&site, "a", "wa");
    let mut second = worker(&site, "b", "wb");
    until_serves(&site, "queue.a", "wa", 16);
    until_serves(&site, "queue.b", "wb", 16);
    for queue in ["a", "b"] {
        until("all tasks are done", || {
            let stats = site.queue(&["stats", queue, "--json"]).with(0).json();
            stats["done"] == 12
        });
    }
    assert_eq!(problems(&site), Vec::<Value>::new());
    // The last worker of a queue stops at once, although a worker of another queue is there.
    stop_at_once(&mut first, "wa");
    let left = shards(&site, "queue.a");
    assert!(left.iter().all(|(state, _)| state == "free"), "{left:?}");
    // Nobody can have them: that is a problem with a reason.
    let found = problems(&site);
    let unserved = found.iter().find(|p| p["kind"] == "unserved");
    let said = unserved
        .map(|p| p["problem"].to_string())
        .unwrap_or_default();
    assert!(
        said.contains("16 shards") && said.contains("no_node"),
        "{found:?}"
    );
    assert_eq!(serves(&site, "queue.b", "wb"), 16);
    assert!(second.terminate().success());
}

#[test]
fn a_cordoned_worker_gets_no_shards_when_the_other_dies() {
    let site = TestCluster::new();
    site.queue(&["create", "a"]).with(0);
    let mut first = worker(&site, "a", "w1");
    let _second = worker(&site, "a", "w2");
    until_serves(&site, "queue.a", "w1", 8);
    until_serves(&site, "queue.a", "w2", 8);
    site.run(&["node", "cordon", "w2"]).with(0);
    first.kill();
    until("the dead worker's shards are named as a problem", || {
        let found = problems(&site);
        found
            .iter()
            .any(|p| p["problem"].to_string().contains("cordoned"))
    });
    pass(2 * TTL);
    assert_eq!(serves(&site, "queue.a", "w2"), 8);
    site.run(&["node", "uncordon", "w2"]).with(0);
    until_serves(&site, "queue.a", "w2", 16);
}

#[test]
fn keyspaces_on_different_nodes_are_served_by_them_in_every_mode() {
    for mode in ["rendezvous", "fair-share", "leader"] {
        let site = TestCluster::new();
        let _a = exec(&site, "a", "na", &["--assigned-by", mode]);
        let _b = exec(&site, "b", "nb", &["--assigned-by", mode]);
        until_serves(&site, "a", "na", 8);
        until_serves(&site, "b", "nb", 8);
        assert_eq!(problems(&site), Vec::<Value>::new(), "{mode}");
    }
}

#[test]
fn a_node_that_stops_beside_nodes_of_another_keyspace_hands_over_at_once() {
    let site = TestCluster::new();
    let mut first = exec(&site, "a", "n1", QUICK);
    until_serves(&site, "a", "n1", 8);
    let _second = exec(&site, "a", "n2", QUICK);
    let _strangers = ["s1", "s2"].map(|name| exec(&site, "b", name, QUICK));
    let mut planner = site.command(&["planner", "--node", "planner", "--ttl", "2s"]);
    let _planner = Process::spawn(planner.stderr(Stdio::null()).stdout(Stdio::null()));
    let listen = format!("127.0.0.1:{}", free_port());
    let mut router = site.command(&["router", "--listen", &listen, "--keyspace", "a"]);
    let router = router.args(["--key-from", "header:X-Key"]);
    let _router = Process::spawn(router.stderr(Stdio::null()).stdout(Stdio::null()));
    until_serves(&site, "a", "n2", 4);
    until("the strangers have theirs", || {
        serves(&site, "b", "s1") + serves(&site, "b", "s2") == 8
    });
    stop_at_once(&mut first, "n1");
    // What it had was handed over before it ended: nothing is free.
    let all = shards(&site, "a");
    let theirs = |(_, owner): &(String, Option<String>)| owner.as_deref() == Some("n2");
    assert!(all.iter().all(theirs), "{all:?}");
    until_serves(&site, "a", "n2", 8);
}

#[test]
fn settings_without_effect_are_rejected_with_the_reason() {
    let site = TestCluster::new();
    let exec = ["exec", "--keyspace", "a", "--shards", "2"];
    for (options, reason) in [
        (
            &["--assigned-by", "rendezvous", "--capacity", "3"][..],
            "capacity has no effect with assigned_by = rendezvous",
        ),
        (
            &["--assigned-by", "fair-share", "--labels", "disk=ssd"],
            "labels have no effect",
        ),
        (
            &["--assigned-by", "rendezvous", "--zone", "z1"],
            "zone has no effect",
        ),
        (
            &["--assigned-by", "fair-share", "--set", "cool_down=5m"],
            "have no effect with assigned_by = fair-share",
        ),
        (&["--set", "balance_by=cost"], "requires reported costs"),
    ] {
        let ran = run_to_end(&site, &[&exec[..], options, &["--", "true"]].concat());
        assert!(
            ran.code != 0 && ran.err.contains(reason),
            "{reason}: {ran:?}"
        );
    }
    for (options, reason) in [
        (
            &["--set", "policy=jump", "--weight", "50"][..],
            "weight 50 has no effect with policy jump",
        ),
        (
            &["--set", "cost_floor=5"],
            "cost_floor has no effect without balance_by",
        ),
    ] {
        let ran = run_to_end(&site, &[&exec[..], options, &["--", "true"]].concat());
        assert!(
            ran.code != 0 && ran.err.contains(reason),
            "{reason}: {ran:?}"
        );
    }
    let create = [
        "keyspace",
        "create",
        "a",
        "--shards",
        "2",
        "--assigned-by",
        "fair-share",
    ];
    let ran = site.run(&[&create[..], &["--zones", "spread:40"]].concat());
    assert!(
        ran.code == 2 && ran.err.contains("assigned_by = fair-share"),
        "{ran:?}"
    );
    site.run(&create).with(0);
    let ran = site.run(&["keyspace", "update", "a", "--cool-down", "5m"]);
    assert!(
        ran.code == 2 && ran.err.contains("assigned_by = fair-share"),
        "{ran:?}"
    );
}

#[test]
fn settings_of_load_are_rejected_without_its_measure_when_a_keyspace_is_created_or_changed() {
    let site = TestCluster::new();
    let create = ["keyspace", "create", "a", "--shards", "2"];
    let of_load = ["--band-cost-permille", "--cost-floor", "--cost-window"];
    for (flag, value) in of_load.into_iter().zip(["50", "5", "5s"]) {
        let ran = site.run(&[&create[..], &[flag, value]].concat());
        let reason = "has no effect without balance_by";
        assert!(ran.code == 2 && ran.err.contains(reason), "{flag}: {ran:?}");
    }
    site.run(&create).with(0);
    let set = ["keyspace", "update", "a"];
    let ran = site.run(&[&set[..], &["--cost-window", "5s"]].concat());
    assert!(ran.code == 2 && ran.err.contains("cost_window"), "{ran:?}");
    let load = ["--balance-by", "cost", "--cost-window", "5s"];
    site.run(&[&set[..], &load].concat()).with(0);
    // Taking back the measure alone would leave a setting without effect.
    let ran = site.run(&[&set[..], &["--unset", "balance_by"]].concat());
    assert!(ran.code == 2 && ran.err.contains("cost_window"), "{ran:?}");
    let both = ["--unset", "balance_by", "--unset", "cost_window"];
    site.run(&[&set[..], &both].concat()).with(0);
}

#[test]
fn commands_whose_applications_cannot_report_cost_do_not_start_for_a_keyspace_measured_by_load() {
    let site = TestCluster::new();
    let warning = "only handlers in Rust report costs";
    let create = ["keyspace", "create", "a", "--shards", "8"];
    let ran = site.run(&[&create[..], &["--balance-by", "cost"]].concat());
    assert!(ran.code == 0 && ran.err.contains(warning), "{ran:?}");
    let exec = ["exec", "--keyspace", "a", "--shards", "8", "--", "true"];
    let node = [
        "sidecar",
        "--keyspace",
        "a",
        "--shards",
        "8",
        "--listen",
        ":0",
        "--app",
        "http://127.0.0.1:9",
    ];
    for command in [&exec[..], &node] {
        let ran = run_to_end(&site, command);
        let way_out = "tenure keyspace update a --balance-by shards";
        assert!(ran.code == 2 && ran.err.contains(way_out), "{ran:?}");
    }
    let set = ["keyspace", "update", "a", "--balance-by"];
    let ran = site.run(&[&set[..], &["shards"]].concat());
    assert!(ran.code == 0 && !ran.err.contains(warning), "{ran:?}");
    let ran = site.run(&[&set[..], &["cost"]].concat());
    assert!(ran.code == 0 && ran.err.contains(warning), "{ran:?}");
    site.run(&[&set[..], &["shards"]].concat()).with(0);
    let _started = self::exec(&site, "a", "n1", &[]);
    until_serves(&site, "a", "n1", 8);
}

#[test]
fn a_queue_cannot_be_measured_by_load() {
    let site = TestCluster::new();
    site.queue(&["create", "a"]).with(0);
    let measured = ["worker", "a", "--set", "balance_by=cost", "--", "true"];
    let ran = run_to_end(&site, &measured);
    let reason = "balance_by: the setting has no effect on this command";
    assert!(ran.code == 2 && ran.err.contains(reason), "{ran:?}");
    // Without a worker the queue has no keyspace yet.
    let _worker = worker(&site, "a", "w");
    until_serves(&site, "queue.a", "w", 16);
    let ran = site.run(&["keyspace", "update", "queue.a", "--balance-by", "cost"]);
    assert!(
        ran.code == 2 && ran.err.contains("assigned_by = fair-share"),
        "{ran:?}"
    );
}

#[test]
fn a_weight_is_rejected_for_a_keyspace_that_exists_with_policy_jump() {
    let site = TestCluster::new();
    let create = ["keyspace", "create", "a", "--shards", "2"];
    site.run(&[&create[..], &["--policy", "jump"]].concat())
        .with(0);
    let exec = ["exec", "--keyspace", "a", "--shards", "2"];
    let ran = run_to_end(
        &site,
        &[&exec[..], &["--weight", "50", "--", "true"]].concat(),
    );
    let reason = "weight 50 has no effect with policy jump";
    assert!(ran.code == 2 && ran.err.contains(reason), "{ran:?}");
}

#[test]
fn routers_and_planners_offer_no_kill_grace_and_routers_serve_metrics_where_the_setting_says() {
    let site = TestCluster::new();
    let listen = ["router", "--listen", ":0", "--keyspace", "a"];
    for command in [&["planner"][..], &listen] {
        let ran = run_to_end(&site, &[command, &["--set", "kill_grace=100ms"]].concat());
        let reason = "--set kill_grace: the setting has no effect on this command";
        assert!(ran.code == 2 && ran.err.contains(reason), "{ran:?}");
    }
    let port = free_port();
    let mut router = site.command(&listen);
    router.env("TENURE_ADMIN_ADDR", format!("127.0.0.1:{port}"));
    let _router = Process::spawn(router.stderr(Stdio::null()).stdout(Stdio::null()));
    until("the router serves its metrics", || {
        served(port, "/metrics").is_some_and(|(_, body)| body.contains("tenure_router"))
    });
}
