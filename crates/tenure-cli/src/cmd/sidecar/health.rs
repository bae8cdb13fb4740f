//! How a node and its application are doing.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::Node;
use tenure_server::{ApplicationEndpoint, Health, HttpMetrics, Proxy};

/// How often an application that is not there yet is looked for: nothing tells when it is.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Waits until the application takes connections.
pub(super) async fn up(application: &ApplicationEndpoint) {
    let mut said = false;
    while let Err(reason) = application.answers().await {
        if !std::mem::replace(&mut said, true) {
            tracing::warn!(reason, "application accepts no connections yet, waiting");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// See [`Health`].
pub(super) struct SidecarHealth {
    node: Node,
    application: Arc<ApplicationEndpoint>,
    http: Arc<HttpMetrics>,
    proxy: Option<Arc<Proxy>>,
    stopping: AtomicBool,
}

impl SidecarHealth {
    pub(super) fn new(
        node: Node,
        application: Arc<ApplicationEndpoint>,
        http: Arc<HttpMetrics>,
        proxy: Option<Arc<Proxy>>,
    ) -> Self {
        Self {
            node,
            application,
            http,
            proxy,
            stopping: AtomicBool::new(false),
        }
    }

    pub(super) fn stops(&self) {
        self.stopping.store(true, Ordering::Release);
    }
}

impl Health for SidecarHealth {
    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    fn ready(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(async {
            if self.stopping.load(Ordering::Acquire) {
                return Err("stopping".to_owned());
            }
            if self.node.metrics().value("tenure_detached", "") > 0.0 {
                return Err(
                    "detached: the lease could not be renewed, no shard is served".to_owned(),
                );
            }
            self.application
                .answers()
                .await
                .map_err(|reason| format!("the application accepts no connections: {reason}"))
        })
    }

    fn metrics(&self) -> String {
        let mut text = self.node.metrics().render() + &self.http.render();
        if let Some(proxy) = &self.proxy {
            text += &proxy.render();
        }
        text
    }
}
