//! What a task carries, and what it leaves behind.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Input or result of a task: by value, as readable as it can be, or by reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// A JSON value.
    Json(Value),
    /// Text.
    Text(String),
    /// Bytes that are no text, in base64.
    Base64(String),
    /// Where it stands instead: a URL or a key that only the application understands. The queue never follows it.
    Ref(String),
}

impl Payload {
    /// Nothing: JSON's `null`.
    pub fn none() -> Self {
        Self::Json(Value::Null)
    }

    /// A value as JSON.
    pub fn json(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::to_value(value).map(Self::Json)
    }

    /// Bytes: text if they are UTF-8.
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Self {
        match String::from_utf8(bytes.into()) {
            Ok(text) => Self::Text(text),
            Err(e) => Self::Base64(STANDARD.encode(e.as_bytes())),
        }
    }

    /// The bytes that a program reads: JSON as text, text and bytes as they are, a reference as text.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Json(value) => value.to_string().into_bytes(),
            Self::Text(text) | Self::Ref(text) => text.clone().into_bytes(),
            // Checked when it came in; what somebody else has spoilt since is passed on as it is.
            Self::Base64(text) => STANDARD
                .decode(text)
                .unwrap_or_else(|_| text.clone().into_bytes()),
        }
    }

    /// The value as a type of the application's: JSON, or text that is JSON.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        match self {
            Self::Json(value) => T::deserialize(value),
            _ => serde_json::from_slice(&self.to_bytes()),
        }
    }

    /// How much room it takes in a task, as it is written there: text may have to be escaped.
    pub fn size(&self) -> usize {
        let (written, quotes) = match self {
            Self::Json(value) => (length(value), 0),
            Self::Text(text) | Self::Base64(text) | Self::Ref(text) => (length(text), 2),
        };
        written - quotes
    }
}

/// How long a value is as JSON.
fn length(value: &impl Serialize) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Nothing here can fail: texts and values have a form in JSON, and counting takes everything.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_text_stays_readable() {
        for bytes in [&b"hello"[..], b"", b"\xff\x00", "ä".as_bytes()] {
            let payload = Payload::bytes(bytes);
            let text = serde_json::to_string(&payload).unwrap();
            let read: Payload = serde_json::from_str(&text).unwrap();
            assert_eq!(read.to_bytes(), bytes, "{text}");
        }
        let text = serde_json::to_string(&Payload::bytes("hi")).unwrap();
        assert_eq!(text, r#"{"text":"hi"}"#);
    }

    #[test]
    fn a_type_comes_back_from_json_and_from_text_that_is_json() {
        let wanted = vec![1, 2, 3];
        let json = Payload::json(&wanted).unwrap();
        assert_eq!(json.decode::<Vec<i32>>().unwrap(), wanted);
        assert_eq!(
            Payload::bytes("[1,2,3]").decode::<Vec<i32>>().unwrap(),
            wanted
        );
        assert!(Payload::bytes("no").decode::<Vec<i32>>().is_err());
        assert_eq!(json.size(), 7);
    }

    #[test]
    fn what_has_to_be_escaped_counts_as_it_is_written() {
        for (text, size) in [
            ("plain", 5),
            ("a\"b", 4),
            ("\n", 2),
            ("\u{1}\u{1}", 12),
            ("ä", 2),
        ] {
            for payload in [Payload::bytes(text), Payload::Ref(text.to_owned())] {
                assert_eq!(payload.size(), size, "{text:?}");
                let written = serde_json::to_string(&payload).unwrap().len();
                let empty = serde_json::to_string(&Payload::Text(String::new())).unwrap();
                let bare = match &payload {
                    Payload::Ref(_) => empty.len() - 1,
                    _ => empty.len(),
                };
                assert_eq!(written, bare + size, "{text:?}");
            }
        }
        assert_eq!(Payload::json(&"\u{1}").unwrap().size(), 8);
    }
}
