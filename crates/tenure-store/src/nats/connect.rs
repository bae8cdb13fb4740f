//! The connection to a cluster: one server at a time, the next one when it fails, without end.
//!
//! A connection that broke stays broken: the client underneath would connect again by itself and send what it still has, and
//! a call could not tell what became of its request. Which server comes next is decided here. Connecting is a task of its own,
//! so that callers who give up early do not keep it from ever being done.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::connection::{Connection, Signals};
use super::errors;
use super::settings::Settings;
use crate::error::StoreError;
use crate::machine_identity::random_bytes;
use crate::rng::SplitMix;

/// How long a server may take to answer at first; doubled with each round that fails, so that far ones are reached too.
const FIRST_PATIENCE: Duration = Duration::from_millis(500);
const MOST_PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait between two rounds; doubled likewise.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// For how long rounds are begun for a store that is being opened, if servers are silent.
const OPENING: Duration = Duration::from_secs(2);
/// How long a call waits for the next round when the last has failed: less than any node waits for an answer.
const NEXT_ROUND: Duration = Duration::from_millis(100);
/// A connection on which nothing comes back for three of these is given up.
const PING_EVERY: Duration = Duration::from_secs(2);
/// Requests that may wait to be sent.
const SENDING: usize = 4096;
/// Messages that a watch may leave lying. The server stops sending before that.
const UNREAD: usize = 1 << 16;
/// The oldest server that we run on.
const OLDEST: (u32, u32) = (2, 10);

/// What all connections of one store share.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) settings: Settings,
    rng: Mutex<SplitMix>,
}

impl Cluster {
    pub(super) fn new(settings: Settings) -> Self {
        let mut seed = [0; 8];
        seed.copy_from_slice(&random_bytes()[..8]);
        Self {
            settings,
            rng: Mutex::new(SplitMix::new(u64::from_ne_bytes(seed))),
        }
    }

    fn below(&self, n: u64) -> u64 {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        rng.below(n)
    }

    /// Goes through the servers once, beginning with `first`.
    async fn connect(&self, first: usize, patience: Duration) -> Result<Connection, StoreError> {
        let count = self.settings.endpoints.len();
        let mut failures = Vec::new();
        for at in (0..count).map(|n| (first + n) % count) {
            match self.attempt(at, patience).await {
                Ok(link) => {
                    tracing::debug!(endpoint = link.endpoint, "connected to NATS");
                    return Ok(link);
                }
                Err(e) => failures.push(e),
            }
        }
        let denied = failures
            .iter()
            .all(|e| matches!(e, StoreError::Denied { .. }));
        let whys = failures.into_iter().map(|e| match e {
            StoreError::Unavailable { reason } | StoreError::Denied { reason } => reason,
            other => other.to_string(),
        });
        let reason = whys.collect::<Vec<_>>().join("; ");
        Err(if denied {
            StoreError::denied(reason)
        } else {
            StoreError::unavailable(reason)
        })
    }

    async fn attempt(&self, at: usize, patience: Duration) -> Result<Connection, StoreError> {
        let endpoint = &self.settings.endpoints[at];
        let signals = Arc::new(Signals::new());
        let options = self
            .settings
            .options()?
            .name("tenure")
            .connection_timeout(patience)
            .request_timeout(None)
            .ping_interval(PING_EVERY)
            .client_capacity(SENDING)
            .subscription_capacity(UNREAD)
            .ignore_discovered_servers()
            // One, because none would mean any number. Whoever comes back finds nobody who waits.
            .max_reconnects(1)
            .event_callback({
                let signals = signals.clone();
                move |event| {
                    signals.tell(&event);
                    std::future::ready(())
                }
            });
        let address = format!("{}://{endpoint}", self.settings.scheme());
        let connecting = tokio::time::timeout(patience, options.connect(address)).await;
        let silent = |_| StoreError::unavailable(format!("NATS at {endpoint} does not answer"));
        let client = connecting
            .map_err(silent)?
            .map_err(|e| errors::unconnected(endpoint, &e))?;
        let version = client.server_info().version;
        if !is_new_enough(&version) {
            return Err(errors::too_old(endpoint, &version));
        }
        Ok(Connection::new(client, endpoint.clone(), at, signals))
    }
}

/// Whether a server of this version can do what we need.
fn is_new_enough(version: &str) -> bool {
    let mut parts = version.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    let parts = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    parts >= OLDEST
}

/// The present connection, or the way to the next one.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) cluster: Arc<Cluster>,
    state: Mutex<State>,
    /// How many rounds through the servers have ended.
    rounds: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    link: Option<Arc<Connection>>,
    /// Whether a round is under way.
    connecting: bool,
    /// Rounds that failed since the last one that did not.
    failures: u32,
    /// The server to begin with.
    next: usize,
    /// Why the last round failed.
    reason: StoreError,
}

