//! A tiny HTTP server for metrics: `GET /metrics`, and nothing else.

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

/// Serves a node's metrics. Ends when dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl MetricsServer {
    /// Listens at `address`, such as `127.0.0.1:9464`, or `:9464`, which means the same. Whoever can reach it can read the
    /// metrics, so anything beyond the loopback interface has to be named.
    pub async fn bind(address: &str, metrics: Arc<Metrics>) -> io::Result<Self> {
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
                        let answer = answer(stream, metrics.clone());
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

async fn answer(mut stream: TcpStream, metrics: Arc<Metrics>) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        let mut part = [0; 1024];
        let n = stream.read(&mut part).await?;
        if n == 0 || request.len() > MOST_BYTES {
            return Ok(());
        }
        request.extend_from_slice(&part[..n]);
    }
    let (status, body) = if request.starts_with(b"GET /metrics ") {
        ("200 OK", metrics.render())
    } else {
        (
            "404 Not Found",
            "only GET /metrics is served here\n".to_owned(),
        )
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
