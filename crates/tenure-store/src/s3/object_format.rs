//! What is stored in an object: readable JSON around the value, with a number that is never used again.
//!
//! | body | meaning |
//! |---|---|
//! | `{"nonce":"…","value":…}` | a value that is JSON, as it was given |
//! | `{"nonce":"…","base64":"…"}` | any other value |
//! | `{"nonce":"…","deleted":true}` | the key was deleted |
//!
//! Services make the ETag of an object out of its body, so equal bodies would have equal versions: the nonce sees to it that no two are.
//! A deletion has a length that nothing else has, by which a list tells it without reading it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::machine_identity::random_bytes;

/// The length of a deletion.
pub(super) const DELETED_LENGTH: u64 = 60;

/// What an object says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ObjectBody {
    Value(Arc<[u8]>),
    Deleted,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'a> {
    nonce: &'a str,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    value: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted: Option<bool>,
}

impl ObjectBody {
    /// Reads a body. One that somebody else has written is a value as it stands: whoever can make no sense of it says so, and may
    /// write over it.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let whole = || Self::Value(bytes.into());
        let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(bytes) else {
            return whole();
        };
        match (envelope.value, envelope.base64, envelope.deleted) {
            (Some(value), None, None) => Self::Value(value.get().as_bytes().into()),
            (None, Some(text), None) => match STANDARD.decode(text) {
                Ok(value) => Self::Value(value.into()),
                Err(_) => whole(),
            },
            (None, None, Some(true)) => Self::Deleted,
            _ => whole(),
        }
    }
}

/// Numbers that nobody else uses.
#[derive(Debug)]
pub(super) struct NonceSource {
    base: u128,
    used: AtomicU64,
}

impl NonceSource {
    pub(super) fn new() -> Self {
        Self {
            base: u128::from_be_bytes(random_bytes()),
            used: AtomicU64::new(0),
        }
    }

    fn next(&self) -> String {
        let used = self.used.fetch_add(1, Ordering::Relaxed);
        format!("{:032x}", self.base.wrapping_add(used.into()))
    }

    /// The body that holds a value.
    pub(super) fn value(&self, value: &[u8]) -> Vec<u8> {
        let nonce = self.next();
        let json = std::str::from_utf8(value)
            .ok()
            .and_then(|text| serde_json::from_str::<&RawValue>(text).ok())
            // Neither space around it nor nothing would come back.
            .filter(|raw| raw.get().len() == value.len() && raw.get() != "null");
        let base64 = json.is_none().then(|| STANDARD.encode(value));
        let mut body = written(&Envelope {
            nonce: &nonce,
            value: json,
            base64,
            deleted: None,
        });
        if body.len() as u64 == DELETED_LENGTH {
            body.push(b'\n');
        }
        body
    }

    /// The body that says that a key was deleted.
    pub(super) fn deletion(&self) -> Vec<u8> {
        let nonce = self.next();
        written(&Envelope {
            nonce: &nonce,
            value: None,
            base64: None,
            deleted: Some(true),
        })
    }
}

fn written(envelope: &Envelope<'_>) -> Vec<u8> {
    let mut body = serde_json::to_vec(envelope).expect("text can be written as JSON");
    body.push(b'\n');
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: &[u8]) -> ObjectBody {
        ObjectBody::Value(bytes.into())
    }

    #[test]
    fn values_come_back_byte_for_byte_and_no_two_bodies_are_equal() {
        let nonces = NonceSource::new();
        let values: [&[u8]; 9] = [
            b"{\"a\" : [1, 2.50, \"\\u00e4\"]}",
            b"{\"a\":1}\n",
            b" 1",
            b"17",
            b"",
            b"plain",
            b"\xff\x00",
            b"{\"nonce\":\"x\",\"deleted\":true}",
            b"null",
        ];
        for bytes in values {
            let (one, two) = (nonces.value(bytes), nonces.value(bytes));
            assert_ne!(one, two);
            assert_eq!(ObjectBody::read(&one), value(bytes), "{bytes:?}");
            assert!(serde_json::from_slice::<serde_json::Value>(&one).is_ok());
        }
        let json = String::from_utf8(nonces.value(b"{\"a\":1}")).unwrap();
        assert!(json.ends_with("\"value\":{\"a\":1}}\n"), "{json}");
    }

    #[test]
    fn a_deletion_has_a_length_of_its_own() {
        let nonces = NonceSource::new();
        let deletion = nonces.deletion();
        assert_eq!(deletion.len() as u64, DELETED_LENGTH);
        assert_eq!(ObjectBody::read(&deletion), ObjectBody::Deleted);
        for length in 0..64 {
            let text = "7".repeat(length);
            assert_ne!(nonces.value(text.as_bytes()).len() as u64, DELETED_LENGTH);
        }
    }

    #[test]
    fn what_somebody_else_wrote_is_a_value_as_it_stands() {
        for theirs in [
            &b"rubbish"[..],
            b"{\"nonce\":\"x\"}",
            b"{\"nonce\":\"x\",\"base64\":\"?\"}",
            b"{\"nonce\":\"x\",\"value\":1,\"more\":2}",
        ] {
            assert_eq!(ObjectBody::read(theirs), value(theirs));
        }
    }
}
