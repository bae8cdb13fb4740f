//! Connections to nodes and applications: kept, used again, and exact about what was not sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use hyper::client::conn::{http1, http2};
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, Uri, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::body::{Body, RelayedBody};
use crate::worker_threads;

/// How many idle connections to one address are kept, by each lane.
const MOST_IDLE: usize = 512;

/// Which protocol a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 with prior knowledge, which gRPC needs.
    Http2,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum SendError {
    /// Not a byte of the request was sent: it may go elsewhere.
    NotSent(String),
    /// It was sent, at least in part, and what became of it is not known.
    Unknown(String),
}

/// Connections by address.
#[derive(Debug)]
pub(crate) struct ConnectionPool {
    hosts: RwLock<HashMap<Box<str>, Arc<Host>>>,
    connect_timeout: Duration,
    most_idle_time: Duration,
}

/// All connections to one address.
#[derive(Debug)]
struct Host {
    /// `HOST:PORT`.
    address: Box<str>,
    /// By the lane that reads from them: only there is an answer heard without waking another thread.
    idle: [Mutex<Vec<Idle>>; worker_threads::MOST],
    shared: tokio::sync::Mutex<Option<http2::SendRequest<Body>>>,
}

#[derive(Debug)]
struct Idle {
    sender: http1::SendRequest<Body>,
    since: Instant,
}

/// A connection in use: goes back to its pool when dropped.
pub(crate) struct PooledConnection {
    host: Arc<Host>,
    lane: usize,
    sender: Option<http1::SendRequest<Body>>,
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let Some(sender) = self.sender.take().filter(|s| !s.is_closed()) else {
            return;
        };
        let mut idle = self.host.idle(self.lane);
        if idle.len() < MOST_IDLE {
            let since = Instant::now();
            idle.push(Idle { sender, since });
        }
    }
}

impl ConnectionPool {
    /// A pool. Connections that nothing was sent on for `most_idle_time` are not used again: their other end may be about to
    /// close them, and then nobody knows what became of a request.
    pub(crate) fn new(connect_timeout: Duration, most_idle_time: Duration) -> Self {
        Self {
            hosts: RwLock::default(),
            connect_timeout,
            most_idle_time,
        }
    }

    /// Sends a request to `HOST:PORT`. Returns with the head of the answer.
    pub(crate) async fn send(
        &self,
        address: &str,
        protocol: Protocol,
        request: Request<Body>,
    ) -> Result<Response<RelayedBody>, SendError> {
        let host = self.host(address);
        match protocol {
            Protocol::Http1 => self.send1(host, request).await,
            Protocol::Http2 => self.send2(host, request).await,
        }
    }

    /// Whether somebody listens there.
    pub(crate) async fn reaches(&self, address: &str) -> Result<(), String> {
        self.connect(address).await.map(drop)
    }

    fn host(&self, address: &str) -> Arc<Host> {
        let hosts = self.hosts.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = hosts.get(address) {
            return host.clone();
        }
        drop(hosts);
        let mut hosts = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        let host = hosts.entry(address.into()).or_insert_with(|| {
            Arc::new(Host {
                address: address.into(),
                idle: std::array::from_fn(|_| Mutex::default()),
                shared: tokio::sync::Mutex::default(),
            })
        });
        host.clone()
    }

