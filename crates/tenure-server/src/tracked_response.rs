//! An answer that its request was let in for: in flight until its last byte is here.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use hyper::header::{self, HeaderName, HeaderValue};
use tenure::{AdmittedRequest, Grant, Handler};

use crate::body::{Body, BodyError, RelayedBody};
use crate::metrics::{HttpMetrics, OpenStream};

/// How an answer ends when its shard has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnding {
    /// It is waited for.
    Finite,
    /// It ends between two events: its client comes back by itself.
    Events,
    /// It ends with a status that tells its client to try again.
    Grpc,
}

impl StreamEnding {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        match headers.get(header::CONTENT_TYPE).map(|t| t.as_bytes()) {
            Some(t) if t.starts_with(b"text/event-stream") => Self::Events,
            Some(t) if t.starts_with(b"application/grpc") => Self::Grpc,
            _ => Self::Finite,
        }
    }
}

type Told = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The body of an answer. The shard is not given away before it is over.
pub(crate) struct AdmittedBody<H: Handler> {
    relay: Option<RelayedBody>,
    entered: Option<AdmittedRequest<H>>,
    manner: StreamEnding,
    lost: Option<Told>,
    close: Option<Told>,
    cut: Option<Told>,
    /// For events: whether the last one is whole.
    between: bool,
    closing: bool,
    /// How long the rest is read if the client has gone away.
    patience: Duration,
    metrics: Arc<HttpMetrics>,
    _stream: Option<OpenStream>,
}

impl<H: Handler> AdmittedBody<H> {
    pub(crate) fn new(
        relay: RelayedBody,
        entered: AdmittedRequest<H>,
        manner: StreamEnding,
        patience: Duration,
        metrics: Arc<HttpMetrics>,
    ) -> Self {
        let lasts = manner != StreamEnding::Finite;
        let grant = || entered.grant().clone();
        Self {
            close: (manner == StreamEnding::Events).then(|| told(grant(), Told::moving)),
            cut: lasts.then(|| told(grant(), Told::streams_cut)),
            _stream: lasts.then(|| metrics.stream()),
            lost: None,
            manner,
            between: true,
            closing: false,
            patience,
            metrics,
            relay: Some(relay),
            entered: Some(entered),
        }
    }

    /// What it is made of.
    pub(crate) fn taken(mut self) -> Option<(RelayedBody, AdmittedRequest<H>)> {
        self.relay.take().zip(self.entered.take())
    }

    pub(crate) fn into_body(self) -> Body {
        match self.is_end_stream() {
            true => Body::empty(),
            false => Body::other(self),
        }
    }

    fn over(&mut self) {
        self.relay = None;
        self.entered = None;
    }

    /// Looks whether the answer has to end before its time.
    fn must_end(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Option<Option<Result<Frame<Bytes>, BodyError>>> {
        let entered = self.entered.as_ref()?;
        if let Some(close) = &mut self.close
            && close.as_mut().poll(cx).is_ready()
        {
            self.close = None;
            self.closing = true;
        }
        if self.closing && self.between {
            self.over();
            return Some(None);
        }
        let lost = entered.grant().check().is_err();
        let cut = match &mut self.cut {
            Some(cut) => cut.as_mut().poll(cx).is_ready(),
            None => false,
        };
        if !lost && !cut {
            return None;
        }
        self.over();
        if self.manner != StreamEnding::Finite {
            self.metrics.stream_cut();
        } else {
            self.metrics.lost();
        }
        if self.manner == StreamEnding::Grpc {
            return Some(Some(Ok(Frame::trailers(unavailable()))));
        }
        Some(Some(Err("the shard is owned by another node now".into())))
    }
}

trait Signals {
    fn moving(grant: Grant) -> Told;
    fn streams_cut(grant: Grant) -> Told;
    fn cancelled(grant: Grant) -> Told;
}

impl Signals for Told {
    fn moving(grant: Grant) -> Told {
        Box::pin(async move { grant.move_requested().await })
    }

    fn streams_cut(grant: Grant) -> Told {
        Box::pin(async move { grant.stream_deadline().await })
    }

    fn cancelled(grant: Grant) -> Told {
        Box::pin(async move { grant.cancelled().await })
    }
}

fn told(grant: Grant, signal: fn(Grant) -> Told) -> Told {
    signal(grant)
}

/// What gRPC clients take for a reason to try again.
fn unavailable() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert(
        HeaderName::from_static("grpc-status"),
        HeaderValue::from_static("14"),
    );
    trailers.insert(
        HeaderName::from_static("grpc-message"),
        HeaderValue::from_static("the shard is owned by another node now"),
    );
    trailers
}

impl<H: Handler> HttpBody for AdmittedBody<H> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if let Some(end) = this.must_end(cx) {
            return Poll::Ready(end);
        }
        let (Some(relay), Some(entered)) = (&mut this.relay, &this.entered) else {
            return Poll::Ready(None);
        };
        match Pin::new(relay).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref()
                    && this.manner == StreamEnding::Events
                {
                    let ends = [&b"\n\n"[..], b"\r\r", b"\r\n\r\n"];
                    this.between = ends.iter().any(|end| data.ends_with(end));
                }
                if this.relay.as_ref().is_some_and(HttpBody::is_end_stream) {
                    this.over();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(last) => {
                this.over();
                Poll::Ready(last)
            }
            Poll::Pending => {
                let grant = entered.grant();
                let lost = this
                    .lost
                    .get_or_insert_with(|| told(grant.clone(), Told::cancelled));
                if lost.as_mut().poll(cx).is_ready() {
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.relay.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.relay {
            Some(relay) => relay.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl<H: Handler> Drop for AdmittedBody<H> {
    /// A client that goes away does not stop its application: the request stays in flight until that is done.
    fn drop(&mut self) {
        let (Some(relay), Some(entered)) = (self.relay.take(), self.entered.take()) else {
            return;
        };
        if self.manner == StreamEnding::Finite
            && !relay.is_end_stream()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let patience = self.patience;
            runtime.spawn(async move {
                let rest = entered.grant().run_until_lost(read_out(relay));
                let _ = tokio::time::timeout(patience, rest).await;
            });
        }
    }
}

async fn read_out(mut relay: RelayedBody) {
    while let Some(Ok(_)) = relay.frame().await {}
}
