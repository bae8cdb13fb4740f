//! The gate in front of an application: lets in what this node owns, and nothing else.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode, Uri};
use tenure::{AdmittedRequest, Handler, Node, NotOwner, RejectReason};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::body::{Body, ProgressBody, TransferProgress};
use crate::error_response::{ErrorResponse, error};
use crate::headers;
use crate::key_extraction::{KeyRule, RequestTarget};
use crate::lifecycle_hooks::{host_value, parts};
use crate::listener::Service;
use crate::metrics::HttpMetrics;
use crate::proxy::{Proxy, check, upgraded};
use crate::tracked_response::{AdmittedBody, StreamEnding};
use crate::upgrade;
use crate::upstream::{ConnectionPool, Protocol, SendError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Many applications close connections that nothing came on for a few seconds; a request that crosses that is lost.
const MOST_IDLE: Duration = Duration::from_secs(1);

/// Where the application is, and how to speak to it.
#[derive(Debug)]
pub struct ApplicationEndpoint {
    host: String,
    protocol: Protocol,
    base: String,
    pool: ConnectionPool,
}

impl ApplicationEndpoint {
    /// The application at this URL: `http://HOST:PORT` or, for HTTP/2 and gRPC, `h2c://HOST:PORT`.
    pub fn new(url: &str) -> Result<Arc<Self>, String> {
        let (host, protocol, base) = parts(url)?;
        Ok(Arc::new(Self {
            host,
            protocol,
            base,
            pool: ConnectionPool::new(CONNECT_TIMEOUT, MOST_IDLE),
        }))
    }

    /// Whether it takes connections.
    pub async fn answers(&self) -> Result<(), String> {
        self.pool.reaches(&self.host).await
    }
}

/// What a gate waits for, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct SidecarSettings {
    /// How long the application may take to begin its answer, counted from when the last of the request went to it.
    pub timeout: Duration,
}

impl Default for SidecarSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
        }
    }
}

/// The gate of one node.
pub struct Sidecar<H: Handler> {
    node: Node,
    rule: KeyRule,
    application: Arc<ApplicationEndpoint>,
    settings: SidecarSettings,
    metrics: Arc<HttpMetrics>,
    /// Where requests go that no router has sent.
    route: Option<Arc<Proxy>>,
    streams: TaskTracker,
    _handler: std::marker::PhantomData<fn() -> H>,
}

/// Why the application gave no answer.
enum Failure {
    Down(String),
    Broken(String),
    Timeout,
    Lost,
}

impl<H: Handler> Service for Sidecar<H> {
    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        client: SocketAddr,
    ) -> Response<Body> {
        if let Some(proxy) = &self.route
            && !request.headers().contains_key(headers::EPOCH)
        {
            return proxy.clone().answer(request, client).await;
        }
        let counted = self.metrics.begin();
        let answer = match self.admit(request).await {
            Ok(answer) => answer,
            Err(refused) => *refused,
        };
        counted.answered(answer.status());
        answer
    }
}

