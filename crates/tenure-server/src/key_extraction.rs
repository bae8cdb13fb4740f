//! Where a request says what it is about: its key, or its shard.

use std::borrow::Cow;
use std::str::FromStr;

use hyper::header::{self, HeaderName};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Uri};
use tenure::{ShardId, ShardName};
use tenure_core::ids::KeyspaceName;

use crate::headers as ours;

/// The longest key.
const LONGEST: usize = 4096;

/// One place in a request where its key may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A header: `header:NAME`.
    Header(HeaderName),
    /// A segment of the path, counted from 1: `path:N`.
    Path(usize),
    /// A parameter of the query: `query:NAME`.
    Query(String),
    /// A cookie: `cookie:NAME`.
    Cookie(String),
    /// A header that names the shard itself, as `SHARD` or `KEYSPACE/SHARD`: `shard-header:NAME`.
    ShardHeader(HeaderName),
}

impl FromStr for KeySource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let usage = || {
            format!(
                "{text:?} is not a source of keys; use header:NAME, path:N, query:NAME, cookie:NAME or \
                 shard-header:NAME"
            )
        };
        let (kind, name) = text.split_once(':').ok_or_else(usage)?;
        if name.is_empty() {
            return Err(usage());
        }
        let header = || {
            HeaderName::from_str(name).map_err(|_| format!("{name:?} is not the name of a header"))
        };
        Ok(match kind {
            "header" => Self::Header(header()?),
            "shard-header" => Self::ShardHeader(header()?),
            "query" => Self::Query(name.to_owned()),
            "cookie" => Self::Cookie(name.to_owned()),
            "path" => match name.parse() {
                Ok(n) if n > 0 => Self::Path(n),
                _ => {
                    return Err(format!("path:{name}: path segments are counted from 1"));
                }
            },
            _ => return Err(usage()),
        })
    }
}

impl std::fmt::Display for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header {name}"),
            Self::Path(n) => write!(f, "segment {n} of the path"),
            Self::Query(name) => write!(f, "query parameter {name:?}"),
            Self::Cookie(name) => write!(f, "cookie {name:?}"),
            Self::ShardHeader(name) => write!(f, "header {name} (a shard)"),
        }
    }
}

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestTarget {
    /// A key of the keyspace.
    Key(Vec<u8>),
    /// A shard.
    Shard(ShardId),
}

/// How requests say what they are about: places that are looked at in this order, and the keyspace that keys are of.
#[derive(Clone, Debug)]
pub struct KeyRule {
    /// The keyspace.
    pub keyspace: KeyspaceName,
    sources: Vec<KeySource>,
}

impl KeyRule {
    /// A rule. Without any source: the header `Tenure-Key`, then `Tenure-Shard` for the shard itself.
    pub fn new(keyspace: KeyspaceName, mut sources: Vec<KeySource>) -> Self {
        if sources.is_empty() {
            sources.push(KeySource::Header(ours::KEY));
            sources.push(KeySource::ShardHeader(ours::SHARD));
        }
        Self { keyspace, sources }
    }

    /// What a request is about, or what is wrong with it.
    pub fn find(&self, head: &Parts) -> Result<RequestTarget, String> {
        self.find_in(&head.uri, &head.headers)
    }

    /// As [`KeyRule::find`].
    pub fn find_in(&self, uri: &Uri, headers: &HeaderMap) -> Result<RequestTarget, String> {
        for source in &self.sources {
            if let KeySource::Header(name) | KeySource::ShardHeader(name) = source
                && headers.get_all(name).iter().nth(1).is_some()
            {
                // Whoever comes behind might read the other one.
                return Err(format!("{source} is given more than once"));
            }
            let found = match source {
                KeySource::ShardHeader(name) => match headers.get(name) {
                    Some(value) => {
                        return self.shard(name, value.as_bytes()).map(RequestTarget::Shard);
                    }
                    None => None,
                },
                KeySource::Header(name) => headers
                    .get(name)
                    .map(|value| Cow::Borrowed(value.as_bytes())),
                KeySource::Path(n) => segment(uri.path(), *n).map(decoded),
                KeySource::Query(name) => {
                    parameter(uri.query().unwrap_or_default(), name).map(decoded_query)
                }
                KeySource::Cookie(name) => cookie(headers, name).map(Cow::Borrowed),
            };
            match found {
                Some(key) if key.is_empty() => {}
                Some(key) if key.len() > LONGEST => {
                    return Err(format!(
                        "the key in {source} is longer than {LONGEST} bytes"
                    ));
                }
                Some(key) => return Ok(RequestTarget::Key(key.into_owned())),
                None => {}
            }
        }
        let places: Vec<String> = self.sources.iter().map(ToString::to_string).collect();
        Err(format!(
            "no key in the request; sources checked: {}",
            places.join(", ")
        ))
    }

