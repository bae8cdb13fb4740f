//! Constant load through two routers while nodes come and go (D2).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure::router::Router;
use tokio::task::JoinHandle;

use crate::test_cluster::*;

const CLIENTS: u64 = 10;

/// Clients that write, one write after the other, until they are told to stop. Each says how many were acknowledged.
struct Clients {
    over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<(String, u64)>>,
}

impl Clients {
    fn begin<const C: bool>(site: &Arc<TestCluster<C>>, routers: &[&Router]) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let tasks = (0..CLIENTS * routers.len() as u64).map(|i| {
            let (site, over) = (site.clone(), over.clone());
            let router = routers[i as usize % routers.len()].clone();
            tokio::spawn(async move {
                let key = format!("client-{i}");
                let mut n = 0;
                while !over.load(Ordering::Relaxed) {
                    n += 1;
                    let sent = site.send(&router, &key, n).await;
                    sent.unwrap_or_else(|e| panic!("{key}, request {n}: {e}"));
                    tokio::time::sleep(ms(10 + i % 7)).await;
                }
                (key, n)
            })
        });
        Self {
            tasks: tasks.collect(),
            over,
        }
    }

    async fn end(self) -> BTreeMap<String, u64> {
        self.over.store(true, Ordering::Relaxed);
        let mut acknowledged = BTreeMap::new();
        for task in self.tasks {
            let (key, n) = task.await.expect("no request failed");
            acknowledged.insert(key, n);
        }
        acknowledged
    }
}

async fn nodes_come_and_go<const C: bool>() {
    let site = Arc::new(TestCluster::<C>::new());
    let a = site.node("a").await;
    site.owns(&a, 8).await;
    let (r1, r2) = (site.router("r1").await, site.router("r2").await);
    let clients = Clients::begin(&site, &[&r1, &r2]);
    tokio::time::sleep(ms(100)).await;
    let b = site.node("b").await;
    site.owns(&b, 4).await;
    let c = site.node("c").await;
    until("all have their share", async || {
        [&a, &b, &c]
            .iter()
            .all(|n| (2..=3).contains(&n.owned().len()))
    })
    .await;
    site.drain(&b).await;
    site.owns(&b, 0).await;
    // The node that leads goes, in good order, and comes back.
    a.stop().await.unwrap();
    site.owns(&c, 8).await;
    let a = site.node("a").await;
    site.owns(&a, 4).await;
    tokio::time::sleep(ms(100)).await;
    let acknowledged = clients.end().await;
    assert!(acknowledged.values().all(|n| *n > 100), "{acknowledged:?}");
    site.audit(&acknowledged);
    for router in [&r1, &r2] {
        assert!(metric(router, "tenure_router_held_requests_total") > 0.0);
        assert!(metric(router, "tenure_router_flushes_total") > 0.0);
        assert!(metric(router, "tenure_router_hold_seconds_total") > 0.0);
        assert!(metric(router, "tenure_router_hold_acknowledgements_total") > 0.0);
        assert_eq!(metric(router, "tenure_router_held_requests"), 0.0);
        assert_eq!(metric(router, "tenure_router_overflows_total"), 0.0);
        assert_eq!(metric(router, "tenure_router_expired_total"), 0.0);
        router.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn no_request_fails_and_none_is_lost_while_nodes_join_drain_and_stop_and_loads_precede_moves()
{
    nodes_come_and_go::<true>().await;
}

#[tokio::test(start_paused = true)]
async fn no_request_fails_and_none_is_lost_while_nodes_join_drain_and_stop_and_loads_follow_moves()
{
    nodes_come_and_go::<false>().await;
}

#[tokio::test(start_paused = true)]
async fn requests_are_held_for_the_change_of_hands_alone_however_long_a_load_takes() {
    // D3
    let mut held = Vec::new();
    for load_time in [ms(1), ms(10_000)] {
        let mut site = TestCluster::<true>::new();
        site.load_time = load_time;
        let site = Arc::new(site);
        let a = site.node("a").await;
        site.owns(&a, 8).await;
        let router = site.router("r1").await;
        let clients = Clients::begin(&site, &[&router]);
        let b = site.node("b").await;
        site.owns(&b, 4).await;
        clients.end().await;
        let seconds = metric(&router, "tenure_router_hold_seconds_total");
        held.push(seconds / metric(&router, "tenure_router_held_requests_total"));
    }
    assert!(held.iter().all(|s| *s < 0.05), "{held:?}");
}
