//! A connection that is made again, for ever, whenever it is lost.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use super::client::StatementSession;
use super::connection::{ConnectionEnd, ConnectionFactory};
use crate::error::StoreError;
use crate::machine_identity::random_bytes;
use crate::rng::SplitMix;

/// How long a connection may be silent, once something was asked, before it is given up for a new one.
///
/// After one that was no good for long, the next may be silent for twice as long: a server that is merely slow must not be
/// drowned in connections whose work it has not finished.
pub(super) const FIRST_SILENCE: Duration = Duration::from_secs(1);
const LONGEST_SILENCE: Duration = Duration::from_secs(16);

/// How long the first attempt to connect may take, doubled after each that fails, up to what the URL says: what a network lost
/// will not come back, and the next attempt may get through at once.
const FIRST_ATTEMPT: Duration = Duration::from_secs(1);

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a call waits for a connection that is being made.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone)]
enum State {
    Connecting,
    Up(Arc<StatementSession>),
    Down(StoreError),
}

/// The caller's end of it. The connection is closed when this is dropped.
pub(super) struct ReconnectingClient {
    state: watch::Receiver<State>,
}

impl fmt::Debug for ReconnectingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

impl ReconnectingClient {
    /// Keeps a connection that is already there.
    pub(super) fn keep(
        runtime: &Handle,
        dialer: ConnectionFactory,
        first: (StatementSession, oneshot::Receiver<ConnectionEnd>),
    ) -> Self {
        Self::start(runtime, dialer, Some(first), Arc::new(Notify::new()), false)
    }

    /// Makes a connection in the background.
    pub(super) fn open(runtime: &Handle, dialer: ConnectionFactory) -> Self {
        Self::start(runtime, dialer, None, Arc::new(Notify::new()), false)
    }

    /// Makes a connection in the background that hears of writes: `woken` is told of them, and of every new connection.
    pub(super) fn listening(
        runtime: &Handle,
        dialer: ConnectionFactory,
        woken: Arc<Notify>,
    ) -> Self {
        Self::start(runtime, dialer, None, woken, true)
    }

    fn start(
        runtime: &Handle,
        dialer: ConnectionFactory,
        first: Option<(StatementSession, oneshot::Receiver<ConnectionEnd>)>,
        woken: Arc<Notify>,
        listen: bool,
    ) -> Self {
        let (state, ended) = match first {
            // Known at once, so that no call finds it missing.
            Some((session, ended)) => (State::Up(Arc::new(session)), Some(ended)),
            None => (State::Connecting, None),
        };
        let (report, state) = watch::channel(state);
        let keeper = Reconnector::new(dialer, report, woken, listen);
        runtime.spawn(keeper.run(ended));
        Self { state }
    }

    /// The connection, waiting for a moment if it is being made. An error means that nothing was sent.
    pub(super) async fn session(&self) -> Result<Arc<StatementSession>, StoreError> {
        let mut state = self.state.clone();
        let up = async {
            loop {
                match &*state.borrow_and_update() {
                    State::Up(session) if !session.is_closed() => return Ok(session.clone()),
                    State::Down(e) => return Err(e.clone()),
                    State::Up(_) | State::Connecting => {}
                }
                if state.changed().await.is_err() {
                    let gone =
                        "the async runtime that opened the store has ended; open the store again";
                    return Err(StoreError::unavailable(gone));
                }
            }
        };
        let late = |_| StoreError::unavailable("the database server does not answer yet");
        tokio::time::timeout(CALL_TIMEOUT, up).await.map_err(late)?
    }
}

/// The task that keeps the connection.
struct Reconnector {
    dialer: ConnectionFactory,
    report: watch::Sender<State>,
    woken: Arc<Notify>,
    listen: bool,
    rng: SplitMix,
    pause: Duration,
    silence: Duration,
    attempt: Duration,
    /// Whether the present trouble has been logged.
    told: bool,
}

impl Reconnector {
    fn new(
        dialer: ConnectionFactory,
        report: watch::Sender<State>,
        woken: Arc<Notify>,
        listen: bool,
    ) -> Self {
        let mut seed = [0; 8];
        seed.copy_from_slice(&random_bytes()[..8]);
        Self {
            dialer,
            report,
            woken,
            listen,
            rng: SplitMix::new(u64::from_ne_bytes(seed)),
            pause: FIRST_PAUSE,
            silence: FIRST_SILENCE,
            attempt: FIRST_ATTEMPT,
            told: false,
        }
    }

    async fn run(mut self, first: Option<oneshot::Receiver<ConnectionEnd>>) {
        let mut ended = first;
        loop {
            match ended.take() {
                Some(ended) => {
                    if !self.stand_by(ended).await {
                        return;
                    }
                }
                None => match self.connect().await {
                    None => return,
                    Some(up) => ended = up,
                },
            }
        }
    }

    /// Waits for the end of the connection; false if nobody needs it any more.
    async fn stand_by(&mut self, ended: oneshot::Receiver<ConnectionEnd>) -> bool {
        let since = Instant::now();
        let reason = tokio::select! {
            reason = ended => reason,
            () = self.report.closed() => return false,
        };
        self.report.send_replace(State::Connecting);
        // Was it of any use before it fell silent?
        if since.elapsed() > self.silence + self.silence / 2 {
            self.pause = FIRST_PAUSE;
            self.silence = FIRST_SILENCE;
        } else if matches!(reason, Ok(ConnectionEnd::Silent)) {
            self.silence = (self.silence * 2).min(LONGEST_SILENCE);
        }
        let reason = match reason {
            Ok(ConnectionEnd::Silent) => "the server does not respond".to_owned(),
            Ok(ConnectionEnd::Closed(reason)) => reason,
            Err(_) => "the connection task has ended".to_owned(),
        };
        tracing::warn!(store = %self.dialer.target.shown, reason, "connection to the database lost, reconnecting");
        self.told = true;
        // A server that drops whoever comes must not be called without a pause.
        since.elapsed() > LONGEST_PAUSE || self.rest().await
    }

    /// Tries once. `None` if nobody needs it any more; otherwise the end of the new connection, if there is one.
    async fn connect(&mut self) -> Option<Option<oneshot::Receiver<ConnectionEnd>>> {
        let limit = self.attempt.min(self.dialer.target.connect_timeout);
        let (silence, woken) = (self.silence, &self.woken);
        let attempt = StatementSession::again(&self.dialer, limit, silence, woken, self.listen);
        let attempt = tokio::select! {
            attempt = attempt => attempt,
            () = self.report.closed() => return None,
        };
        match attempt {
            Ok((session, ended)) => {
                self.attempt = FIRST_ATTEMPT;
                if std::mem::take(&mut self.told) {
                    tracing::info!(store = %self.dialer.target.shown, "connection to the database restored");
                }
                self.report.send_replace(State::Up(Arc::new(session)));
                self.woken.notify_one();
                Some(Some(ended))
            }
            Err(e) => {
                if !std::mem::replace(&mut self.told, true) {
                    tracing::warn!(error = %e, "connecting to the database failed, retrying");
                }
                self.report.send_replace(State::Down(e));
                self.attempt = (limit * 2).min(self.dialer.target.connect_timeout);
                self.rest().await.then_some(None)
            }
        }
    }

    /// Pauses for half to one and a half times the pause, which doubles; false if nobody needs the connection any more.
    async fn rest(&mut self) -> bool {
        let micros = self.pause.as_micros() as u64;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        let pause = Duration::from_micros(micros / 2 + self.rng.below(micros));
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            () = self.report.closed() => false,
        }
    }
}
