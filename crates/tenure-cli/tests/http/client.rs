//! A client that says exactly what became of a request.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One connection, made anew when it is gone.
pub(crate) struct Client {
    pub(crate) at: SocketAddr,
    sender: Option<SendRequest<Full<Bytes>>>,
}

#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Got {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).and_then(|v| v.to_str().ok());
        value.unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn with(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{:?}\n{}", self.headers, self.text());
        self
    }
}

impl Client {
    pub(crate) fn new(at: SocketAddr) -> Self {
        Self { at, sender: None }
    }

    /// Sends a request; an error says what was wrong with the connection.
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Got, String> {
        let answer = self.begin(request).await?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map_err(|e| format!("body: {e}"))?;
        Ok(Got {
            status: head.status,
            headers: head.headers,
            body: body.to_bytes(),
        })
    }

    /// Sends a request; returns with the head of the answer.
    pub(crate) async fn begin(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<hyper::Response<Incoming>, String> {
        let host = self.at.to_string().parse().unwrap();
        request.headers_mut().insert("host", host);
        loop {
            let fresh = self.sender.is_none();
            let mut sender = match self.sender.take() {
                Some(sender) => sender,
                None => self.open().await?,
            };
            if sender.ready().await.is_err() && !fresh {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(answer) => {
                    self.sender = Some(sender);
                    return Ok(answer);
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !fresh => request = unsent,
                    _ => return Err(error.into_error().to_string()),
                },
            }
        }
    }

    async fn open(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let stream = TcpStream::connect(self.at)
            .await
            .map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|e| e.to_string())?;
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }

    pub(crate) async fn get(&mut self, path: &str) -> Got {
        let request = Request::get(path).body(Full::default()).unwrap();
        self.send(request).await.unwrap()
    }

    /// A request for a key.
    pub(crate) async fn ask(&mut self, method: &str, path: &str, key: &str, body: &str) -> Got {
        self.send(about(method, path, key, body)).await.unwrap()
    }
}

/// A request for a key.
pub(crate) fn about(method: &str, path: &str, key: &str, body: &str) -> Request<Full<Bytes>> {
    Request::builder()
        .method(method)
        .uri(path)
        .header("x-key", key)
        .body(Full::from(body.to_owned()))
        .unwrap()
}

/// Writes bytes as they are, and reads what comes until the other side closes or is silent for a while.
pub(crate) async fn raw(at: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    // The other side may have closed before all is written.
    let _ = stream.write_all(bytes).await;
    read_out(&mut stream).await
}

pub(crate) async fn read_out(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(Ok(n)) =
        tokio::time::timeout(Duration::from_millis(1500), stream.read(&mut piece)).await
    {
        if n == 0 {
            break;
        }
        text.extend_from_slice(&piece[..n]);
    }
    String::from_utf8_lossy(&text).into_owned()
}
