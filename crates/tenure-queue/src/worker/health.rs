//! How a worker stands, for whoever asks from outside.

use std::fmt;
use std::sync::Arc;

use tenure::MetricsSource;

use super::context::WorkerContext;

/// How a worker stands and what it has done, for a [`tenure::MetricsServer`].
///
/// Its metrics are the queue's, and beside them those of the node that owns its shards, if leasing is on. It stays when the
/// worker has gone, and says so.
#[derive(Clone)]
pub struct WorkerHealth {
    pub(super) engine: Arc<WorkerContext>,
    pub(super) node: Option<Arc<tenure::Metrics>>,
}

impl MetricsSource for WorkerHealth {
    fn render(&self) -> String {
        let queue = &self.engine.queue;
        let mut text = queue.metrics().render(queue.name().as_str());
        if let Some(node) = &self.node {
            text.push_str(&node.render());
        }
        text
    }

    fn is_alive(&self) -> bool {
        !self.engine.vanish.is_cancelled() && self.node.as_ref().is_none_or(|node| node.is_alive())
    }

    fn is_ready(&self) -> Result<(), &'static str> {
        if self.engine.vanish.is_cancelled() {
            return Err("stopped");
        }
        if self.engine.stop.is_cancelled() {
            return Err("stopping");
        }
        match &self.node {
            Some(node) => node.is_ready(),
            // Nobody holds a lease for it that would tell.
            None if self.engine.is_cut_off() => Err("the store does not answer"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for WorkerHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = f.debug_struct("WorkerHealth");
        told.field("worker", &self.engine.name);
        told.field("ready", &self.is_ready()).finish()
    }
}
