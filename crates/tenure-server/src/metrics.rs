//! What a proxy or a gate counts, beside what router and node count themselves.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::StatusCode;

/// Counters of one HTTP server.
#[derive(Debug)]
pub struct HttpMetrics {
    role: &'static str,
    answers: [AtomicU64; 5],
    abandoned: AtomicU64,
    in_flight: AtomicU64,
    streams: AtomicU64,
    streams_cut: AtomicU64,
    trouble: [AtomicU64; 5],
}

/// What can go wrong between two ends, as `why` names it.
const TROUBLE: [&str; 5] = [
    "not_sent",
    "disconnected",
    "timeout",
    "not_replayable",
    "shard_lost",
];

/// A request that is being answered.
pub(crate) struct CountedRequest {
    metrics: Arc<HttpMetrics>,
    answered: bool,
}

/// A stream that is open.
pub(crate) struct OpenStream(Arc<HttpMetrics>);

impl HttpMetrics {
    /// All zero. `role` is `router` or `sidecar`.
    pub fn new(role: &'static str) -> Arc<Self> {
        Arc::new(Self {
            role,
            answers: Default::default(),
            abandoned: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            streams: AtomicU64::new(0),
            streams_cut: AtomicU64::new(0),
            trouble: Default::default(),
        })
    }

    pub(crate) fn begin(self: &Arc<Self>) -> CountedRequest {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        CountedRequest {
            metrics: self.clone(),
            answered: false,
        }
    }

    pub(crate) fn stream(self: &Arc<Self>) -> OpenStream {
        self.streams.fetch_add(1, Ordering::Relaxed);
        OpenStream(self.clone())
    }

    pub(crate) fn stream_cut(&self) {
        self.streams_cut.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn not_sent(&self) {
        self.trouble(0);
    }

    pub(crate) fn broken(&self) {
        self.trouble(1);
    }

    pub(crate) fn timed_out(&self) {
        self.trouble(2);
    }

    pub(crate) fn not_replayed(&self) {
        self.trouble(3);
    }

    pub(crate) fn lost(&self) {
        self.trouble(4);
    }

    fn trouble(&self, what: usize) {
        self.trouble[what].fetch_add(1, Ordering::Relaxed);
    }

    /// In the text format of Prometheus.
    pub fn render(&self) -> String {
        let mut out = String::new();
        let role = self.role;
        let mut head = |name: &str, kind: &str, help: &str, lines: Vec<(String, u64)>| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in lines {
                let _ = writeln!(out, "{name}{{role=\"{role}\"{labels}}} {value}");
            }
        };
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let answers = self.answers.iter().enumerate();
        let answers = answers.map(|(i, n)| (format!(",code=\"{}xx\"", i + 1), get(n)));
        let help = "HTTP responses, by status class.";
        head(
            "tenure_http_responses_total",
            "counter",
            help,
            answers.collect(),
        );
        let trouble = TROUBLE.iter().zip(&self.trouble);
        let trouble = trouble.map(|(reason, n)| (format!(",reason=\"{reason}\""), get(n)));
        let help = "Requests that could not be sent to the owner or application, or got no response, by reason.";
        head(
            "tenure_http_failures_total",
            "counter",
            help,
            trouble.collect(),
        );
        let one = |n| vec![(String::new(), get(n))];
        let help = "Requests whose client disconnected before the response.";
        head(
            "tenure_http_abandoned_total",
            "counter",
            help,
            one(&self.abandoned),
        );
        let help = "Requests whose response has not begun.";
        head("tenure_http_in_flight", "gauge", help, one(&self.in_flight));
        let help =
            "Streamed responses and upgraded connections, such as WebSockets, that are open now.";
        head("tenure_http_streams", "gauge", help, one(&self.streams));
        let help = "Streams cancelled because this node lost or released their shard.";
        head(
            "tenure_http_streams_cancelled_total",
            "counter",
            help,
            one(&self.streams_cut),
        );
        out
    }
}

impl CountedRequest {
    pub(crate) fn answered(mut self, status: StatusCode) {
        self.answered = true;
        let class = usize::from(status.as_u16() / 100).clamp(1, 5) - 1;
        self.metrics.answers[class].fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.metrics.in_flight.fetch_sub(1, Ordering::Relaxed);
        if !self.answered {
            self.metrics.abandoned.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}
