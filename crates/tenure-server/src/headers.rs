//! The headers between router, gate and application, and what a proxy does to those of others.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::HeaderMap;
use hyper::header::{self, HeaderName, HeaderValue};
use tenure::{Epoch, SessionId, ShardId, ShardName};
use tenure_core::ids::KeyspaceName;
use tenure_core::keys::{escape, unescape};

/// The shard, as `KEYSPACE/SHARD`, each escaped as in the store.
pub const SHARD: HeaderName = HeaderName::from_static("tenure-shard");
/// The epoch: in a request the one that it was sent to, in an answer the one that it was given at.
pub const EPOCH: HeaderName = HeaderName::from_static("tenure-epoch");
/// The key, with every byte that is not a visible ASCII character, and `%`, written as `%XX`.
pub const KEY: HeaderName = HeaderName::from_static("tenure-key");
/// The node that answered.
pub const NODE: HeaderName = HeaderName::from_static("tenure-node");
/// The gate's own mark on a refusal: why. Without it a 421 is an answer like any other.
pub const REFUSED: HeaderName = HeaderName::from_static("tenure-refused");
/// In a refusal: the session that owns the shard and serves it.
pub const OWNER: HeaderName = HeaderName::from_static("tenure-owner");
/// In a refusal: which of the record's values it is from.
pub const REV: HeaderName = HeaderName::from_static("tenure-rev");
/// In an answer of router or gate that no application gave: what was wrong, as one word.
pub const ERROR: HeaderName = HeaderName::from_static("tenure-error");

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// A shard as a header's value.
pub fn shard_value(shard: &ShardId) -> HeaderValue {
    let text = format!(
        "{}/{}",
        escape(shard.keyspace.as_str()),
        escape(shard.shard.as_str())
    );
    ascii(&text)
}

/// The shard that a header's value names.
pub fn shard_of(value: &HeaderValue) -> Option<ShardId> {
    let (keyspace, shard) = value.to_str().ok()?.split_once('/')?;
    let keyspace = KeyspaceName::new(unescape(keyspace)?).ok()?;
    let shard = ShardName::new(unescape(shard)?).ok()?;
    Some(ShardId::new(keyspace, shard))
}

/// A key as a header's value.
pub fn key_value(key: &[u8]) -> HeaderValue {
    let mut text = String::with_capacity(key.len());
    for &byte in key {
        if byte.is_ascii_graphic() && byte != b'%' {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    ascii(&text)
}

/// A number as a header's value.
pub fn number(n: u64) -> HeaderValue {
    HeaderValue::from(n)
}

/// Visible ASCII as a header's value; anything else becomes `?`.
pub fn ascii(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| {
        let clean = |c: char| if (' '..='~').contains(&c) { c } else { '?' };
        let text: String = text.chars().map(clean).collect();
        HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("?"))
    })
}

/// The epoch that headers name.
pub fn epoch_of(headers: &HeaderMap) -> Option<Epoch> {
    number_of(headers, &EPOCH).map(Epoch)
}

/// The number in a header.
pub fn number_of(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// The session in the header of a refusal.
pub fn owner_of(headers: &HeaderMap) -> Option<SessionId> {
    headers.get(OWNER)?.to_str().ok()?.parse().ok()
}

/// Removes every header of ours: nobody outside says what only router and gate may say.
pub fn strip_ours(headers: &mut HeaderMap) {
    if !headers.keys().any(|n| n.as_str().starts_with("tenure-")) {
        return;
    }
    let ours = headers.keys().filter(|n| n.as_str().starts_with("tenure-"));
    for name in ours.cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
}

/// Removes what is meant for this connection alone; says which protocol an upgrade asks for, if any.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) -> Option<HeaderValue> {
    let mut upgrade = None;
    if headers.contains_key(header::CONNECTION) {
        let mut named = Vec::new();
        for value in headers.get_all(header::CONNECTION) {
            for token in value.to_str().unwrap_or_default().split(',') {
                match HeaderName::from_bytes(token.trim().as_bytes()) {
                    // What frames and addresses a message is no business of a list that anybody can write.
                    Ok(name) if name == header::HOST || name == header::CONTENT_LENGTH => {}
                    Ok(name) if name == header::UPGRADE => {
                        upgrade = headers.get(header::UPGRADE).cloned();
                    }
                    Ok(name) => named.push(name),
                    Err(_) => {}
                }
            }
        }
        for name in named {
            headers.remove(name);
        }
        headers.remove(header::CONNECTION);
    }
    let trailers = headers
        .get(header::TE)
        .is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    for name in [
        header::UPGRADE,
        header::TE,
        header::TRANSFER_ENCODING,
        header::PROXY_AUTHORIZATION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
    ] {
        headers.remove(name);
    }
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    upgrade
}

