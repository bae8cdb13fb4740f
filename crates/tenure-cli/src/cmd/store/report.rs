//! What was found, and how it is shown.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tenure_store::StoreInfo;
use tenure_store::store_check::{Finding, Level};

use crate::stdout;
use crate::table::wrap;

/// Everything that was found about one store.
pub(super) struct Report {
    store: String,
    kind: Option<&'static str>,
    identity: Option<String>,
    findings: Vec<Finding>,
    measures: Map<String, Value>,
}

impl Report {
    pub(super) fn new(store: String) -> Self {
        Self {
            store,
            kind: None,
            identity: None,
            findings: Vec::new(),
            measures: Map::new(),
        }
    }

    /// The store says of itself what it is.
    pub(super) fn open(&mut self, info: &StoreInfo) {
        self.kind = Some(info.kind);
        self.store.clone_from(&info.url);
    }

    pub(super) fn identity(&mut self, identity: String) {
        self.identity = Some(identity);
    }

    pub(super) fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Notes how long something took: the middle and the longest of several times.
    pub(super) fn measured(&mut self, what: &str, p50: Duration, max: Duration) {
        let micros = |time: Duration| time.as_micros() as u64;
        let value = json!({ "p50_us": micros(p50), "max_us": micros(max) });
        self.measures.insert(what.to_owned(), value);
    }

    fn worst(&self) -> Level {
        let levels = self.findings.iter().map(|finding| finding.level);
        levels.max().unwrap_or(Level::Ok)
    }

    pub(super) fn failed(&self) -> bool {
        self.worst() == Level::Fail
    }

    pub(super) fn print_json(&self) {
        let findings: Vec<Value> = self
            .findings
            .iter()
            .map(|f| {
                json!({ "about": f.about, "level": word(f.level), "found": f.found, "advice": f.advice })
            })
            .collect();
        stdout::json(&json!({
            "store": self.store,
            "kind": self.kind,
            "identity": self.identity,
            "verdict": word(self.worst()),
            "measures": self.measures,
            "findings": findings,
        }));
    }

    pub(super) fn print_text(&self) {
        let mut text = format!("store {}\n", self.store);
        if let Some(identity) = &self.identity {
            text.push_str(&format!("identity {identity}\n"));
        }
        let widest = self.findings.iter().map(|f| f.about.len()).max();
        let widest = widest.unwrap_or_default();
        for finding in &self.findings {
            let head = format!("{:<4}  {:<widest$}  ", word(finding.level), finding.about);
            let body = wrap(&finding.found, &" ".repeat(head.len()));
            text.push_str(&head);
            text.push_str(body.trim_start());
            if let Some(advice) = &finding.advice {
                let advice = wrap(&format!("→ {advice}"), &" ".repeat(head.len()));
                text.push_str(&advice);
            }
        }
        text.push_str(match self.worst() {
            Level::Ok => "all checks passed\n",
            Level::Warn => "the store works; see the warnings\n",
            Level::Fail => "do not use the store until the failed checks pass\n",
        });
        stdout::text(&text);
    }
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Warn => "warn",
        Level::Fail => "fail",
    }
}

/// A time as a person reads it.
pub(super) fn shown(time: Duration) -> String {
    match time.as_micros() {
        micros @ ..1000 => format!("{micros} µs"),
        micros @ ..10_000 => format!("{:.1} ms", micros as f64 / 1000.0),
        micros => format!("{} ms", micros / 1000),
    }
}
