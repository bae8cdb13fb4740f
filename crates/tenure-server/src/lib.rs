//! HTTP in front of owners.
//!
//! ```text
//! client ── Proxy (router) ── Gate (beside each application) ── application
//! ```
//!
//! A [`Proxy`] finds the key of a request, and carries it to the node that owns the key's shard; while the shard changes hands
//! it holds the request. A [`Sidecar`] lets a request through to its application only if its node owns the shard at the epoch that
//! the request names, and counts it as in flight until the last byte of the answer is here. What it refuses (421, with a header
//! of its own) no application has seen, so that the proxy may send it again; anything else is never sent twice.

mod body;
mod error_response;
pub mod headers;
mod health_server;
mod key_extraction;
mod lifecycle_hooks;
mod listener;
mod metrics;
mod proxy;
mod sidecar;
mod tower_layer;
mod tracked_response;
mod upgrade;
mod upstream;
mod worker_threads;

pub use body::{Body, BodyError};
pub use health_server::{Health, HealthServer};
pub use key_extraction::{KeyRule, KeySource, RequestTarget};
pub use lifecycle_hooks::{HookClient, HookHandler};
pub use listener::{ServeLimits, Server, Service, bind};
pub use metrics::HttpMetrics;
pub use proxy::{ADDRESS, Proxy, ProxySettings, REPLAYABLE};
pub use sidecar::{ApplicationEndpoint, Sidecar, SidecarSettings};
pub use tower_layer::{GateLayer, GateService, RequestGrant};
pub use upstream::Protocol;
pub use worker_threads::WorkerThreads;
