//! How our keys stand on the server: as subjects of a bucket.
//!
//! A `/` becomes a `.`, so that the parts of a key are the tokens of its subject and a prefix can be watched by a wildcard.
//! What NATS does not take in a key stands as `/` and two hexadecimal digits, which is free for that; an empty part is a
//! single `/`. No two keys share a subject.

use std::fmt::Write as _;

use tenure_core::keys::undo_escapes;

/// Where it is written down up to which revision deletions have been forgotten. No key is written like this.
const FLOOR: &str = "/floor";

/// The names of a bucket on the server.
#[derive(Clone, Debug)]
pub(super) struct SubjectNames {
    pub(super) bucket: String,
    /// The name of the stream that the bucket is.
    pub(super) stream: String,
    /// What every subject begins with, its dot included.
    root: String,
}

impl SubjectNames {
    pub(super) fn of(bucket: &str) -> Self {
        Self {
            bucket: bucket.to_owned(),
            stream: format!("KV_{bucket}"),
            root: format!("$KV.{bucket}."),
        }
    }

    /// The subject of a key.
    pub(super) fn subject(&self, key: &str) -> String {
        let mut subject = self.root.clone();
        for (n, part) in key.split('/').enumerate() {
            if n > 0 {
                subject.push('.');
            }
            if part.is_empty() {
                subject.push('/');
            }
            for byte in part.bytes() {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'=' => {
                        subject.push(char::from(byte));
                    }
                    _ => {
                        let _ = write!(subject, "/{byte:02x}");
                    }
                }
            }
        }
        subject
    }

    /// The key of a subject, unless it is none of ours.
    pub(super) fn key(&self, subject: &str) -> Option<String> {
        let parts = subject.strip_prefix(&self.root)?.split('.');
        let mut keys = Vec::new();
        for part in parts {
            keys.push(match part {
                "/" => String::new(),
                _ => undo_escapes(part, b'/')?,
            });
        }
        let key = keys.join("/");
        // One spelling each: another one is somebody else's.
        (self.subject(&key) == subject).then_some(key)
    }

    /// All subjects of the bucket.
    pub(super) fn all(&self) -> String {
        format!("{}>", self.root)
    }

    pub(super) fn floor(&self) -> String {
        format!("{}{FLOOR}", self.root)
    }

    /// Subjects that together hold every key that starts with `prefix`, and the floor. None of them overlap.
    pub(super) fn filters(&self, prefix: &str) -> Vec<String> {
        match prefix.rsplit_once('/') {
            None => vec![self.all()],
            Some((whole, _)) => vec![format!("{}.>", self.subject(whole)), self.floor()],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_reads_as_itself_where_nats_takes_it() {
        let keys = SubjectNames::of("b");
        for (key, subject) in [
            ("shards/eu-1/0_7", "$KV.b.shards.eu-1.0_7"),
            ("=doctor/x=2f", "$KV.b.=doctor.x=2f"),
            ("a.b c", "$KV.b.a/2eb/20c"),
            ("", "$KV.b./"),
            ("k//", "$KV.b.k././"),
        ] {
            assert_eq!(keys.subject(key), subject);
            assert_eq!(keys.key(subject).as_deref(), Some(key));
        }
    }

    #[test]
    fn what_we_did_not_write_is_no_key() {
        let keys = SubjectNames::of("b");
        for subject in [
            "$KV.b./floor",
            "$KV.b.x/4a",
            "$KV.b.a/2",
            "$KV.b.a/",
            "$KV.b.",
            "$KV.c.a",
        ] {
            assert_eq!(keys.key(subject), None, "{subject}");
        }
    }

    #[test]
    fn a_prefix_is_watched_by_its_whole_parts() {
        let keys = SubjectNames::of("b");
        assert_eq!(keys.filters("sho"), ["$KV.b.>"]);
        assert_eq!(keys.filters("a/b/c"), ["$KV.b.a.b.>", "$KV.b./floor"]);
    }

    proptest! {
        #[test]
        fn every_key_comes_back_and_fits_the_alphabet(
            key in proptest::collection::vec(prop_oneof![Just('/'), any::<char>()], 0..16)
        ) {
            let key: String = key.into_iter().collect();
            let keys = SubjectNames::of("b");
            let subject = keys.subject(&key);
            let fits = |b: u8| b.is_ascii_alphanumeric() || b"-/_=.".contains(&b);
            let tail = &subject["$KV.b.".len()..];
            prop_assert!(tail.bytes().all(fits), "{}", subject);
            prop_assert!(tail.split('.').all(|token| !token.is_empty()), "{}", subject);
            prop_assert_eq!(keys.key(&subject), Some(key));
        }
    }
}
