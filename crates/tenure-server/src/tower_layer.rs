//! A layer for services that embed a node: requests for shards that it does not own are refused before they reach the service.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::Either;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use hyper::{Request, Response, StatusCode};
use tenure::{AdmittedRequest, Grant, GrantExpired, Handler, Node, NotOwner};
use tower_layer::Layer;
use tower_service::Service;

use crate::body::{Body, BodyError};
use crate::error_response::{ErrorResponse, error};
use crate::headers;
use crate::key_extraction::{KeyRule, RequestTarget};
use crate::sidecar::refusal;
use crate::tracked_response::StreamEnding;

/// Puts a gate in front of a service: 421 with the gate's headers for what the node does not own, `Tenure-Epoch` on what it
/// answers, and in flight until the last byte of the answer is handed on.
///
/// Requests of a router name shard and epoch; others are let in by the rule. The service finds an [`RequestGrant`] among the
/// extensions of each request.
pub struct GateLayer<H> {
    node: Node,
    rule: Arc<KeyRule>,
    _handler: PhantomData<fn() -> H>,
}

impl<H: Handler> GateLayer<H> {
    /// A gate of this node, whose handler for the rule's keyspace is `H`.
    pub fn new(node: Node, rule: KeyRule) -> Self {
        Self {
            node,
            rule: Arc::new(rule),
            _handler: PhantomData,
        }
    }

    fn enter<B>(&self, request: &Request<B>) -> Result<AdmittedRequest<H>, ErrorResponse> {
        let bad = |word, reason: &str| error(StatusCode::BAD_REQUEST, word, reason);
        let told = |refused: NotOwner| refusal(&refused);
        let headers = request.headers();
        if headers.contains_key(headers::EPOCH) {
            let shard = headers.get(headers::SHARD).and_then(headers::shard_of);
            let (Some(epoch), Some(shard)) = (headers::epoch_of(headers), shard) else {
                let reason = "the header Tenure-Epoch or Tenure-Shard is missing or invalid; send both or neither";
                return Err(bad("bad_route", reason));
            };
            return self.node.enter_shard_at(&shard, epoch).map_err(told);
        }
        let found = self.rule.find_in(request.uri(), headers);
        match found.map_err(|reason| bad("no_key", &reason))? {
            RequestTarget::Shard(shard) => self.node.enter_shard(&shard).map_err(told),
            RequestTarget::Key(key) => {
                let keyspace = self.rule.keyspace.as_str();
                self.node.enter(keyspace, key).map_err(told)
            }
        }
    }
}

impl<H> Clone for GateLayer<H> {
    fn clone(&self) -> Self {
        Self {
            node: self.node.clone(),
            rule: self.rule.clone(),
            _handler: PhantomData,
        }
    }
}

impl<S, H: Handler> Layer<S> for GateLayer<H> {
    type Service = GateService<S, H>;

    fn layer(&self, inner: S) -> GateService<S, H> {
        let gate = self.clone();
        GateService { inner, gate }
    }
}

/// See [`GateLayer`].
pub struct GateService<S, H> {
    inner: S,
    gate: GateLayer<H>,
}

impl<S: Clone, H> Clone for GateService<S, H> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            gate: self.gate.clone(),
        }
    }
}

/// The right to answer one request, among its extensions.
pub struct RequestGrant<H: Handler>(Arc<AdmittedRequest<H>>);

impl<H: Handler> RequestGrant<H> {
    /// The grant.
    pub fn grant(&self) -> &Grant {
        self.0.grant()
    }

    /// Does work with exclusive use of the shard's state, as [`AdmittedRequest::run`] does.
    pub async fn run<F, R>(&self, work: F) -> Result<R, GrantExpired>
    where
        F: AsyncFnOnce(&mut H::State, &Grant) -> R,
    {
        self.0.run_ref(work).await
    }
}

impl<H: Handler> Clone for RequestGrant<H> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

type Answered<B, H> = Response<Either<InFlightBody<B, H>, Body>>;

impl<S, H, A, B> Service<Request<A>> for GateService<S, H>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    H: Handler,
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
{
    type Response = Answered<B, H>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Answered<B, H>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<A>) -> Self::Future {
        let entered = match self.gate.enter(&request) {
            Ok(entered) => Arc::new(entered),
            Err(refused) => {
                let refused = (*refused).map(Either::Right);
                return Box::pin(async move { Ok(refused) });
            }
        };
        request
            .extensions_mut()
            .insert(RequestGrant(entered.clone()));
        let marks = [
            (
                headers::SHARD,
                headers::shard_value(entered.grant().shard()),
            ),
            (headers::EPOCH, headers::number(entered.grant().epoch().0)),
        ];
        let answering = self.inner.call(request);
        Box::pin(async move {
            let answering = entered.grant().run_until_lost(answering);
            let mut answer = match answering.await {
                Ok(answer) => answer?,
                Err(lost) => {
                    let lost = error(StatusCode::BAD_GATEWAY, "lost", &lost.to_string());
                    return Ok((*lost).map(Either::Right));
                }
            };
            headers::strip_ours(answer.headers_mut());
            answer.headers_mut().extend(marks);
            let manner = StreamEnding::of(answer.headers());
            Ok(answer.map(|body| Either::Left(InFlightBody::new(body, entered, manner))))
        })
    }
}

/// The body of an answer. The shard is not given away before it is over.
///
/// Event streams and gRPC answers are cut when they have not ended three quarters of `drain_timeout` after their shard began to
/// move, so that they cannot prevent the move; an application ends them in good order at [`Grant::move_requested`]. Every body is cut
/// when the shard is lost.
pub struct InFlightBody<B, H: Handler> {
    body: B,
    entered: Option<Arc<AdmittedRequest<H>>>,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<B, H: Handler> InFlightBody<B, H> {
    fn new(body: B, entered: Arc<AdmittedRequest<H>>, manner: StreamEnding) -> Self {
        let grant = entered.grant().clone();
        let cut = async move {
            match manner {
                StreamEnding::Finite => grant.cancelled().await,
                StreamEnding::Events | StreamEnding::Grpc => grant.stream_deadline().await,
            }
        };
        Self {
            body,
            entered: Some(entered),
            cut: Box::pin(cut),
        }
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin, H: Handler> HttpBody for InFlightBody<B, H>
where
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(entered) = &self.entered else {
            return Poll::Ready(None);
        };
        let lost = entered.grant().check().is_err();
        if lost || self.cut.as_mut().poll(cx).is_ready() {
            self.entered = None;
            return Poll::Ready(Some(Err("the shard is owned by another node now".into())));
        }
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.entered = None;
        }
        frame.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.entered.is_none() || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
