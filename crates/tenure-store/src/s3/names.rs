//! Keys as names of objects: readable, the same on every service, and free of what services give a meaning.
//!
//! A key's `/` separates parts as it is. Letters, digits, `-`, `_`, `=` and `.` stand for themselves; every other byte is `~` and two
//! hexadecimal digits. A part that is empty is `~`. The name ends with `.json`: on services that keep objects as files, no
//! object is then a folder of another one.

use std::fmt::Write as _;

use tenure_core::layout::undo_escapes;

use crate::error::StoreError;

const ENDING: &str = ".json";
/// What S3 takes as the name of an object, in bytes.
const LONGEST: usize = 1024;
/// Holds what is not a key. No part of a key begins with a dot.
const OURS: &str = ".tenure/";

/// The names of all objects of one store.
#[derive(Clone, Debug)]
pub(super) struct Names {
    root: String,
}

impl Names {
    pub(super) fn under(root: &str) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// The object that holds a key.
    pub(super) fn object(&self, key: &str) -> Result<String, StoreError> {
        let mut name = self.root.clone();
        let (folders, leaf) = match key.rsplit_once('/') {
            Some((folders, leaf)) => (Some(folders), leaf),
            None => (None, key),
        };
        for folder in folders.into_iter().flat_map(|f| f.split('/')) {
            push_folder(&mut name, folder);
        }
        push_part(&mut name, leaf);
        name.push_str(ENDING);
        if name.len() > LONGEST {
            return Err(StoreError::denied(format!(
                "key {key:?} is {} bytes long as the name of an object, and S3 takes {LONGEST}; use shorter names",
                name.len()
            )));
        }
        Ok(name)
    }

    /// What the objects of all keys with this prefix begin with. Others may, too.
    pub(super) fn prefix(&self, prefix: &str) -> String {
        let mut name = self.root.clone();
        let (folders, leaf) = match prefix.rsplit_once('/') {
            Some((folders, leaf)) => (Some(folders), leaf),
            None => (None, prefix),
        };
        for folder in folders.into_iter().flat_map(|f| f.split('/')) {
            push_folder(&mut name, folder);
        }
        // Where a part goes on, its beginning is written as it would be, up to what depends on the rest.
        let plain = leaf.split('.').next().unwrap_or_default();
        if !plain.is_empty() {
            push_part(&mut name, plain);
        }
        name
    }

    /// The key that an object holds; nothing if it is not one of ours.
    pub(super) fn key(&self, object: &str) -> Option<String> {
        let name = object.strip_prefix(&self.root)?.strip_suffix(ENDING)?;
        let parts: Option<Vec<String>> = name.split('/').map(part).collect();
        let key = parts?.join("/");
        // What could also be written in another way is somebody else's.
        let same = self.object(&key).is_ok_and(|own| own == object);
        same.then_some(key)
    }

    /// An object that is no key.
    pub(super) fn own(&self, name: &str) -> String {
        format!("{}{OURS}{name}{ENDING}", self.root)
    }
}

fn push_folder(name: &mut String, folder: &str) {
    // A folder must not look like an object.
    match folder.strip_suffix(ENDING) {
        Some(start) => {
            if !start.is_empty() {
                push_part(name, start);
            }
            name.push_str("~2ejson");
        }
        None => push_part(name, folder),
    }
    name.push('/');
}

fn push_part(name: &mut String, part: &str) {
    if part.is_empty() {
        name.push('~');
    }
    for (n, byte) in part.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'=' => name.push(byte.into()),
            // First in a part it has a meaning to file systems.
            b'.' if n > 0 => name.push('.'),
            _ => {
                let _ = write!(name, "~{byte:02x}");
            }
        }
    }
}

fn part(name: &str) -> Option<String> {
    if name == "~" {
        return Some(String::new());
    }
    undo_escapes(name, b'~').filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names() -> Names {
        Names::under("prod/")
    }

    #[test]
    fn names_are_readable_and_have_no_empty_parts() {
        for (key, object) in [
            ("shop/shards/orders/17", "prod/shop/shards/orders/17.json"),
            ("shop/nodes/eu=2f1.a", "prod/shop/nodes/eu=2f1.a.json"),
            ("", "prod/~.json"),
            ("k/", "prod/k/~.json"),
            ("k//", "prod/k/~/~.json"),
            ("/k", "prod/~/k.json"),
            ("a.json/b", "prod/a~2ejson/b.json"),
            ("../..", "prod/~2e./~2e..json"),
            ("kä%", "prod/k~c3~a4~25.json"),
        ] {
            assert_eq!(names().object(key).unwrap(), object, "{key:?}");
            assert_eq!(names().key(object).as_deref(), Some(key));
        }
    }

    #[test]
    fn objects_of_others_are_no_keys() {
        for object in [
            "elsewhere/k.json",
            "prod/k",
            "prod/.tenure/identity.json",
            "prod/k~4a.json",
            "prod/k~zz.json",
            "prod//k.json",
            "prod/kä.json",
        ] {
            assert_eq!(names().key(object), None, "{object}");
        }
    }

    #[test]
    fn a_key_that_is_too_long_is_refused() {
        let key = "ä".repeat(200);
        let e = names().object(&key).unwrap_err().to_string();
        assert!(e.contains("1024"), "{e}");
    }

    proptest! {
        #[test]
        fn every_key_is_found_again_under_each_of_its_prefixes(key in "[a-z./~%ä]{0,12}") {
            let object = names().object(&key).unwrap();
            prop_assert_eq!(names().key(&object), Some(key.clone()));
            for (at, _) in key.char_indices() {
                let prefix = names().prefix(&key[..at]);
                prop_assert!(object.starts_with(&prefix), "{} {}", object, prefix);
            }
            let whole = names().prefix(&key);
            prop_assert!(object.starts_with(&whole), "{} {}", object, whole);
        }
    }
}
