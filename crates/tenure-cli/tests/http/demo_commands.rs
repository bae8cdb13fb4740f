//! What people run to see it: `up` and `bench restarts`.

use crate::test_cluster::TestCluster;

#[test]
fn up_shows_requests_that_do_not_fail() {
    let site = TestCluster::new(1);
    let data = site.dir.path().join("up").to_string_lossy().into_owned();
    let args = [
        "up",
        "--nodes",
        "2",
        "--shards",
        "8",
        "--duration",
        "4s",
        "--ttl",
        "15s",
        "--data-dir",
        &data,
    ];
    let (fine, said) = site.run(&args);
    assert!(fine, "{said}");
    assert!(said.contains("responses by node: n1 "), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(
        last.contains(" requests, 0 failed, 0 acknowledged but lost, 0 out of order"),
        "{said}"
    );
    assert!(!last.starts_with("0 requests"), "{said}");
}

#[test]
fn restarts_are_measured_beside_a_load_without_them() {
    let site = TestCluster::new(1);
    let args = [
        "bench",
        "restarts",
        "--requests",
        "2000",
        "--rate",
        "200",
        "--nodes",
        "2",
    ];
    let variants = [
        "--variant",
        "none",
        "--variant",
        "drain+hold+load",
        "--json",
    ];
    let (fine, said) = site.run(&[&args[..], &variants].concat());
    assert!(fine, "{said}");
    let json = said
        .find('{')
        .zip(said.rfind('}'))
        .map(|(a, b)| &said[a..=b]);
    let report: serde_json::Value = serde_json::from_str(json.unwrap_or_default()).unwrap();
    let variants = report["variants"].as_array().unwrap();
    assert_eq!(variants.len(), 2, "{report}");
    assert_eq!(
        (&variants[0]["restarts"], &variants[0]["failed"]),
        (&0.into(), &0.into())
    );
    assert!(variants[1]["restarts"].as_u64().unwrap() >= 2, "{report}");
    for what in ["failed", "lost", "out_of_order"] {
        assert_eq!(variants[1][what], 0, "{report}");
    }
}
