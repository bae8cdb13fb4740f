//! A connection that is ready for the calls of a store.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::connection::{Connection, ConnectionEnd, ConnectionFactory};
use super::errors::{self, CallStage};
use super::socket::ResponseTimer;
use super::sql::Statements;
use super::{pooler_check, schema};
use crate::error::StoreError;

/// How long a call waits for its answer at most: longer than the server works on it. Callers with less patience give up
/// earlier.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Parameters of a statement.
pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// What to do about tables that are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingTables {
    /// Make them.
    Make,
    /// Refuse to go on.
    Expect,
}

/// A connection with its statements.
#[derive(Debug)]
pub(super) struct StatementSession {
    client: Client,
    pulse: Arc<ResponseTimer>,
    give_up: Arc<Notify>,
    pub(super) statements: Statements,
    /// What the store was when this connection was made.
    pub(super) identity: String,
    /// Where writes are announced.
    pub(super) channel: String,
    /// Whether the identity leaves the server out, because the user may not ask.
    pub(super) partial_identity: bool,
    place: String,
}

impl StatementSession {
    /// Connects for the first time: looks closely at what is between us and the server, and at the tables.
    pub(super) async fn first(
        dialer: &ConnectionFactory,
        tables: MissingTables,
        patience: Duration,
    ) -> Result<(Self, oneshot::Receiver<ConnectionEnd>), StoreError> {
        let woken = Arc::new(Notify::new());
        let limit = dialer.target.connect_timeout;
        let line = dialer.dial(limit, patience, &woken).await?;
        if !line.direct {
            pooler_check::refuse(dialer, &line).await?;
        }
        if tables == MissingTables::Make {
            schema::make(&line.client, &dialer.target).await?;
        }
        Self::ready(dialer, line, false).await
    }

    /// Connects again, with `limit` for each step. With `listen`, hears of writes through `woken`.
    pub(super) async fn again(
        dialer: &ConnectionFactory,
        limit: Duration,
        patience: Duration,
        woken: &Arc<Notify>,
        listen: bool,
    ) -> Result<(Self, oneshot::Receiver<ConnectionEnd>), StoreError> {
        let line = dialer.dial(limit, patience, woken).await?;
        let ready = tokio::time::timeout(limit, Self::ready(dialer, line, listen)).await;
        ready.unwrap_or_else(|_| {
            let place = &dialer.target.shown;
            Err(StoreError::unavailable(format!(
                "{place}: no response while connecting"
            )))
        })
    }

    async fn ready(
        dialer: &ConnectionFactory,
        line: Connection,
        listen: bool,
    ) -> Result<(Self, oneshot::Receiver<ConnectionEnd>), StoreError> {
        let target = &dialer.target;
        let place = target.shown.clone();
        line.pulse.asked();
        let relation = schema::check(&line.client, target).await?;
        let channel = format!("tenure_{relation}");
        let failed = |e: tokio_postgres::Error| errors::explain(&place, "", CallStage::Read, &e);
        line.pulse.asked();
        if listen {
            let sql = format!("LISTEN {channel}");
            line.client.batch_execute(&sql).await.map_err(failed)?;
        }
        let may_ask = line.may_ask_identity;
        let statements = Statements::prepare(&line.client, &target.names, may_ask).await;
        let mut session = Self {
            statements: statements.map_err(failed)?,
            client: line.client,
            pulse: line.pulse,
            give_up: line.give_up,
            identity: String::new(),
            channel,
            partial_identity: !may_ask,
            place: place.clone(),
        };
        session.identity = session.ask_identity().await?;
        Ok((session, line.ended))
    }

    /// Whether the connection is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// What the store is now.
    pub(super) async fn ask_identity(&self) -> Result<String, StoreError> {
        let row = self.one("", &self.statements.identity, &[]).await?;
        row.try_get(0).map_err(|e| self.odd(&e))
    }

    /// Reads.
    pub(super) async fn read(
        &self,
        key: &str,
        statement: &Statement,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        self.pulse.asked();
        let rows = tokio::time::timeout(CALL_TIMEOUT, self.client.query(statement, params)).await;
        self.answered(key, CallStage::Read, rows.ok())
    }

    /// Reads one row.
    pub(super) async fn one(
        &self,
        key: &str,
        statement: &Statement,
        params: Params<'_>,
    ) -> Result<Row, StoreError> {
        let rows = self.read(key, statement, params).await?;
        let missing = || {
            StoreError::unavailable(format!("{}: the server sent an empty response", self.place))
        };
        rows.into_iter().next().ok_or_else(missing)
    }

    /// Writes, and announces it.
    ///
    /// The announcement is sent right behind the write without waiting for its answer: so it is made even if the caller gives
    /// up, and it costs no round trip.
    pub(super) async fn write(
        &self,
        key: &str,
        statement: &Statement,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        self.pulse.asked();
        let mut rows = pin!(self.client.query(statement, params));
        let early = poll_fn(|cx| Poll::Ready(rows.as_mut().poll(cx))).await;
        self.announce().await;
        let answer = match early {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => tokio::time::timeout(CALL_TIMEOUT, rows).await.ok(),
        };
        self.answered(key, CallStage::Write, answer)
    }

    /// What an answer means, or that none came.
    fn answered(
        &self,
        key: &str,
        stage: CallStage,
        answer: Option<Result<Vec<Row>, tokio_postgres::Error>>,
    ) -> Result<Vec<Row>, StoreError> {
        match answer {
            Some(rows) => rows.map_err(|e| errors::explain(&self.place, key, stage, &e)),
            None => Err(self.no_answer(stage)),
        }
    }

    /// Sends an announcement and does not wait for the answer.
    async fn announce(&self) {
        let channel: Params<'_> = &[&self.channel];
        let mut sent = pin!(self.client.query(&self.statements.announce, channel));
        poll_fn(|cx| {
            let _ = sent.as_mut().poll(cx);
            Poll::Ready(())
        })
        .await;
    }

    fn no_answer(&self, stage: CallStage) -> StoreError {
        // The server should have given up by itself: whatever this connection is good for, it is not answering.
        self.give_up.notify_one();
        let reason = format!("no response within {}s", CALL_TIMEOUT.as_secs());
        errors::lost(&self.place, stage, &reason)
    }

    /// An answer that is not what was asked for.
    pub(super) fn odd(&self, e: &tokio_postgres::Error) -> StoreError {
        StoreError::unavailable(format!(
            "{}: a response cannot be read: {}",
            self.place,
            errors::whole(e)
        ))
    }

    /// Runs statements of the examiner's own, which change nothing.
    pub(super) async fn look(&self, sql: &str) -> Result<Vec<Row>, StoreError> {
        self.pulse.asked();
        let rows = tokio::time::timeout(CALL_TIMEOUT, self.client.query(sql, &[])).await;
        self.answered("", CallStage::Read, rows.ok())
    }
}
