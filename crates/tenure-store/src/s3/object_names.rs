//! Keys as names of objects: readable, in the order of the keys, and free of what services give a meaning.
//!
//! Letters, digits, `-`, `_`, `=`, `.` and the `/` between parts stand for themselves. Every other byte is a sign and two hexadecimal
//! digits; there is a sign for each gap between those that stand for themselves, so that names are ordered as keys are. A
//! folder without a name is `!`. A name ends with `!.json`: on services that keep objects as files, no object is then a folder
//! of another one.

use std::fmt::Write as _;

use crate::error::StoreError;

const ENDING: &str = "!.json";
/// A folder without a name.
const NAMELESS: &str = "!";
/// What S3 takes as the name of an object, in bytes.
const LONGEST: usize = 1024;
/// Holds what is not a key: no key is written like this.
const OURS: &str = "!tenure/";

/// The names of all objects of one store.
#[derive(Clone, Debug)]
pub(super) struct ObjectNames {
    root: String,
}

impl ObjectNames {
    pub(super) fn under(root: &str) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// The object that holds a key.
    pub(super) fn object(&self, key: &str) -> Result<String, StoreError> {
        let mut name = self.prefix(key);
        name.push_str(ENDING);
        if key.split('/').any(|part| part == "." || part == "..") {
            return Err(StoreError::denied(format!(
                "key {key:?} has the part \".\" or \"..\", which many S3 services resolve as a path; use another name"
            )));
        }
        if name.len() > LONGEST {
            return Err(StoreError::denied(format!(
                "key {key:?} is {} bytes long as an object name, but S3 allows {LONGEST}; use shorter names",
                name.len()
            )));
        }
        Ok(name)
    }

    /// What the objects of all keys with this prefix begin with, and no other.
    pub(super) fn prefix(&self, prefix: &str) -> String {
        let mut name = self.root.clone();
        let mut parts = prefix.split('/').peekable();
        while let Some(part) = parts.next() {
            let is_folder = parts.peek().is_some();
            if part.is_empty() && is_folder {
                name.push_str(NAMELESS);
            }
            push_part(&mut name, part);
            if is_folder {
                name.push('/');
            }
        }
        name
    }

    /// The key that an object holds; nothing if it is not one of ours.
    pub(super) fn key(&self, object: &str) -> Option<String> {
        let name = object.strip_prefix(&self.root)?.strip_suffix(ENDING)?;
        let (folders, leaf) = match name.rsplit_once('/') {
            Some((folders, leaf)) => (Some(folders), leaf),
            None => (None, name),
        };
        let mut key = Vec::with_capacity(name.len());
        for folder in folders.into_iter().flat_map(|f| f.split('/')) {
            if folder != NAMELESS {
                push_bytes(&mut key, folder)?;
            }
            key.push(b'/');
        }
        push_bytes(&mut key, leaf)?;
        let key = String::from_utf8(key).ok()?;
        // What could also be written in another way is somebody else's.
        let same = self.object(&key).is_ok_and(|own| own == object);
        same.then_some(key)
    }

    /// An object that is no key.
    pub(super) fn own(&self, name: &str) -> String {
        format!("{}{OURS}{name}.json", self.root)
    }
}

/// What stands before the digits of a byte that does not stand for itself.
fn sign(byte: u8) -> Option<char> {
    match byte {
        b'-' | b'.' | b'0'..=b'9' | b'=' | b'A'..=b'Z' | b'_' | b'a'..=b'z' => None,
        // Never part of a part.
        b'/' => None,
        0..b'-' => Some('!'),
        b':'..b'=' => Some(':'),
        b'>'..b'A' => Some('@'),
        b'['..b'_' => Some('^'),
        b'`' => Some('`'),
        b'{'.. => Some('~'),
    }
}

fn push_part(name: &mut String, part: &str) {
    for byte in part.bytes() {
        match sign(byte) {
            None => name.push(byte.into()),
            Some(sign) => {
                let _ = write!(name, "{sign}{byte:02x}");
            }
        }
    }
}

fn push_bytes(key: &mut Vec<u8>, part: &str) -> Option<()> {
    let mut rest = part.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if sign(first).is_none() {
            key.push(first);
            rest = tail;
            continue;
        }
        let (digits, tail) = tail.split_at_checked(2)?;
        key.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = tail;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names() -> ObjectNames {
        ObjectNames::under("prod/")
    }

    #[test]
    fn names_are_readable_and_have_no_empty_parts() {
        for (key, object) in [
            ("shop/shards/orders/17", "prod/shop/shards/orders/17!.json"),
            ("shop/nodes/eu=2f1.a", "prod/shop/nodes/eu=2f1.a!.json"),
            ("", "prod/!.json"),
            ("k/", "prod/k/!.json"),
            ("k//", "prod/k/!/!.json"),
            ("/k", "prod/!/k!.json"),
            ("a.json/b", "prod/a.json/b!.json"),
            ("kä%", "prod/k~c3~a4!25!.json"),
            ("a!.json/b", "prod/a!21.json/b!.json"),
        ] {
            assert_eq!(names().object(key).unwrap(), object, "{key:?}");
            assert_eq!(names().key(object).as_deref(), Some(key));
        }
    }

    #[test]
    fn objects_of_others_are_no_keys() {
        for object in [
            "elsewhere/k!.json",
            "prod/k",
            "prod/k.json",
            "prod/!tenure/identity.json",
            "prod/k!4a!.json",
            "prod/k~zz!.json",
            "prod//k!.json",
            "prod/kä!.json",
        ] {
            assert_eq!(names().key(object), None, "{object}");
        }
        assert_eq!(names().key(&names().own("probe/x")), None);
    }

    #[test]
    fn a_key_that_no_object_can_hold_is_refused() {
        let e = names().object(&"ä".repeat(200)).unwrap_err().to_string();
        assert!(e.contains("1024"), "{e}");
        for key in ["a/../b", ".", "./a"] {
            names().object(key).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn every_key_is_found_again_under_each_of_its_prefixes(key in "[a-z-/~%ä\\^`@!]{0,12}") {
            let object = names().object(&key).unwrap();
            prop_assert_eq!(names().key(&object), Some(key.clone()));
            for (at, _) in key.char_indices() {
                let prefix = names().prefix(&key[..at]);
                // A folder that has no name yet may still get one.
                let grows = key[..at].ends_with('/') || at == 0;
                prop_assert!(grows || object.starts_with(&prefix), "{} {}", object, prefix);
            }
        }

        #[test]
        fn names_are_in_the_order_of_their_keys(a in "[ -.0-~äß]{0,6}", b in "[ -.0-~äß]{0,6}") {
            let name = |key: &String| names().prefix(key) + ENDING;
            prop_assert_eq!(a.cmp(&b), name(&a).cmp(&name(&b)), "{} {}", name(&a), name(&b));
        }
    }
}
