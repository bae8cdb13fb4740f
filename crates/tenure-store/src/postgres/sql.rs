//! The statements: what each call of the store is in SQL. Each is a transaction of its own.

use tokio_postgres::{Client, Error, Statement};

use super::tables::TableNames;

/// The revision: how many transactions have written.
const REVISION: &str = "(SELECT sum(count)::bigint FROM {writes})";

/// Where a look has been: the highest transaction whose row it saw, and its snapshot.
///
/// Not the snapshot alone: it also counts transactions as over that left nothing durable behind, and after a crash the server gives
/// their numbers out again. The number of a row that was seen is never given out again, for what is seen is durable.
const POSITION: &str = "
    (coalesce(greatest(
        (SELECT xid FROM {kv} WHERE xid < pg_snapshot_xmax(pg_current_snapshot()) ORDER BY xid DESC LIMIT 1),
        (SELECT xid FROM {deleted} WHERE xid < pg_snapshot_xmax(pg_current_snapshot()) ORDER BY xid DESC LIMIT 1)
    ), '0')::text || '|' || pg_current_snapshot()::text)";
/// The two parts of a position that was given as `$1`.
const SEEN: &str = "split_part($1::text, '|', 1)::xid8";
const THEN: &str = "split_part($1::text, '|', 2)::pg_snapshot";
/// What a look at that position has not seen: later transactions, and those that were in progress.
const LATER: &str = "xid > {seen} AND xid < pg_snapshot_xmax(pg_current_snapshot())";
const PENDING: &str = "xid <= {seen} AND xid = ANY (ARRAY(SELECT pg_snapshot_xip({then})))";

const GET: &str = "SELECT value, version FROM {kv} WHERE key = $1";
const GET_MANY: &str = "SELECT key, value, version FROM {kv} WHERE key = ANY ($1)";
/// Looks first: a row that the triggers have worked on counts as a write even if it then finds its key taken.
const CREATE: &str = "
    INSERT INTO {kv} (key, value) SELECT $1, $2 WHERE NOT EXISTS (SELECT FROM {kv} WHERE key = $1)
    ON CONFLICT (key) DO NOTHING RETURNING version";
const UPDATE: &str = "UPDATE {kv} SET value = $2 WHERE key = $1 AND version = $3 RETURNING version";
const DELETE: &str = "DELETE FROM {kv} WHERE key = $1 AND version = $2 RETURNING version";
/// Rows are locked in the order of their keys, and before new ones are made: batches never wait in a circle.
const PUT_MANY: &str = "
    WITH asked AS MATERIALIZED (
        SELECT * FROM unnest($1::text[], $2::bytea[], $3::bigint[]) AS a (key, value, expected)
    ), held AS MATERIALIZED (
        SELECT k.key FROM {kv} k
        WHERE k.key = ANY ($1) AND EXISTS (SELECT FROM asked a WHERE a.key = k.key AND a.expected IS NOT NULL)
        ORDER BY k.key FOR UPDATE
    ), updated AS (
        UPDATE {kv} k SET value = a.value FROM asked a, held h
        WHERE a.key = h.key AND k.key = h.key AND k.version = a.expected
        RETURNING k.key, k.version
    ), created AS (
        INSERT INTO {kv} (key, value)
        SELECT a.key, a.value FROM asked a
        WHERE a.expected IS NULL AND NOT EXISTS (SELECT FROM {kv} k WHERE k.key = a.key)
            AND (SELECT count(*) FROM updated) >= 0
        ORDER BY a.key
        ON CONFLICT (key) DO NOTHING RETURNING key, version
    )
    SELECT key, version FROM updated UNION ALL SELECT key, version FROM created";
const DELETE_MANY: &str = "
    WITH asked AS MATERIALIZED (
        SELECT * FROM unnest($1::text[], $2::bigint[]) AS a (key, expected)
    ), held AS MATERIALIZED (
        SELECT key FROM {kv} WHERE key = ANY ($1) ORDER BY key FOR UPDATE
    )
    DELETE FROM {kv} k USING asked a, held h
    WHERE a.key = h.key AND k.key = h.key AND k.version = a.expected
    RETURNING k.key, k.version";
const DISCARD: &str = "
    WITH held AS MATERIALIZED (
        SELECT key FROM {kv} WHERE key = ANY ($1) ORDER BY key FOR UPDATE
    )
    DELETE FROM {kv} k USING held h WHERE k.key = h.key RETURNING k.key";
const KEYS: &str = "
    SELECT key FROM {kv}
    WHERE key >= $1 AND ($2::text IS NULL OR key > $2) AND ($3::text IS NULL OR key < $3)
    ORDER BY key LIMIT $4";
/// The first row says at which position and revision the others were read.
const LIST: &str = "
    SELECT NULL::text AS key, convert_to({position}, 'UTF8') AS value, {revision} AS version
    UNION ALL SELECT key, value, version FROM {kv} WHERE key >= $1";
