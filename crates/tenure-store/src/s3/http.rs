//! One request and its answer: signed, counted, never repeated once it may have been applied.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Method;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::capabilities::ServiceCapabilities;
use super::credentials::Credentials;
use super::outage_probe::ConditionalWriteTrust;
use super::request_counts::{RequestCounter, RequestKind};
use super::service_clock::ServiceClock;
use super::settings::Settings;
use super::sigv4::{SignedRequest, escaped};
use super::xml;
use crate::error::StoreError;

/// Nobody waits longer for an answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECTING: Duration = Duration::from_secs(2);
/// Services close connections that are idle for long, and at times while we begin to use them.
const IDLE: Duration = Duration::from_secs(15);

/// What is asked.
#[derive(Clone, Debug, Default)]
pub(super) struct HttpRequest<'a> {
    pub(super) kind: RequestKind,
    /// The object; nothing means the bucket.
    pub(super) object: &'a str,
    pub(super) query: Vec<(&'static str, String)>,
    /// Names in lower case.
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

/// What was answered.
#[derive(Clone, Debug)]
pub(super) struct HttpResponse {
    pub(super) status: u16,
    /// Without its quotes.
    pub(super) etag: Option<Arc<str>>,
    pub(super) date: Option<std::time::SystemTime>,
    pub(super) region: Option<String>,
    pub(super) body: Vec<u8>,
}

impl HttpResponse {
    pub(super) fn is_ok(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns `true` for a failure of a service that is down or starting. `SlowDown` is no such failure.
    fn is_outage(&self) -> bool {
        self.status >= 500 && self.status != 501 && xml::refusal(&self.body).code != "SlowDown"
    }
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(super) enum HttpError {
    /// There is nothing to sign with.
    Keys(String),
    /// No byte of it has left.
    NotSent(String),
    /// It may have arrived.
    NoAnswer(String),
}

/// What all connections to one bucket share.
pub(super) struct BucketEndpoint {
    pub(super) settings: Settings,
    pub(super) credentials: Credentials,
    pub(super) clock: ServiceClock,
    pub(super) counter: RequestCounter,
    pub(super) manners: ServiceCapabilities,
    pub(super) trust: ConditionalWriteTrust,
    tls: rustls::ClientConfig,
}

impl BucketEndpoint {
    pub(super) fn new(settings: Settings) -> Result<Self, StoreError> {
        let tls = super::tls::config(settings.ca.as_deref())?;
        let credentials = Credentials::find(&settings, &built(&tls)?)?;
        Ok(Self {
            settings,
            credentials,
            clock: ServiceClock::default(),
            counter: RequestCounter::default(),
            manners: ServiceCapabilities::default(),
            trust: ConditionalWriteTrust::default(),
            tls,
        })
    }
}

fn built(tls: &rustls::ClientConfig) -> Result<reqwest::Client, StoreError> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls.clone())
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECTING)
        .timeout(CALL_TIMEOUT)
        .pool_idle_timeout(IDLE)
        .build()
        .map_err(|e| {
            StoreError::denied(format!(
                "the HTTP client for S3 cannot be set up: {}",
                causes(&e)
            ))
        })
}

/// Connections of one's own.
pub(super) struct HttpClient {
    pub(super) site: Arc<BucketEndpoint>,
    /// With how often it was replaced.
    http: Mutex<(u64, reqwest::Client)>,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HttpClient")
            .field(&self.site.settings.host)
            .finish()
    }
}

impl HttpClient {
    pub(super) fn new(site: Arc<BucketEndpoint>) -> Result<Self, StoreError> {
        let http = Mutex::new((0, built(&site.tls)?));
        Ok(Self { site, http })
    }

    fn lock(&self) -> MutexGuard<'_, (u64, reqwest::Client)> {
        self.http.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks once. A request that was refused for its time alone, before anything was done, is sent again with the store's time.
    pub(super) async fn ask(&self, ask: HttpRequest<'_>) -> Result<HttpResponse, HttpError> {
        let answer = self.once(&ask).await?;
        let skewed = answer.status == 403
            && xml::refusal(&answer.body).code == "RequestTimeTooSkewed"
            && answer.date.is_some();
        if skewed {
            return self.once(&ask).await;
        }
        Ok(answer)
    }

