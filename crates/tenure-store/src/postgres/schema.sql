-- The tables of a store, layout 1. Words in braces stand for their names.
--
-- Writers commit side by side; nothing serialises them but a common key. What happened since an earlier look is therefore
-- not told by numbers that writers draw (who draws first may commit last) but by PostgreSQL's own snapshots: each row knows
-- the transaction that wrote it, and whoever follows asks for the transactions that an earlier look did not see.
-- Triggers keep the books and not the statements, so that a change by hand is as good as any other.

CREATE TABLE {kv} (
    key text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL,
    version bigint NOT NULL,
    xid xid8 NOT NULL
);
CREATE INDEX {kv_xid} ON {kv} (xid);

-- What was deleted, for those who follow. All but the newest rows are forgotten after a while.
CREATE TABLE {deleted} (
    version bigint PRIMARY KEY,
    key text COLLATE "C" NOT NULL,
    xid xid8 NOT NULL
);
CREATE INDEX {deleted_xid} ON {deleted} (xid);

-- How many transactions have written, in parts: the revision is their sum. A writer counts in the part that its server
-- process falls to, so that few wait for one another. Parts from 64 on are for those who write by hand.
CREATE TABLE {writes} (
    part integer PRIMARY KEY,
    count bigint NOT NULL,
    last xid8 NOT NULL
) WITH (fillfactor = 25);
INSERT INTO {writes} SELECT part, 0, '0' FROM generate_series(0, 127) AS part;

-- From where on the past can be told: what was forgotten was written by transactions up to gap_xid, and all of it before
-- the revision gap_revision.
CREATE TABLE {state} (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    layout integer NOT NULL,
    identity text NOT NULL,
    gap_xid xid8 NOT NULL,
    gap_revision bigint NOT NULL
);

CREATE SEQUENCE {versions} AS bigint;

CREATE FUNCTION {fn_part}() RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT pg_backend_pid() % 64 + CASE WHEN current_setting('tenure.session', true) > '' THEN 0 ELSE 64 END
$$;

-- Before any row is locked: parts come before rows, so that nobody waits in a circle.
CREATE FUNCTION {fn_begin}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock({lock_class} + (TG_RELID::bigint << 8) + {fn_part}());
    RETURN NULL;
END $$;

-- Tenure's own sessions announce their writes after the commit: announcing within a transaction makes commits queue. Those of
-- others are made durable whatever their settings are: what is seen here must not be gone after a crash.
CREATE FUNCTION {fn_write}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {writes} SET count = count + 1, last = pg_current_xact_id()
        WHERE part = {fn_part}() AND last <> pg_current_xact_id();
    IF coalesce(current_setting('tenure.session', true), '') = '' THEN
        PERFORM pg_notify('tenure_' || TG_RELID, '');
        IF current_setting('synchronous_commit') <> 'remote_apply' THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
    END IF;
    IF TG_OP = 'TRUNCATE' THEN
        -- No row is seen going, so nothing can be told: a gap. Nobody else writes meanwhile, so the revision is known.
        UPDATE {state} SET gap_xid = pg_current_xact_id(), gap_revision = (SELECT sum(count) FROM {writes});
        RETURN NULL;
    END IF;
    IF TG_OP = 'DELETE' OR TG_OP = 'UPDATE' AND NEW.key <> OLD.key THEN
        INSERT INTO {deleted} VALUES (nextval('{versions}'), OLD.key, pg_current_xact_id());
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    NEW.version := nextval('{versions}');
    NEW.xid := pg_current_xact_id();
    RETURN NEW;
END $$;

CREATE TRIGGER a_begin BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {kv}
    FOR EACH STATEMENT EXECUTE FUNCTION {fn_begin}();
CREATE TRIGGER b_write BEFORE INSERT OR UPDATE OR DELETE ON {kv}
    FOR EACH ROW EXECUTE FUNCTION {fn_write}();
CREATE TRIGGER b_write_all BEFORE TRUNCATE ON {kv}
    FOR EACH STATEMENT EXECUTE FUNCTION {fn_write}();
