//! A small service that speaks enough S3, and gets one thing wrong on purpose.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ETAG, HeaderMap, IF_MATCH, IF_NONE_MATCH};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use tempfile::TempDir;
use tokio::net::TcpListener;

/// What it gets wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    BareEtags,
    IgnoresIfNoneMatch,
    IgnoresIfMatch,
    IgnoresConditionsOfRemovals,
    ChecksThenWrites,
    MatchesNothing,
    MatchesAnything,
    CreatesOnUpdate,
    ClockIsHoursAhead,
    AlwaysSkewed,
    WrongRegion,
    Redirects,
    NoBucket,
    BadKey,
    Forbidden,
    NotImplemented,
    ConflictsOnWrites,
    ConflictsAfterWriting,
    FailsWrites,
    SlowsDownWrites,
    TimesOutWrites,
    DeletionsAreDaysOld,
    Away,
}

struct State {
    fault: Fault,
    objects: BTreeMap<String, (String, Vec<u8>)>,
    written: u64,
}

/// The service. It ends with the test.
pub(crate) struct Imitation {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    dir: TempDir,
}

type Answer = Response<Full<Bytes>>;

impl Imitation {
    pub(crate) async fn start(fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State {
            fault,
            objects: BTreeMap::new(),
            written: 0,
        }));
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = shared.clone();
                let answer = service_fn(move |request| {
                    let state = state.clone();
                    async move { Ok::<_, Infallible>(answered(&state, request).await) }
                });
                let io = hyper_util::rt::TokioIo::new(stream);
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(io, answer),
                );
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let keys = "[default]\naws_access_key_id = AKIA\naws_secret_access_key = secret\n";
        fs::write(dir.path().join("credentials"), keys).unwrap();
        Self {
            address,
            state,
            dir,
        }
    }

    pub(crate) fn url(&self, prefix: &str) -> String {
        let keys = self.dir.path().join("credentials");
        let keys = keys.display();
        format!(
            "s3://shop/{prefix}?endpoint=http://{}&poll=20ms&credentials={keys}",
            self.address
        )
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn become_faulty(&self, fault: Fault) {
        lock(&self.state).fault = fault;
    }

    pub(crate) fn objects(&self) -> Vec<String> {
        lock(&self.state).objects.keys().cloned().collect()
    }

    pub(crate) fn objects_of_the_probe(&self) -> usize {
        self.objects()
            .iter()
            .filter(|name| name.contains("probe/"))
            .count()
    }

    pub(crate) fn body(&self, name: &str) -> Vec<u8> {
        lock(&self.state).objects[name].1.clone()
    }

    /// Writes an object past the store.
    pub(crate) fn put(&self, name: &str, body: &[u8]) {
        let mut state = lock(&self.state);
        store(&mut state, name.to_owned(), body.to_vec());
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap()
}

async fn answered(state: &Mutex<State>, request: Request<Incoming>) -> Answer {
    let (parts, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map(|b| b.to_bytes())
        .unwrap_or_default();
    let fault = lock(state).fault;
    if let Some(refusal) = refused(fault, &parts.method, &parts.headers) {
        return refusal;
    }
    let path = parts
        .uri
        .path()
        .trim_start_matches("/shop")
        .trim_start_matches('/');
    let name = decoded(path);
    let mut answer = match parts.method {
        Method::PUT => put(state, fault, name, &parts.headers, body.to_vec()).await,
        Method::DELETE => delete(state, fault, &name, &parts.headers),
        _ if name.is_empty() => list(state, fault, parts.uri.query().unwrap_or_default()),
        _ => get(state, &name),
    };
    let date = httpdate::fmt_http_date(now(fault));
    answer.headers_mut().insert("date", date.parse().unwrap());
    answer
}

fn now(fault: Fault) -> SystemTime {
    match fault {
        Fault::ClockIsHoursAhead => SystemTime::now() + Duration::from_secs(5 * 3600),
        _ => SystemTime::now(),
    }
}

/// What is refused whatever it is about.
fn refused(fault: Fault, method: &Method, headers: &HeaderMap) -> Option<Answer> {
    let writes = method == Method::PUT;
    let mut answer = match fault {
        Fault::ClockIsHoursAhead => {
            // Signed by a clock that is hours off: what is signed begins with the day and the hour.
            let signed = headers["x-amz-date"]
                .to_str()
                .unwrap_or_default()
                .to_owned();
            let hour = |time: SystemTime| {
                let since = time
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .unwrap_or_default();
                since.as_secs() / 3600 % 24
            };
            let signed: u64 = signed.get(9..11).and_then(|h| h.parse().ok()).unwrap_or(99);
            if signed == hour(now(fault)) {
                return None;
            }
            error(403, "RequestTimeTooSkewed", "")
        }
        Fault::Away => error(503, "ServiceUnavailable", ""),
        Fault::AlwaysSkewed => error(403, "RequestTimeTooSkewed", ""),
        Fault::WrongRegion => error(
            400,
            "AuthorizationHeaderMalformed",
            "<Region>eu-central-1</Region>",
        ),
        Fault::Redirects => error(301, "PermanentRedirect", ""),
        Fault::NoBucket => error(404, "NoSuchBucket", ""),
        Fault::BadKey => error(403, "SignatureDoesNotMatch", ""),
        Fault::Forbidden => error(403, "AccessDenied", ""),
        Fault::NotImplemented if writes => error(501, "NotImplemented", ""),
        Fault::ConflictsOnWrites if writes => error(409, "ConditionalRequestConflict", ""),
        Fault::FailsWrites if writes => error(500, "InternalError", ""),
        Fault::SlowsDownWrites if writes => error(503, "SlowDown", ""),
        Fault::TimesOutWrites if writes => error(400, "RequestTimeout", ""),
        _ => return None,
    };
    let date = httpdate::fmt_http_date(now(fault));
    answer.headers_mut().insert("date", date.parse().unwrap());
    if fault == Fault::Redirects {
        answer
            .headers_mut()
            .insert("x-amz-bucket-region", "eu-central-1".parse().unwrap());
    }
    Some(answer)
}

async fn put(
    state: &Mutex<State>,
    fault: Fault,
    name: String,
    headers: &HeaderMap,
    body: Vec<u8>,
) -> Answer {
    if fault == Fault::ChecksThenWrites {
        if !holds(&lock(state), fault, &name, headers) {
            return error(412, "PreconditionFailed", "");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        return etagged(store(&mut lock(state), name, body), Vec::new());
    }
    let mut state = lock(state);
    if !holds(&state, fault, &name, headers) {
        return error(412, "PreconditionFailed", "");
    }
    let etag = store(&mut state, name, body);
    if fault == Fault::ConflictsAfterWriting {
        return error(409, "ConditionalRequestConflict", "");
    }
    etagged(etag, Vec::new())
}

fn store(state: &mut State, name: String, body: Vec<u8>) -> String {
    state.written += 1;
    // As real ones: of the body alone.
    let etag = format!("{:016x}{:08x}", hash(&body), body.len());
    state.objects.insert(name, (etag.clone(), body));
    etag
}

fn hash(body: &[u8]) -> u64 {
    let step = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
    body.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Whether the conditions hold, as this service sees it.
fn holds(state: &State, fault: Fault, name: &str, headers: &HeaderMap) -> bool {
    let there = state.objects.get(name);
    let none = headers.contains_key(IF_NONE_MATCH) && fault != Fault::IgnoresIfNoneMatch;
    if none && there.is_some() {
        return false;
    }
    let Some(wanted) = headers.get(IF_MATCH).and_then(|h| h.to_str().ok()) else {
        return true;
    };
    match (fault, there) {
        (Fault::IgnoresIfMatch, _) => true,
        (Fault::MatchesNothing, _) => false,
        (Fault::CreatesOnUpdate, None) => true,
        (Fault::MatchesAnything, there) => there.is_some(),
        (_, None) => false,
        (Fault::BareEtags, Some((etag, _))) => wanted == etag,
        (_, Some((etag, _))) => wanted == format!("\"{etag}\""),
    }
}

fn delete(state: &Mutex<State>, fault: Fault, name: &str, headers: &HeaderMap) -> Answer {
    let mut state = lock(state);
    let obeys = fault != Fault::IgnoresConditionsOfRemovals;
    if obeys && !holds(&state, fault, name, headers) {
        return error(412, "PreconditionFailed", "");
    }
    state.objects.remove(name);
    plain(204, String::new())
}

fn get(state: &Mutex<State>, name: &str) -> Answer {
    match lock(state).objects.get(name) {
        None => error(404, "NoSuchKey", ""),
        Some((etag, body)) => etagged(etag.clone(), body.clone()),
    }
}

fn list(state: &Mutex<State>, fault: Fault, query: &str) -> Answer {
    let of = |wanted: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .find(|(name, _)| *name == wanted)
            .map(|(_, value)| decoded(value))
    };
    if of("list-type").is_none() {
        return error(404, "NoSuchConfiguration", "");
    }
    let most: usize = of("max-keys").and_then(|n| n.parse().ok()).unwrap_or(1000);
    let after = of("continuation-token")
        .or_else(|| of("start-after"))
        .unwrap_or_default();
    let prefix = of("prefix").unwrap_or_default();
    let modified = match fault {
        Fault::DeletionsAreDaysOld => "2020-01-01T00:00:00.000Z",
        _ => "2999-01-01T00:00:00.000Z",
    };
    let state = lock(state);
    let fits =
        |(name, _): &(&String, &(String, Vec<u8>))| name.starts_with(&prefix) && **name > after;
    let found: Vec<_> = state.objects.iter().filter(fits).take(most + 1).collect();
    let mut text = String::from("<ListBucketResult>");
    for (name, (etag, body)) in found.iter().take(most) {
        let size = body.len();
        let _ = write!(
            text,
            "<Contents><Key>{name}</Key><ETag>&quot;{etag}&quot;</ETag><Size>{size}</Size>\
             <LastModified>{modified}</LastModified></Contents>"
        );
    }
    let more = found.len() > most;
    let _ = write!(text, "<IsTruncated>{more}</IsTruncated>");
    if let (true, Some((last, _))) = (more, found.get(most.saturating_sub(1))) {
        let _ = write!(
            text,
            "<NextContinuationToken>{last}</NextContinuationToken>"
        );
    }
    text.push_str("</ListBucketResult>");
    plain(200, text)
}

fn plain(status: u16, text: String) -> Answer {
    let mut answer = Response::new(Full::from(text));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    answer
}

fn error(status: u16, code: &str, more: &str) -> Answer {
    plain(
        status,
        format!("<Error><Code>{code}</Code><Message>no</Message>{more}</Error>"),
    )
}

fn etagged(etag: String, body: Vec<u8>) -> Answer {
    let mut answer = Response::new(Full::from(body));
    let etag = format!("\"{etag}\"").parse().unwrap();
    answer.headers_mut().insert(ETAG, etag);
    answer
}

fn decoded(text: &str) -> String {
    tenure_core::keys::undo_escapes(text, b'%').unwrap_or_default()
}
