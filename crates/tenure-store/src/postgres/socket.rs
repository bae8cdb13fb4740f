//! The socket under a connection: one that notices when nobody answers.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use super::url::ServerHost;

/// How long bytes may stay unacknowledged by the other machine before the kernel gives the connection up.
const USER_TIMEOUT: Duration = Duration::from_secs(5);
/// When the kernel begins to ask whether an idle connection is still there, how often, and how many times.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_COUNT: u32 = 3;

/// Anything that bytes go through.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

/// A socket that says since when its owner has been waiting for the server.
pub(super) struct WatchedSocket {
    pipe: Box<dyn ByteStream>,
    pulse: Arc<ResponseTimer>,
    /// The port of this end, if it is one of TCP.
    pub(super) local_port: Option<u16>,
}

impl WatchedSocket {
    /// Connects to a host; all of its addresses are tried.
    pub(super) async fn open(host: &ServerHost) -> io::Result<Self> {
        let (pipe, local_port): (Box<dyn ByteStream>, _) = match host {
            ServerHost::Tcp { name, port } => {
                let stream = TcpStream::connect((name.as_str(), *port)).await?;
                make_watchful(&stream)?;
                let port = stream.local_addr()?.port();
                (Box::new(stream), Some(port))
            }
            ServerHost::Unix { directory, port } => {
                let path = Path::new(directory).join(format!(".s.PGSQL.{port}"));
                (Box::new(UnixStream::connect(path).await?), None)
            }
        };
        Ok(Self {
            pipe,
            pulse: Arc::new(ResponseTimer::new()),
            local_port,
        })
    }

    pub(super) fn pulse(&self) -> Arc<ResponseTimer> {
        self.pulse.clone()
    }
}

fn make_watchful(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT.as_millis() as u32)?;
    Ok(())
}

/// Since when a connection has been asked without a byte coming back.
#[derive(Debug)]
pub(super) struct ResponseTimer {
    begun: Instant,
    /// Milliseconds after `begun`, and one more so that 0 means: not waiting.
    waiting_since: AtomicU64,
}

impl ResponseTimer {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            waiting_since: AtomicU64::new(0),
        }
    }

    /// Something was asked.
    pub(super) fn asked(&self) {
        let now = self.begun.elapsed().as_millis() as u64 + 1;
        // Whoever asked first has waited longest.
        let _ = self
            .waiting_since
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn heard(&self) {
        self.waiting_since.store(0, Ordering::Relaxed);
    }

    /// For how long nothing has come back although something was asked.
    pub(super) fn silence(&self) -> Duration {
        match self.waiting_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => self
                .begun
                .elapsed()
                .saturating_sub(Duration::from_millis(since - 1)),
        }
    }
}

impl AsyncRead for WatchedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.pipe).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.pulse.heard();
        }
        read
    }
}

impl AsyncWrite for WatchedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}
