//! The PostgreSQL store on a real server: the conformance suite, and everything that can go wrong with a server.

mod access;
mod conformance;
mod faults;
mod history;
mod identity;
mod outcomes;
mod pooler;
mod schema;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use tenure_store::servers::postgres::Postgres;
use tenure_store::{Put, PutIf, Store, StoreError, Version, open};

/// How long something may take that should come within milliseconds, or within the second of a silent connection.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A connection past the store, as somebody with psql would have it.
async fn by_hand(postgres: &Postgres) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&postgres.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

async fn create(store: &dyn Store, key: &str) -> Version {
    match store.put_if(PutIf::create(key, *b"v")).await {
        Ok(Put::Won(version)) => version,
        other => panic!("{key}: {other:?}"),
    }
}

/// What opening a URL is refused with.
async fn refusal(url: &str) -> String {
    match open(url).await {
        Err(StoreError::Denied { reason }) => reason,
        other => panic!("{url} should be refused, but: {other:?}"),
    }
}

/// Waits until the store answers again.
async fn until_back(store: &Arc<dyn Store>) {
    let begun = std::time::Instant::now();
    while let Err(e) = store.revision().await {
        assert!(begun.elapsed() < TIMEOUT, "still not back: {e}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
