//! One connection to a server that was found fit: a primary, a session of its own, and the settings that we need.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::sync::{Notify, oneshot};
use tokio_postgres::config::SslMode;
use tokio_postgres::error::Severity;
use tokio_postgres::{AsyncMessage, Client, Config, SimpleQueryMessage};

use super::errors::{self, CallStage};
use super::socket::{ResponseTimer, WatchedSocket};
use super::tls::{TlsConnection, TlsMode, TlsUpgrade};
use super::url::{ConnectionTarget, ServerHost};
use crate::error::StoreError;
use crate::machine_identity::random_uuid;

/// The oldest server whose snapshots we can read.
const OLDEST_SERVER: u32 = 130_000;

/// How often a connection is checked for silence.
const CHECK: Duration = Duration::from_millis(200);

/// What a session needs, whatever the server's or the user's own settings are. Locks are waited for by the server only for
/// so long, so that a transaction that somebody left open is told as such; and nothing that we gave up goes on for long.
const SETTINGS: &str = "
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('synchronous_commit',
        CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false),
    set_config('lock_timeout', '750', false),
    set_config('statement_timeout', '4000', false),
    set_config('client_min_messages', 'warning', false),
    set_config('search_path', 'pg_catalog, pg_temp', false),
    set_config('jit', 'off', false)";
const FACTS: &str = "
    pg_is_in_recovery(),
    current_setting('server_version_num'),
    current_setting('server_encoding'),
    coalesce(inet_client_port(), 0),
    has_function_privilege('pg_control_system()', 'EXECUTE')
        AND has_function_privilege('pg_walfile_name(pg_lsn)', 'EXECUTE')
        AND has_function_privilege('pg_current_wal_insert_lsn()', 'EXECUTE')";

/// What a new connection is made with.
#[derive(Clone, Debug)]
pub(super) struct ConnectionFactory {
    pub(super) target: Arc<ConnectionTarget>,
    tls: Arc<ClientConfig>,
}

/// A connection that is up, and driven by a task of its own until `client` is dropped or it breaks.
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) pulse: Arc<ResponseTimer>,
    /// Marks this session among others.
    pub(super) mark: String,
    /// Whether the server's process talks to this socket and not to a pooler in between.
    pub(super) direct: bool,
    /// Whether the user may ask which server this is.
    pub(super) may_ask_identity: bool,
    /// Ends the connection.
    pub(super) give_up: Arc<Notify>,
    /// Says why the connection ended.
    pub(super) ended: oneshot::Receiver<ConnectionEnd>,
}

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum ConnectionEnd {
    /// Nothing came back for too long.
    Silent,
    /// It was closed, for this reason.
    Closed(String),
}

impl ConnectionFactory {
    pub(super) fn new(target: ConnectionTarget) -> Result<Self, StoreError> {
        Ok(Self {
            tls: target.tls.config()?,
            target: Arc::new(target),
        })
    }

    /// Connects to the first host that is fit, each for as long as `limit`. `patience` is how long the connection may be silent
    /// later; `woken` hears of notifications.
    pub(super) async fn dial(
        &self,
        limit: Duration,
        patience: Duration,
        woken: &Arc<Notify>,
    ) -> Result<Connection, StoreError> {
        let mut failures = Vec::new();
        for host in &self.target.hosts {
            let dialled = self.dial_host(host, patience, woken);
            match tokio::time::timeout(limit, dialled).await {
                Ok(Ok(line)) => return Ok(line),
                Ok(Err(e)) => failures.push(e),
                Err(_) => failures.push(StoreError::unavailable(format!(
                    "{}: {host} does not answer within {limit:?}; check that it is up and reachable",
                    self.target.shown,
                ))),
            }
        }
        // One that may come back says more than those that are not meant to serve.
        let passing = |e: &StoreError| matches!(e, StoreError::Unavailable { .. });
        let worst = failures.iter().position(passing).unwrap_or(0);
        Err(match failures.into_iter().nth(worst) {
            Some(e) => e,
            None => StoreError::denied(format!("{} has no host", self.target.shown)),
        })
    }

    async fn dial_host(
        &self,
        host: &ServerHost,
        patience: Duration,
        woken: &Arc<Notify>,
    ) -> Result<Connection, StoreError> {
        let place = &self.target.shown;
        let wire = WatchedSocket::open(host).await.map_err(|e| {
            StoreError::unavailable(format!(
                "{place}: no connection to {host}: {e}; check that the server is up and listens there"
            ))
        })?;
        let (pulse, local_port) = (wire.pulse(), wire.local_port);
        let name = match host {
            ServerHost::Tcp { name, .. } => name.as_str(),
            ServerHost::Unix { .. } => "localhost",
        };
        let name = ServerName::try_from(name.to_owned()).map_err(|_| {
            StoreError::denied(format!("{place}: {name:?} is not a host name or address"))
        })?;
        let tls = TlsUpgrade {
            config: self.tls.clone(),
            name,
        };
        let connected = self.config(host).connect_raw(wire, tls).await;
        let (client, connection) = connected.map_err(|e| self.not_connected(host, &e))?;
        let (end, ended) = oneshot::channel();
        let driver = Driver {
            connection,
            pulse: pulse.clone(),
            patience,
            woken: woken.clone(),
            give_up: Arc::new(Notify::new()),
        };
        let give_up = driver.give_up.clone();
        tokio::spawn(driver.run(end));
        let line = Connection {
            client,
            pulse,
            mark: random_uuid(),
            direct: false,
            may_ask_identity: false,
            give_up,
            ended,
        };
        self.set_up(line, host, local_port).await
    }