impl Client {
    pub(super) fn new(cluster: Arc<Cluster>) -> Arc<Self> {
        // Clients begin anywhere, so that not all of them are with the first server.
        let count = cluster.settings.endpoints.len();
        let next = cluster.below(count as u64) as usize;
        Arc::new(Self {
            cluster,
            state: Mutex::new(State {
                link: None,
                connecting: false,
                failures: 0,
                next,
                reason: StoreError::unavailable(
                    "the connection to NATS is not established yet; retry",
                ),
            }),
            rounds: watch::Sender::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, made if there is none. Fails with the round through all servers that it waits for, or after a moment
    /// with the last one.
    pub(super) async fn link(self: &Arc<Self>) -> Result<Arc<Connection>, StoreError> {
        self.linked(NEXT_ROUND).await
    }

    /// The same; `patience` is for the next round after one that failed.
    async fn linked(self: &Arc<Self>, patience: Duration) -> Result<Arc<Connection>, StoreError> {
        let mut rounds = self.rounds.subscribe();
        let failing;
        {
            let mut state = self.lock();
            state.link.take_if(|link| link.is_retired());
            if let Some(link) = &state.link {
                return Ok(link.clone());
            }
            failing = state.failures > 0;
            if !state.connecting {
                state.connecting = true;
                tokio::spawn(Round::new(self.clone()).run());
            }
            rounds.mark_unchanged();
        }
        // The sender is `self`'s own.
        let round = async { drop(rounds.changed().await) };
        if failing {
            // Whoever waits for the next round in vain should at least hear what became of the last.
            let _ = tokio::time::timeout(patience, round).await;
        } else {
            round.await;
        }
        let state = self.lock();
        state.link.clone().ok_or_else(|| state.reason.clone())
    }

    /// The first connection. Servers that are silent are given more time with every round; what any other failure says, another
    /// round would say again.
    pub(super) async fn first_link(self: &Arc<Self>) -> Result<Arc<Connection>, StoreError> {
        let deadline = Instant::now() + OPENING;
        loop {
            let begun = Instant::now();
            match self.linked(MOST_PATIENCE).await {
                Err(StoreError::Unavailable { .. })
                    if begun.elapsed() >= FIRST_PATIENCE && Instant::now() < deadline => {}
                answer => return answer,
            }
        }
    }

    /// Gives a connection up; the next call goes to the next server. Watches on it end.
    pub(super) fn retire(&self, link: &Arc<Connection>) {
        link.retire();
        let mut state = self.lock();
        if state.link.take_if(|now| Arc::ptr_eq(now, link)).is_some() {
            state.next = (link.at + 1) % self.cluster.settings.endpoints.len();
        }
    }
}

/// One round through the servers. If it is dropped halfway, with its runtime, the next caller begins another.
struct Round {
    client: Arc<Client>,
    answer: Option<Result<Connection, StoreError>>,
}

impl Round {
    fn new(client: Arc<Client>) -> Self {
        Self {
            client,
            answer: None,
        }
    }

    async fn run(mut self) {
        let (failures, next) = {
            let state = self.client.lock();
            (state.failures, state.next)
        };
        tokio::time::sleep(self.pause(failures)).await;
        let patience = doubled(FIRST_PATIENCE, failures, MOST_PATIENCE);
        self.answer = Some(self.client.cluster.connect(next, patience).await);
    }

    /// Nothing at first; then longer and longer, half of it by chance.
    fn pause(&self, failures: u32) -> Duration {
        let Some(again) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        let half = doubled(FIRST_PAUSE, again, LONGEST_PAUSE) / 2;
        let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        half + Duration::from_nanos(self.client.cluster.below(nanos))
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        let broken = || {
            Err(StoreError::unavailable(
                "the attempt to connect to NATS was cancelled or panicked; retry",
            ))
        };
        let answer = self.answer.take().unwrap_or_else(broken);
        let mut state = self.client.lock();
        state.connecting = false;
        match answer {
            Ok(link) => {
                state.failures = 0;
                state.link = Some(Arc::new(link));
            }
            Err(reason) => {
                state.failures = state.failures.saturating_add(1);
                state.reason = reason;
            }
        }
        drop(state);
        self.client.rounds.send_modify(|rounds| *rounds += 1);
    }
}

fn doubled(first: Duration, times: u32, most: Duration) -> Duration {
    let factor = 2u32.saturating_pow(times.min(20));
    first.saturating_mul(factor).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_before_2_10_are_too_old() {
        for (version, fits) in [
            ("2.9.10", false),
            ("1.4.1", false),
            ("", false),
            ("2.10.0", true),
            ("2.15.1", true),
            ("2.11.0-RC.1", true),
            ("3.0.0", true),
        ] {
            assert_eq!(is_new_enough(version), fits, "{version}");
        }
    }

    #[test]
    fn pauses_and_patience_grow_up_to_a_limit() {
        assert_eq!(doubled(FIRST_PAUSE, 0, LONGEST_PAUSE), FIRST_PAUSE);
        assert_eq!(doubled(FIRST_PAUSE, 2, LONGEST_PAUSE), FIRST_PAUSE * 4);
        assert_eq!(doubled(FIRST_PAUSE, 9_000, LONGEST_PAUSE), LONGEST_PAUSE);
    }
}
