//! Who may do what.

use std::time::Duration;

use tenure_store::postgres::PostgresStore;
use tenure_store::servers::postgres::Postgres;
use tenure_store::{Change, Delete, DeleteIf, Put, PutIf, Store, StoreError, open, open_existing};

use super::{create, refusal};

/// The statements in the documentation, block by block.
fn documented(block: usize) -> Vec<String> {
    let page = include_str!("../../../../docs/stores/postgres.md");
    let sql = page
        .split("```sql\n")
        .nth(block + 1)
        .expect("the block is there");
    let sql = sql.split("```").next().unwrap_or_default();
    let lines = sql.lines().filter(|line| line.starts_with("GRANT"));
    lines.map(str::to_owned).collect()
}

fn prepared() -> Postgres {
    let postgres = Postgres::start();
    postgres.sql("CREATE ROLE owner LOGIN; GRANT CREATE ON DATABASE postgres TO owner; CREATE ROLE shop LOGIN; CREATE ROLE viewer LOGIN");
    postgres
}

fn url_of(postgres: &Postgres, user: &str) -> String {
    postgres.url().replace("postgres@", &format!("{user}@"))
}

/// Everything that a node does with its store.
async fn exercise(store: &PostgresStore) -> Result<(), StoreError> {
    let from = store.list("").await?.revision;
    let mut watch = store.watch("", from).await?;
    let Put::Won(first) = store.put_if(PutIf::create("access/k", *b"v")).await? else {
        panic!("lost against nobody");
    };
    let update = PutIf::update("access/k", *b"w", first);
    for answer in store.put_many(vec![update]).await {
        answer?;
    }
    let entry = store.get("access/k").await?.expect("it is there");
    let delete = DeleteIf::new("access/k", entry.version);
    assert_eq!(store.delete_if(delete).await?, Delete::Won);
    store.identity().await?;
    let seen = tokio::time::timeout(Duration::from_secs(5), watch.next()).await;
    seen.expect("it is shown").expect("the watch goes on");
    // Only now: what a watch has not shown yet may be gone after it.
    store.purge(0).await?;
    Ok(())
}

#[tokio::test]
async fn the_documented_rights_are_enough_and_none_is_too_many() {
    let postgres = prepared();
    open(&url_of(&postgres, "owner")).await.unwrap();
    let grants = documented(0);
    assert!(grants.len() >= 5, "{grants:?}");
    for grant in &grants {
        postgres.sql(grant);
    }
    let url = url_of(&postgres, "shop");
    let store = PostgresStore::open(&url).await.unwrap();
    exercise(&store).await.unwrap();
    let fresh = PostgresStore::open_existing(&url).await.unwrap();
    assert_eq!(fresh.identity().await, store.identity().await);

    let root = super::by_hand(&postgres).await;
    for grant in &grants {
        // Each right by itself: `GRANT a, b ON t TO u`.
        let (rights, rest) = grant["GRANT ".len()..].split_once(" ON ").unwrap();
        for right in rights.split(", ") {
            let revoke = format!("REVOKE {right} ON {}", rest.replace(" TO ", " FROM "));
            root.batch_execute(&revoke).await.unwrap();
            let done = match PostgresStore::open(&url).await {
                Ok(store) => exercise(&store).await,
                Err(e) => Err(e),
            };
            let Err(StoreError::Denied { reason }) = done else {
                panic!("{revoke}: {done:?}");
            };
            assert!(reason.contains("docs/stores/postgres.md"), "{reason}");
            let back = format!("GRANT {right} ON {rest}; DELETE FROM tenure.kv");
            root.batch_execute(&back).await.unwrap();
        }
    }
    exercise(&store).await.unwrap();
}

