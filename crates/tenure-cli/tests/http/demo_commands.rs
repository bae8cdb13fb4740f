//! The demonstration of `tenure up`.

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
