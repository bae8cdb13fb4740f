//! The router as a reverse proxy: finds out what a request is about, and carries it to the owner.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use tenure::router::{Route, SendResult};
use tenure::{Epoch, Router};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::body::{Body, DeferredBody, RelayedBody, ReplayableBody, TransferProgress};
use crate::error_response::{ErrorResponse, error, not_carried};
use crate::headers;
use crate::key_extraction::{KeyRule, RequestTarget};
use crate::listener::Service;
use crate::metrics::HttpMetrics;
use crate::upgrade;
use crate::upstream::{ConnectionPool, Protocol, SendError};

/// The kind of address under which a node says where it takes HTTP.
pub const ADDRESS: &str = "http";
/// How large a body may be that is kept to be sent again.
pub const REPLAYABLE: usize = 64 * 1024;
/// What a request counts for while it is held, beside its body.
const HEAD_WEIGHT: u64 = 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Well below the time after which a gate closes a connection that nothing comes on.
const MOST_IDLE: Duration = Duration::from_secs(10);

/// What a proxy waits for, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct ProxySettings {
    /// How long an owner may take to begin its answer, counted from when the last of the request went to it.
    pub timeout: Duration,
    /// How long streams that were upgraded may go on when the proxy is to end.
    pub stream_grace: Duration,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            stream_grace: Duration::from_secs(10),
        }
    }
}

/// A reverse proxy on top of a router.
pub struct Proxy {
    router: Router,
    rule: KeyRule,
    settings: ProxySettings,
    pool: ConnectionPool,
    metrics: Arc<HttpMetrics>,
    stopping: CancellationToken,
    streams: TaskTracker,
}

/// A request on its way.
struct Carried {
    head: Parts,
    key: Option<HeaderValue>,
    protocol: Protocol,
    body: RequestBody,
    progress: TransferProgress,
}

/// The body of a request, as long as it may have to be sent again.
enum RequestBody {
    Bytes(Bytes),
    Waiting(DeferredBody),
    Remembered(ReplayableBody),
}

impl RequestBody {
    fn is_whole(&self) -> bool {
        match self {
            Self::Bytes(_) => true,
            Self::Waiting(body) => body.is_whole(),
            Self::Remembered(body) => body.is_whole(),
        }
    }

    fn weight(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Waiting(_) => 0,
            Self::Remembered(_) => REPLAYABLE as u64,
        }
    }
}

impl Service for Proxy {
    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        client: SocketAddr,
    ) -> Response<Body> {
        let counted = self.metrics.begin();
        let answer = match self.carry(request, client).await {
            Ok(answer) => answer,
            Err(refused) => *refused,
        };
        counted.answered(answer.status());
        answer
    }
}

