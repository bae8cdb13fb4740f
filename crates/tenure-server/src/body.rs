//! Bodies: what goes in either direction without being looked at.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use tokio::sync::oneshot;

use crate::upstream::PooledConnection;

/// Any error of a body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

type Frames = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

/// A body of a request or an answer.
pub enum Body {
    /// A few bytes that are here already.
    Full(Option<Bytes>),
    /// What comes from the other side of a connection.
    Relay(RelayedBody),
    /// Anything else.
    Other(Pin<Box<dyn HttpBody<Data = Bytes, Error = BodyError> + Send>>),
}

impl Body {
    /// These bytes.
    pub fn of(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::Full(Some(bytes).filter(|b| !b.is_empty()))
    }

    /// Nothing.
    pub fn empty() -> Self {
        Self::Full(None)
    }

    /// Any other body.
    pub fn other(body: impl HttpBody<Data = Bytes, Error = BodyError> + Send + 'static) -> Self {
        Self::Other(Box::pin(body))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Frames {
        match &mut *self {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Relay(relay) => Pin::new(relay).poll_frame(cx),
            Self::Other(body) => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_none(),
            Self::Relay(relay) => relay.is_end_stream(),
            Self::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Relay(relay) => relay.size_hint(),
            Self::Other(body) => body.size_hint(),
        }
    }
}

/// What comes from the other side of a connection. Lets the connection go back to its pool when it is over.
pub struct RelayedBody {
    incoming: Incoming,
    _lease: Option<PooledConnection>,
}

impl RelayedBody {
    pub(crate) fn new(incoming: Incoming, lease: Option<PooledConnection>) -> Self {
        Self {
            incoming,
            _lease: lease,
        }
    }
}

impl HttpBody for RelayedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Frames {
        let frame = Pin::new(&mut self.incoming).poll_frame(cx);
        frame.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// When something last moved: tells a slow sender from one that does nothing.
#[derive(Clone, Debug)]
pub(crate) struct TransferProgress {
    start: Instant,
    last_ms: Arc<AtomicU64>,
}

impl TransferProgress {
    /// Begins now.
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            last_ms: Arc::default(),
        }
    }

    fn made(&self) {
        let now = self.start.elapsed().as_millis() as u64;
        self.last_ms.store(now, Ordering::Relaxed);
    }

    /// Waits until nothing has moved for so long.
    pub(crate) async fn stalled(&self, limit: Duration) {
        loop {
            let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
            let due = self.start + last + limit;
            if Instant::now() >= due {
                return;
            }
            tokio::time::sleep_until(due.into()).await;
        }
    }
}

impl Default for TransferProgress {
    fn default() -> Self {
        Self::new()
    }
}

/// A request's body that goes straight on, and tells that it does.
pub(crate) struct ProgressBody {
    incoming: Incoming,
    progress: TransferProgress,
}

impl ProgressBody {
    /// Tells `progress`.
    pub(crate) fn new(incoming: Incoming, progress: TransferProgress) -> Self {
        Self { incoming, progress }
    }
}

impl HttpBody for ProgressBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Frames {
        let frame = Pin::new(&mut self.incoming).poll_frame(cx);
        if frame.is_ready() {
            self.progress.made();
        }
        frame.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// A request's body that stays with the client until the gate has let the request in.
#[derive(Clone)]
pub(crate) struct DeferredBody {
    incoming: Arc<Mutex<Option<Incoming>>>,
    progress: TransferProgress,
}

impl DeferredBody {
    /// Nothing of it was read yet.
    pub(crate) fn new(incoming: Incoming, progress: TransferProgress) -> Self {
        Self {
            incoming: Arc::new(Mutex::new(Some(incoming))),
            progress,
        }
    }

    /// Whether none of it was sent to anybody.
    pub(crate) fn is_whole(&self) -> bool {
        lock(&self.incoming).is_some()
    }

