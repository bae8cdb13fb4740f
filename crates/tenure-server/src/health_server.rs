//! Health and metrics, away from the traffic.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use crate::body::Body;
use crate::listener::Service;

/// How a process is doing.
pub trait Health: Send + Sync + 'static {
    /// Whether it should go on living; if not, why not.
    fn live(&self) -> Result<(), String>;

    /// Whether it should be sent requests; if not, why not.
    fn ready(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>>;

    /// Its metrics in the text format of Prometheus.
    fn metrics(&self) -> String;
}

/// `GET /livez`, `/readyz` and `/metrics`.
pub struct HealthServer<T>(Arc<T>);

impl<T: Health> HealthServer<T> {
    /// Tells of this.
    pub fn new(health: Arc<T>) -> Arc<Self> {
        Arc::new(Self(health))
    }
}

impl<T: Health> Service for HealthServer<T> {
    async fn answer(self: Arc<Self>, request: Request<Incoming>, _: SocketAddr) -> Response<Body> {
        let head_or_get = matches!(*request.method(), Method::GET | Method::HEAD);
        let (status, text) = match request.uri().path() {
            _ if !head_or_get => (
                StatusCode::METHOD_NOT_ALLOWED,
                "only GET and HEAD are supported here\n".to_owned(),
            ),
            "/livez" => told(self.0.live()),
            "/readyz" => told(self.0.ready().await),
            "/metrics" => (StatusCode::OK, self.0.metrics()),
            _ => {
                let text = "available paths: /livez /readyz /metrics\n";
                (StatusCode::NOT_FOUND, text.to_owned())
            }
        };
        let mut answer = Response::new(Body::of(text));
        *answer.status_mut() = status;
        answer.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
        );
        answer
    }
}

fn told(health: Result<(), String>) -> (StatusCode, String) {
    match health {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}
