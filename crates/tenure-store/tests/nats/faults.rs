//! One server that stops, dies and comes back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_store::servers::nats::Nats;
use tenure_store::servers::proxy::{TcpProxy, TrafficMode};
use tenure_store::{PutIf, Store, StoreError, WatchEnd, open};

use super::{bounded, create, until_it_writes};

async fn started() -> (Nats, Arc<dyn Store>) {
    let nats = Nats::start();
    let store = open(&nats.url("shop")).await.unwrap();
    (nats, store)
}

/// A store that comes to its server through a proxy.
async fn proxied() -> (Nats, TcpProxy, Arc<dyn Store>) {
    let nats = Nats::start();
    let proxy = TcpProxy::start(([127, 0, 0, 1], nats.port(0)).into());
    let store = open(&format!("nats://{}/shop", proxy.address())).await;
    (nats, proxy, store.unwrap())
}

#[tokio::test]
async fn calls_to_a_stopped_server_end_in_time_and_its_writes_are_unknown() {
    let (nats, store) = started().await;
    let reader = store.dedicated().unwrap();
    reader.get("k").await.unwrap();
    nats.freeze(0);
    let (put, got) = tokio::join!(
        bounded(store.put_if(PutIf::create("k", *b"v"))),
        bounded(reader.list(""))
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
    nats.thaw(0);
    let (took, _) = until_it_writes(&*store, "after").await;
    assert!(took < Duration::from_secs(6), "{took:?}");
}

#[tokio::test]
async fn a_server_that_is_down_is_told_at_once_with_the_way_out() {
    let (mut nats, store) = started().await;
    let from = store.revision().await.unwrap();
    let mut watch = store.watch("", from).await.unwrap();
    let version = create(&*store, "k").await;
    let identity = store.identity().await.unwrap();
    bounded(watch.next()).await.unwrap();
    nats.kill(0);
    let end = bounded(watch.next()).await;
    assert!(matches!(end, Err(WatchEnd::Closed { .. })), "{end:?}");
    let begun = Instant::now();
    let mut said = String::new();
    for _ in 0..3 {
        said = store.get("k").await.unwrap_err().to_string();
    }
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert!(said.contains("cannot be reached"), "{said}");
    assert!(said.contains(&nats.endpoint(0)), "{said}");
    assert!(said.contains("check that it runs"), "{said}");

    nats.restart(0);
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
    let mut nats = Nats::start();
    nats.kill(0);
    let e = bounded(open(&nats.url("shop"))).await.unwrap_err();
    assert!(matches!(e, StoreError::Unavailable { .. }), "{e:?}");
    assert!(e.to_string().contains(&nats.endpoint(0)), "{e}");
    nats.restart(0);
    nats.freeze(0);
    let e = bounded(open(&nats.url("shop"))).await.unwrap_err();
    assert!(e.to_string().contains("does not answer"), "{e}");
    nats.thaw(0);
    let store = open(&nats.url("shop")).await.unwrap();
    // Once it is open, it comes back by itself; meanwhile every call says what it waits for.
    nats.kill(0);
    for _ in 0..5 {
        let e = bounded(store.list("")).await.unwrap_err().to_string();
        assert!(e.contains(&nats.endpoint(0)), "{e}");
    }
    nats.restart(0);
    until_it_writes(&*store, "k").await;
}

#[tokio::test]
async fn a_write_cut_off_on_its_way_back_is_unknown_and_found_by_reading() {
    let (nats, proxy, store) = proxied().await;
    create(&*store, "before").await;
    proxy.to_client(TrafficMode::Hold);
    let direct = open(&nats.url("shop")).await.unwrap();
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
    let (_nats, proxy, store) = proxied().await;
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
async fn a_watch_on_a_silent_connection_ends_by_itself() {
    let (_nats, proxy, store) = proxied().await;
    let from = store.revision().await.unwrap();
    let mut watch = store.watch("", from).await.unwrap();
    proxy.to_client(TrafficMode::Lose);
    // Nobody calls anything: the missing heartbeats tell.
    let end = bounded(watch.next()).await;
    assert!(matches!(end, Err(WatchEnd::Closed { .. })), "{end:?}");
}