    fn shard(&self, header: &HeaderName, value: &[u8]) -> Result<ShardId, String> {
        let text = String::from_utf8_lossy(value);
        let bad =
            || format!("header {header}: {text:?} is not a shard; use SHARD or KEYSPACE/SHARD");
        let known = std::str::from_utf8(value).map_err(|_| bad())?;
        let (keyspace, shard) = match known.split_once('/') {
            Some((keyspace, shard)) => (KeyspaceName::new(keyspace).map_err(|_| bad())?, shard),
            None => (self.keyspace.clone(), known),
        };
        let shard = ShardName::new(shard).map_err(|_| bad())?;
        Ok(ShardId::new(keyspace, shard))
    }
}

fn segment(path: &str, n: usize) -> Option<&str> {
    path.strip_prefix('/')?.split('/').nth(n - 1)
}

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs
        .find(|(key, _)| *decoded_query(key) == *name.as_bytes())
        .map(|(_, value)| value)
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a [u8]> {
    let lines = headers.get_all(header::COOKIE).iter();
    let mut pairs = lines.flat_map(|line| line.as_bytes().split(|b| *b == b';'));
    pairs.find_map(|pair| {
        let (key, value) = pair.split_at(pair.iter().position(|b| *b == b'=')?);
        (key.trim_ascii() == name.as_bytes()).then(|| value[1..].trim_ascii())
    })
}

/// Undoes `%XX`; what only looks like it stays.
fn decoded(text: &str) -> Cow<'_, [u8]> {
    if !text.contains('%') {
        return Cow::Borrowed(text.as_bytes());
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |i: usize| bytes.get(i).and_then(|b| char::from(*b).to_digit(16));
        match (bytes[at], hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    Cow::Owned(out)
}

/// As [`decoded`], and `+` is a space, as forms have it.
fn decoded_query(text: &str) -> Cow<'_, [u8]> {
    match text.contains('+') {
        true => Cow::Owned(decoded(&text.replace('+', " ")).into_owned()),
        false => decoded(text),
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn check(source: &str, request: hyper::http::request::Builder, found: Result<&str, &str>) {
        let rule = KeyRule::new(
            KeyspaceName::new("orders").unwrap(),
            vec![source.parse().unwrap()],
        );
        let (head, ()) = request.body(()).unwrap().into_parts();
        match (rule.find(&head), found) {
            (Ok(RequestTarget::Key(key)), Ok(text)) => assert_eq!(key, text.as_bytes()),
            (Ok(RequestTarget::Shard(shard)), Ok(text)) => assert_eq!(shard.to_string(), text),
            (Err(reason), Err(part)) => assert!(reason.contains(part), "{reason}"),
            (got, wanted) => panic!("{source}: {got:?} instead of {wanted:?}"),
        }
    }

    #[test]
    fn keys_are_found_where_the_rule_says() {
        let get = |uri: &str| Request::get(uri);
        check("header:X-Key", get("/").header("x-key", "u 1"), Ok("u 1"));
        check("path:2", get("/users/u%201/orders"), Ok("u 1"));
        check("path:4", get("/users/u/orders"), Err("segment 4"));
        check("query:user", get("/?a=1&user=u+1%2B&user=2"), Ok("u 1+"));
        check("query:user", get("/?users=2"), Err("no key"));
        let cookies = get("/").header("cookie", "a=b; sid = u1 ;c");
        check("cookie:sid", cookies, Ok("u1"));
        let named = || get("/").header("x-shard", "17");
        check("shard-header:X-Shard", named(), Ok("orders/17"));
        let named = get("/").header("x-shard", "topics/eu/a");
        check("shard-header:X-Shard", named, Ok("topics/eu/a"));
        check("header:X-Key", get("/").header("x-key", ""), Err("no key"));
        let twice = get("/").header("x-key", "a").header("x-key", "b");
        check("header:X-Key", twice, Err("more than once"));
        let long = "x".repeat(5000);
        check("header:X-Key", get("/").header("x-key", long), Err("4096"));
        let empty = get("/").header("x-shard", "");
        check("shard-header:X-Shard", empty, Err("is not a shard"));
    }

    #[test]
    fn a_rule_that_cannot_be_is_refused_with_the_way_out() {
        for bad in [
            "",
            "header",
            "header:",
            "path:0",
            "path:x",
            "body:x",
            "header:a b",
        ] {
            let reason = bad.parse::<KeySource>().unwrap_err();
            assert!(
                reason.contains("header") || reason.contains("from 1"),
                "{reason}"
            );
        }
    }
}
