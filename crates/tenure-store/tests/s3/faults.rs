//! A service that stops, dies and comes back, and a network that loses things.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_store::servers::proxy::{TcpProxy, TrafficMode};
use tenure_store::servers::s3::S3Service;
use tenure_store::{Change, PutIf, Revision, Store, StoreError, WatchEnd, open};

use super::{bounded, create, until_it_writes};

/// A store that comes to its service through a proxy.
async fn proxied() -> (S3Service, TcpProxy, Arc<dyn Store>) {
    let s3 = S3Service::start();
    let proxy = TcpProxy::start(([127, 0, 0, 1], s3.port()).into());
    let store = open(&s3.url_through(proxy.port(), "shop")).await;
    (s3, proxy, store.unwrap())
}

#[tokio::test]
async fn calls_to_a_stopped_service_end_in_time_and_its_writes_are_unknown() {
    let s3 = S3Service::start();
    let store = open(&s3.url("shop")).await.unwrap();
    s3.freeze();
    let (put, listed) = tokio::join!(
        bounded(store.put_if(PutIf::create("k", *b"v"))),
        bounded(store.list(""))
    );
    assert!(matches!(put, Err(StoreError::Unknown { .. })), "{put:?}");
    assert!(
        matches!(listed, Err(StoreError::Unavailable { .. })),
        "{listed:?}"
    );
    s3.thaw();
    let (took, _) = until_it_writes(&*store, "after").await;
    assert!(took < Duration::from_secs(6), "{took:?}");
}

#[tokio::test]
async fn a_service_that_is_down_is_told_at_once_and_a_watch_goes_on_when_it_is_back() {
    let mut s3 = S3Service::start();
    let store = open(&s3.url("shop")).await.unwrap();
    let version = create(&*store, "k").await;
    let identity = store.identity().await.unwrap();
    let from = store.list("").await.unwrap().revision;
    let mut watch = store.watch("", from).await.unwrap();
    s3.kill();
    // The connection that it was spoken to by is noticed to be dead by whoever comes first.
    store.get("k").await.unwrap_err();
    let begun = Instant::now();
    let e = store.put_if(PutIf::create("l", *b"v")).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(3));
    assert!(e.wrote_nothing(), "{e:?}");
    for wanted in [
        "cannot be reached",
        "check that it runs",
        &s3.port().to_string(),
    ] {
        assert!(e.to_string().contains(wanted), "{e}");
    }
    let e = bounded(open(&s3.url("shop"))).await.unwrap_err();
    assert!(matches!(e, StoreError::Unavailable { .. }), "{e:?}");

    s3.restart();
    let entry = loop {
        match bounded(store.get("k")).await {
            Ok(entry) => break entry.expect("what was confirmed is kept"),
            Err(e) => assert!(matches!(e, StoreError::Unavailable { .. }), "{e:?}"),
        }
    };
    assert_eq!(entry.version, version);
    assert_eq!(store.identity().await.unwrap(), identity);
    until_it_writes(&*store, "after").await;
    let batch = bounded(watch.next()).await.unwrap();
    assert!(batch.changes[0].key().starts_with("after/"), "{batch:?}");
}

#[tokio::test]
async fn a_write_cut_off_on_its_way_back_is_unknown_and_found_by_reading() {
    let (s3, proxy, store) = proxied().await;
    create(&*store, "before").await;
    proxy.to_client(TrafficMode::Hold);
    let direct = open(&s3.url("shop")).await.unwrap();
    let from = direct.list("").await.unwrap().revision;
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
async fn connections_that_lose_everything_are_left_by_calls_that_are_dropped() {
    let (_s3, proxy, store) = proxied().await;
    // Many connections are open and idle.
    let puts = (0..50).map(|n| PutIf::create(format!("before/{n}"), *b"v"));
    store.put_many(puts.collect()).await;
    // All of them are dead for ever, and neither side is told. New ones work.
    proxy.half_open();
    let (took, failures) = until_it_writes(&*store, "k").await;
    assert!(!failures.is_empty(), "the old connections were dead");
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test]
async fn a_watch_from_a_revision_that_this_store_never_gave_out_ends_with_a_gap() {
    let s3 = S3Service::start();
    let (a, b) = (
        open(&s3.url("shop")).await.unwrap(),
        open(&s3.url("shop")).await.unwrap(),
    );
    let now = a.list("").await.unwrap().revision;
    for (store, from) in [
        (&a, Revision(now.0 + 1_000_000_000)),
        (&a, Revision(0)),
        (&b, now),
    ] {
        let mut watch = store.watch("", from).await.unwrap();
        assert_eq!(bounded(watch.next()).await, Err(WatchEnd::Gap));
    }
    let mut watch = a.watch("", now).await.unwrap();
    create(&*b, "k").await;
    let batch = bounded(watch.next()).await.unwrap();
    assert!(
        matches!(&batch.changes[..], [Change::Put(e)] if e.key == "k"),
        "{batch:?}"
    );
}
