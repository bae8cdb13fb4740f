//! HTTP in front of owners.
//!
//! ```text
//! client ── Proxy (router) ── Gate (beside each application) ── application
//! ```
//!
//! A [`Proxy`] finds the key of a request, and carries it to the node that owns the key's shard; while the shard changes hands
//! it holds the request. A [`Gate`] lets a request through to its application only if its node owns the shard at the epoch that
//! the request names, and counts it as in flight until the last byte of the answer is here. What it refuses (421, with a header
//! of its own) no application has seen, so that the proxy may send it again; anything else is never sent twice.

mod admin;
mod admitted;
mod answer;
mod body;
mod gate;
pub mod headers;
mod hooks;
mod key;
mod lanes;
mod layer;
mod metrics;
mod proxy;
mod serve;
mod tunnel;
mod upstream;

pub use admin::{Health, HealthServer};
pub use body::{Body, BodyError};
pub use gate::{Application, GateSettings, Sidecar};
pub use hooks::{Hooked, Hooks};
pub use key::{KeyRule, KeySource, Target};
pub use lanes::Lanes;
pub use layer::{GateLayer, GateService, Owned};
pub use metrics::HttpMetrics;
pub use proxy::{ADDRESS, Proxy, ProxySettings, REPLAYABLE};
pub use serve::{ServeLimits, Server, Service, bind};
pub use upstream::Protocol;