/// The first row says whether everything since the position `$1`, at the revision `$2`, is still known, and where we are.
const CHANGES: &str = "
    SELECT NULL::text AS key, convert_to({position}, 'UTF8') AS value, {revision} AS version,
        gap_xid <= {seen} AND gap_xid < pg_snapshot_xmin({then}) OR gap_revision <= $2 AS here
    FROM {state}
    UNION ALL SELECT key, value, version, true FROM {kv} WHERE {later}
    UNION ALL SELECT key, value, version, true FROM {kv} WHERE {pending}
    UNION ALL SELECT key, NULL, version, false FROM {deleted} WHERE {later}
    UNION ALL SELECT key, NULL, version, false FROM {deleted} WHERE {pending}";
const NOW_AT: &str = "SELECT {revision}, {position}";
const CLOCK: &str = "SELECT clock_timestamp()";
/// Forgets all but the newest `$1` deletions, and only what no transaction in progress could have written.
const PURGE: &str = "
    WITH cut AS (
        SELECT version FROM {deleted} ORDER BY version DESC OFFSET $1 LIMIT 1
    ), gone AS (
        DELETE FROM {deleted} d USING cut
        WHERE d.version <= cut.version AND d.xid < pg_snapshot_xmin(pg_current_snapshot())
        RETURNING d.xid
    )
    UPDATE {state} SET gap_revision = {revision},
        gap_xid = greatest(gap_xid, (SELECT xid FROM gone ORDER BY xid DESC LIMIT 1))
    WHERE EXISTS (SELECT FROM gone)";
/// A transaction of its own, and one that need not be durable: within the writing one it would make commits queue.
const ANNOUNCE: &str = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, '')";

/// What names the contents, as far as this user may ask: `$1` says whether it may.
pub(super) fn identity(names: &TableNames, may_ask: bool) -> String {
    let server = if may_ask {
        "(SELECT system_identifier::text FROM pg_control_system()),
         left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"
    } else {
        "'unknown-server'"
    };
    names.fill(&format!(
        "SELECT concat_ws('/', {server}, '{{kv}}'::regclass::oid, (SELECT identity FROM {{state}}))"
    ))
}

/// Puts the parts of statements in their places.
fn compose(sql: &str) -> String {
    sql.replace("{later}", LATER)
        .replace("{pending}", PENDING)
        .replace("{position}", POSITION)
        .replace("{seen}", SEEN)
        .replace("{then}", THEN)
        .replace("{revision}", REVISION)
}

/// The statements, prepared on one connection.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) identity: Statement,
    pub(super) get: Statement,
    pub(super) get_many: Statement,
    pub(super) create: Statement,
    pub(super) update: Statement,
    pub(super) delete: Statement,
    pub(super) put_many: Statement,
    pub(super) delete_many: Statement,
    pub(super) discard: Statement,
    pub(super) keys: Statement,
    pub(super) list: Statement,
    pub(super) list_within: Statement,
    pub(super) changes: Statement,
    pub(super) now_at: Statement,
    pub(super) clock: Statement,
    pub(super) purge: Statement,
    pub(super) announce: Statement,
}

impl Statements {
    /// Prepares all of them, without waiting for one after the other.
    pub(super) async fn prepare(
        client: &Client,
        names: &TableNames,
        may_ask: bool,
    ) -> Result<Self, Error> {
        let fill = |sql: &str| names.fill(&compose(sql));
        let within = format!("{LIST} AND key < $2");
        let (identity, all, within) = (identity(names, may_ask), fill(LIST), fill(&within));
        let (get, get_many, create) = (fill(GET), fill(GET_MANY), fill(CREATE));
        let (update, delete, purge) = (fill(UPDATE), fill(DELETE), fill(PURGE));
        let (put_many, delete_many) = (fill(PUT_MANY), fill(DELETE_MANY));
        let (changes, now_at) = (fill(CHANGES), fill(NOW_AT));
        let (discard, keys) = (fill(DISCARD), fill(KEYS));
        let (identity, get, get_many, create, update) = tokio::try_join!(
            client.prepare(&identity),
            client.prepare(&get),
            client.prepare(&get_many),
            client.prepare(&create),
            client.prepare(&update),
        )?;
        let (delete, put_many, delete_many, list, list_within) = tokio::try_join!(
            client.prepare(&delete),
            client.prepare(&put_many),
            client.prepare(&delete_many),
            client.prepare(&all),
            client.prepare(&within),
        )?;
        let (changes, now_at, clock, purge, announce) = tokio::try_join!(
            client.prepare(&changes),
            client.prepare(&now_at),
            client.prepare(CLOCK),
            client.prepare(&purge),
            client.prepare(ANNOUNCE),
        )?;
        let (discard, keys) = tokio::try_join!(client.prepare(&discard), client.prepare(&keys))?;
        Ok(Self {
            identity,
            get,
            get_many,
            create,
            update,
            delete,
            put_many,
            delete_many,
            discard,
            keys,
            list,
            list_within,
            changes,
            now_at,
            clock,
            purge,
            announce,
        })
    }
}