impl Proxy {
    /// A proxy that looks for keys by this rule.
    pub fn new(
        router: Router,
        rule: KeyRule,
        settings: ProxySettings,
        metrics: Arc<HttpMetrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            router,
            rule,
            settings,
            pool: ConnectionPool::new(CONNECT_TIMEOUT, MOST_IDLE),
            metrics,
            stopping: CancellationToken::new(),
            streams: TaskTracker::new(),
        })
    }

    /// The router underneath.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Its metrics in the text format of Prometheus, those that are its own.
    pub fn render(&self) -> String {
        self.metrics.render()
    }

    /// Ends what lasts: streams that were upgraded get a while to end by themselves, then they are cut.
    pub async fn stop_streams(&self) {
        self.stopping.cancel();
        self.streams.close();
        self.streams.wait().await;
    }

    async fn carry(
        &self,
        request: Request<Incoming>,
        client: SocketAddr,
    ) -> Result<Response<Body>, ErrorResponse> {
        let (mut head, body) = request.into_parts();
        let upgrading = head.extensions.remove::<OnUpgrade>();
        check(&head)?;
        let target = self.rule.find(&head);
        let target = target.map_err(|reason| error(StatusCode::BAD_REQUEST, "no_key", &reason))?;
        let upgrade = prepare(&mut head, client);
        let grpc = is_grpc(&head);
        let progress = TransferProgress::new();
        let body = self.hold(body, grpc, &progress).await?;
        let carried = Carried {
            key: match &target {
                RequestTarget::Key(key) => Some(headers::key_value(key)),
                RequestTarget::Shard(_) => None,
            },
            protocol: if grpc {
                Protocol::Http2
            } else {
                Protocol::Http1
            },
            head,
            body,
            progress,
        };
        let bytes = HEAD_WEIGHT + carried.body.weight();
        let call = |route| self.attempt(route, &carried, upgrade.as_ref());
        let answered = match &target {
            RequestTarget::Key(key) => {
                let keyspace = self.rule.keyspace.as_str();
                self.router.send(keyspace, key, bytes, call).await
            }
            RequestTarget::Shard(shard) => self.router.send_to(shard, bytes, call).await,
        };
        let answer = answered.map_err(|reason| not_carried(&reason))??;
        Ok(self.pass_on(answer, upgrading))
    }

    /// Takes the body of a request as far as it must be here before the request goes anywhere.
    async fn hold(
        &self,
        body: Incoming,
        grpc: bool,
        progress: &TransferProgress,
    ) -> Result<RequestBody, ErrorResponse> {
        if body.is_end_stream() {
            return Ok(RequestBody::Bytes(Bytes::new()));
        }
        if grpc {
            let memory = ReplayableBody::new(body, REPLAYABLE, progress.clone());
            return Ok(RequestBody::Remembered(memory));
        }
        if body
            .size_hint()
            .upper()
            .is_none_or(|n| n > REPLAYABLE as u64)
        {
            return Ok(RequestBody::Waiting(DeferredBody::new(
                body,
                progress.clone(),
            )));
        }
        let whole = Limited::new(body, REPLAYABLE).collect();
        match tokio::time::timeout(self.settings.timeout, whole).await {
            Ok(Ok(whole)) => Ok(RequestBody::Bytes(whole.to_bytes())),
            Ok(Err(reason)) if reason.is::<LengthLimitError>() => {
                let status = StatusCode::PAYLOAD_TOO_LARGE;
                Err(error(
                    status,
                    "bad_body",
                    "the request body is longer than its Content-Length",
                ))
            }
            Ok(Err(reason)) => {
                let reason = format!("reading the request body failed: {reason}");
                Err(error(StatusCode::BAD_REQUEST, "bad_body", &reason))
            }
            Err(_) => {
                let reason = "the client did not send the request body in time; retry";
                Err(error(StatusCode::REQUEST_TIMEOUT, "body_timeout", reason))
            }
        }
    }

    /// Sends the request to one node.
    async fn attempt(
        &self,
        route: Route,
        carried: &Carried,
        upgrade: Option<&HeaderValue>,
    ) -> SendResult<Result<Response<RelayedBody>, ErrorResponse>> {
        if !carried.body.is_whole() {
            // Refused after it was sent in part: no owner has done anything for it, but the rest of it is not here.
            self.metrics.not_replayed();
            let reason = "the shard's owner changed while the request body was being sent; the request was not \
                executed; retry";
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return SendResult::Done(Err(error(status, "not_replayable", reason)));
        }
        let away = |reason: &str| {
            debug!(shard = %route.shard, owner = %route.owner.node(), reason, "request not sent to the owner, holding it for a retry");
            self.metrics.not_sent();
            SendResult::NotOwner {
                owner: None,
                epoch: route.epoch,
                rev: route.rev,
            }
        };
        let Some(address) = route.owner.address(ADDRESS).and_then(host_of) else {
            return away("the owner has published no `http` address in its session");
        };
        let request = carried.request(&route, upgrade);
        let sending = self.pool.send(address, carried.protocol, request);
        let sent = tokio::select! {
            biased;
            sent = sending => sent,
            () = carried.progress.stalled(self.settings.timeout) => {
                let reason = format!(
                    "shard {}: node {} did not respond within {:?}; the outcome is unknown",
                    route.shard, route.owner.node(), self.settings.timeout
                );
                self.metrics.timed_out();
                return SendResult::Done(Err(error(StatusCode::GATEWAY_TIMEOUT, "timeout", &reason)));
            }
        };
        match sent {
            Ok(answer) => match refusal(&answer) {
                Some((owner, epoch, rev)) => SendResult::NotOwner { owner, epoch, rev },
                None => SendResult::Done(Ok(answer)),
            },
            Err(SendError::NotSent(reason)) => away(&reason),
            Err(SendError::Unknown(reason)) => {
                let reason = format!(
                    "shard {}: node {} closed the connection while it processed the request; the outcome is unknown ({reason})",
                    route.shard,
                    route.owner.node()
                );
                self.metrics.broken();
                SendResult::Done(Err(error(
                    StatusCode::BAD_GATEWAY,
                    "owner_disconnected",
                    &reason,
                )))
            }
        }
    }

    /// The owner's answer, for the client.
    fn pass_on(
        &self,
        mut answer: Response<RelayedBody>,
        upgrading: Option<OnUpgrade>,
    ) -> Response<Body> {
        let switching = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
        let upgrade = headers::strip_hop_by_hop(answer.headers_mut());
        if switching {
            let Some(upgrading) = upgrading else {
                let reason =
                    "the application switched protocols, but the client did not request an upgrade";
                return *error(StatusCode::BAD_GATEWAY, "unexpected_upgrade", reason);
            };
            if let Some(protocol) = upgrade {
                upgraded(answer.headers_mut(), protocol);
            }
            let owners = hyper::upgrade::on(&mut answer);
            let (stopping, grace) = (self.stopping.clone(), self.settings.stream_grace);
            let open = self.metrics.stream();
            self.streams.spawn(async move {
                let _open = open;
                let cut = async {
                    stopping.cancelled().await;
                    tokio::time::sleep(grace).await;
                };
                upgrade::join(upgrading, owners, cut).await;
            });
        }
        let (head, relay) = answer.into_parts();
        let mut answer = Response::from_parts(head, Body::Relay(relay));
        *answer.version_mut() = Version::HTTP_11;
        answer
    }
}

