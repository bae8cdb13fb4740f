//! What `tenure store check` wants to know of a PostgreSQL server.

use tokio_postgres::Row;

use super::client::StatementSession;
use super::url::{ConnectionTarget, ServerHost};
use crate::error::StoreError;
use crate::store_check::Finding;

const SETTINGS: &str = "
    SELECT current_setting('server_version'), current_setting('fsync'), current_setting('full_page_writes'),
        current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
        current_setting('max_connections')::int8 - current_setting('superuser_reserved_connections')::int8,
        (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')";
const REPLICAS: &str = "
    SELECT coalesce(nullif(application_name, ''), 'unnamed'), coalesce(sync_state, 'unknown') FROM pg_stat_replication";
const ENCRYPTED: &str =
    "SELECT coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false)";
const OPEN_TRANSACTIONS: &str = "
    SELECT count(*) FROM pg_stat_activity
    WHERE state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '1 minute'";

/// Looks at everything.
pub(super) async fn examine(
    session: &StatementSession,
    target: &ConnectionTarget,
) -> Result<Vec<Finding>, StoreError> {
    let settings = row(session, SETTINGS).await?;
    let replicas = session.look(REPLICAS).await?;
    let odd = |e: tokio_postgres::Error| session.odd(&e);
    let replicas: Vec<(String, String)> = replicas
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect::<Result<_, _>>()
        .map_err(odd)?;
    let text = |n: usize| settings.try_get::<_, String>(n).map_err(odd);
    let number = |n: usize| settings.try_get::<_, i64>(n).map_err(odd);
    let encrypted: bool = row(session, ENCRYPTED).await?.try_get(0).map_err(odd)?;
    let open: i64 = row(session, OPEN_TRANSACTIONS)
        .await?
        .try_get(0)
        .map_err(odd)?;
    let mut findings = vec![
        Finding::ok("server version", format!("PostgreSQL {}", text(0)?)),
        fsync(&text(1)?),
        full_pages(&text(2)?),
        Finding::ok(
            "synchronous_commit",
            format!(
                "{} for tenure's connections, regardless of the server's default",
                text(3)?
            ),
        ),
        replication(&text(4)?, &replicas),
        connections(number(5)?, number(6)?),
        encryption(target, encrypted),
    ];
    findings.extend(identity(session));
    findings.extend(transactions(open));
    Ok(findings)
}

async fn row(session: &StatementSession, sql: &str) -> Result<Row, StoreError> {
    let rows = session.look(sql).await?;
    let missing = || StoreError::unavailable("the server sent an empty response");
    rows.into_iter().next().ok_or_else(missing)
}

fn fsync(setting: &str) -> Finding {
    if setting == "on" {
        return Finding::ok("fsync", "on: confirmed writes survive a crash");
    }
    Finding::fail(
        "fsync",
        setting,
        "a crash of the server's machine loses confirmed writes, including epochs: set fsync = on",
    )
}

fn full_pages(setting: &str) -> Finding {
    if setting == "on" {
        return Finding::ok("full_page_writes", "on");
    }
    Finding::warn(
        "full_page_writes",
        setting,
        "a crash may leave half-written pages unless the file system rules that out: set full_page_writes = on",
    )
}

fn replication(wanted: &str, replicas: &[(String, String)]) -> Finding {
    const ABOUT: &str = "replication";
    let shown: Vec<String> = replicas
        .iter()
        .map(|(name, state)| format!("{name} ({state})"))
        .collect();
    let shown = shown.join(", ");
    let in_step = |state: &String| state == "sync" || state == "quorum";
    let synchronous = replicas.iter().any(|(_, state)| in_step(state));
    match (wanted.is_empty(), replicas.is_empty(), synchronous) {
        (true, true, _) => Finding::ok(ABOUT, "none"),
        (true, false, _) => Finding::warn(
            ABOUT,
            format!("asynchronous: {shown}"),
            "if one of these takes over, confirmed writes may be missing: set synchronous_standby_names, or run \
             `tenure keyspace bump-generation --all` before nodes start after every failover",
        ),
        (false, _, true) => Finding::ok(ABOUT, format!("synchronous: {shown}")),
        (false, _, false) => Finding::fail(
            ABOUT,
            format!("synchronous_standby_names is {wanted:?}, but no such standby is connected"),
            "writes wait until one is: start it, or change synchronous_standby_names",
        ),
    }
}

fn connections(limit: i64, used: i64) -> Finding {
    let found = format!("{used} of {limit} in use; a node takes up to three");
    if used * 10 < limit * 8 {
        return Finding::ok("connections", found);
    }
    let advice = "raise max_connections: a node that gets no connection cannot renew its lease after a reconnect";
    Finding::warn("connections", found, advice)
}

fn encryption(target: &ConnectionTarget, encrypted: bool) -> Finding {
    const ABOUT: &str = "encryption";
    let near = |host: &ServerHost| match host {
        ServerHost::Unix { .. } => true,
        ServerHost::Tcp { name, .. } => ["localhost", "127.0.0.1", "::1"].contains(&name.as_str()),
    };
    match (encrypted, target.hosts.iter().all(near)) {
        (true, _) => Finding::ok(ABOUT, "TLS"),
        (false, true) => Finding::ok(ABOUT, "none, local connection"),
        (false, false) => Finding::warn(
            ABOUT,
            "none",
            "traffic can be read and forged on the network: use sslmode=verify-full",
        ),
    }
}

fn identity(session: &StatementSession) -> Option<Finding> {
    session.partial_identity.then(|| {
        Finding::warn(
            "identity",
            "this user may not read the system identifier and the timeline",
            "a promoted or restored server is not noticed: grant EXECUTE on pg_control_system(), pg_walfile_name(pg_lsn) and \
             pg_current_wal_insert_lsn()",
        )
    })
}

fn transactions(open: i64) -> Option<Finding> {
    (open > 0).then(|| {
        Finding::warn(
            "open transactions",
            format!("{open} idle for more than a minute"),
            "these transactions keep old rows from being cleaned up, and may hold locks: set idle_in_transaction_session_timeout",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store_check::Level;

    fn level(finding: Finding) -> Level {
        assert_eq!(finding.level == Level::Ok, finding.advice.is_none());
        finding.level
    }

    #[test]
    fn settings_that_lose_confirmed_writes_are_told() {
        assert_eq!(level(fsync("on")), Level::Ok);
        assert_eq!(level(fsync("off")), Level::Fail);
        assert_eq!(level(full_pages("on")), Level::Ok);
        assert_eq!(level(full_pages("off")), Level::Warn);
    }

    #[test]
    fn replicas_that_may_lag_are_told_from_those_that_may_not() {
        let one = |state: &str| vec![("b".to_owned(), state.to_owned())];
        for (wanted, replicas, expected) in [
            ("", vec![], Level::Ok),
            ("", one("async"), Level::Warn),
            ("b", one("sync"), Level::Ok),
            ("ANY 1 (b, c)", one("quorum"), Level::Ok),
            ("b", one("async"), Level::Fail),
            ("b", vec![], Level::Fail),
        ] {
            assert_eq!(
                level(replication(wanted, &replicas)),
                expected,
                "{wanted} {replicas:?}"
            );
        }
    }

    #[test]
    fn a_server_that_runs_out_of_connections_is_told_before_it_does() {
        assert_eq!(level(connections(97, 10)), Level::Ok);
        assert_eq!(level(connections(97, 80)), Level::Warn);
    }
}
