//! Metrics and probes of a worker, where it was told to serve them.

use std::io;
use std::sync::{Arc, OnceLock};

use tenure::{MetricsServer, MetricsSource};
use tenure_queue::{Queue, Worker, WorkerHealth};

use crate::config::Config;

/// What is served, from before the worker begins until this is dropped.
///
/// An address that cannot be used has to be found before anything is claimed.
pub(in crate::cmd) struct ProbeServer {
    shown: Arc<Shown>,
    _server: Option<MetricsServer>,
}

impl ProbeServer {
    /// Serves at the address that the configuration names, if it does.
    pub(in crate::cmd) async fn begin(config: &Config, queue: &Queue) -> io::Result<Self> {
        let shown = Arc::new(Shown {
            queue: queue.clone(),
            worker: OnceLock::new(),
        });
        let server = match config.text("admin_addr") {
            Some(address) => Some(MetricsServer::bind(address, shown.clone()).await?),
            None => None,
        };
        Ok(Self {
            shown,
            _server: server,
        })
    }

    /// The worker has begun.
    pub(in crate::cmd) fn begun(&self, worker: &Worker) {
        // There is one worker for each of these.
        let _ = self.shown.worker.set(worker.health());
    }
}

struct Shown {
    queue: Queue,
    worker: OnceLock<WorkerHealth>,
}

impl MetricsSource for Shown {
    fn render(&self) -> String {
        match self.worker.get() {
            Some(worker) => worker.render(),
            None => self.queue.metrics().render(self.queue.name().as_str()),
        }
    }

    fn is_alive(&self) -> bool {
        self.worker.get().is_none_or(MetricsSource::is_alive)
    }

    fn is_ready(&self) -> Result<(), &'static str> {
        self.worker
            .get()
            .map_or(Err("starting"), MetricsSource::is_ready)
    }
}
