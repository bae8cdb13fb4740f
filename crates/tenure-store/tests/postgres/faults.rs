//! What single calls answer when something is wrong.

use std::time::{Duration, Instant};

use tenure_store::servers::postgres::Postgres;
use tenure_store::servers::proxy::{TcpProxy, TrafficMode};
use tenure_store::{PutIf, StoreError, open};

use super::{by_hand, create, until_back};

#[tokio::test]
async fn while_nothing_comes_back_every_call_ends_and_says_what_is_known() {
    let postgres = Postgres::start();
    let proxy = TcpProxy::start(postgres.address());
    let store = open(&postgres.url_at(proxy.port())).await.unwrap();
    create(&*store, "a").await;
    proxy.to_client(TrafficMode::Hold);
    let begun = Instant::now();
    let read = store.get("a").await.unwrap_err();
    assert!(matches!(read, StoreError::Unavailable { .. }), "{read}");
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
    // The next connection cannot be made either, so this was not sent.
    let begun = Instant::now();
    let write = store.put_if(PutIf::create("b", *b"v")).await.unwrap_err();
    assert!(matches!(write, StoreError::Unavailable { .. }), "{write}");
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
    proxy.heal();
    until_back(&store).await;
    assert_eq!(store.get("b").await, Ok(None));
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_unknown_and_settled_by_reading() {
    let postgres = Postgres::start();
    let proxy = TcpProxy::start(postgres.address());
    let store = open(&postgres.url_at(proxy.port())).await.unwrap();
    create(&*store, "a").await;
    proxy.to_client(TrafficMode::Lose);
    let write = store.put_if(PutIf::create("b", *b"v")).await.unwrap_err();
    assert!(matches!(write, StoreError::Unknown { .. }), "{write}");
    proxy.heal();
    until_back(&store).await;
    assert!(store.get("b").await.unwrap().is_some(), "it had arrived");
}

#[tokio::test]
async fn a_server_that_is_away_is_unavailable_at_once_and_named() {
    let mut postgres = Postgres::start();
    let url = postgres.url();
    let store = open(&url).await.unwrap();
    create(&*store, "a").await;
    postgres.stop();
    let begun = Instant::now();
    let mut refused = store.get("a").await.unwrap_err();
    // The first may still find the old connection.
    while !refused.to_string().contains("check that the server is up") {
        assert!(
            matches!(refused, StoreError::Unavailable { .. }),
            "{refused}"
        );
        assert!(begun.elapsed() < Duration::from_secs(5), "{refused}");
        refused = store.get("a").await.unwrap_err();
    }
    assert!(
        refused.to_string().contains(&postgres.port().to_string()),
        "{refused}"
    );
    let begun = Instant::now();
    let write = store.put_if(PutIf::create("b", *b"v")).await.unwrap_err();
    assert!(matches!(write, StoreError::Unavailable { .. }), "{write}");
    assert!(begun.elapsed() < Duration::from_secs(1));
    let opened = open(&url).await.unwrap_err();
    assert!(matches!(opened, StoreError::Unavailable { .. }), "{opened}");
    postgres.restart();
    until_back(&store).await;
}

#[tokio::test]
async fn a_server_without_connections_to_spare_says_so_until_it_has_one() {
    let postgres = Postgres::start_with(&["max_connections=6", "superuser_reserved_connections=3"]);
    let owner = open(&postgres.url()).await.unwrap();
    postgres.sql(
        "CREATE ROLE plain LOGIN; GRANT USAGE ON SCHEMA tenure TO plain;
         GRANT ALL ON ALL TABLES IN SCHEMA tenure TO plain; GRANT ALL ON ALL SEQUENCES IN SCHEMA tenure TO plain",
    );
    drop(owner);
    let url = postgres.url().replace("postgres@", "plain@");
    let mut stores = Vec::new();
    let e = loop {
        match open(&url).await {
            Ok(store) => stores.push(store),
            Err(e) => break e,
        }
        assert!(stores.len() < 6);
    };
    assert!(matches!(e, StoreError::Unavailable { .. }), "{e}");
    assert!(e.to_string().contains("raise max_connections"), "{e}");
    // One that runs already and loses its connection waits for its turn.
    let store = stores.pop().unwrap();
    let waiting = store.dedicated().unwrap();
    let e = waiting.revision().await.unwrap_err();
    assert!(e.to_string().contains("raise max_connections"), "{e}");
    stores.clear();
    until_back(&waiting).await;
}

#[tokio::test]
async fn a_row_that_somebody_keeps_locked_is_unavailable_and_the_others_are_not() {
    let postgres = Postgres::start();
    let store = open(&postgres.url()).await.unwrap();
    let (locked, free) = (
        create(&*store, "locked").await,
        create(&*store, "free").await,
    );
    let other = by_hand(&postgres).await;
    other
        .batch_execute("BEGIN; UPDATE tenure.kv SET value = 'x' WHERE key = 'locked'")
        .await
        .unwrap();
    let put = |key, version| store.put_if(PutIf::update(key, *b"w", version));
    let (locked, free) = tokio::join!(put("locked", locked), async {
        // On a connection of its own: statements of one connection are answered in turn.
        let own = store.dedicated().unwrap();
        own.put_if(PutIf::update("free", *b"w", free)).await
    });
    free.unwrap();
    let e = locked.unwrap_err();
    assert!(matches!(e, StoreError::Unavailable { .. }), "{e}");
    assert!(e.to_string().contains("idle in transaction"), "{e}");
}

#[tokio::test]
async fn a_key_that_is_too_long_is_denied_and_harms_nobody() {
    let postgres = Postgres::start();
    let store = open(&postgres.url()).await.unwrap();
    // Random enough that it cannot be pressed into an index page.
    let mut long = String::new();
    let mut n = 1u64;
    while long.len() < 20_000 {
        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        long.push_str(&n.to_string());
    }
    let e = store.put_if(PutIf::create(long, *b"v")).await.unwrap_err();
    assert!(matches!(e, StoreError::Denied { .. }), "{e}");
    create(&*store, "short").await;
}
