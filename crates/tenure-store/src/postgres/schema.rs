//! The tables: made where there are none, checked where there are.

use tokio_postgres::{Client, SimpleQueryMessage};

use super::errors::{self, CallStage};
use super::url::ConnectionTarget;
use crate::error::StoreError;
use crate::machine_identity::random_uuid;

/// What leads from each layout to the next, beginning with none at all.
const STEPS: [&str; 1] = [include_str!("schema.sql")];

/// The layout that this program works with.
const LAYOUT: usize = STEPS.len();

/// Makes the tables, or brings them to the present layout. Several may try at the same time.
pub(super) async fn make(client: &Client, target: &ConnectionTarget) -> Result<(), StoreError> {
    if layout(client, target).await? == Some(LAYOUT) {
        return Ok(());
    }
    let names = &target.names;
    let failed = |e: tokio_postgres::Error| cannot_make(target, &e);
    // Statements of definition take their time on a busy server; all that the usual limits are for is not the case here.
    let begin = names.fill(
        "BEGIN; SET LOCAL lock_timeout = '10s'; SET LOCAL statement_timeout = '30s';
         SELECT pg_advisory_xact_lock({lock_class})",
    );
    client.batch_execute(&begin).await.map_err(failed)?;
    let made = make_locked(client, target).await;
    let end = if made.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = client.batch_execute(end).await;
    made?;
    ended.map_err(failed)
}

async fn make_locked(client: &Client, target: &ConnectionTarget) -> Result<(), StoreError> {
    let names = &target.names;
    let failed = |e: tokio_postgres::Error| cannot_make(target, &e);
    let found = layout(client, target).await?;
    refuse_newer(found, target)?;
    if found.is_none() {
        let schema = format!(
            "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = '{}'",
            names.schema
        );
        if first(client, &schema).await.map_err(failed)?.is_none() {
            let create = names.fill("CREATE SCHEMA {schema}");
            client.batch_execute(&create).await.map_err(failed)?;
        }
    }
    for (n, step) in STEPS.iter().enumerate().skip(found.unwrap_or(0)) {
        client
            .batch_execute(&names.fill(step))
            .await
            .map_err(failed)?;
        let settle = match n {
            0 => format!(
                "INSERT INTO {{state}} VALUES (true, 1, '{}', '0', 0)",
                random_uuid()
            ),
            n => format!("UPDATE {{state}} SET layout = {}", n + 1),
        };
        let settle = names.fill(&settle);
        client.batch_execute(&settle).await.map_err(failed)?;
    }
    tracing::info!(tables = %names.shown(), layout = LAYOUT, "tables of the store created");
    Ok(())
}

/// Checks that the tables are there and of our layout; answers with the number of the main one.
pub(super) async fn check(client: &Client, target: &ConnectionTarget) -> Result<u32, StoreError> {
    let found = layout(client, target).await?;
    refuse_newer(found, target)?;
    let shown = target.names.shown();
    match found {
        Some(LAYOUT) => {}
        Some(older) => {
            return Err(StoreError::denied(format!(
                "{}: tables {shown} have layout {older}, this program needs {LAYOUT}; open the store once as their owner: \
                 tenure store init --store URL",
                target.shown
            )));
        }
        None => {
            return Err(StoreError::denied(format!(
                "{}: there are no tables {shown} yet; start a node, create a keyspace, or run: tenure store init \
                 --store URL",
                target.shown
            )));
        }
    }
    let sql = target.names.fill("SELECT '{kv}'::regclass::oid");
    let oid = first(client, &sql).await;
    let oid = oid.map_err(|e| errors::explain(&target.shown, "", CallStage::Read, &e))?;
    let oid = oid.and_then(|text| text.parse().ok());
    oid.ok_or_else(|| {
        StoreError::unavailable(format!(
            "{}: the server sent an empty response",
            target.shown
        ))
    })
}

/// The layout of the tables, if there are any.
async fn layout(client: &Client, target: &ConnectionTarget) -> Result<Option<usize>, StoreError> {
    let failed = |e: tokio_postgres::Error| errors::explain(&target.shown, "", CallStage::Read, &e);
    let state = target.names.fill("{state}");
    // Asked of the catalogue and not of a name: names are looked up in a cache, which another's tables may not be in yet.
    let there = format!(
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = '{}' AND c.relname = '{}_state'",
        target.names.schema, target.names.table
    );
    if first(client, &there).await.map_err(failed)?.is_none() {
        return Ok(None);
    }
    let layout = first(client, &format!("SELECT layout FROM {state}")).await;
    let layout = layout.map_err(failed)?.and_then(|text| text.parse().ok());
    layout.map(Some).ok_or_else(|| {
        StoreError::denied(format!(
            "{}: {state} is empty, so these tables are incomplete; restore them from a backup",
            target.shown
        ))
    })
}

fn refuse_newer(found: Option<usize>, target: &ConnectionTarget) -> Result<(), StoreError> {
    match found {
        Some(newer) if newer > LAYOUT => Err(StoreError::denied(format!(
            "{}: tables {} have layout {newer}, this program reads layouts up to {LAYOUT}; upgrade this program",
            target.shown,
            target.names.shown()
        ))),
        _ => Ok(()),
    }
}

fn cannot_make(target: &ConnectionTarget, e: &tokio_postgres::Error) -> StoreError {
    match errors::explain(&target.shown, "", CallStage::Read, e) {
        StoreError::Denied { .. } if e.as_db_error().is_some() => StoreError::denied(format!(
            "{}: the tables {} cannot be created: {}; let their owner create them (tenure store init --store URL) and \
             grant this user the rights in docs/stores/postgres.md",
            target.shown,
            target.names.shown(),
            e.as_db_error().map_or("", |db| db.message())
        )),
        other => other,
    }
}

/// The first field of the first row, unless it is null.
async fn first(client: &Client, sql: &str) -> Result<Option<String>, tokio_postgres::Error> {
    let answer = client.simple_query(sql).await?;
    Ok(answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}