impl Carried {
    fn request(&self, route: &Route, upgrade: Option<&HeaderValue>) -> Request<Body> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = self.head.method.clone();
        *request.uri_mut() = self.head.uri.clone();
        let headers = request.headers_mut();
        *headers = self.head.headers.clone();
        headers.insert(headers::SHARD, headers::shard_value(&route.shard));
        headers.insert(headers::EPOCH, headers::number(route.epoch.0));
        if let Some(key) = &self.key {
            headers.insert(headers::KEY, key.clone());
        }
        if let Some(protocol) = upgrade {
            upgraded(headers, protocol.clone());
        }
        match &self.body {
            RequestBody::Bytes(bytes) => *request.body_mut() = Body::of(bytes.clone()),
            RequestBody::Remembered(body) => *request.body_mut() = Body::other(body.again()),
            RequestBody::Waiting(body) => {
                let (parked, go) = body.parked();
                *request.body_mut() = Body::other(parked);
                let go = std::sync::Mutex::new(Some(go));
                request
                    .headers_mut()
                    .insert(header::EXPECT, HeaderValue::from_static("100-continue"));
                hyper::ext::on_informational(&mut request, move |told| {
                    let go = go.lock().ok().and_then(|mut go| go.take());
                    if told.status() == StatusCode::CONTINUE
                        && let Some(go) = go
                    {
                        let _ = go.send(());
                    }
                });
            }
        }
        request
    }
}

/// What no proxy should pass on.
pub(crate) fn check(head: &Parts) -> Result<(), ErrorResponse> {
    let bad = |reason: &str| Err(error(StatusCode::BAD_REQUEST, "bad_request", reason));
    if head.method == Method::CONNECT {
        let reason = "the method CONNECT is not supported";
        return Err(error(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            reason,
        ));
    }
    let hosts = head.headers.get_all(header::HOST).iter().count();
    match head.version {
        Version::HTTP_11 if hosts != 1 => bad("the request must have exactly one Host header"),
        _ if hosts > 1 => bad("the request has more than one Host header"),
        _ => Ok(()),
    }
}

/// Makes the head of a client's request one of our own; says which upgrade it asks for.
fn prepare(head: &mut Parts, client: SocketAddr) -> Option<HeaderValue> {
    let upgrade = headers::strip_hop_by_hop(&mut head.headers);
    headers::strip_ours(&mut head.headers);
    // The gate is asked for leave by the router itself, where it needs to.
    head.headers.remove(header::EXPECT);
    if let Some(authority) = head.uri.authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        head.headers.insert(header::HOST, host);
    }
    // As HTTP/1.0 may leave it out: a request without one does not go on as HTTP/1.1.
    let nobody = HeaderValue::from_static("");
    head.headers.entry(header::HOST).or_insert(nobody);
    if let Some(path) = head.uri.path_and_query() {
        head.uri = Uri::from(path.clone());
    }
    headers::forwarded(&mut head.headers, client.ip());
    headers::trace(&mut head.headers);
    upgrade.filter(|_| head.version == Version::HTTP_11)
}

pub(crate) fn is_grpc(head: &Parts) -> bool {
    head.version == Version::HTTP_2
        && head
            .headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|t| t.as_bytes().starts_with(b"application/grpc"))
}

/// Asks for, or grants, another protocol on this connection.
pub(crate) fn upgraded(headers: &mut hyper::HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

/// `HOST:PORT` of an address such as `http://HOST:PORT`.
pub(crate) fn host_of(address: &str) -> Option<&str> {
    let rest = address.strip_prefix("http://").unwrap_or(address);
    let host = rest.trim_end_matches('/');
    (!host.is_empty() && !host.contains('/')).then_some(host)
}

/// What a gate says that refuses. Only with its own mark does it count.
fn refusal<B>(answer: &Response<B>) -> Option<(Option<tenure::SessionId>, Epoch, u64)> {
    if answer.status() != StatusCode::MISDIRECTED_REQUEST {
        return None;
    }
    let headers = answer.headers();
    headers.get(headers::REFUSED)?;
    let epoch = headers::epoch_of(headers).unwrap_or_default();
    let rev = headers::number_of(headers, &headers::REV).unwrap_or_default();
    Some((headers::owner_of(headers), epoch, rev))
}
