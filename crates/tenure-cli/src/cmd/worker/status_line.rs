//! Status line of a worker at a terminal; nothing without a terminal.

use std::convert::Infallible;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use tenure_queue::{Metrics, Worker};

/// How often the line is brought up to date.
const EVERY: Duration = Duration::from_millis(500);
const CLEAR: &str = "\r\x1b[K";

/// The last line of a terminal.
pub(in crate::cmd) struct StatusLine {
    terminal: bool,
}

impl StatusLine {
    pub(in crate::cmd) fn new() -> Self {
        Self {
            terminal: io::stderr().is_terminal(),
        }
    }

    /// Writes a line to standard error, above the progress line.
    pub(in crate::cmd) fn say(&self, text: &str) {
        self.pass(format!("{text}\n").as_bytes());
    }

    /// Passes on what a program wrote.
    pub(super) fn pass(&self, bytes: &[u8]) {
        let mut whole = Vec::with_capacity(bytes.len() + CLEAR.len());
        if self.terminal {
            whole.extend_from_slice(CLEAR.as_bytes());
        }
        whole.extend_from_slice(bytes);
        // Whoever closed it does not want to know.
        let _ = io::stderr().lock().write_all(&whole);
    }

    /// Keeps the line up to date.
    pub(super) async fn keep(&self, worker: &Worker) -> Infallible {
        if !self.terminal {
            return std::future::pending().await;
        }
        loop {
            let text = format!(
                "{CLEAR}{} running, {} shards, {}",
                worker.running(),
                worker.shards().len(),
                summary(worker.metrics())
            );
            let mut out = io::stderr().lock();
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            drop(out);
            tokio::time::sleep(EVERY).await;
        }
    }
}

/// What a worker has done.
pub(super) fn summary(metrics: &Metrics) -> String {
    let value = |name: &str| {
        let name = format!("tenure_queue_{name}_total");
        metrics.value(&name).unwrap_or(0)
    };
    format!(
        "{} done, {} attempts failed, {} dead letters, {} released, {} claims lost",
        value("finished"),
        value("failed"),
        value("dead"),
        value("released") + value("rescheduled"),
        value("claims_lost")
    )
}
