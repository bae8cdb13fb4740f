//! `tenure-bench moves` on a small scale: that every figure is there, and that counts are what they should be. Times are not
//! looked at: machines are noisy.

mod support;

use serde_json::Value;
use support::{Shop, bench, tenure_sim};

fn number(of: &Value, name: &str) -> f64 {
    of[name]
        .as_f64()
        .unwrap_or_else(|| panic!("{name} is not in {of:#}"))
}

#[test]
fn every_figure_is_there_and_writes_grow_with_moves_and_routers_and_not_with_their_product() {
    let shop = Shop::new();
    let before = shop.clusters();
    let url = shop.url();
    let traces = tempfile::tempdir().unwrap();
    let trace = traces.path().display().to_string();
    let args = [
        "moves",
        "--store",
        &url,
        "--load",
        "1ms",
        "--repeat",
        "1",
        "--shards",
        "8",
        "--trace",
        &trace,
        "--routers",
        "1",
        "--routers",
        "8",
        "--lookups",
        "2000",
        "--json",
    ];
    let report = bench(&args).with(0).json();
    // Two nodes and the router, each in a file of its own.
    let files = std::fs::read_dir(traces.path()).unwrap();
    let files: Vec<String> = files
        .map(|file| file.unwrap().path().display().to_string())
        .collect();
    for name in ["-a-", "-b-", "-router-"] {
        let of = files.iter().filter(|file| file.contains(name)).count();
        assert_eq!(of, 1, "{name}: {files:?}");
    }
    let mut validate = vec!["validate"];
    validate.extend(files.iter().map(String::as_str));
    tenure_sim(&validate).with(0);
    let blackout = &report["stores"][0]["blackouts"][0];
    for name in [
        "load_ms",
        "moves",
        "requests",
        "p50_ms",
        "p99_ms",
        "longest_ms",
        "put_p50_ms",
        "put_p99_ms",
        "ratio_p50",
        "ratio_p99",
        "sealing_ms",
        "taking_ms",
    ] {
        assert!(number(blackout, name) > 0.0, "{name}: {blackout:#}");
    }
    assert_eq!(number(blackout, "failed"), 0.0, "{blackout:#}");
    assert_eq!(blackout["assigned_by"], "leader");
    // D9
    let writes = report["writes"].as_array().unwrap();
    let stores: Vec<_> = writes.iter().map(|row| row["store"].as_str()).collect();
    let [memory, sqlite] = [Some("memory"), Some("sqlite")];
    assert_eq!(stores, [memory, memory, sqlite, sqlite]);
    for row in writes {
        assert_eq!(row["assigned_by"], "leader", "{row:#}");
        let (moves, routers) = (number(row, "moves"), number(row, "routers"));
        assert!(moves > 150.0, "{row:#}");
        let (shards, by_routers) = (number(row, "shard_writes"), number(row, "router_writes"));
        // A few may have had to be begun again.
        assert!(shards >= 4.0 * moves && shards <= 4.4 * moves, "{row:#}");
        // One write for the whole plan; on a busy machine it may freeze in a few parts. By windows of the budget it would be 16.
        assert!(
            by_routers >= routers && by_routers <= 4.0 * routers,
            "{row:#}"
        );
    }
    let lookups = &report["lookups"];
    assert_eq!(number(lookups, "shards"), 2000.0);
    for row in lookups["rows"].as_array().unwrap() {
        for name in ["lookup_ns", "hash_map_ns"] {
            assert!(number(&row[name], "median") > 0.0, "{row:#}");
        }
    }
    let orders = report["orders"].as_array().unwrap();
    let names: Vec<_> = orders
        .iter()
        .map(|o| o["order"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["ours", "freeze_then_warm", "warm_then_switch"]);
    assert!(
        orders
            .iter()
            .all(|o| number(o, "moves") > 0.0 && number(o, "answered") > 0.0)
    );
    assert_eq!(
        number(&orders[0], "lost") + number(&orders[0], "failed"),
        0.0
    );
    let after = shop.clusters();
    assert_eq!(before, after, "nothing is left behind");
}
