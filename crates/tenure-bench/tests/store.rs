//! `tenure-bench store` on a small scale.

mod support;

use serde_json::Value;
use support::{Shop, bench};

fn row<'a>(store: &'a Value, area: &str, case: &str) -> &'a Value {
    let rows = store["rows"].as_array().unwrap();
    let found = rows
        .iter()
        .find(|row| row["area"] == area && row["case"] == case);
    found.unwrap_or_else(|| panic!("{area}: {case} is not in {store:#}"))
}

fn median(row: &Value) -> f64 {
    row["figure"]["median"].as_f64().unwrap()
}

#[test]
fn a_store_is_measured_with_what_tenure_makes_of_it_and_left_as_it_was() {
    let shop = Shop::new();
    let before = shop.clusters();
    let url = shop.url();
    let args = [
        "store", "--store", &url, "--repeat", "2", "--nodes", "2", "--shards", "8", "--json",
    ];
    let report = bench(&args).with(0).json();
    let stores = report["stores"].as_array().unwrap();
    assert_eq!(stores.len(), 1, "{report:#}");
    let store = &stores[0];
    assert_eq!(store["kind"], "sqlite");
    for case in [
        "get",
        "create",
        "compare-and-swap",
        "list of 1,000 keys",
        "put_many of 1,000 keys",
        "put → seen by a watch",
    ] {
        let row = row(store, "direct calls", case);
        let figure = &row["figure"];
        assert!(figure["lowest"].as_f64().unwrap() > 0.0, "{row:#}");
        assert!(figure["lowest"].as_f64() <= figure["highest"].as_f64());
    }
    for case in [
        "shard written → seen by a node",
        "free shard written → claimed by a node",
        "free shard written → assigned by the leader and claimed",
        "renewal of a node's lease",
    ] {
        let row = row(store, "a node compared with them", case);
        assert!(median(row) > 0.0, "{row:#}");
        assert!(row["baseline"]["ratio"].as_f64().unwrap() > 0.0, "{row:#}");
    }
    let puts = median(row(store, "idle nodes", "put"));
    assert!((0.8..=1.5).contains(&puts), "{store:#}");
    let rest = &store["rest"];
    let renewals = rest["renewals"].as_u64().unwrap();
    // Two looks of six renewals at two nodes, and a busy machine.
    assert!((8..=32).contains(&renewals), "{rest:#}");
    assert!(rest["revision_moved"].as_u64().unwrap() > 0, "{rest:#}");
    assert_eq!((&rest["nodes"], &rest["shards"]), (&2.into(), &8.into()));
    let after = shop.clusters();
    assert_eq!(before, after, "nothing is left behind");
}

#[test]
fn a_store_that_costs_nothing_to_ask_is_not_measured() {
    let ran = bench(&["store", "--store", "memory:a"]).with(2);
    assert!(
        ran.err.contains("memory:a") && ran.err.contains("sqlite:PATH"),
        "{}",
        ran.err
    );
}
