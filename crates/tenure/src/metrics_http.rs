//! A tiny HTTP server for metrics and probes: `GET /metrics`, `/livez` and `/readyz`, and nothing else.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::metrics::Metrics;

/// A request is its first line and headers; one that is longer, or slower, than this is not for us.
const MOST_BYTES: usize = 8 * 1024;
const MOST_TIME: Duration = Duration::from_secs(5);

const OK: &str = "200 OK";
const NOT_NOW: &str = "503 Service Unavailable";

/// What a [`MetricsServer`] shows: a node's [`Metrics`], or those of something that is built on one.
pub trait MetricsSource: Send + Sync {
    /// All metrics in the text format of Prometheus.
    fn render(&self) -> String;

    /// Whether it goes on by itself: false only where a restart helps.
    fn is_alive(&self) -> bool;

    /// Whether it can do its work at this moment: `Err` says why not.
    fn is_ready(&self) -> Result<(), &'static str>;
}

impl MetricsSource for Metrics {
    fn render(&self) -> String {
        self.render()
    }

    fn is_alive(&self) -> bool {
        self.is_alive()
    }

    fn is_ready(&self) -> Result<(), &'static str> {
        self.is_ready()
    }
}

/// Serves the metrics of a node, or of what is built on one, and says whether it is alive and ready. Ends when dropped.
///
/// `/livez` fails only where a restart helps: when the node has ended. One that is cut off from its store is alive, and comes
/// back by itself; it is not ready meanwhile, and `/readyz` says so.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl MetricsServer {
    /// Listens at `address`, such as `127.0.0.1:9464`, or `:9464`, which means the same. Whoever can reach it can read the
    /// metrics, so anything beyond the loopback interface has to be named.
    pub async fn bind(address: &str, shown: Arc<dyn MetricsSource>) -> io::Result<Self> {
        let address = match address.strip_prefix(':') {
            Some(port) => format!("127.0.0.1:{port}"),
            None => address.to_owned(),
        };
        let listener = TcpListener::bind(&address).await.map_err(|e| {
            let text = format!("metrics cannot be served at {address}: {e}");
            io::Error::new(e.kind(), text)
        })?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let answer = answer(stream, shown.clone());
                        tokio::spawn(tokio::time::timeout(MOST_TIME, answer));
                    }
                    // As when the process has too many files open: it passes.
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        });
        Ok(Self { address, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut stream: TcpStream, shown: Arc<dyn MetricsSource>) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        let mut part = [0; 1024];
        let n = stream.read(&mut part).await?;
        if n == 0 || request.len() > MOST_BYTES {
            return Ok(());
        }
        request.extend_from_slice(&part[..n]);
    }
    let path = request.split(|b| b.is_ascii_whitespace()).nth(1);
    let path = path.filter(|_| request.starts_with(b"GET "));
    let (status, body) = match path {
        Some(b"/metrics") => (OK, shown.render()),
        Some(b"/livez") if shown.is_alive() => (OK, "alive\n".to_owned()),
        Some(b"/livez") => (NOT_NOW, "the node has ended\n".to_owned()),
        Some(b"/readyz") => match shown.is_ready() {
            Ok(()) => (OK, "ready\n".to_owned()),
            Err(reason) => (NOT_NOW, format!("not ready: {reason}\n")),
        },
        _ => (
            "404 Not Found",
            "only GET /metrics, /livez and /readyz are served here\n".to_owned(),
        ),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    async fn ask(server: &MetricsServer, request: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn metrics_are_served_on_loopback_and_nothing_else_is() {
        let metrics = Arc::new(Metrics::new(Clock::boot()));
        let server = MetricsServer::bind(":0", metrics).await.unwrap();
        assert!(server.address().ip().is_loopback());
        let text = ask(&server, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("\ntenure_detached 0\n"), "{text}");
        for other in ["GET / HTTP/1.1\r\n\r\n", "POST /metrics HTTP/1.1\r\n\r\n"] {
            let text = ask(&server, other).await;
            assert!(text.starts_with("HTTP/1.1 404 "), "{text}");
        }
    }

    #[tokio::test]
    async fn probes_tell_a_node_that_is_cut_off_from_one_that_has_ended() {
        use tenure_core::ids::SessionId;
        use tenure_core::reason::Reason;
        use tenure_core::telemetry::NodeEvent;
        use tenure_core::time::Time;
        let clock = Clock::boot();
        let metrics = Arc::new(Metrics::new(clock.clone()));
        let server = MetricsServer::bind(":0", metrics.clone()).await.unwrap();
        let probe = async |path: &str| {
            let text = ask(&server, &format!("GET {path} HTTP/1.1\r\n\r\n")).await;
            let status = text.split(' ').nth(1).unwrap().to_owned();
            (status, text.lines().last().unwrap().to_owned())
        };
        let check = async |live: &str, ready: &str, said: &str| {
            assert_eq!(probe("/livez").await.0, live, "{said}");
            let got = probe("/readyz").await;
            assert_eq!((got.0.as_str(), got.1.as_str()), (ready, said));
        };
        let (session, reason) = (SessionId(1), Reason::SessionEnded);
        let mode = tenure_core::record::NodeMode::Active;
        check("200", "503", "not ready: starting").await;
        metrics.deadline(Time::NEVER);
        metrics.note(&NodeEvent::Registered { session, mode });
        metrics.note(&NodeEvent::StartedWith {
            loaded: 1,
            failed: 0,
        });
        check("200", "200", "ready").await;
        metrics.deadline(clock.now());
        check("200", "503", "not ready: detached").await;
        metrics.deadline(Time::NEVER);
        metrics.note(&NodeEvent::SessionLost { session, reason });
        check("200", "503", "not ready: detached").await;
        metrics.leaving();
        check("200", "503", "not ready: stopping").await;
        metrics.over();
        check("503", "503", "not ready: stopped").await;
    }

    #[tokio::test]
    async fn an_address_that_cannot_be_used_is_named() {
        let metrics = Arc::new(Metrics::new(Clock::boot()));
        let first = MetricsServer::bind("127.0.0.1:0", metrics.clone())
            .await
            .unwrap();
        let address = first.address().to_string();
        let error = MetricsServer::bind(&address, metrics).await.unwrap_err();
        assert!(error.to_string().contains(&address), "{error}");
    }
}
