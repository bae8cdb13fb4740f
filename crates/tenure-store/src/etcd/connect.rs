//! The connection to a cluster: one member at a time, the next one when it fails, without end.
//!
//! A connection counts as made when the member has answered and knows a leader: a process that was stopped still accepts
//! connections. It is made by a task of its own, so that callers who give up early do not keep it from ever being made.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};

use super::call::{self, AttemptError};
use super::errors::{self, CallContext};
use super::proto::{
    AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, STATUS, StatusRequest, StatusResponse,
};
use super::settings::Settings;
use super::single_use_connector::SingleUseConnector;
use crate::error::StoreError;
use crate::machine_identity::random_bytes;
use crate::rng::SplitMix;

/// How long a member may take to answer at first; doubled with each round that fails, so that far ones are reached too.
const FIRST_PATIENCE: Duration = Duration::from_millis(500);
const MOST_PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait between two rounds; doubled likewise.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// For how long rounds are begun for a store that is being opened, if members are silent.
const OPENING: Duration = Duration::from_secs(2);
/// How long a call waits for the next round when the last has failed: less than any node waits for an answer.
const NEXT_ROUND: Duration = Duration::from_millis(100);
/// etcd takes pings more often than every five seconds for an attack.
const PING_EVERY: Duration = Duration::from_secs(6);
const PING_PATIENCE: Duration = Duration::from_secs(3);
/// What one stream may have on the way, and all together: watches that nobody reads must not stop the calls beside them.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 128 << 20;

/// A token that stands for a user and a password. Not printed.
pub(super) type Token = MetadataValue<Ascii>;

/// One connection to one member.
pub(super) struct Link {
    pub(super) channel: Channel,
    pub(super) endpoint: String,
    pub(super) token: Option<Token>,
    at: usize,
    heard: Mutex<Instant>,
    retired: watch::Sender<bool>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.endpoint).finish()
    }
}

impl Link {
    /// Notes that the member answered.
    pub(super) fn hear(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Whether the member answered anything since then.
    pub(super) fn heard_since(&self, then: Instant) -> bool {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) > then
    }

    /// Changes to true when the connection is given up.
    pub(super) fn retirement(&self) -> watch::Receiver<bool> {
        self.retired.subscribe()
    }
}

/// What all connections of one store share.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) settings: Settings,
    token: Mutex<Option<Token>>,
    rng: Mutex<SplitMix>,
}

impl Cluster {
    pub(super) fn new(settings: Settings) -> Self {
        let mut seed = [0; 8];
        seed.copy_from_slice(&random_bytes()[..8]);
        Self {
            settings,
            token: Mutex::default(),
            rng: Mutex::new(SplitMix::new(u64::from_ne_bytes(seed))),
        }
    }

    fn below(&self, n: u64) -> u64 {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        rng.below(n)
    }

    fn token(&self) -> MutexGuard<'_, Option<Token>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The present connection, or the way to the next one.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) cluster: Arc<Cluster>,
    state: Mutex<State>,
    /// How many rounds through the endpoints have ended.
    rounds: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    link: Option<Arc<Link>>,
    /// Whether a round is under way.
    connecting: bool,
    /// Rounds that failed since the last one that did not.
    failures: u32,
    /// The endpoint to begin with.
    next: usize,
    /// Why the last round failed.
    reason: StoreError,
}