impl<H: Handler> Sidecar<H> {
    /// A gate. Requests that a router sent name shard and epoch; others are let in by `rule`, or go to `route`.
    pub fn new(
        node: Node,
        rule: KeyRule,
        application: Arc<ApplicationEndpoint>,
        settings: SidecarSettings,
        metrics: Arc<HttpMetrics>,
        route: Option<Arc<Proxy>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            node,
            rule,
            application,
            settings,
            metrics,
            route,
            streams: TaskTracker::new(),
            _handler: std::marker::PhantomData,
        })
    }

    /// Waits until no stream is left: they end with the shards of the node.
    pub async fn streams_ended(&self) {
        self.streams.close();
        self.streams.wait().await;
    }

    async fn admit(&self, request: Request<Incoming>) -> Result<Response<Body>, ErrorResponse> {
        let (mut head, body) = request.into_parts();
        let upgrading = head.extensions.remove::<OnUpgrade>();
        check(&head)?;
        let entered = self.enter(&mut head)?;
        // From here on the request is in flight.
        let upgrade = self.prepare(&mut head, &entered);
        let marks = [
            (
                headers::SHARD,
                headers::shard_value(entered.grant().shard()),
            ),
            (headers::EPOCH, headers::number(entered.grant().epoch().0)),
            (headers::NODE, headers::ascii(self.node.name().as_str())),
        ];
        if let Some(protocol) = &upgrade {
            upgraded(&mut head.headers, protocol.clone());
        }
        let mut answer = self.ask(head, body, entered).await?;
        headers::strip_ours(answer.headers_mut());
        answer.headers_mut().extend(marks);
        Ok(match answer.status() {
            StatusCode::SWITCHING_PROTOCOLS => self.join(answer, upgrading),
            _ => {
                headers::strip_hop_by_hop(answer.headers_mut());
                answer.map(AdmittedBody::into_body)
            }
        })
    }

    /// Lets the request in, by what a router says or by the rule.
    fn enter(&self, head: &mut Parts) -> Result<AdmittedRequest<H>, ErrorResponse> {
        let bad = |word, reason: &str| error(StatusCode::BAD_REQUEST, word, reason);
        let entered = if head.headers.contains_key(headers::EPOCH) {
            let epoch = headers::epoch_of(&head.headers);
            let shard = head.headers.get(headers::SHARD).and_then(headers::shard_of);
            let (Some(epoch), Some(shard)) = (epoch, shard) else {
                let reason = "the header Tenure-Epoch or Tenure-Shard is missing or invalid; send both or neither";
                return Err(bad("bad_route", reason));
            };
            self.node.enter_shard_at::<H>(&shard, epoch)
        } else {
            let target = self
                .rule
                .find(head)
                .map_err(|reason| bad("no_key", &reason))?;
            head.headers.remove(headers::KEY);
            match target {
                RequestTarget::Shard(shard) => self.node.enter_shard(&shard),
                RequestTarget::Key(key) => {
                    head.headers.insert(headers::KEY, headers::key_value(&key));
                    self.node.enter(self.rule.keyspace.as_str(), key)
                }
            }
        };
        entered.map_err(|refused| refusal(&refused))
    }

    /// Makes the head of a request one for the application; says which upgrade it asks for.
    fn prepare(&self, head: &mut Parts, entered: &AdmittedRequest<H>) -> Option<HeaderValue> {
        let key = head.headers.remove(headers::KEY);
        let upgrade = headers::strip_hop_by_hop(&mut head.headers);
        headers::strip_ours(&mut head.headers);
        // The gate has answered this itself.
        head.headers.remove(header::EXPECT);
        let grant = entered.grant();
        let headers = &mut head.headers;
        headers.insert(headers::SHARD, headers::shard_value(grant.shard()));
        headers.insert(headers::EPOCH, headers::number(grant.epoch().0));
        if let Some(key) = key {
            headers.insert(headers::KEY, key);
        }
        if let Some(authority) = head.uri.authority() {
            headers.insert(header::HOST, host_value(authority.as_str()));
        }
        let host = || host_value(&self.application.host);
        headers.entry(header::HOST).or_insert_with(host);
        let path = head.uri.path_and_query().map_or("/", |p| p.as_str());
        if let Ok(uri) = format!("{}{path}", self.application.base).parse::<Uri>() {
            head.uri = uri;
        }
        upgrade.filter(|_| self.application.protocol == Protocol::Http1)
    }

    /// Asks the application. The asking goes on if the client goes away: what was let in is in flight until it is done.
    async fn ask(
        &self,
        head: Parts,
        body: Incoming,
        entered: AdmittedRequest<H>,
    ) -> Result<Response<AdmittedBody<H>>, ErrorResponse> {
        let progress = TransferProgress::new();
        let body = match body.is_end_stream() {
            true => Body::empty(),
            false => Body::other(ProgressBody::new(body, progress.clone())),
        };
        let request = Request::from_parts(head, body);
        let (application, limit) = (self.application.clone(), self.settings.timeout);
        let metrics = self.metrics.clone();
        let (told, answered) = oneshot::channel();
        tokio::spawn(async move {
            let asking = application
                .pool
                .send(&application.host, application.protocol, request);
            let asking = entered.grant().run_until_lost(async {
                tokio::select! {
                    biased;
                    answer = asking => answer.map_err(|e| match e {
                        SendError::NotSent(reason) => Failure::Down(reason),
                        SendError::Unknown(reason) => Failure::Broken(reason),
                    }),
                    () = progress.stalled(limit) => Err(Failure::Timeout),
                }
            });
            let answer = asking.await.unwrap_or(Err(Failure::Lost));
            // Whoever asked may be gone: then the answer is read to its end, and dropped.
            let _ = told.send(answer.map(|answer| {
                let manner = StreamEnding::of(answer.headers());
                answer.map(|relay| AdmittedBody::new(relay, entered, manner, limit, metrics))
            }));
        });
        match answered.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(failure)) => Err(self.failed(&failure)),
            Err(_) => Err(self.failed(&Failure::Broken(
                "the sidecar's call to the application panicked".to_owned(),
            ))),
        }
    }

    fn failed(&self, failure: &Failure) -> ErrorResponse {
        let at = &self.application.host;
        match failure {
            Failure::Down(reason) => {
                self.metrics.not_sent();
                let reason = format!(
                    "the application at {at} does not accept connections ({reason}); retry"
                );
                error(StatusCode::SERVICE_UNAVAILABLE, "app_unavailable", &reason)
            }
            Failure::Broken(reason) => {
                self.metrics.broken();
                let reason = format!("the application at {at} did not respond ({reason})");
                error(StatusCode::BAD_GATEWAY, "app_disconnected", &reason)
            }
            Failure::Timeout => {
                self.metrics.timed_out();
                let limit = self.settings.timeout;
                let reason = format!("the application at {at} did not respond within {limit:?}");
                error(StatusCode::GATEWAY_TIMEOUT, "app_timeout", &reason)
            }
            Failure::Lost => {
                self.metrics.lost();
                let reason = "the shard was lost while the application processed the request; the outcome is unknown";
                error(StatusCode::BAD_GATEWAY, "shard_lost", reason)
            }
        }
    }

    /// Joins both ends of a connection that changes its protocol, for as long as the shard is here.
    fn join(
        &self,
        mut answer: Response<AdmittedBody<H>>,
        upgrading: Option<OnUpgrade>,
    ) -> Response<Body> {
        let Some(client) = upgrading else {
            let reason =
                "the application switched protocols, but the client did not request an upgrade";
            return *error(StatusCode::BAD_GATEWAY, "unexpected_upgrade", reason);
        };
        let protocol = headers::strip_hop_by_hop(answer.headers_mut());
        let websocket = protocol
            .as_ref()
            .is_some_and(|p| p.as_bytes().eq_ignore_ascii_case(b"websocket"));
        if let Some(protocol) = protocol {
            upgraded(answer.headers_mut(), protocol);
        }
        let application = hyper::upgrade::on(&mut answer);
        let (head, admitted) = answer.into_parts();
        let Some((relay, entered)) = admitted.taken() else {
            return Response::from_parts(head, Body::empty());
        };
        let (open, metrics) = (self.metrics.stream(), self.metrics.clone());
        self.streams.spawn(async move {
            let _open = open;
            let grant = entered.grant();
            let cut = grant.stream_deadline();
            if websocket {
                let close = grant.move_requested();
                if upgrade::join_websocket(client, application, close, cut).await {
                    metrics.stream_cut();
                }
            } else {
                upgrade::join(client, application, cut).await;
            }
        });
        Response::from_parts(head, Body::Relay(relay))
    }
}

/// What a gate says that does not let a request in.
pub(crate) fn refusal(refused: &NotOwner) -> ErrorResponse {
    let status = match refused.reason {
        RejectReason::UnknownKeyspace | RejectReason::OtherHandler => StatusCode::NOT_FOUND,
        _ => StatusCode::MISDIRECTED_REQUEST,
    };
    let mut answer = error(status, refused.reason.as_str(), &refused.to_string());
    let headers = answer.headers_mut();
    let reason = HeaderValue::from_static(refused.reason.as_str());
    headers.insert(headers::REFUSED, reason);
    headers.insert(headers::EPOCH, headers::number(refused.epoch.0));
    headers.insert(headers::REV, headers::number(refused.rev));
    if let Some(shard) = &refused.shard {
        headers.insert(headers::SHARD, headers::shard_value(shard));
    }
    if let Some(owner) = refused.owner.as_ref().filter(|owner| owner.serving) {
        let session = headers::ascii(&owner.session.to_string());
        headers.insert(headers::OWNER, session);
        headers.insert(headers::NODE, headers::ascii(owner.node.as_str()));
    }
    answer
}
