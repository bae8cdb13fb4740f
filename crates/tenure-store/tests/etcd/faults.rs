//! One server that stops, dies and comes back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_store::servers::etcd::{Etcd, EtcdRelease};
use tenure_store::servers::proxy::{TcpProxy, TrafficMode};
use tenure_store::{LeaseId, LeaseState, PutIf, Store, StoreError, WatchEnd, open};

use super::{bounded, create, until_it_writes};

async fn started() -> (Etcd, Arc<dyn Store>) {
    let etcd = Etcd::start(EtcdRelease::V3_4);
    let store = open(&etcd.url("shop")).await.unwrap();
    (etcd, store)
}

#[tokio::test]
async fn calls_to_a_stopped_server_end_in_time_and_its_writes_are_unknown() {
    let (etcd, store) = started().await;
    let reader = store.dedicated().unwrap();
    reader.get("k").await.unwrap();
    etcd.freeze(0);
    let (put, got) = tokio::join!(
        bounded(store.put_if(PutIf::create("k", *b"v"))),
        bounded(reader.get("k"))
    );
    assert!(matches!(put, Err(StoreError::Unknown { .. })), "{put:?}");
    assert!(
        matches!(got, Err(StoreError::Unavailable { .. })),
        "{got:?}"
    );
    // By now there is no connection: nothing is sent, and that is said.
    let put = bounded(store.put_if(PutIf::create("l", *b"v"))).await;
    assert!(
        matches!(put, Err(StoreError::Unavailable { .. })),
        "{put:?}"
    );
    etcd.thaw(0);
    let (took, _) = until_it_writes(&*store, "after").await;
    assert!(took < Duration::from_secs(6), "{took:?}");
}

#[tokio::test]
async fn a_server_that_is_down_is_told_at_once_with_the_way_out() {
    let (mut etcd, store) = started().await;
    let mut watch = store
        .watch("", store.revision().await.unwrap())
        .await
        .unwrap();
    let version = create(&*store, "k").await;
    let identity = store.identity().await.unwrap();
    bounded(watch.next()).await.unwrap();
    etcd.kill(0);
    let end = bounded(watch.next()).await;
    assert!(matches!(end, Err(WatchEnd::Closed { .. })), "{end:?}");
    let begun = Instant::now();
    let mut said = String::new();
    for _ in 0..3 {
        said = store.get("k").await.unwrap_err().to_string();
    }
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert!(said.contains("cannot be reached"), "{said}");
    assert!(said.contains(&etcd.endpoint(0)), "{said}");
    assert!(said.contains("check that it runs"), "{said}");

    etcd.restart(0);
    let entry = loop {
        match bounded(store.get("k")).await {
            Ok(entry) => break entry.expect("what was confirmed is kept"),
            Err(e) => assert!(matches!(e, StoreError::Unavailable { .. }), "{e:?}"),
        }
    };
    assert_eq!(entry.version, version);
    assert_eq!(store.identity().await.unwrap(), identity);
}

#[tokio::test]
async fn a_store_whose_server_is_away_does_not_open_and_says_why_until_it_runs() {
    let mut etcd = Etcd::start(EtcdRelease::V3_4);
    etcd.kill(0);
    let e = bounded(open(&etcd.url("shop"))).await.unwrap_err();
    assert!(matches!(e, StoreError::Unavailable { .. }), "{e:?}");
    assert!(e.to_string().contains(&etcd.endpoint(0)), "{e}");
    etcd.restart(0);
    let store = open(&etcd.url("shop")).await.unwrap();
    // Once it is open, it comes back by itself; meanwhile every call says what it waits for.
    etcd.kill(0);
    for _ in 0..5 {
        let e = bounded(store.list("")).await.unwrap_err().to_string();
        assert!(e.contains(&etcd.endpoint(0)), "{e}");
    }
    etcd.restart(0);
    until_it_writes(&*store, "k").await;
}

#[tokio::test]
async fn a_write_cut_off_on_its_way_back_is_unknown_and_found_by_reading() {
    let etcd = Etcd::start(EtcdRelease::V3_4);
    let proxy = TcpProxy::start(([127, 0, 0, 1], etcd.port(0)).into());
    let url = format!("etcd://{}/shop", proxy.address());
    let store = open(&url).await.unwrap();
    create(&*store, "before").await;
    proxy.to_client(TrafficMode::Hold);
    let direct = open(&etcd.url("shop")).await.unwrap();
    let from = direct.revision().await.unwrap();
    let mut watch = direct.watch("", from).await.unwrap();
    let writing = tokio::spawn({
        let store = store.clone();
        async move { store.put_if(PutIf::create("k", *b"v")).await }
    });
    // It has landed; the answer has not.
    bounded(watch.next()).await.unwrap();
    proxy.reset();
    let answer = bounded(writing).await.unwrap();
    assert!(
        matches!(answer, Err(StoreError::Unknown { .. })),
        "{answer:?}"
    );
    proxy.heal();
    let entry = loop {
        if let Ok(entry) = bounded(store.get("k")).await {
            break entry;
        }
    };
    assert!(entry.is_some());
}

#[tokio::test]
async fn a_connection_that_loses_everything_is_given_up_by_calls_that_are_dropped() {
    let etcd = Etcd::start(EtcdRelease::V3_4);
    let proxy = TcpProxy::start(([127, 0, 0, 1], etcd.port(0)).into());
    let url = format!("etcd://{}/shop", proxy.address());
    let store = open(&url).await.unwrap();
    create(&*store, "before").await;
    let from = store.revision().await.unwrap();
    let mut watch = store.watch("", from).await.unwrap();
    // This connection is dead for ever, and neither side is told. New ones work.
    proxy.half_open();
    let (took, failures) = until_it_writes(&*store, "k").await;
    assert!(!failures.is_empty(), "the old connection was dead");
    assert!(took < Duration::from_secs(3), "{took:?}");
    let end = bounded(watch.next()).await;
    assert!(matches!(end, Err(WatchEnd::Closed { .. })), "{end:?}");
}

#[tokio::test]
async fn a_lease_outlasts_a_restart_of_its_server_and_is_kept_alive_again() {
    let (mut etcd, store) = started().await;
    let leases = store.leases().unwrap();
    let id = LeaseId(0x5e55);
    let ttl = leases.grant(id, Duration::from_secs(5)).await.unwrap();
    let put = PutIf::create("k", *b"v").under(Some(id));
    store.put_if(put).await.unwrap();
    etcd.restart(0);
    let kept = loop {
        match bounded(leases.keep_alive(id, "k")).await {
            Ok(kept) => break kept,
            Err(e) => assert!(e.wrote_nothing(), "{e:?}"),
        }
    };
    assert_eq!(kept, LeaseState::Alive(ttl));
    assert_eq!(leases.is_alive(id).await, Ok(true));
    // Revoked by an operator: gone, and the key with it.
    etcd.ctl(&["lease", "revoke", &format!("{id}")]);
    assert_eq!(leases.keep_alive(id, "k").await, Ok(LeaseState::Gone));
    assert_eq!(leases.is_alive(id).await, Ok(false));
    assert_eq!(store.get("k").await, Ok(None));
}
