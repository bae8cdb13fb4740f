//! The application's part in owning a shard, as HTTP calls to it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::header::{self, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use serde_json::json;
use tenure::{Grant, Handler, Result, Seal, Shard, ShardId};
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::body::Body;
use crate::headers;
use crate::upstream::{ConnectionPool, Protocol, SendError};

/// How long an answer of a hook may be: what a successor is told is a position, not the state.
const MOST_BYTES: usize = 4096;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Calls to the application: `POST URL/load`, `/catch_up`, `/seal` and `/release`.
///
/// Each is optional: an application that answers 404, 405 or 501 has no such hook, which is as good as success. Any other
/// answer than 2xx is a failure.
#[derive(Debug)]
pub struct HookClient {
    host: String,
    protocol: Protocol,
    base: String,
    timeout: Duration,
    pool: ConnectionPool,
    /// Releases that are under way: a shard is not loaded before the application has heard that it was released.
    releasing: Mutex<HashMap<ShardId, watch::Receiver<()>>>,
}

impl HookClient {
    /// Hooks at `url`. `timeout` is for all but `load`, which has the time of the node's `load_timeout`.
    pub fn new(url: &str, timeout: Duration) -> Result<Arc<Self>, String> {
        let (host, protocol, base) = parts(url)?;
        Ok(Arc::new(Self {
            host,
            protocol,
            base,
            timeout,
            pool: ConnectionPool::new(CONNECT_TIMEOUT, Duration::ZERO),
            releasing: Mutex::default(),
        }))
    }

    /// Calls one; nothing if the application has no such hook.
    async fn call(
        &self,
        hook: &str,
        grant: &Grant,
        said: serde_json::Value,
    ) -> Result<Option<String>> {
        let shard = grant.shard();
        let mut body = json!({
            "keyspace": shard.keyspace.as_str(),
            "shard": shard.shard.as_str(),
            "epoch": grant.epoch().0,
        });
        if let (Some(body), serde_json::Value::Object(said)) = (body.as_object_mut(), said) {
            body.extend(said);
        }
        let request = Request::post(format!("{}/{hook}", self.base))
            .header(header::HOST, self.host.as_str())
            .header(header::CONTENT_TYPE, "application/json")
            .header(headers::SHARD, headers::shard_value(shard))
            .header(headers::EPOCH, headers::number(grant.epoch().0))
            .body(Body::of(body.to_string()))?;
        let sent = self.pool.send(&self.host, self.protocol, request).await;
        let answer = sent.map_err(|e| match e {
            SendError::NotSent(reason) | SendError::Unknown(reason) => {
                format!("calling hook {hook} failed: {reason}")
            }
        })?;
        let status = answer.status();
        let text = Limited::new(answer.into_body(), MOST_BYTES)
            .collect()
            .await
            .map_err(|e| {
                format!(
                    "reading the response of hook {hook} (at most {MOST_BYTES} bytes) failed: {e}"
                )
            })?;
        let text = String::from_utf8_lossy(&text.to_bytes()).into_owned();
        match status {
            StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_IMPLEMENTED => Ok(None),
            _ if status.is_success() => Ok(Some(text)),
            _ => {
                let message: String = text.trim().chars().take(200).collect();
                Err(format!("hook {hook} returned {status}: {message}").into())
            }
        }
    }

    /// Calls one that may not take longer than the timeout.
    async fn in_time(
        &self,
        hook: &str,
        grant: &Grant,
        said: serde_json::Value,
    ) -> Result<Option<String>> {
        match tokio::time::timeout(self.timeout, self.call(hook, grant, said)).await {
            Ok(done) => done,
            Err(_) => Err(format!("hook {hook} did not respond within {:?}", self.timeout).into()),
        }
    }

    fn releasing(&self) -> MutexGuard<'_, HashMap<ShardId, watch::Receiver<()>>> {
        let releasing = self.releasing.lock();
        releasing.unwrap_or_else(PoisonError::into_inner)
    }

    async fn released(&self, shard: &ShardId) {
        let pending = self.releasing().get(shard).cloned();
        if let Some(mut pending) = pending {
            // Resolves when the sender is dropped.
            while pending.changed().await.is_ok() {}
        }
    }

    fn release(self: &Arc<Self>, grant: Grant) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (done, pending) = watch::channel(());
        let shard = grant.shard().clone();
        self.releasing().insert(shard.clone(), pending.clone());
        let hooks = self.clone();
        runtime.spawn(async move {
            if let Err(error) = hooks.in_time("release", &grant, json!({})).await {
                debug!(%shard, %error, "release hook of the application failed");
            }
            let mut releasing = hooks.releasing();
            if releasing
                .get(&shard)
                .is_some_and(|p| p.same_channel(&pending))
            {
                releasing.remove(&shard);
            }
            drop(done);
        });
    }
}

