//! One question to the cluster and its answer, in bounded time.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{IntoRequest as _, Request, Status};
use tonic_prost::ProstCodec;

use super::connect::{Client, Link};
use super::errors::{self, CallContext};
use super::proto::{HasHeader, Rpc};
use crate::error::StoreError;

/// How long any call may take. Callers who need to know sooner drop it sooner.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// A call that is dropped after this time, with nothing heard from the member since it was sent, speaks against the member.
const HANGS_AFTER: Duration = Duration::from_millis(50);
/// The largest answer that is read: what a page of a list or a transaction of reads can hold at most.
const LARGEST_ANSWER: usize = 512 << 20;

/// Error of a single attempt of a call.
#[derive(Debug)]
pub(super) enum AttemptError {
    /// Before anything was sent.
    NotSent(String),
    /// With this answer, from the server or from the wire.
    Answer(Status),
}

impl Client {
    /// Asks over the present connection, or over the next one if there is none.
    pub(super) async fn ask<A: HasHeader>(
        self: &Arc<Self>,
        rpc: Rpc,
        key: &str,
        question: impl Message + Clone + 'static,
    ) -> Result<A, StoreError> {
        let asked = self.ask_by(rpc, key, |link| {
            let question = question.clone();
            async move { unary(&link, rpc, question).await }
        });
        Ok(asked.await?.0)
    }

    /// Asks by `attempt`, which gets the connection; repeats it once if the token was refused. Answers with the connection
    /// that it went over.
    pub(super) async fn ask_by<A, F>(
        self: &Arc<Self>,
        rpc: Rpc,
        key: &str,
        attempt: impl Fn(Arc<Link>) -> F,
    ) -> Result<(A, Arc<Link>), StoreError>
    where
        F: Future<Output = Result<A, AttemptError>>,
    {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let mut again = self.cluster.settings.credentials.is_some();
        loop {
            let link = tokio::time::timeout_at(deadline, self.link()).await;
            let link = link.map_err(|_| self.unconnected())??;
            let about = CallContext {
                endpoint: &link.endpoint,
                key,
                writes: rpc.writes,
            };
            let waiting = Waiting::new(self, &link);
            let answer = tokio::time::timeout_at(deadline, attempt(link.clone())).await;
            let Ok(answer) = answer else {
                let said = format!("the server did not respond within {CALL_TIMEOUT:?}");
                return Err(errors::explain(about, &Status::deadline_exceeded(said)));
            };
            waiting.over();
            match answer {
                Ok(answer) => {
                    link.hear();
                    return Ok((answer, link));
                }
                Err(AttemptError::NotSent(reason)) => {
                    self.retire(&link);
                    let reason = format!("etcd at {} cannot be reached: {reason}", link.endpoint);
                    return Err(StoreError::unavailable(reason));
                }
                Err(AttemptError::Answer(status)) if again && errors::wants_token(&status) => {
                    again = false;
                    self.retire_token(&link);
                }
                Err(AttemptError::Answer(status)) => {
                    if errors::blames_member(&status) {
                        self.retire(&link);
                    } else {
                        link.hear();
                    }
                    return Err(errors::explain(about, &status));
                }
            }
        }
    }

    fn unconnected(&self) -> StoreError {
        let endpoints = self.cluster.settings.endpoints.join(", ");
        StoreError::unavailable(format!(
            "no connection to etcd at {endpoints}; check that it runs and is reachable"
        ))
    }
}

/// Sends one question over a connection and waits for its one answer.
pub(super) async fn unary<A: HasHeader>(
    link: &Link,
    rpc: Rpc,
    question: impl Message + 'static,
) -> Result<A, AttemptError> {
    let mut grpc = ready(link).await?;
    let request = dressed(link, question.into_request());
    let path = PathAndQuery::from_static(rpc.path);
    let answer = grpc.unary(request, path, ProstCodec::default()).await;
    Ok(answer.map_err(AttemptError::Answer)?.into_inner())
}

/// A client on a connection that can take a request now.
pub(super) async fn ready(link: &Link) -> Result<Grpc<Channel>, AttemptError> {
    let mut grpc = Grpc::new(link.channel.clone()).max_decoding_message_size(LARGEST_ANSWER);
    let ready = grpc.ready().await;
    ready.map_err(|e| AttemptError::NotSent(errors::causes(&e)))?;
    Ok(grpc)
}

/// The request with what goes along with every one.
pub(super) fn dressed<T>(link: &Link, mut request: Request<T>) -> Request<T> {
    let metadata = request.metadata_mut();
    // A member that has lost its leader says so, instead of letting us wait.
    metadata.insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = &link.token {
        metadata.insert("token", token.clone());
    }
    request
}

/// A call under way. If it is dropped and the member has long been silent, the connection is given up.
struct Waiting<'a> {
    client: &'a Client,
    link: &'a Arc<Link>,
    since: Instant,
    over: bool,
}

impl<'a> Waiting<'a> {
    fn new(client: &'a Client, link: &'a Arc<Link>) -> Self {
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
                "etcd member did not respond, using another connection"
            );
            self.client.retire(self.link);
        }
    }
}