    fn config(&self, host: &ServerHost) -> Config {
        let target = &self.target;
        let mut config = Config::new();
        config.application_name(&target.application_name);
        if let Some(user) = &target.user {
            config.user(user);
        }
        if let Some(password) = target.password_for(host) {
            config.password(password.0);
        }
        if let Some(dbname) = &target.dbname {
            config.dbname(dbname);
        }
        if let Some(options) = &target.options {
            config.options(options);
        }
        config.ssl_mode(match (host, target.tls.mode) {
            (ServerHost::Unix { .. }, _) | (_, TlsMode::Disable) => SslMode::Disable,
            (_, TlsMode::Prefer) => SslMode::Prefer,
            (_, TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull) => SslMode::Require,
        });
        config
    }

    /// Why no connection came about. Nothing was asked yet, so nothing can have happened.
    fn not_connected(&self, host: &ServerHost, e: &tokio_postgres::Error) -> StoreError {
        let place = format!("{} ({host})", self.target.shown);
        if let Some(db) = e.as_db_error() {
            return errors::refused(&place, "", db);
        }
        let reason = errors::whole(e);
        let cut_off = std::error::Error::source(e)
            .and_then(|e| e.downcast_ref::<std::io::Error>())
            .is_some_and(|e| e.kind() != std::io::ErrorKind::InvalidData);
        // The kinds of errors are told apart by their words alone.
        if reason.contains("TLS handshake") && !cut_off {
            return StoreError::denied(format!(
                "{place}: {reason}; check sslmode and sslrootcert, and the server's certificate"
            ));
        }
        if reason.contains("authentication error") || reason.contains("invalid configuration") {
            return StoreError::denied(format!(
                "{place}: {reason}; give a password in the URL, PGPASSWORD or ~/.pgpass"
            ));
        }
        StoreError::unavailable(format!("{place}: {reason}"))
    }

    /// Sets what we need and refuses servers that cannot be used.
    async fn set_up(
        &self,
        mut line: Connection,
        host: &ServerHost,
        local_port: Option<u16>,
    ) -> Result<Connection, StoreError> {
        let place = format!("{} ({host})", self.target.shown);
        let mark = &line.mark;
        let sql =
            format!("SELECT {FACTS}, set_config('tenure.session', '{mark}', false), {SETTINGS}");
        line.pulse.asked();
        let rows = line.client.simple_query(&sql).await;
        let rows = rows.map_err(|e| errors::explain(&place, "", CallStage::Read, &e))?;
        let row = rows.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let fact = |n: usize| row.and_then(|row| row.get(n)).unwrap_or_default();
        if fact(0) == "t" {
            return Err(StoreError::denied(format!(
                "{place} is a standby (in recovery), which is read-only; name the primary, or all hosts separated by \
                 commas"
            )));
        }
        let version: u32 = fact(1).parse().unwrap_or_default();
        if version < OLDEST_SERVER {
            return Err(StoreError::denied(format!(
                "{place} is PostgreSQL {}, which is too old; use 13 or newer",
                version / 10_000
            )));
        }
        if fact(2) != "UTF8" {
            return Err(StoreError::denied(format!(
                "{place}: the database's encoding is {}; create one with ENCODING 'UTF8'",
                fact(2)
            )));
        }
        line.direct = local_port.is_some_and(|port| fact(3) == port.to_string());
        line.may_ask_identity = fact(4) == "t";
        if version >= 140_000 {
            // Lets the server notice that we are gone while it works for us. Not every system can, and it is no promise.
            let check = "SELECT set_config('client_connection_check_interval', '1000', false)";
            let _ = line.client.simple_query(check).await;
        }
        Ok(line)
    }
}

/// Moves the bytes of one connection until it ends.
struct Driver {
    connection: tokio_postgres::Connection<WatchedSocket, TlsConnection>,
    pulse: Arc<ResponseTimer>,
    patience: Duration,
    woken: Arc<Notify>,
    give_up: Arc<Notify>,
}

impl Driver {
    async fn run(mut self, end: oneshot::Sender<ConnectionEnd>) {
        let mut check = tokio::time::interval(CHECK);
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let reason = loop {
            let message = std::future::poll_fn(|cx| self.connection.poll_message(cx));
            tokio::select! {
                message = message => match message {
                    None => break ConnectionEnd::Closed("closed".to_owned()),
                    Some(Err(e)) => break ConnectionEnd::Closed(errors::whole(&e)),
                    Some(Ok(message)) => self.hear(&message),
                },
                () = self.give_up.notified() => break ConnectionEnd::Silent,
                _ = check.tick() => {
                    if self.pulse.silence() > self.patience {
                        break ConnectionEnd::Silent;
                    }
                }
            }
        };
        // Nobody may be interested any more.
        let _ = end.send(reason);
    }

    fn hear(&self, message: &AsyncMessage) {
        match message {
            AsyncMessage::Notification(_) => self.woken.notify_one(),
            AsyncMessage::Notice(notice) if notice.parsed_severity() == Some(Severity::Warning) => {
                let (notice_text, detail) = (notice.message(), notice.detail());
                tracing::warn!(
                    notice = notice_text,
                    detail,
                    "database server sent a warning"
                );
            }
            _ => {}
        }
    }
}
