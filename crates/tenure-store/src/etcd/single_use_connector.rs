//! A connector that connects once: a broken connection stays broken.
//!
//! The transport would otherwise connect again by itself, and a call could not tell that the process at the other end is
//! another one than a moment ago. Which endpoint comes next is decided elsewhere.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct SingleUseConnector {
    used: Arc<AtomicBool>,
}

impl SingleUseConnector {
    pub(super) fn new() -> Self {
        Self {
            used: Arc::default(),
        }
    }
}

impl Service<Uri> for SingleUseConnector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let again = self.used.swap(true, Ordering::Relaxed);
        Box::pin(async move {
            if again {
                return Err(io::Error::other("the connection to etcd was lost"));
            }
            let host = uri.host().unwrap_or_default();
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let port = uri.port_u16().unwrap_or_default();
            let stream = TcpStream::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        })
    }
}
