//! The tables: made once, by whoever comes first, and left alone where they are not ours to touch.

use tenure_store::servers::postgres::Postgres;
use tenure_store::{StoreError, describe, open, open_existing};

use super::{create, refusal};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_open_an_empty_database_at_once_find_one_store() {
    let postgres = Postgres::start();
    let mut opening = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let url = postgres.url();
        opening.spawn(async move { open(&url).await.unwrap().identity().await.unwrap() });
    }
    let mut identities = opening.join_all().await;
    identities.dedup();
    assert_eq!(identities.len(), 1, "{identities:?}");
}

#[tokio::test]
async fn stores_under_different_names_know_nothing_of_each_other() {
    let postgres = Postgres::start();
    let url = |query: &str| format!("{}{query}", postgres.url());
    let (a, b) = (url("?schema=select&table=order"), url("?table=kv_2"));
    let (first, second) = (open(&a).await.unwrap(), open(&b).await.unwrap());
    create(&*first, "k").await;
    assert_eq!(second.get("k").await, Ok(None));
    assert_ne!(first.identity().await, second.identity().await);
    assert_eq!(&describe(&a).unwrap(), first.info());
    assert!(
        first.info().url.ends_with("?schema=select&table=order"),
        "{:?}",
        first.info()
    );
    let third = open_existing(&postgres.url()).await.unwrap_err();
    assert!(matches!(third, StoreError::Denied { .. }), "{third}");
}

#[tokio::test]
async fn tables_of_a_newer_layout_are_refused_at_start_and_while_running() {
    let postgres = Postgres::start();
    let store = open(&postgres.url()).await.unwrap();
    postgres.sql("UPDATE tenure.kv_state SET layout = 2");
    let reason = refusal(&postgres.url()).await;
    assert!(
        reason.contains("have layout 2") && reason.contains("upgrade this program"),
        "{reason}"
    );
    postgres.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure'",
    );
    let begun = std::time::Instant::now();
    loop {
        match store.get("k").await {
            Err(StoreError::Denied { reason }) if reason.contains("layout 2") => break,
            other => assert!(begun.elapsed() < super::TIMEOUT, "{other:?}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn tables_that_are_gone_are_told_as_such() {
    let postgres = Postgres::start();
    let store = open(&postgres.url()).await.unwrap();
    create(&*store, "k").await;
    postgres.sql("DROP SCHEMA tenure CASCADE");
    let e = store.get("k").await.unwrap_err();
    assert!(matches!(e, StoreError::Denied { .. }), "{e}");
    assert!(e.to_string().contains("tables are missing"), "{e}");
}

#[tokio::test]
async fn databases_that_cannot_hold_a_store_are_refused_with_the_way_out() {
    let postgres = Postgres::start();
    postgres.sql("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0");
    let url = |db: &str| format!("postgres://postgres@127.0.0.1:{}/{db}", postgres.port());
    let reason = refusal(&url("latin")).await;
    assert!(
        reason.contains("LATIN1") && reason.contains("ENCODING 'UTF8'"),
        "{reason}"
    );
    let reason = refusal(&url("absent")).await;
    assert!(reason.contains("\"absent\" does not exist"), "{reason}");
    assert!(reason.contains("create the database first"), "{reason}");
}

#[tokio::test]
async fn sessions_are_durable_and_plain_whatever_the_defaults_are() {
    let postgres = Postgres::start_with(&[
        "synchronous_commit=off",
        "default_transaction_isolation=serializable",
    ]);
    let store = open(&postgres.url()).await.unwrap();
    let findings = store.examine().await.unwrap();
    let commit = findings
        .iter()
        .find(|f| f.about == "synchronous_commit")
        .unwrap();
    assert!(commit.found.starts_with("on for"), "{commit:?}");
    // Under the server's own default this would end in serialization failures.
    let mut racing = tokio::task::JoinSet::new();
    for n in 0..4 {
        let store = open(&postgres.url()).await.unwrap();
        racing.spawn(async move {
            for m in 0..20 {
                create(&*store, &format!("{n}/{m}")).await;
                store.list("").await.unwrap();
            }
        });
    }
    racing.join_all().await;
}