/// `HOST:PORT`, protocol and path of a URL: `http://` is HTTP/1.1, `h2c://` is HTTP/2 with prior knowledge.
pub(crate) fn parts(url: &str) -> Result<(String, Protocol, String), String> {
    let bad = |reason: &str| format!("{url:?} {reason}; use http://HOST:PORT or h2c://HOST:PORT");
    let (protocol, rest) = match url.split_once("://") {
        Some(("http", rest)) => (Protocol::Http1, rest),
        Some(("h2c", rest)) => (Protocol::Http2, rest),
        _ => return Err(bad("has an unsupported scheme")),
    };
    let uri: Uri = format!("http://{rest}")
        .parse()
        .map_err(|e| bad(&format!("is not a URL ({e})")))?;
    let authority = uri.authority().ok_or_else(|| bad("has no host"))?;
    if authority.as_str().contains('@') || uri.query().is_some() {
        return Err(bad("has a user or a query"));
    }
    let host = authority.host();
    let port = authority.port_u16().unwrap_or(80);
    let path = uri.path().trim_end_matches('/').to_owned();
    Ok((format!("{host}:{port}"), protocol, path))
}

/// The handler of a sidecar. `WARM`: the application has `catch_up`, so `load` may run while another node still serves.
pub struct HookHandler<const WARM: bool>(Option<Arc<HookClient>>);

impl<const WARM: bool> HookHandler<WARM> {
    /// With these hooks, or none.
    pub fn new(hooks: Option<Arc<HookClient>>) -> Self {
        Self(hooks)
    }
}

/// What is there of a shard: the application is told when it is over.
pub struct HookState(Option<(Arc<HookClient>, Grant)>);

impl Drop for HookState {
    fn drop(&mut self) {
        if let Some((hooks, grant)) = self.0.take() {
            hooks.release(grant);
        }
    }
}

impl<const WARM: bool> Handler for HookHandler<WARM> {
    type State = HookState;

    const CATCHES_UP: bool = WARM;

    async fn load(&self, shard: &Shard) -> Result<HookState> {
        let Some(hooks) = &self.0 else {
            return Ok(HookState(None));
        };
        hooks.released(shard.id()).await;
        // From here on the application may have something of the shard: whatever comes of it, it hears of the end.
        let stayed = HookState(Some((hooks.clone(), shard.grant().clone())));
        let said = json!({ "owned": shard.is_owned(), "meta": shard.meta() });
        hooks.call("load", shard.grant(), said).await?;
        Ok(stayed)
    }

    async fn catch_up(&self, shard: &Shard, _: &mut HookState, from: &Seal) -> Result<()> {
        if let Some(hooks) = &self.0 {
            let said = json!({ "seal": from.as_str() });
            hooks.in_time("catch_up", shard.grant(), said).await?;
        }
        Ok(())
    }

    async fn seal(&self, shard: &Shard, _: &mut HookState) -> Result<Seal> {
        let Some(hooks) = &self.0 else {
            return Ok(Seal::default());
        };
        match hooks.in_time("seal", shard.grant(), json!({})).await {
            Ok(said) => Ok(Seal::new(said.unwrap_or_default().trim())),
            Err(error) => {
                warn!(shard = %shard.id(), %error, "seal hook of the application failed");
                Err(error)
            }
        }
    }
}

/// A header's value that says where an application is, for requests that name no host themselves.
pub(crate) fn host_value(host: &str) -> HeaderValue {
    headers::ascii(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart_or_refused_with_the_way_out() {
        let good = parts("http://localhost:80/hooks/").unwrap();
        assert_eq!(
            good,
            ("localhost:80".into(), Protocol::Http1, "/hooks".into())
        );
        let good = parts("h2c://[::1]:7").unwrap();
        assert_eq!(good, ("[::1]:7".into(), Protocol::Http2, String::new()));
        for bad in [
            "",
            "localhost:80",
            "https://a",
            "http://",
            "http://u@h",
            "http://h?q",
        ] {
            let reason = parts(bad).unwrap_err();
            assert!(reason.contains("use http://HOST:PORT"), "{reason}");
        }
    }
}