impl Client {
    pub(super) fn new(cluster: Arc<Cluster>) -> Arc<Self> {
        // Clients begin anywhere, so that not all of them are with the first member.
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
                    "the connection to etcd is not established yet; retry",
                ),
            }),
            rounds: watch::Sender::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, made if there is none. Fails with the round through all endpoints that it waits for, or after a moment
    /// with the last one.
    pub(super) async fn link(self: &Arc<Self>) -> Result<Arc<Link>, StoreError> {
        self.linked(NEXT_ROUND).await
    }

    /// The same; `patience` is for the next round after one that failed.
    async fn linked(self: &Arc<Self>, patience: Duration) -> Result<Arc<Link>, StoreError> {
        let mut rounds = self.rounds.subscribe();
        let failing;
        {
            let mut state = self.lock();
            failing = state.failures > 0;
            if let Some(link) = &state.link {
                return Ok(link.clone());
            }
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

    /// The first connection. Members that are silent are given more time with every round; what any other failure says, another
    /// round would say again.
    pub(super) async fn first_link(self: &Arc<Self>) -> Result<Arc<Link>, StoreError> {
        let deadline = Instant::now() + OPENING;
        loop {
            let begun = Instant::now();
            match self.linked(call::CALL_TIMEOUT).await {
                Err(StoreError::Unavailable { .. })
                    if begun.elapsed() >= FIRST_PATIENCE && Instant::now() < deadline => {}
                answer => return answer,
            }
        }
    }

    /// Gives a connection up; the next call goes to the next endpoint. Watches on it end.
    pub(super) fn retire(&self, link: &Arc<Link>) {
        link.retired.send_replace(true);
        let mut state = self.lock();
        if state
            .link
            .as_ref()
            .is_some_and(|now| Arc::ptr_eq(now, link))
        {
            state.link = None;
            state.next = (link.at + 1) % self.cluster.settings.endpoints.len();
        }
    }

    /// Gives up a connection whose token the server no longer takes, and the token with it.
    pub(super) fn retire_token(&self, link: &Arc<Link>) {
        self.cluster
            .token()
            .take_if(|token| Some(&*token) == link.token.as_ref());
        self.retire(link);
    }
}

/// One round through the endpoints. If it is dropped halfway, with its runtime, the next caller begins another.
struct Round {
    client: Arc<Client>,
    answer: Option<Result<Link, StoreError>>,
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
                "the attempt to connect to etcd was cancelled or panicked; retry",
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
                state.next = (state.next + 1) % self.client.cluster.settings.endpoints.len();
                state.reason = reason;
            }
        }
        drop(state);
        self.client.rounds.send_modify(|n| *n += 1);
    }
}

fn doubled(first: Duration, times: u32, most: Duration) -> Duration {
    let factor = 1u32.checked_shl(times).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(most)
}

fn about(link: &Link) -> CallContext<'_> {
    CallContext {
        endpoint: &link.endpoint,
        key: "",
        writes: false,
    }
}

impl Cluster {
    /// Tries the endpoints in turn. Fails as denied only if all of them say so.
    async fn connect(&self, first: usize, patience: Duration) -> Result<Link, StoreError> {
        let endpoints = &self.settings.endpoints;
        let mut failures: Vec<StoreError> = Vec::new();
        for n in 0..endpoints.len() {
            let at = (first + n) % endpoints.len();
            let tried = tokio::time::timeout(patience, self.attempt(at)).await;
            let late = || {
                let reason = format!(
                    "etcd at {} does not answer; check that it runs and is reachable",
                    endpoints[at]
                );
                Err(StoreError::unavailable(reason))
            };
            match tried.unwrap_or_else(|_| late()) {
                Ok(link) => {
                    tracing::debug!(endpoint = link.endpoint, "connected to etcd");
                    return Ok(link);
                }
                Err(e) => failures.push(e),
            }
        }
        let denied = failures
            .iter()
            .all(|e| matches!(e, StoreError::Denied { .. }));
        let whys: Vec<String> = failures
            .into_iter()
            .map(|e| match e {
                StoreError::Unavailable { reason } | StoreError::Denied { reason } => reason,
                other => other.to_string(),
            })
            .collect();
        let reason = whys.join("; ");
        Err(if denied {
            StoreError::denied(reason)
        } else {
            StoreError::unavailable(reason)
        })
    }