    /// The body for one try, and what lets it go.
    pub(crate) fn parked(&self) -> (DeferredBodyReader, oneshot::Sender<()>) {
        let (go, admitted) = oneshot::channel();
        let size = lock(&self.incoming)
            .as_ref()
            .map(HttpBody::size_hint)
            .unwrap_or_default();
        let parked = DeferredBodyReader {
            source: self.clone(),
            admitted: Some(admitted),
            taken: None,
            size,
        };
        (parked, go)
    }
}

/// See [`DeferredBody`].
pub(crate) struct DeferredBodyReader {
    source: DeferredBody,
    admitted: Option<oneshot::Receiver<()>>,
    taken: Option<Incoming>,
    size: SizeHint,
}

impl HttpBody for DeferredBodyReader {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Frames {
        if let Some(admitted) = &mut self.admitted {
            match Pin::new(admitted).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => {
                    return Poll::Ready(Some(Err(
                        "reading the request body failed, because the request was not \
                        admitted"
                            .into(),
                    )));
                }
                Poll::Ready(Ok(())) => {
                    self.admitted = None;
                    let taken = lock(&self.source.incoming).take();
                    self.taken = taken;
                }
            }
        }
        let Some(incoming) = &mut self.taken else {
            return Poll::Ready(Some(Err(
                "sending the request body failed, because it was already sent".into(),
            )));
        };
        let frame = Pin::new(incoming).poll_frame(cx);
        if frame.is_ready() {
            self.source.progress.made();
        }
        frame.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.taken.as_ref().is_some_and(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.taken {
            Some(incoming) => incoming.size_hint(),
            None => self.size,
        }
    }
}

/// A request's body whose beginning is remembered, so that it can be sent again as long as no more than that was sent.
#[derive(Clone)]
pub(crate) struct ReplayableBody(Arc<Mutex<Memory>>);

struct Memory {
    incoming: Incoming,
    frames: Vec<Bytes>,
    left: usize,
    /// More was sent than could be remembered.
    forgot: bool,
    /// How often it was begun: an older try gets nothing more.
    tries: u64,
    progress: TransferProgress,
}

impl ReplayableBody {
    /// Remembers up to so many bytes.
    pub(crate) fn new(incoming: Incoming, most: usize, progress: TransferProgress) -> Self {
        Self(Arc::new(Mutex::new(Memory {
            incoming,
            frames: Vec::new(),
            left: most,
            forgot: false,
            tries: 0,
            progress,
        })))
    }

    /// Whether it can be sent from its beginning.
    pub(crate) fn is_whole(&self) -> bool {
        !lock(&self.0).forgot
    }

    /// The body for one try.
    pub(crate) fn again(&self) -> ReplayedBody {
        let mut memory = lock(&self.0);
        memory.tries += 1;
        ReplayedBody {
            source: self.clone(),
            try_: memory.tries,
            at: 0,
        }
    }
}

/// See [`ReplayableBody`].
pub(crate) struct ReplayedBody {
    source: ReplayableBody,
    try_: u64,
    at: usize,
}

impl HttpBody for ReplayedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Frames {
        let this = &mut *self;
        let mut memory = lock(&this.source.0);
        if memory.tries != this.try_ {
            return Poll::Ready(Some(Err(
                "sending the request body was stopped, because the request is now sent to \
                another owner"
                    .into(),
            )));
        }
        if let Some(known) = memory.frames.get(this.at) {
            this.at += 1;
            return Poll::Ready(Some(Ok(Frame::data(known.clone()))));
        }
        let frame = std::task::ready!(Pin::new(&mut memory.incoming).poll_frame(cx));
        memory.progress.made();
        if let Some(Ok(frame)) = &frame
            && !memory.forgot
        {
            match frame.data_ref().filter(|data| data.len() <= memory.left) {
                Some(data) => {
                    memory.left -= data.len();
                    let data = data.clone();
                    memory.frames.push(data);
                    this.at += 1;
                }
                None => {
                    memory.forgot = true;
                    memory.frames.clear();
                    this.at = 0;
                }
            }
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
