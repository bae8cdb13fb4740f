//! Answers of router and gate themselves: plain text for people, and one word in a header for programs.

use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use tenure::router::RouteError;

use crate::body::Body;
use crate::headers;

/// An answer that no application gave.
pub(crate) type ErrorResponse = Box<Response<Body>>;

/// Makes one.
pub(crate) fn error(status: StatusCode, word: &'static str, reason: &str) -> ErrorResponse {
    let mut answer = Response::new(Body::of(format!("{reason}\n")));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(headers::ERROR, HeaderValue::from_static(word));
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    Box::new(answer)
}

/// Why a request was not carried.
pub(crate) fn not_carried(reason: &RouteError) -> ErrorResponse {
    let (status, word) = match reason {
        RouteError::UnknownKeyspace { .. } => (StatusCode::NOT_FOUND, "unknown_keyspace"),
        RouteError::UnknownShard { .. } => (StatusCode::NOT_FOUND, "unknown_shard"),
        RouteError::Full { .. } => (StatusCode::SERVICE_UNAVAILABLE, "hold_queue_full"),
        RouteError::HeldTooLong { .. } => (StatusCode::SERVICE_UNAVAILABLE, "hold_timeout"),
        RouteError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
    };
    error(status, word, &reason.to_string())
}
