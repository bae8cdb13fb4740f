//! Listening: connections in, requests to a service, and an end in good order.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::body::Body;
use crate::worker_threads::WorkerThreads;

/// What one side may ask of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    /// How many connections at a time; more wait to be accepted.
    pub connections: usize,
    /// How large the head of a request may be, in bytes.
    pub head_bytes: usize,
    /// How long it may take to come.
    pub head_timeout: Duration,
    /// How many requests at a time on one HTTP/2 connection.
    pub streams: u32,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            head_bytes: 64 * 1024,
            head_timeout: Duration::from_secs(30),
            streams: 250,
        }
    }
}

/// Answers requests.
pub trait Service: Send + Sync + 'static {
    /// Answers one request of this client.
    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        client: SocketAddr,
    ) -> impl Future<Output = Response<Body>> + Send;
}

/// A server. Takes no new connections once it is told to stop or is dropped; with it goes what runs on its lanes.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    _lanes: Option<WorkerThreads>,
    stop: CancellationToken,
    connections: TaskTracker,
}

/// Listens at `HOST:PORT`, or `:PORT`, which means the loopback interface.
pub async fn bind(address: &str) -> io::Result<TcpListener> {
    let address = match address.strip_prefix(':') {
        Some(port) => format!("127.0.0.1:{port}"),
        None => address.to_owned(),
    };
    TcpListener::bind(&address)
        .await
        .map_err(|e| io::Error::new(e.kind(), format!("cannot listen at {address}: {e}")))
}

impl Server {
    /// Serves what comes in.
    pub fn start(
        listener: TcpListener,
        limits: ServeLimits,
        service: Arc<impl Service>,
    ) -> io::Result<Self> {
        Self::start_on(None, listener, limits, service)
    }

    /// Serves what comes in on these lanes; without any, on the runtime that this is called on.
    pub fn start_on(
        lanes: Option<WorkerThreads>,
        listener: TcpListener,
        limits: ServeLimits,
        service: Arc<impl Service>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (stop, connections) = (CancellationToken::new(), TaskTracker::new());
        let acceptor = Acceptor {
            lanes: lanes.clone(),
            room: Arc::new(Semaphore::new(limits.connections)),
            builder: Arc::new(builder(limits)),
            service,
            stop: stop.clone(),
            connections: connections.clone(),
        };
        connections.spawn(acceptor.run(listener));
        Ok(Self {
            address,
            _lanes: lanes,
            stop,
            connections,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes nothing new, and returns when everything that was begun is answered and its connections are closed. Streams that
    /// were upgraded are not waited for.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.connections.close();
        self.connections.wait().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

struct Acceptor<S> {
    lanes: Option<WorkerThreads>,
    room: Arc<Semaphore>,
    builder: Arc<auto::Builder<TokioExecutor>>,
    service: Arc<S>,
    stop: CancellationToken,
    connections: TaskTracker,
}

impl<S: Service> Acceptor<S> {
    async fn run(self, listener: TcpListener) {
        loop {
            let accepted = async {
                let permit = self.room.clone().acquire_owned().await;
                (listener.accept().await, permit)
            };
            let (accepted, permit) = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                accepted = accepted => accepted,
            };
            let begun = accepted.and_then(|(stream, client)| self.begin(stream, client, permit));
            // As when the process has too many files open: it passes.
            if let Err(error) = begun {
                debug!(%error, "accepting a connection failed");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    fn begin<P: Send + 'static>(
        &self,
        stream: TcpStream,
        client: SocketAddr,
        permit: P,
    ) -> io::Result<()> {
        let (builder, service) = (self.builder.clone(), self.service.clone());
        let (stop, counted) = (self.stop.clone(), self.connections.token());
        let serve = |stream, client| async move {
            serve(&builder, stream, client, service, stop).await;
            drop((permit, counted));
        };
        match &self.lanes {
            Some(lanes) => lanes.spawn((stream, client), serve),
            None => {
                tokio::spawn(serve(stream, client));
                Ok(())
            }
        }
    }
}

fn builder(limits: ServeLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .max_buf_size(limits.head_bytes)
        .header_read_timeout(limits.head_timeout)
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(limits.streams)
        .keep_alive_interval(limits.head_timeout);
    builder
}

async fn serve(
    builder: &auto::Builder<TokioExecutor>,
    stream: TcpStream,
    client: SocketAddr,
    service: Arc<impl Service>,
    stop: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(service.answer(request, client).await) }
    });
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%client, %error, "connection ended with an error");
    }
}