    async fn connect(&self, address: &str) -> Result<TcpStream, String> {
        let connecting = TcpStream::connect(address);
        let stream = match tokio::time::timeout(self.connect_timeout, connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(format!("connecting to {address} failed: {error}")),
            Err(_) => {
                let limit = self.connect_timeout;
                return Err(format!(
                    "connecting to {address} took longer than {limit:?}"
                ));
            }
        };
        // Requests are written whole: waiting for more to send only delays them.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    async fn send1(
        &self,
        host: Arc<Host>,
        mut request: Request<Body>,
    ) -> Result<Response<RelayedBody>, SendError> {
        *request.version_mut() = Version::HTTP_11;
        loop {
            let kept = host.take(self.most_idle_time);
            let fresh = kept.is_none();
            let sender = match kept {
                Some(sender) => sender,
                None => self.open1(&host).await.map_err(SendError::NotSent)?,
            };
            let mut lease = PooledConnection {
                host: host.clone(),
                lane: worker_threads::current(),
                sender: Some(sender),
            };
            let Some(sender) = &mut lease.sender else {
                continue;
            };
            match sender.try_send_request(request).await {
                Ok(answer) => return Ok(answer.map(|body| RelayedBody::new(body, Some(lease)))),
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !fresh => request = unsent,
                    Some(_) => return Err(SendError::NotSent(told(error.error()))),
                    None => return Err(SendError::Unknown(told(error.error()))),
                },
            }
        }
    }

    async fn open1(&self, host: &Host) -> Result<http1::SendRequest<Body>, String> {
        let stream = TokioIo::new(self.connect(&host.address).await?);
        let opened = http1::handshake(stream).await;
        let (sender, connection) = opened.map_err(|e| told(&e))?;
        tokio::spawn(async move {
            // Whoever waits for an answer is told of the same error.
            let _ = connection.with_upgrades().await;
        });
        Ok(sender)
    }

    async fn send2(
        &self,
        host: Arc<Host>,
        mut request: Request<Body>,
    ) -> Result<Response<RelayedBody>, SendError> {
        let (head, body) = request.into_parts();
        request = Request::from_parts(absolute(head, &host.address), body);
        loop {
            let (mut sender, fresh) = self.shared(&host).await.map_err(SendError::NotSent)?;
            match sender.try_send_request(request).await {
                Ok(answer) => return Ok(answer.map(|body| RelayedBody::new(body, None))),
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !fresh => request = unsent,
                    Some(_) => return Err(SendError::NotSent(told(error.error()))),
                    None => return Err(SendError::Unknown(told(error.error()))),
                },
            }
        }
    }

    /// The connection that all share; says whether it was made just now.
    async fn shared(&self, host: &Host) -> Result<(http2::SendRequest<Body>, bool), String> {
        let mut shared = host.shared.lock().await;
        if let Some(sender) = shared.as_ref().filter(|s| !s.is_closed()) {
            return Ok((sender.clone(), false));
        }
        let stream = TokioIo::new(self.connect(&host.address).await?);
        let opened = http2::handshake(TokioExecutor::new(), stream).await;
        let (sender, connection) = opened.map_err(|e| told(&e))?;
        tokio::spawn(async move {
            let _ = connection.await;
        });
        *shared = Some(sender.clone());
        Ok((sender, true))
    }
}

impl Host {
    fn idle(&self, lane: usize) -> MutexGuard<'_, Vec<Idle>> {
        self.idle[lane]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that was used before: the one that was used last, so that those which are not needed grow old.
    fn take(&self, most_idle_time: Duration) -> Option<http1::SendRequest<Body>> {
        let mut idle = self.idle(worker_threads::current());
        let now = Instant::now();
        let old = idle.partition_point(|i| now.duration_since(i.since) > most_idle_time);
        idle.drain(..old);
        // The last bytes of its last answer may be under way still.
        let at = idle.iter().rposition(|i| i.sender.is_ready())?;
        let found = idle.remove(at);
        if at + 1 < idle.len() {
            idle.retain(|i| !i.sender.is_closed());
        }
        Some(found.sender)
    }
}

/// HTTP/2 names scheme and host in the address of a request.
fn absolute(mut head: hyper::http::request::Parts, address: &str) -> hyper::http::request::Parts {
    head.version = Version::HTTP_2;
    let host = head.headers.remove(header::HOST);
    let host = host.as_ref().and_then(|h| HeaderValue::to_str(h).ok());
    let path = head.uri.path_and_query().map_or("/", |p| p.as_str());
    let build = |authority: &str| {
        Uri::builder()
            .scheme("http")
            .authority(authority)
            .path_and_query(path)
            .build()
    };
    if let Ok(uri) = build(host.unwrap_or(address)).or_else(|_| build(address)) {
        head.uri = uri;
    }
    head
}

/// An error with all that is behind it.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