    async fn once(&self, ask: &HttpRequest<'_>) -> Result<HttpResponse, HttpError> {
        let site = &self.site;
        let key = site.credentials.get().await.map_err(HttpError::Keys)?;
        let (generation, http) = self.lock().clone();
        let mut trying = Trying {
            client: self,
            generation,
            answered: false,
            refused: false,
        };
        let request = self.request(ask, &key)?;
        site.counter.count(ask.kind);
        let sent = http.execute(request).await;
        let response = sent.map_err(|e| match e.is_connect() {
            true => {
                trying.refused = true;
                HttpError::NotSent(causes(&e))
            }
            false => HttpError::NoAnswer(causes(&e)),
        })?;
        let mut answer = heading(response.status().as_u16(), response.headers());
        if let Some(date) = answer.date {
            site.clock.heard(date);
        }
        let body = response.bytes().await;
        answer.body = body.map_err(|e| HttpError::NoAnswer(causes(&e)))?.to_vec();
        trying.answered = true;
        match answer.is_outage() {
            true => site.trust.failed(false),
            false => site.trust.answered(),
        }
        Ok(answer)
    }

    fn request(
        &self,
        ask: &HttpRequest<'_>,
        key: &object_store::aws::AwsCredential,
    ) -> Result<reqwest::Request, HttpError> {
        let Settings {
            base,
            host,
            before,
            region,
            ..
        } = &self.site.settings;
        let path = format!("{before}/{}", escaped(ask.object, true));
        let mut query: Vec<String> = ask
            .query
            .iter()
            .map(|(name, value)| format!("{name}={}", escaped(value, false)))
            .collect();
        query.sort_unstable();
        let query = query.join("&");
        let signed = SignedRequest {
            method: ask.kind.method(),
            host,
            path: &path,
            query: &query,
            headers: &ask.headers,
            body: &ask.body,
        };
        let more = signed.headers(key, region, self.site.clock.to_sign());
        let broken =
            |e: &dyn fmt::Display| HttpError::NotSent(format!("the request cannot be built: {e}"));
        let url = match &*query {
            "" => format!("{base}{path}"),
            _ => format!("{base}{path}?{query}"),
        };
        let url = reqwest::Url::parse(&url).map_err(|e| broken(&e))?;
        let method = Method::from_bytes(ask.kind.method().as_bytes()).map_err(|e| broken(&e))?;
        let mut request = reqwest::Request::new(method, url);
        for (name, value) in ask.headers.iter().chain(&more) {
            let value = HeaderValue::from_str(value).map_err(|e| broken(&e))?;
            request
                .headers_mut()
                .insert(HeaderName::from_static(name), value);
        }
        if ask.kind == RequestKind::Put {
            let json = HeaderValue::from_static("application/json");
            request
                .headers_mut()
                .insert(reqwest::header::CONTENT_TYPE, json);
            *request.body_mut() = Some(ask.body.clone().into());
        }
        Ok(request)
    }
}

/// A request under way. If it gets no answer, be it that it was given up, its connections are not used again: others that are
/// idle may be as dead as this one.
struct Trying<'a> {
    client: &'a HttpClient,
    generation: u64,
    answered: bool,
    /// No connection was made.
    refused: bool,
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.client.site.trust.failed(self.refused);
        let mut http = self.client.lock();
        if http.0 == self.generation
            && let Ok(fresh) = built(&self.client.site.tls)
        {
            *http = (self.generation + 1, fresh);
        }
    }
}

fn heading(status: u16, headers: &HeaderMap) -> HttpResponse {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    HttpResponse {
        status,
        etag: text("etag").map(bare),
        date: text("date").and_then(|date| httpdate::parse_http_date(date).ok()),
        region: text("x-amz-bucket-region").map(str::to_owned),
        body: Vec::new(),
    }
}

/// An ETag without what is around it.
pub(super) fn bare(etag: &str) -> Arc<str> {
    let etag = etag.trim();
    etag.strip_prefix("W/")
        .unwrap_or(etag)
        .trim_matches('"')
        .into()
}

/// An error with all that led to it. Never with its URL, which may be long.
fn causes(e: &reqwest::Error) -> String {
    let mut e: &dyn std::error::Error = e;
    if let Some(cause) = e.source() {
        e = cause;
    }
    let mut text = e.to_string();
    while let Some(cause) = e.source() {
        text = format!("{text}: {cause}");
        e = cause;
    }
    text
}
