//! One question to the cluster and its answer, in bounded time.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{HeaderMap, Message, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::connect::Client;
use super::connection::{Connection, PermissionDenial};
use super::errors::CallContext;
use super::jetstream::{self, ApiError};
use crate::error::StoreError;

/// How long any call may take. Callers who need to know sooner drop it sooner.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// A call that is dropped after this time, with nothing heard from the server since it was sent, speaks against the server.
const HANGS_AFTER: Duration = Duration::from_millis(50);

/// Request to a NATS server.
pub(super) struct NatsRequest {
    pub(super) subject: String,
    pub(super) payload: Vec<u8>,
    pub(super) headers: Option<HeaderMap>,
    /// Whether it may change what is stored: then its outcome is unknown if the answer is lost.
    pub(super) writes: bool,
}

impl NatsRequest {
    /// Asks JetStream something that changes nothing.
    pub(super) fn reads(subject: String, body: &impl Serialize) -> Self {
        Self {
            subject,
            payload: serde_json::to_vec(body).unwrap_or_default(),
            headers: None,
            writes: false,
        }
    }

    /// The same for something that does.
    pub(super) fn writes(subject: String, body: &impl Serialize) -> Self {
        Self {
            writes: true,
            ..Self::reads(subject, body)
        }
    }
}

impl Client {
    /// Asks over the present connection, or over the next one if there is none.
    pub(super) async fn demand<T: DeserializeOwned>(
        self: &Arc<Self>,
        question: NatsRequest,
    ) -> Result<T, StoreError> {
        let (subject, writes) = (question.subject.clone(), question.writes);
        let (answer, link) = self.ask_linked(question).await?;
        answer.map_err(|refusal| {
            let about = CallContext {
                endpoint: &link.endpoint,
                subject: &subject,
                writes,
            };
            about.refused(&refusal)
        })
    }

    /// The same for those to whom a refusal by JetStream is an answer; says over which connection it came.
    pub(super) async fn ask_linked<T: DeserializeOwned>(
        self: &Arc<Self>,
        question: NatsRequest,
    ) -> Result<(Result<T, ApiError>, Arc<Connection>), StoreError> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let link = tokio::time::timeout_at(deadline, self.link()).await;
        let link = link.map_err(|_| self.unconnected())??;
        let answer = self.ask_over(&link, question, deadline).await?;
        Ok((answer, link))
    }

    /// Asks over this connection.
    pub(super) async fn ask_over<T: DeserializeOwned>(
        &self,
        link: &Arc<Connection>,
        question: NatsRequest,
        deadline: Instant,
    ) -> Result<Result<T, ApiError>, StoreError> {
        let subject = question.subject.clone();
        let about = CallContext {
            endpoint: &link.endpoint,
            subject: &subject,
            writes: question.writes,
        };
        let message = self.exchange(link, question, about, deadline).await?;
        link.hear();
        jetstream::read(&message.payload)
            .map_err(|e| about.uncertain(&format!("unexpected response: {e}")))
    }

    async fn exchange(
        &self,
        link: &Arc<Connection>,
        question: NatsRequest,
        about: CallContext<'_>,
        deadline: Instant,
    ) -> Result<Message, StoreError> {
        let refusal = link.refusal(&question.subject);
        let mut request = Request::new().payload(question.payload.into());
        if let Some(headers) = question.headers {
            request = request.headers(headers);
        }
        let waiting = Waiting::new(self, link);
        let sent = link.client.send_request(question.subject, request);
        let answer = tokio::select! {
            biased;
            answer = sent => answer.map_err(|e| about.failed(&e)),
            refused = refusal => Err(match refused {
                PermissionDenial::Asking => about.forbidden(),
                PermissionDenial::Hearing => about.deaf(),
            }),
            () = link.retirement() => Err(about.uncertain("the connection to NATS was lost")),
            () = tokio::time::sleep_until(deadline) => {
                // Dropped below, it speaks against the server.
                drop(waiting);
                return Err(about.uncertain(&format!("the server did not respond within {CALL_TIMEOUT:?}")));
            }
        };
        waiting.over();
        answer
    }

    fn unconnected(&self) -> StoreError {
        let endpoints = self.cluster.settings.endpoints.join(", ");
        StoreError::unavailable(format!(
            "no connection to NATS at {endpoints}; check that it runs and is reachable"
        ))
    }
}

/// A call under way. If it is dropped and the server has long been silent, the connection is given up.
struct Waiting<'a> {
    client: &'a Client,
    link: &'a Arc<Connection>,
    since: Instant,
    over: bool,
}

impl<'a> Waiting<'a> {
    fn new(client: &'a Client, link: &'a Arc<Connection>) -> Self {
        Self {
            client,
            link,
            since: Instant::now(),
            over: false,
        }
    }

    fn over(mut self) {
        self.over = true;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.over && self.since.elapsed() >= HANGS_AFTER && !self.link.heard_since(self.since) {
            tracing::debug!(
                endpoint = self.link.endpoint,
                "NATS server did not respond, using another connection"
            );
            self.client.retire(self.link);
        }
    }
}