    async fn attempt(&self, at: usize) -> Result<Link, StoreError> {
        let name = &self.settings.endpoints[at];
        let channel = self
            .endpoint(name)?
            .connect_with_connector(SingleUseConnector::new())
            .await;
        let channel = channel.map_err(|e| self.unreachable(name, &errors::causes(&e)))?;
        let mut link = Link {
            channel,
            endpoint: name.clone(),
            token: None,
            at,
            heard: Mutex::new(Instant::now()),
            retired: watch::Sender::new(false),
        };
        let status: Result<StatusResponse, AttemptError> =
            call::unary(&link, STATUS, StatusRequest {}).await;
        match status {
            Ok(status) if status.is_learner => {
                let reason =
                    format!("etcd at {name} is a learner; use the endpoint of a voting member");
                return Err(StoreError::unavailable(reason));
            }
            Ok(status) if status.leader == 0 => {
                let reason = format!(
                    "etcd at {name} has no leader: too few members of the cluster are up and connected"
                );
                return Err(StoreError::unavailable(reason));
            }
            Ok(_) => {}
            Err(AttemptError::NotSent(reason)) => return Err(self.unreachable(name, &reason)),
            Err(AttemptError::Answer(status)) if errors::is_transport(&status) => {
                return Err(self.unreachable(name, &errors::causes(&status)));
            }
            Err(AttemptError::Answer(status)) if errors::blames_member(&status) => {
                return Err(errors::explain(about(&link), &status));
            }
            // Whoever refuses to tell how it is has answered.
            Err(AttemptError::Answer(_)) => {}
        }
        link.token = self.logged_in(&link).await?;
        Ok(link)
    }

    fn endpoint(&self, name: &str) -> Result<Endpoint, StoreError> {
        let refused = |e: tonic::transport::Error| {
            let reason = errors::causes(&e);
            StoreError::denied(format!("etcd endpoint {name:?} cannot be used: {reason}"))
        };
        let scheme = if self.settings.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{name}"))
            .map_err(refused)?
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_PATIENCE)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        match &self.settings.tls {
            Some(tls) => endpoint.tls_config(tls.clone()).map_err(refused),
            None => Ok(endpoint),
        }
    }

    fn unreachable(&self, name: &str, reason: &str) -> StoreError {
        let reason = reason.trim_end_matches(": ");
        if reason.to_lowercase().contains("certificate") {
            return StoreError::denied(format!(
                "TLS with etcd at {name} failed: {reason}; check ca=, cert= and key= of the store URL, \
                 or ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY"
            ));
        }
        let refused = reason.contains("refused");
        let hint = match &self.settings.tls {
            _ if refused => "check that it runs, and the store URL",
            Some(_) => "check the store URL; a server without TLS is written etcd://",
            None => "check the store URL; a server with TLS is written etcds://",
        };
        StoreError::unavailable(format!(
            "etcd at {name} cannot be reached: {reason}; {hint}"
        ))
    }

    /// The token that goes with the user, the known one if there is one.
    async fn logged_in(&self, link: &Link) -> Result<Option<Token>, StoreError> {
        let Some(credentials) = &self.settings.credentials else {
            return Ok(None);
        };
        if let Some(token) = &*self.token() {
            return Ok(Some(token.clone()));
        }
        let question = AuthenticateRequest {
            name: credentials.user.clone(),
            password: credentials.password.clone(),
        };
        let answer: Result<AuthenticateResponse, AttemptError> =
            call::unary(link, AUTHENTICATE, question).await;
        match answer {
            Ok(answer) => {
                let parsed = answer.token.parse();
                let mut token: Token = parsed.map_err(|_| {
                    StoreError::unavailable(format!(
                        "etcd at {} returned an invalid authentication token",
                        link.endpoint
                    ))
                })?;
                token.set_sensitive(true);
                *self.token() = Some(token.clone());
                Ok(Some(token))
            }
            // A user is known, but nobody asks for one: as etcdctl has it, that is all right.
            Err(AttemptError::Answer(status))
                if status.message().contains("authentication is not enabled") =>
            {
                Ok(None)
            }
            Err(AttemptError::Answer(status)) => Err(errors::explain(about(link), &status)),
            Err(AttemptError::NotSent(reason)) => Err(self.unreachable(&link.endpoint, &reason)),
        }
    }
}
