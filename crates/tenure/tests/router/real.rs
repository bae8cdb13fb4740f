//! The same in real time, over one SQLite file, with nodes and routers on threads of their own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::test_cluster::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_and_none_is_lost_over_one_sqlite_file() {
    // D2
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("shop.db").display());
    let site = Arc::new(TestCluster::<true>::over(&url).await);
    let a = site.node("a").await;
    site.owns(&a, 8).await;
    let routers = [site.router("r1").await, site.router("r2").await];
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..8)
        .map(|i| {
            let (site, over, router) = (site.clone(), over.clone(), routers[i % 2].clone());
            tokio::spawn(async move {
                let (key, mut n) = (format!("client-{i}"), 0);
                while !over.load(Ordering::Relaxed) {
                    n += 1;
                    let sent = site.send(&router, &key, n).await;
                    sent.unwrap_or_else(|e| panic!("{key}, request {n}: {e}"));
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                (key, n)
            })
        })
        .collect();
    let b = site.node("b").await;
    site.owns(&b, 4).await;
    a.stop().await.unwrap();
    site.owns(&b, 8).await;
    over.store(true, Ordering::Relaxed);
    let mut acknowledged = BTreeMap::new();
    for client in clients {
        let (key, n) = client.await.expect("no request failed");
        acknowledged.insert(key, n);
    }
    site.audit(&acknowledged);
    for router in routers {
        router.stop().await.unwrap();
    }
    b.stop().await.unwrap();
}