#[tokio::test]
async fn those_who_only_look_can_look_and_are_told_why_they_cannot_write() {
    let postgres = prepared();
    let owner = open(&url_of(&postgres, "owner")).await.unwrap();
    for grant in documented(1) {
        postgres.sql(&grant);
    }
    let version = create(&*owner, "k").await;
    let viewer = open_existing(&url_of(&postgres, "viewer")).await.unwrap();
    let listing = viewer.list("").await.unwrap();
    assert_eq!(listing.entries.len(), 1);
    let mut watch = viewer.watch("", listing.revision).await.unwrap();
    for answer in [
        viewer.put_if(PutIf::create("l", *b"v")).await.map(drop),
        viewer
            .put_if(PutIf::update("k", *b"w", version.clone()))
            .await
            .map(drop),
        viewer
            .delete_if(DeleteIf::new("k", version))
            .await
            .map(drop),
        viewer
            .put_many(vec![PutIf::create("m", *b"v")])
            .await
            .remove(0)
            .map(drop),
    ] {
        let Err(StoreError::Denied { reason }) = answer else {
            panic!("{answer:?}");
        };
        assert!(
            reason.contains("permission denied") && reason.contains("grant it"),
            "{reason}"
        );
    }
    create(&*owner, "n").await;
    let batch = watch.next().await.unwrap();
    assert!(
        matches!(&batch.changes[..], [Change::Put(e)] if e.key == "n"),
        "{batch:?}"
    );
}

#[tokio::test]
async fn a_user_who_may_not_make_the_tables_is_told_who_may() {
    let postgres = prepared();
    let url = url_of(&postgres, "shop");
    let reason = refusal(&url).await;
    assert!(reason.contains("tenure.kv cannot be created"), "{reason}");
    assert!(reason.contains("tenure store init"), "{reason}");
    let e = open_existing(&url).await.unwrap_err().to_string();
    assert!(e.contains("there are no tables tenure.kv yet"), "{e}");
}

#[tokio::test]
async fn users_that_are_set_to_read_only_are_denied() {
    let postgres = prepared();
    open(&postgres.url()).await.unwrap();
    for grant in documented(0) {
        postgres.sql(&grant);
    }
    postgres.sql("ALTER ROLE shop SET default_transaction_read_only = on");
    let store = open(&url_of(&postgres, "shop")).await.unwrap();
    let e = store.put_if(PutIf::create("k", *b"v")).await.unwrap_err();
    assert!(matches!(e, StoreError::Denied { .. }), "{e}");
    assert!(
        e.to_string().contains("default_transaction_read_only"),
        "{e}"
    );
}

#[tokio::test]
async fn wrong_and_missing_passwords_are_denied_and_never_shown() {
    let postgres = prepared();
    open(&postgres.url()).await.unwrap();
    for grant in documented(0) {
        postgres.sql(&grant);
    }
    postgres.sql("ALTER ROLE shop PASSWORD 'right'");
    postgres.set_access("host all postgres all trust\nhost all all all scram-sha-256\n");
    let url = |login: &str| postgres.url().replace("postgres@", &format!("{login}@"));
    for login in ["shop:hunter2", "shop", "nobody:hunter2"] {
        let reason = refusal(&url(login)).await;
        assert!(!reason.contains("hunter2"), "{reason}");
        assert!(reason.contains("password"), "{reason}");
        assert!(reason.contains("~/.pgpass"), "{reason}");
    }
    open(&url("shop:right")).await.unwrap();
    let file = postgres.dir().join("passwords");
    std::fs::write(&file, "127.0.0.1:*:postgres:shop:right\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let by_file = format!("{}?passfile={}", url("shop"), file.display());
    let store = open(&by_file).await.unwrap();
    assert!(!format!("{store:?}").contains("right"), "{store:?}");
}

#[tokio::test]
async fn a_password_that_stops_being_right_is_told_while_running() {
    let postgres = prepared();
    postgres.sql("ALTER ROLE owner PASSWORD 'right'");
    postgres.set_access("host all postgres all trust\nhost all all all scram-sha-256\n");
    let url = postgres.url().replace("postgres@", "owner:right@");
    let store = open(&url).await.unwrap();
    postgres.sql("ALTER ROLE owner PASSWORD 'other'; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'owner'");
    let begun = std::time::Instant::now();
    loop {
        match store.get("k").await {
            Err(StoreError::Denied { reason })
                if reason.contains("check the user, the password") =>
            {
                break;
            }
            other => assert!(begun.elapsed() < super::TIMEOUT, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    postgres.sql("ALTER ROLE owner PASSWORD 'right'");
    super::until_back(&store).await;
}
