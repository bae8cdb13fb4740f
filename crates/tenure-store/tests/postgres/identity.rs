//! What a store is, and when it is another one.

use tenure_store::open;
use tenure_store::servers::postgres::Postgres;

use super::{create, refusal, until_back};

#[tokio::test]
async fn a_restart_changes_nothing_and_a_takeover_changes_the_identity() {
    let mut primary = Postgres::start();
    let store = open(&primary.url()).await.unwrap();
    create(&*store, "k").await;
    let identity = store.identity().await.unwrap();
    primary.kill();
    primary.restart();
    until_back(&store).await;
    assert_eq!(store.identity().await.as_ref(), Ok(&identity));

    let standby = Postgres::standby_of(&primary);
    let reason = refusal(&standby.url()).await;
    assert!(reason.contains("is a standby (in recovery)"), "{reason}");
    assert!(reason.contains("name the primary"), "{reason}");
    // Named among others, it is passed over.
    let both = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres",
        standby.port(),
        primary.port()
    );
    let found = open(&both).await.unwrap();
    assert_eq!(found.identity().await.as_ref(), Ok(&identity));

    primary.stop();
    standby.sql("SELECT pg_promote()");
    until_back(&found).await;
    let after = found.identity().await.unwrap();
    assert_ne!(after, identity);
    assert!(found.get("k").await.unwrap().is_some());
    // The same server and table, on another timeline.
    let parts =
        |identity: &str| -> Vec<String> { identity.split('/').map(str::to_owned).collect() };
    let (before, after) = (parts(&identity), parts(&after));
    assert_eq!((&before[0], &before[2..]), (&after[0], &after[2..]));
    assert_eq!((&*before[1], &*after[1]), ("00000001", "00000002"));
}

#[tokio::test]
async fn a_watch_does_not_go_on_as_if_nothing_were_after_a_takeover() {
    let mut primary = Postgres::start();
    let store = open(&primary.url()).await.unwrap();
    create(&*store, "k").await;
    let standby = Postgres::standby_of(&primary);
    let both = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres",
        standby.port(),
        primary.port()
    );
    let store = open(&both).await.unwrap();
    let from = store.revision().await.unwrap();
    let mut watch = store.watch("", from).await.unwrap();
    primary.stop();
    standby.sql("SELECT pg_promote()");
    let end = tokio::time::timeout(super::TIMEOUT, watch.next()).await;
    assert_eq!(end.unwrap(), Err(tenure_store::WatchEnd::Gap));
}

#[tokio::test]
async fn a_dump_that_is_loaded_again_is_another_store_with_the_same_keys() {
    let postgres = Postgres::start();
    let store = open(&postgres.url()).await.unwrap();
    let version = create(&*store, "k").await;
    let (identity, revision) = (
        store.identity().await.unwrap(),
        store.revision().await.unwrap(),
    );
    let url = postgres.url();
    postgres.dump_and_load("tenure");
    let again = open(&url).await.unwrap();
    assert_ne!(again.identity().await.unwrap(), identity);
    assert_eq!(again.get("k").await.unwrap().unwrap().version, version);
    assert!(again.revision().await.unwrap() >= revision);
    // Numbers go on where they were, and what was loaded is not news for ever.
    let from = again.revision().await.unwrap();
    let mut watch = again.watch("", from).await.unwrap();
    let newer = create(&*again, "l").await;
    assert!(newer > version);
    let batch = watch.next().await.unwrap();
    assert_eq!(batch.changes.len(), 1, "{batch:?}");
}