/// Says on whose behalf a request comes: appended to what proxies before this one have said.
pub fn forwarded(headers: &mut HeaderMap, client: IpAddr) {
    let host = headers.get(header::HOST).cloned();
    let host = host.filter(|host| !host.is_empty());
    let so_far: Vec<&str> = headers
        .get_all(FORWARDED_FOR)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .collect();
    let list = match so_far.is_empty() {
        true => client.to_string(),
        false => format!("{}, {client}", so_far.join(", ")),
    };
    headers.insert(FORWARDED_FOR, ascii(&list));
    headers
        .entry(FORWARDED_PROTO)
        .or_insert(HeaderValue::from_static("http"));
    let quoted = match client {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("\"[{v6}]\""),
    };
    let mut element = format!("for={quoted};proto=http");
    if let Some(host) = host {
        if let Some(text) = host.to_str().ok().filter(|h| !h.contains(['"', '\\'])) {
            element.push_str(&format!(";host=\"{text}\""));
        }
        headers.entry(FORWARDED_HOST).or_insert(host);
    }
    headers.append(header::FORWARDED, ascii(&element));
}

/// Gives a request a `traceparent` if it has none that is well-formed.
pub fn trace(headers: &mut HeaderMap) {
    let mut all = headers.get_all(TRACEPARENT).iter();
    let (first, second) = (all.next(), all.next());
    if second.is_some() || !first.is_some_and(is_traceparent) {
        headers.insert(TRACEPARENT, new_traceparent());
    }
}

/// `00-` 32 hex digits `-` 16 hex digits `-` 2 hex digits, neither number all zero; later versions may go on after that.
fn is_traceparent(value: &HeaderValue) -> bool {
    let text = value.as_bytes();
    let hex = |range: std::ops::Range<usize>| {
        let digits = &text[range];
        digits
            .iter()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let nonzero = |range: std::ops::Range<usize>| text[range].iter().any(|b| *b != b'0');
    text.len() >= 55
        && [2, 35, 52].iter().all(|at| text[*at] == b'-')
        && hex(0..2)
        && &text[..2] != b"ff"
        && hex(3..35)
        && nonzero(3..35)
        && hex(36..52)
        && nonzero(36..52)
        && hex(53..55)
        && (text.len() == 55 || (&text[..2] != b"00" && text[55] == b'-'))
}

/// A new one. Not sampled: the router itself records no trace.
fn new_traceparent() -> HeaderValue {
    static RANDOM: LazyLock<[RandomState; 3]> = LazyLock::new(Default::default);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let [a, b, c] = [0, 1, 2].map(|i| RANDOM[i].hash_one(n) | 1);
    ascii(&format!("00-{a:016x}{b:016x}-{c:016x}-00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn what_is_meant_for_one_connection_does_not_pass() {
        let mut headers = map(&[
            ("connection", "keep-alive, X-Mine , content-length"),
            ("connection", "host"),
            ("x-mine", "1"),
            ("keep-alive", "5"),
            ("te", "gzip"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "secret"),
            ("upgrade", "h2c"),
            ("content-length", "3"),
            ("host", "h"),
            ("x-other", "2"),
        ]);
        assert_eq!(strip_hop_by_hop(&mut headers), None);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "host", "x-other"]);
        let mut headers = map(&[
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("te", "trailers"),
        ]);
        assert_eq!(strip_hop_by_hop(&mut headers).unwrap(), "websocket");
        assert_eq!(headers.get("te").unwrap(), "trailers");
    }

    #[test]
    fn nobody_outside_speaks_with_our_headers() {
        let mut headers = map(&[
            ("tenure-epoch", "7"),
            ("tenure-shard", "a/1"),
            ("tenure-anything", "x"),
            ("tenured", "stays"),
        ]);
        strip_ours(&mut headers);
        assert_eq!(headers.len(), 1);
    }

    #[test]
    fn forwarded_headers_are_appended_to() {
        let mut headers = map(&[("x-forwarded-for", "10.0.0.1"), ("host", "shop")]);
        forwarded(&mut headers, "::1".parse().unwrap());
        assert_eq!(headers["x-forwarded-for"], "10.0.0.1, ::1");
        assert_eq!(headers["x-forwarded-host"], "shop");
        assert_eq!(
            headers["forwarded"],
            "for=\"[::1]\";proto=http;host=\"shop\""
        );
    }

    #[test]
    fn a_good_traceparent_stays_and_any_other_is_replaced() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let mut headers = map(&[("traceparent", good)]);
        trace(&mut headers);
        assert_eq!(headers["traceparent"], good);
        let zero = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        for bad in ["", "00-4bf9-00-01", zero, &good[..54], &good.to_uppercase()] {
            let mut headers = map(&[("traceparent", bad)]);
            trace(&mut headers);
            let made = headers.get_all("traceparent").iter().collect::<Vec<_>>();
            assert!(made.len() == 1 && made[0] != bad && is_traceparent(made[0]));
        }
    }

    #[test]
    fn shards_and_keys_of_any_name_pass_through_a_header() {
        for name in ["17", "eu/payments ä %", "="] {
            let shard = ShardId::new(
                KeyspaceName::new("a b").unwrap(),
                ShardName::new(name).unwrap(),
            );
            assert_eq!(shard_of(&shard_value(&shard)), Some(shard));
        }
        assert_eq!(key_value(b"a b%\xff"), "a%20b%25%FF");
    }
}
