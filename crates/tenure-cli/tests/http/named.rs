//! Named shards behind sidecars and a router.

use std::time::Duration;

use crate::client::{Client, about};
use crate::load::{Load, check_journal};
use crate::test_cluster::{QUICK, TestCluster};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn named_shards_are_served_routed_by_their_names_and_moved_under_load() {
    let site = TestCluster::named();
    let mut first = site.node("n1", &QUICK);
    let router = site.router("r1", &[]);
    for k in 0..8 {
        let shard = format!("orders/k{k}");
        let (created, said) = site.run(&["shard", "create", &shard]);
        assert!(created, "{said}");
    }
    site.served(8, 1).await;
    // A request names its shard by its key, or by the header for shards.
    let mut client = Client::new(router.address);
    let got = client.ask("POST", "/count", "k3", "0").await.with(200);
    assert_eq!(
        (got.header("tenure-shard"), got.text()),
        ("orders/k3", "1".to_owned())
    );
    for named in ["k3", "orders/k3"] {
        let mut request = about("GET", "/count", "", "");
        request.headers_mut().remove("x-key");
        let headers = request.headers_mut();
        headers.insert("x-shard", named.parse().unwrap());
        let got = client.send(request).await.unwrap().with(200);
        assert_eq!(got.header("tenure-shard"), "orders/k3");
    }
    let unknown = client.ask("GET", "/count", "nobody", "").await;
    assert_eq!(unknown.status, 404, "{}", unknown.text());
    // Half of them move to a second node, then all, while requests come.
    let load = Load::begin(&[router.address], 8, Duration::from_millis(50), 1_000_000);
    let _second = site.node("n2", &QUICK);
    site.served(8, 2).await;
    first.stop().await;
    site.served(8, 1).await;
    load.stop();
    let outcomes = load.outcomes().await;
    let failed: Vec<_> = outcomes.iter().filter(|o| o.failed.is_some()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    check_journal(&site, &outcomes);
    let journal = site.journal();
    assert!(
        journal
            .iter()
            .all(|(shard, _, key, _)| *shard == format!("orders-{key}"))
    );
    // One that is deleted is served no longer, the others are.
    let (deleted, said) = site.run(&["shard", "delete", "orders/k3", "--yes"]);
    assert!(deleted, "{said}");
    site.served(7, 1).await;
    client.ask("GET", "/count", "k4", "").await.with(200);
}
